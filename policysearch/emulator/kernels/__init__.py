"""Ops in C, with the bits of numpy."""
