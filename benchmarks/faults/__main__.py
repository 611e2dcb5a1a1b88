"""Damaged and hostile files, killed processes and full disks, by parts.

    python -m benchmarks.faults --part PART [--count N] [--seed N]

prints how the cases ended, and exits with 1 where one ended as it must not: in a traceback, in more
than one line, with text on the terminal or in a file that a terminal acts on, with files behind a
refusal, with another result than undisturbed, or with an identity that was lost. The table is in
docs/storage.md.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from benchmarks.faults.clusters import clusters
from benchmarks.faults.code import own_code
from benchmarks.faults.common import SOUND
from benchmarks.faults.disk import disks
from benchmarks.faults.files import fuzzed
from benchmarks.faults.kills import kills, runs_killed
from benchmarks.faults.load import loads
from benchmarks.faults.records import cuts, flips, tracebacks
from benchmarks.faults.studies import studies
from benchmarks.faults.text import fields
from policysearch.commands.trust import VARIABLE

Part = Callable[[Path, int, int], Counter[str]]

PARTS: dict[str, tuple[Part, int]] = {
    "records": (tracebacks, 5000),
    "flips": (flips, 1000),
    "cuts": (cuts, 200),
    "studies": (studies, 2000),
    "files": (fuzzed, 20000),
    "text": (fields, 1000),
    "code": (own_code, 27),
    "disk": (disks, 150),
    "load": (loads, 2000),
    "runs": (runs_killed, 200),
    "kills": (kills, 100),
    "clusters": (clusters, 11),
}
"""What each part runs, and how many cases where no number is given."""


def main() -> None:
    """Run a part, print how its cases ended, and exit with 1 where one did not end well."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--part", choices=tuple(PARTS), required=True)
    options.add_argument("--count", type=int)
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    part, usual = PARTS[given.part]
    os.environ[VARIABLE] = "1"
    with tempfile.TemporaryDirectory() as folder:
        ends = part(Path(folder), given.count or usual, given.seed)
    for end, count in sorted(ends.items()):
        print(f"{end:46} {count}")
    raise SystemExit(any(end.rpartition(": ")[2] not in SOUND for end in ends))


if __name__ == "__main__":
    main()
