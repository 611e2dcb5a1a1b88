"""The journal of a study: its lines, the records on them, and what made them."""
