"""Exported torch files in training: do they agree with the emulator, scale the loss, compile.

    python -m benchmarks.exported [--out FILE.json] [--cases 17] [--workers 1] [--place cpu]

Prints JSON: what runs it; per case how far the losses of the place, of a CPU and of the emulator
are apart, the faults `verify` finds, and layers whose dtypes differ between place and CPU; what
holds of the loss scale; how far torch.compile moves gradients and losses. `--place cuda` has not
been run yet.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.exported.agreement import agreement
from benchmarks.exported.cases import CASES
from benchmarks.exported.compiled import compiled
from benchmarks.exported.nets import SMALL
from benchmarks.exported.scaler import scaler_checks

PACKAGES = ("torch", "numpy", "triton", "torchao", "policysearch")
Part = Callable[[], Any]


def main() -> int:
    """Run the parts one after the other, and print what came of them."""
    options = _options()
    found: dict[str, Any] = {"machine": _machine(options.place), "parts": {}}
    for name, part in _parts(options):
        start = time.perf_counter()
        result = part()
        taken = round(time.perf_counter() - start, 1)
        found["parts"][name] = {"seconds": taken, "found": result}
        print(f"{name}: {taken} s", file=sys.stderr, flush=True)
        if options.out:
            options.out.write_text(json.dumps(found, indent=1))
    print(json.dumps(found, indent=1))
    return 0


def _parts(options: argparse.Namespace) -> Iterator[tuple[str, Part]]:
    place = options.place
    yield "agreement", partial(_agreement, place, options.cases, options.workers)
    yield "scaler", partial(scaler_checks, place)
    for number, net in enumerate(SMALL):
        yield f"compiled {net}", partial(compiled, net, number, place)


def _agreement(place: str, count: int, workers: int) -> list[dict[str, Any]]:
    """Return a row per case; cases run in processes of their own, some at a time."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        run = partial(agreement, place=place, steps=50)
        return list(pool.map(run, CASES[:count]))


def _machine(place: str) -> dict[str, Any]:
    have = [name for name in PACKAGES if importlib.util.find_spec(name) is not None]
    versions = {}
    for name in have:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "from the tree"
    compiled_files = list(Path(__file__).parents[2].glob("policysearch/**/*.so"))
    return {
        "device": torch.cuda.get_device_name() if place == "cuda" else place,
        "cores": os.cpu_count(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "python": sys.version.split()[0],
        "compiled_files": len(compiled_files),
        **versions,
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--place", default="cpu")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--cases", type=int, default=len(CASES))
    parser.add_argument("--workers", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
