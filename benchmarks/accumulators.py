"""Times matrix products under every accumulator against float32 BLAS.

    python -m benchmarks.accumulators

The operands hold values of the format that the products are emulated for. Chains in numpy alone
are slow and are left out unless --numpy is given.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from benchmarks.timing import Call, interleaved, machine, parser, pin_one_thread, show, write_csv
from policysearch.accumulators import (
    ACCUMULATORS,
    accumulator_named,
)
from policysearch.formats import format_named
from policysearch.products.product import compiled_available, product
from policysearch.rounding.rounder import Fast, quantise
from policysearch.values import InputError

SHAPES = ((512, 784, 64), (512, 64, 784), (16, 150, 6400))
CHUNKED = (
    *("chunked:128:float32", "chunked:32:float32", "chunked:16:float32"),
    *("chunked:32:e8m13:toward_zero", "chunked:32:float16", "chunked:16:float16"),
)
TITLES: dict[Fast, str] = {"c": "C", "numpy": "numpy", "off": "reference"}
COLUMNS = ("m", "k", "n", "operands", "accumulator", "code", "minimum_ms", "median_ms", "turns")


def candidates(shape: tuple[int, int, int], operands: str, codes: list[Fast]) -> dict[str, Call]:
    """Return the products of [m, k] and [k, n] by "accumulator, code"."""
    fmt = format_named(operands)
    rng = np.random.default_rng(0)
    m, k, n = shape
    left, right = (quantise(rng.standard_normal(s, np.float32), fmt) for s in ((m, k), (k, n)))
    calls: dict[str, Call] = {}
    for name in (*ACCUMULATORS, *CHUNKED):
        row = accumulator_named(name)
        for fast in codes if row.kind == "tensor_core" else codes[:1]:
            try:
                made = product(row, fmt, fast=fast if row.kind == "tensor_core" else None)
            except InputError:
                continue  # this tensor core does not take the format
            code = "" if row.kind != "tensor_core" else f", {TITLES[fast]}"
            calls[f"{name}{code}"] = partial(made, left, right, out=np.empty((m, n), np.float32))
    return calls


def main() -> None:
    """Run the command."""
    options = parser(__doc__)
    options.add_argument("--numpy", action="store_true", help="also tensor cores without C")
    options.add_argument("--operands", nargs="+", default=["float16", "float8_e4m3fn"])
    given = options.parse_args()
    pin_one_thread()
    codes: list[Fast] = ["c"] if compiled_available() else []
    codes += ["numpy"] if given.numpy or not codes else []
    lines = []
    for operands in given.operands:
        table: dict[str, list[float]] = {}
        for shape in SHAPES:
            found = interleaved(
                candidates(shape, operands, codes),
                rounds=given.rounds,
                budget_seconds=2.0,
            )
            base = found["float32"].minimum_seconds
            for name, t in found.items():
                table.setdefault(name, []).extend(
                    (t.minimum_seconds * 1e3, t.minimum_seconds / base)
                )
                accumulator, _, code = name.partition(", ")
                ms = t.minimum_seconds * 1e3, t.median_seconds * 1e3
                lines.append([*shape, operands, accumulator, code, *ms, t.turns])
        columns = ["accumulator"]
        for shape in SHAPES:
            columns += [f"{'x'.join(map(str, shape))} ms", "/ BLAS"]
        show(f"Products of {operands} operands", columns, [[k, *v] for k, v in table.items()])
    print(f"\n{machine()}")
    write_csv(given.out / "accumulators.csv", COLUMNS, lines)


if __name__ == "__main__":
    main()
