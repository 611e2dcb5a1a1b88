"""Times rounding in nanoseconds per element: ours in numpy and C, plain copy, and the peers.

    python -m benchmarks.rounding --peers

float32 in, float32 container out, standard-normal values, scaled down for the formats
that would overflow: a block with an overflow takes a slower path in our numpy code.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from benchmarks.peers import MODULES, NUMPY_PEERS, missing
from benchmarks.peers import rounding as peer_rounding
from benchmarks.timing import (
    Call,
    interleaved,
    machine,
    parser,
    pin_one_thread,
    show,
    write_csv,
)
from policysearch.formats import FORMATS, Format, Rounding
from policysearch.graph import FloatArray
from policysearch.rounding.rounder import Fast, fast_ways, rounder

SIZES = (10_000, 1_000_000, 10_000_000)
MODES = ("nearest_even", "stochastic")
COLUMNS = ("format", "mode", "elements", "code", "minimum_ns", "median_ns", "turns", "calls")


def ours(fmt: Format, mode: str, x: FloatArray, out: FloatArray) -> dict[str, Call]:
    """Return our rounders as the emulator calls them."""
    calls: dict[str, Call] = {}
    names: dict[Fast, str] = {"numpy": "numpy", "c": "C"}
    for fast, code in names.items():
        if fast not in fast_ways():
            continue
        if mode == "stochastic":
            made = rounder(fmt, Rounding("stochastic"), seed=1, fast=fast)
            calls[code] = partial(made.bind_drawn(x, out), 1)
        else:
            calls[code] = rounder(fmt, Rounding(), fast=fast).bind(x, out)
    return calls


def others(fmt: Format, mode: str, x: FloatArray, peers: list[str]) -> dict[str, Call]:
    """Return the peers that have this format and mode; they get a matrix, which suits them best."""
    calls: dict[str, Call] = {}
    for peer in peers:
        found = peer_rounding(peer, fmt, mode)
        if found is None:
            continue
        given: Any = x.reshape(100, -1)
        if peer not in NUMPY_PEERS:
            import torch

            given = torch.from_numpy(given)
        calls[{"torch": "torch .to()", "ml_dtypes": "astype"}.get(peer, peer)] = partial(
            found, given
        )
    return calls


def main() -> None:
    """Run the command."""
    options = parser(__doc__)
    options.add_argument("--peers", action="store_true", help="also torch, qtorch, pychop, gfloat")
    options.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS)[1:])
    options.add_argument("--sizes", nargs="+", type=int, default=list(SIZES))
    options.add_argument("--budget", type=float, default=1.0, help="seconds per candidate")
    given = options.parse_args()
    peers = [peer for peer in MODULES if given.peers and not missing(peer)]
    for peer in MODULES if given.peers else ():
        if missing(peer):
            print(f"left out: {peer} (not installed: {missing(peer)})")
    lines = []
    columns = ["format, mode", "copy", "numpy", "C", "numpy / copy", "C / copy"]
    shown = ["torch .to()", "qtorch", "pychop", "pychop torch", "gfloat", "astype"]
    for elements in given.sizes:
        x = np.random.default_rng(0).standard_normal(elements, np.float32)
        out, rows = np.empty_like(x), []
        for name in given.formats:
            fmt = FORMATS[name]
            scaled = x * np.float32(min(1.0, fmt.max / 8))
            for mode in MODES:
                calls: dict[str, Call] = {"copy": partial(np.copyto, out, scaled)}
                calls |= ours(fmt, mode, scaled, out) | others(fmt, mode, scaled, peers)
                pin_one_thread()
                with np.errstate(all="ignore"):
                    found = interleaved(
                        calls, rounds=given.rounds, turn_seconds=0.01, budget_seconds=given.budget
                    )
                ns = {code: t.minimum_seconds / elements * 1e9 for code, t in found.items()}
                times = [ns.get(code) for code in ("copy", "numpy", "C")]
                ratios = [ns[code] / ns["copy"] if code in ns else None for code in ("numpy", "C")]
                rows.append([f"{name}, {mode}", *times, *ratios, *(ns.get(s) for s in shown)])
                for code, t in found.items():
                    median = t.median_seconds / elements * 1e9
                    lines.append([name, mode, elements, code, ns[code], median, t.turns, t.calls])
        show(f"Rounding {elements:.0e} elements, ns per element", [*columns, *shown], rows)
    print(f"\n{machine()}")
    write_csv(given.out / "rounding.csv", COLUMNS, lines)


if __name__ == "__main__":
    main()
