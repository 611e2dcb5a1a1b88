"""Times our training steps in this tree and in another one, say a worktree of an older commit.

    python -m benchmarks.before ../before --fast numpy --batches 64 256

The C of the other tree has to be built there for `--fast c`. Each tree has a process of its own on
one thread; they take turns of a few steps. The figures are CPU times of a step, the least of all
turns with `--least`, which a busy machine wants. `--nets` takes shipped studies too.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.nets import BATCHES, EVERYWHERE, STUDIES, TWINS
from benchmarks.timing import machine, parser, show, write_csv

FORMATS = ("float32", "bfloat16", "float16", "float8", EVERYWHERE)
COLUMNS = ("net", "batch", "format", "before_ms", "now_ms", "ratio")
SERVER = Path(__file__).with_name("step_server.py")


class Steps:
    """A process that takes the steps of one tree."""

    def __init__(self, tree: Path, net: str, batch: int, fast: str, formats: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(SERVER), net, str(batch), fast, *formats],
            env={**os.environ, "PYTHONPATH": str(tree.resolve())},
            cwd=tree,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def seconds(self, name: str, steps: int) -> float:
        """Return the CPU seconds of one step in the format, over `steps` of them."""
        assert self._process.stdin and self._process.stdout
        print(name, steps, file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def compared(
    before: Path,
    net: str,
    batch: int,
    fast: str,
    rounds: int,
    formats: Sequence[str] = FORMATS,
    quantile: float = 0.25,
) -> list[tuple[str, float, float]]:
    """Return (format, seconds in `before`, seconds here), that quantile of `rounds` turns."""
    trees = [Steps(tree, net, batch, fast, formats) for tree in (before, SERVER.parents[1])]
    found = []
    try:
        for name in formats:
            steps = max(1, round(0.03 / trees[1].seconds(name, 3)))
            turns = [[tree.seconds(name, steps) for tree in trees] for _ in range(rounds)]
            old, new = np.quantile(turns, quantile, axis=0)
            found.append((name, float(old), float(new)))
    finally:
        for tree in trees:
            tree.close()
    return found


def main() -> None:
    """Run the command."""
    options = parser(__doc__)
    options.add_argument("tree", type=Path, help="the other tree")
    options.add_argument("--fast", choices=("numpy", "c"), default="numpy")
    options.add_argument("--nets", nargs="+", choices=(*TWINS, *STUDIES), default=["mlp", "lenet5"])
    options.add_argument("--batches", nargs="+", type=int, default=list(BATCHES))
    options.add_argument("--formats", nargs="+", default=FORMATS, metavar="PRESET")
    options.add_argument("--least", action="store_true", help="the minimum of all turns")
    given = options.parse_args()
    lines = []
    for net in given.nets:
        for batch in given.batches:
            quantile = 0.0 if given.least else 0.25
            how = given.fast, given.rounds, given.formats, quantile
            found = compared(given.tree, net, batch, *how)
            rows = [[name, old * 1e3, new * 1e3, new / old] for name, old, new in found]
            title = f"{net}, batch {batch}, {given.fast}"
            show(title, ("format", "before, ms", "now, ms", "now / before"), rows)
            lines += [[net, batch, *row] for row in rows]
    print(f"\n{machine()}")
    write_csv(given.out / "before.csv", COLUMNS, lines)


if __name__ == "__main__":
    main()
