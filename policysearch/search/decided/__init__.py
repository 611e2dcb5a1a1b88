"""What a study can decide: a file for each kind of decision; `space_section` finds it here."""
