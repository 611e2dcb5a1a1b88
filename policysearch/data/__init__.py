"""Data sets: images with labels, split and normalised the same way every time."""
