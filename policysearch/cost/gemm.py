"""How well a matrix product fills a device, and in which format it runs there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from policysearch.cost.devices import Device, peak_key
from policysearch.formats import format_named
from policysearch.graph import Node, size
from policysearch.rounding.inclusion import join

TILES = ((128, 128, 1.0), (128, 64, 0.9), (64, 64, 0.75), (32, 32, 0.5))
"""Rows, columns and relative efficiency of the tiles a library has to offer; assumed."""

SPLITS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Parts the contracted axis may be split into; assumed."""

PIPELINE_DEPTH = 64
"""Depth lost to filling a tile's pipeline: the 64 in K / (K + 64)."""


@dataclass(frozen=True)
class Extents:
    """A product as `batch` products of [rows, depth] and [depth, columns].

    `packed` is the extent that lies contiguous in the operands and has to be padded to the
    device's alignment; padding of rows and columns is in the tiles.
    """

    batch: int
    rows: int
    columns: int
    depth: float
    packed: int


def is_convolution(node: Node) -> bool:
    return node.op.name.startswith("conv")


def extents(node: Node, inputs: Sequence[Node], flops: int) -> Extents:
    """Return the extents of a product node; a convolution is taken as an implicit product.

    The depth follows from the FLOPs: 2 * elements of the result * depth.
    """
    depth = flops / (2 * size(node.shape))
    if not is_convolution(node):
        rows, columns = node.shape[-2], node.shape[-1]
        return Extents(size(node.shape[:-2]), rows, columns, depth, max(1, round(depth)))
    columns = node.shape[0 if node.role == "wgrad" else 1]
    channels = inputs[1 if node.role == "wgrad" else 0].shape[1]
    return Extents(1, size(node.shape) // columns, columns, depth, channels)


@lru_cache(maxsize=4096)
def utilisation(e: Extents, multiprocessors: int, alignment: int) -> float:
    """Return the share of the achievable rate: tile x wave x alignment x K / (K + 64).

    The library is taken to choose the best tile and the best split of the contracted axis.
    """
    padded = -(-e.packed // alignment) * alignment
    return (
        e.packed
        / padded
        * max(
            efficiency
            * _tile_fill(e, rows, columns)
            * _wave_fill(e, rows, columns, split, multiprocessors)
            * (e.depth / split / (e.depth / split + PIPELINE_DEPTH))
            for rows, columns, efficiency in TILES
            for split in SPLITS
        )
    )


def _tiles(e: Extents, rows: int, columns: int) -> int:
    return -(-e.rows // rows) * -(-e.columns // columns)


def _tile_fill(e: Extents, rows: int, columns: int) -> float:
    return e.rows * e.columns / (_tiles(e, rows, columns) * rows * columns)


def _wave_fill(e: Extents, rows: int, columns: int, split: int, multiprocessors: int) -> float:
    blocks = e.batch * _tiles(e, rows, columns) * split
    return blocks / (-(-blocks // multiprocessors) * multiprocessors)


def product_format(operands: Sequence[Node], device: Device) -> str:
    """Return the format a product of these operands runs in on the device.

    Operands of one peak (both 8-bit formats) multiply directly; others meet in the narrowest
    format that holds both, as frameworks promote. What the device lacks is emulated.
    """
    names = {node.format for node in operands}
    keys = {peak_key(name) for name in names}
    if len(keys) == 1:
        return device.runs_as(sorted(names)[0])
    return device.runs_as(join(format_named(name) for name in names).name)


def product_rates(format: str, device: Device) -> tuple[tuple[float, int], ...]:
    """Return (achievable FLOP/s, alignment) of each way to run a product of a format.

    Beside the matrix unit there is always float32 arithmetic without alignment, which libraries
    fall back to where padding would cost more.
    """
    own = (device.peak(format) * device.efficiency(format), device.align(format))
    plain = (device.peak("float32") * device.efficiency("float32"), 1)
    return (own, plain) if own != plain else (own,)
