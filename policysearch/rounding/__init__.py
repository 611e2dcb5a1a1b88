"""The only quantiser: float32 values rounded onto a format."""
