"""Policies in the real framework, beside the emulator and the prices."""
