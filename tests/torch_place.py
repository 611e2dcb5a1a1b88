"""Where the tests of the torch executor run: on a CPU, or where TORCH_PLACE says (`make cuda`)."""

from __future__ import annotations

import os

PLACE = os.environ.get("TORCH_PLACE", "cpu")
FAST = "torch" if PLACE == "cpu" else f"torch:{PLACE}"
