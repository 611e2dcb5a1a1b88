"""Networks as layer lists of a few lines, one file per family; `catalogue` holds them by name."""
