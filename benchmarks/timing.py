"""Timing side by side: interleaved turns in one process on one thread, and how results are kept.

The clock is the CPU time of the process, so that a busy machine disturbs less; caches and memory
bandwidth are still shared with whatever else runs, which is why the minimum counts.
"""

from __future__ import annotations

import argparse
import csv
import importlib.metadata
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from threadpoolctl import threadpool_limits

Call = Callable[[], object]
PACKAGES = ("numpy", "ml_dtypes", "torch", "qtorch", "pychop", "gfloat")


@dataclass(frozen=True)
class Timing:
    """CPU seconds of one call: the minimum and the median over turns of `calls` calls each."""

    minimum_seconds: float
    median_seconds: float
    turns: int
    calls: int


def interleaved(
    calls: Mapping[str, Call],
    *,
    rounds: int,
    turn_seconds: float = 0.02,
    budget_seconds: float = 6.0,
) -> dict[str, Timing]:
    """Time every call in turn, round after round.

    A turn repeats a call until about `turn_seconds` are over, so that a short one works from warm
    caches. A call that would take more than `budget_seconds` in all gets fewer turns, at least 2.
    """
    repeats, turns = {}, {}
    for name, call in calls.items():
        call()
        once = _seconds(call, 1)
        repeats[name] = max(1, round(turn_seconds / max(once, 1e-7)))
        turns[name] = min(rounds, max(2, int(budget_seconds / (once * repeats[name]))))
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds):
        for name, call in calls.items():
            if number < turns[name]:
                taken[name].append(_seconds(call, repeats[name]))
    return {
        name: Timing(min(t), statistics.median(t), len(t), repeats[name])
        for name, t in taken.items()
    }


def _seconds(call: Call, repeats: int) -> float:
    start = time.process_time()
    for _ in range(repeats):
        call()
    return (time.process_time() - start) / repeats


def pin_one_thread() -> None:
    """Limit BLAS and OpenMP, and torch where it is loaded, to one thread for good."""
    threadpool_limits(1)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


def machine() -> str:
    """Return one line that says on what a result was measured."""
    versions = []
    for name in PACKAGES:
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"{name} missing")
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return (
        f"{_processor()}, {os.cpu_count()} cores, 1 thread used; Python "
        f"{platform.python_version()}, {', '.join(versions)}; load {load}"
    )


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor() or platform.machine()
    fields: dict[str, str] = {}
    for line in info.read_text().split("\n\n")[0].splitlines():
        name, _, value = line.partition(":")
        fields[name.strip()] = value.strip()
    has = fields.get("flags", "").split()
    flags = ", ".join(flag for flag in ("avx2", "avx512f", "avx512_bf16") if flag in has)
    matrix = "AMX" if "amx_bf16" in has else "no AMX"
    return f"{fields.get('model name', platform.machine())} ({flags or 'no AVX2'}, {matrix})"


def parser(text: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options all benchmarks share."""
    made = argparse.ArgumentParser(description=text, allow_abbrev=False)
    made.add_argument("--out", type=Path, default=Path("benchmarks/results"), help="folder")
    made.add_argument("--rounds", type=int, default=15, help="turns of each candidate")
    return made


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print `rows` as a Markdown table with aligned columns."""
    cells = [list(columns), *([_text(value) for value in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    print(f"\n### {title}\n")
    for number, row in enumerate(cells):
        padded = (
            value.ljust(width) if i == 0 else value.rjust(width)
            for i, (value, width) in enumerate(zip(row, widths, strict=True))
        )
        print(f"| {' | '.join(padded)} |")
        if number == 0:
            rule = (
                "-" * width if i == 0 else "-" * (width - 1) + ":" for i, width in enumerate(widths)
            )
            print(f"| {' | '.join(rule)} |")
    sys.stdout.flush()


def _text(value: object) -> str:
    if not isinstance(value, float):
        return "" if value is None else str(value)
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def write_csv(path: Path, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Write `rows` as they are; the folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(rows)
    print(f"\nwritten: {path}")
