"""`python -m benchmarks.census`: which everyday nets go in, and how near they are to torch.

None of the nets is in the tests; those called "op ...", "loss ..." and "layer ..." (`pieces.py`)
hold a single one. For each: one line of why it does not go in, or how far the first loss and the
gradients are from torch in float64 and how far torch's own float32 is, and the same under bfloat16
autocast beside the exported file. Torch's own error is the largest of several runs that are as
right: parameters moved by a jitter; in float32 also inputs moved by one unit of the last place,
the batch in another order, and kernels other than oneDNN's. What in bfloat16 is only within what
another order of sums, or another choice among equal values, does to torch itself (`MovedSums`) is
called so, and what in float32 is off by elements of rectifiers that lie on the other side of 0
(`edges.py`). Values that are not finite are no error where torch has the same. 16-bit ops are those
of a GPU, and LSTMs as torch writes them out (`verify/gpu_rounding.py`). timm and transformers are
in `.[zoo]`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import pkgutil
import re
import signal
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from benchmarks import census
from benchmarks.census.measure import LEAST, SINGLE, Distance, Verdict, verdict
from benchmarks.census.net import Net
from benchmarks.timing import machine, show, write_csv

COLUMNS = ("net", "result", "loss", "torch's", "gradients", "torch's", "bfloat16", "torch's")
SECONDS = 120
HALF = 2.0
"""So many times torch's own error is allowed in bfloat16."""


def main() -> None:
    """Measure the nets and print the table, the shares and what is missing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.census", description=__doc__)
    parser.add_argument("--only", default="", help="nets whose name holds this")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows, refusals, results = [], Counter[str](), Counter[str]()
    for name, net in nets().items():
        if options.only in name:
            row = _row(name, net, refusals)
            rows.append(row)
            results[row[1].partition(":")[0]] += 1
            print(*row, sep=" | ", flush=True)
    print(machine())
    show("Nets that no test has", COLUMNS, rows)
    write_csv(Path("benchmarks/results/census.csv"), COLUMNS, rows)
    print(f"{len(rows)} nets: " + ", ".join(f"{n} {what}" for what, n in results.most_common()))
    print("refused: " + ", ".join(f"{op} {count}" for op, count in refusals.most_common()))


def nets() -> Mapping[str, Net]:
    """Return the nets of every file of this folder, by name."""
    found: dict[str, Net] = {}
    for info in pkgutil.iter_modules(census.__path__):
        if not info.name.startswith("_"):
            module = importlib.import_module(f"benchmarks.census.{info.name}")
            found |= getattr(module, "NETS", {})
    return found


def _row(name: str, net: Net, refusals: Counter[str]) -> tuple[str, ...]:
    try:
        with _limit(SECONDS):
            of_net = verdict(net)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return (name, f"failed: {type(error).__name__} {error} ({last.name})"[:200], *[""] * 6)
    refusals.update(set(re.findall(r"aten\.(\w+)", of_net.refusal)))
    return (name, _result(of_net), *_numbers(of_net.single), *_numbers(of_net.half)[2:])


def _result(of_net: Verdict) -> str:
    if of_net.refusal:
        return f"refused: {of_net.refusal}"
    if of_net.draws:
        return "in, draws: not compared"
    assert of_net.single is not None
    if not of_net.single.within(SINGLE, LEAST):
        edged = of_net.edged is not None and of_net.edged.within(SINGLE, LEAST)
        return "in, a rectifier at its edge" if edged else "wrong"
    if of_net.half is None:
        return "in, no bfloat16 in torch"
    if of_net.half.within(HALF, LEAST):
        return "in"
    assert of_net.summed is not None
    sums = of_net.summed.within(HALF, LEAST)
    return "in, bfloat16 as sums in other orders" if sums else "in, bfloat16 apart"


def _numbers(distance: Distance | None) -> tuple[str, ...]:
    if distance is None:
        return ("",) * 4
    numbers = (distance.loss, distance.own_loss, distance.grads, distance.own_grads)
    return tuple(f"{number:.1e}" for number in numbers)


@contextlib.contextmanager
def _limit(seconds: int) -> Iterator[None]:
    """While it is entered, raise TimeoutError after so many seconds of this process."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"more than {seconds} s")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


if __name__ == "__main__":
    main()
