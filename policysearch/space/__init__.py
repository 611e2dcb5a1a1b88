"""The space of a study: its decisions, groups of layers, rules, and what is equivalent in it."""
