"""Which kernel computes an op. Every module beside this one that has some is found on first use."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from functools import cache

import policysearch.emulator.kernels
from policysearch.emulator.kernels.kernel import Kernel, Offer, forward_kernel
from policysearch.emulator.kernels.pointwise import pointwise_kernel
from policysearch.graph import Attrs, Op, Shape

TABLES = ("C_KERNELS", "NUMPY_KERNELS")
"""What a module of this folder may hold, by the name of the op: the faster table first."""


@cache
def offers() -> Mapping[str, Mapping[str, Offer]]:
    """Return all that the modules of this folder offer, by table and by the name of the op."""
    tables: dict[str, dict[str, Offer]] = {table: {} for table in TABLES}
    for info in pkgutil.iter_modules(policysearch.emulator.kernels.__path__):
        if not info.name.startswith("_"):
            module = importlib.import_module(
                f"{policysearch.emulator.kernels.__name__}.{info.name}"
            )
            for table, rows in tables.items():
                rows.update(vars(module).get(table, {}))
    return tables


def offered(table: str, op: Op, inputs: Sequence[Shape], out: Shape, attrs: Attrs) -> Kernel | None:
    """Return the kernel of a table with the bits of `op` for these shapes; None without one."""
    offer = offers()[table].get(op.name)
    return offer(inputs, out, attrs) if offer else None


def kernel_of(op: Op, inputs: Sequence[Shape], out: Shape, attrs: Attrs, *, in_c: bool) -> Kernel:
    """Return the fastest way that gives the bits of `op` for these shapes, C only if `in_c`."""
    for table in TABLES if in_c else TABLES[1:]:
        kernel = offered(table, op, inputs, out, attrs)
        if kernel is not None:
            return kernel
    return pointwise_kernel(op, inputs, out, attrs) or forward_kernel(op)
