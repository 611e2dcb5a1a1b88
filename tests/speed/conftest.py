"""Tests of what only makes a step faster: left out where the package lacks those files."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("policysearch.emulator.executable") else ["test_*.py"]
