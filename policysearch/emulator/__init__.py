"""The emulator: runs the graph of a training step."""
