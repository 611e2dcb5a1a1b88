"""Layers and models that trace into a training-step graph."""
