"""What a policy is worth: its loss gap to float32, measured, and its speed and memory, modeled."""
