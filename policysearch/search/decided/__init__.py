"""What a study can decide: a file for each kind of decision, listed in `space_section.DECIDED`."""
