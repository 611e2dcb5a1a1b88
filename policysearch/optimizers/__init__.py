"""Optimizers, one row each: states, the nodes of the update, torch's class, and what it moves."""
