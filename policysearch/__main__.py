"""Lets `python -m policysearch` be the command line."""

from __future__ import annotations

import sys

from policysearch.cli import main

if __name__ == "__main__":
    sys.exit(main())
