"""Policies: the value, presets, scaling recipes, the JSON Schema and the policy file."""
