"""Policies in the real framework: kernels and training steps of torch, timed on this machine."""
