"""Lets `python -m policysearch` be the command line."""

from __future__ import annotations

import sys


def run() -> int:
    """Run the command line and return its exit code; Ctrl-C is one line from the first moment."""
    try:
        from policysearch.cli import main
    except KeyboardInterrupt:
        print("policysearch: interrupted", file=sys.stderr)
        return 130
    return main()


if __name__ == "__main__":
    sys.exit(run())
