"""Kinds of decisions, a file each: what of a policy a study can search."""
