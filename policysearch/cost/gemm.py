"""How well a matrix product fills a device, and in which format it runs there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from policysearch.cost.devices import Device
from policysearch.formats import format_named
from policysearch.graph import Graph, Node, Op, Shape, size

TILES = ((128, 128, 1.0), (128, 64, 0.9), (64, 64, 0.75), (32, 32, 0.5))
"""Rows, columns and relative efficiency of the tiles a library has to offer; assumed."""

SPLITS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Parts the contracted axis may be split into; assumed."""

SHALLOWEST = 32
"""Least depth that a split leaves to each part; assumed."""

PIPELINE_DEPTH = 64
"""Depth lost to filling a tile's pipeline: the 64 in K / (K + 64)."""

FEWEST_WINOGRAD_CHANNELS = 16
"""Channels from which float32 libraries are taken to choose Winograd's algorithm; assumed."""

SHORTEST_TRANSFORMED = 5
"""Window from which float32 libraries are taken to convolve by Fourier transforms; assumed."""

UNALIGNED_SHARE = 0.5
"""What is left of the matrix unit's rate at worst where extents miss the alignment; assumed.

Libraries have kernels that load single elements, so padding is never charged in full.
"""

OLDEST_UNALIGNED_LIBRARY = 11
"""First CUDA generation whose cuBLAS takes the matrix unit for extents of any alignment."""

OLDEST_MATRIX_CONVOLUTIONS = 10
"""First CUDA generation whose cuDNN is taken to run whole trainings on the matrix unit."""

NARROW_RATES: Mapping[str, float] = MappingProxyType(
    {"current": 0.9948, "mx": 0.8851, "nvfp4": 0.8093}
)
"""By recipe, what scaling leaves of the rate that large products of the format achieve.

Fitted to published rows of 8-bit and smaller training (`python -m benchmarks.validation --fit`).
"""


@dataclass(frozen=True)
class Extents:
    """A product as `batch` products of [rows, depth] and [depth, columns].

    `packed` lists the extents that lie contiguous in memory and have to meet the device's
    alignment: those of a product, the channels of a convolution. `winograd`: a 3 x 3 convolution
    of stride 1, which float32 libraries do with fewer multiplications. `depthwise`: a convolution
    without a sum over channels, which no matrix unit runs. `dilated`: the gradient of one with gaps
    in its window, which old libraries run on plain units.
    """

    batch: int
    rows: int
    columns: int
    depth: float
    packed: tuple[int, ...]
    convolution: bool = False
    winograd: bool = False
    depthwise: bool = False
    dilated: bool = False


def flops_of(graph: Graph, node: Node) -> int:
    """Return the floating-point operations of a node."""
    nodes = graph.nodes
    return _flops(node.op, tuple([nodes[i].shape for i in node.inputs]), node.shape, node.attrs)


@lru_cache(maxsize=4096)
def _flops(
    op: Op, inputs: tuple[Shape, ...], shape: Shape, attrs: tuple[tuple[str, Any], ...]
) -> int:
    return op.flops(inputs, shape, dict(attrs))


def is_convolution(node: Node) -> bool:
    return node.op.name.startswith("conv")


def extents(node: Node, inputs: Sequence[Node], flops: int) -> Extents:
    """Return the extents of a product node; a convolution is taken as an implicit product.

    The depth follows from the FLOPs: 2 * elements of the result * depth. The implicit product of a
    convolution (Chetlur et al., cuDNN, arXiv 1410.0759) has a row for each pixel of the result, a
    column for each of its channels, and contracts the window and the channels read.
    """
    depth = flops / (2 * size(node.shape))
    if not is_convolution(node):
        rows, columns = node.shape[-2], node.shape[-1]
        # of the operands and the result, each by rows: what lies contiguous in memory
        first = rows if node.attributes.get("transpose_a") else max(1, round(depth))
        second = max(1, round(depth)) if node.attributes.get("transpose_b") else columns
        return Extents(size(node.shape[:-2]), rows, columns, depth, (first, second, columns))
    # the gradient of a weight [out, in, i, j] contracts the pixels: its columns are the first axis
    columns = node.shape[0 if node.role == "wgrad" else 1]
    channels = inputs[1 if node.role == "wgrad" else 0].shape[1]
    weight = node.shape if node.role == "wgrad" else inputs[1].shape
    return Extents(
        1,
        size(node.shape) // columns,
        columns,
        depth,
        (channels,),
        convolution=True,
        winograd=is_fast(weight[0], weight[1], weight[2:], node.attributes.get("stride", 1)),
        depthwise=weight[1] == 1 and node.attributes.get("groups", 1) > 1,
    )


def is_fast(c_out: int, c_in: int, window: tuple[int, ...], stride: object) -> bool:
    """Whether a convolution has a fast algorithm of few multiplications in float32.

    `c_in` is that of one group. Libraries have Winograd's for windows of 3 x 3 (Lavin and Gray,
    2015: F(2x2, 3x3) multiplies 16 times for 4 pixels where the sum multiplies 36 times) and
    Fourier transforms for longer ones (Mathieu et al., 2013), for no stride and at most two axes.
    The gain that is left after their transforms is fitted (`Constants.winograd_gain`).
    """
    short = tuple(window) == (3, 3)
    long = len(window) <= 2 and max(window, default=1) >= SHORTEST_TRANSFORMED
    unmoved = stride == 1 or (isinstance(stride, tuple) and set(stride) == {1})
    return (short or long) and unmoved and min(c_out, c_in) >= FEWEST_WINOGRAD_CHANNELS


@lru_cache(maxsize=65536)
def utilisation(e: Extents, multiprocessors: int) -> float:
    """Return the share of the achievable rate: tile x wave x K / (K + 64).

    The library is taken to choose the best tile and the best split of the contracted axis. Source
    of tile and wave quantisation: NVIDIA, "Matrix Multiplication Background User's Guide". Large
    tiles read each operand less often, so they are the efficient ones where they fill; splitting K
    makes more blocks for a last wave that few tiles leave empty, at the price of shallower ones.
    """
    return max(
        efficiency
        * _tile_fill(e, rows, columns)
        * _wave_fill(e, rows, columns, split, multiprocessors)
        * (e.depth / split / (e.depth / split + PIPELINE_DEPTH))
        for rows, columns, efficiency in TILES
        for split in SPLITS
        if split == 1 or e.depth / split >= SHALLOWEST
    )


def _tiles(e: Extents, rows: int, columns: int) -> int:
    return -(-e.rows // rows) * -(-e.columns // columns)


def _tile_fill(e: Extents, rows: int, columns: int) -> float:
    """Return the share of the tiles' elements that the result has; the others are waste."""
    return e.rows * e.columns / (_tiles(e, rows, columns) * rows * columns)


def _wave_fill(e: Extents, rows: int, columns: int, split: int, multiprocessors: int) -> float:
    """Return the share of multiprocessors that work, one block each, over all waves of blocks."""
    blocks = e.batch * _tiles(e, rows, columns) * split
    return blocks / (-(-blocks // multiprocessors) * multiprocessors)


def aligned_share(e: Extents, alignment: int, library: int) -> float:
    """Return what the alignment of its extents leaves of the matrix unit's rate, 0 for nothing.

    `library` is the CUDA generation of cuBLAS and cuDNN.
    """
    if e.depthwise or (e.convolution and library < OLDEST_MATRIX_CONVOLUTIONS):
        return 0.0
    if e.dilated and library < OLDEST_UNALIGNED_LIBRARY:
        return 0.0
    # as if the worst extent were padded up to the alignment
    share = min(extent / (-(-extent // alignment) * alignment) for extent in e.packed)
    if share == 1.0:
        return 1.0
    if not e.convolution and library < OLDEST_UNALIGNED_LIBRARY:
        return 0.0
    return max(share, UNALIGNED_SHARE)


@dataclass(frozen=True)
class Product:
    """A product of a graph as a device runs it, in `format`; scales of blocks are no operands.

    `widened` are the operands that a pass of their own brings to the width of that format, `rate`
    is what `product_rate` leaves.
    """

    operands: Sequence[Node]
    extents: Extents
    flops: int
    format: str
    widened: Sequence[Node]
    rate: float

    def over(self, times: int) -> Product:
        """Return the product that contracts the operands of so many alike at once."""
        deeper = replace(self.extents, depth=times * self.extents.depth)
        return replace(self, extents=deeper, flops=times * self.flops)


def product_of(graph: Graph, node: Node, device: Device) -> Product:
    """Return a product node as the device runs it."""
    operands = graph.inputs_of(node)[:2]
    flops = flops_of(graph, node)
    format = device.product_format(frozenset([operand.format for operand in operands]))
    bits = format_named(format).bits
    widened = [operand for operand in operands if format_named(operand.format).bits != bits]
    rate = product_rate(format, blocks=len(node.inputs) > 2)
    return Product(operands, extents(node, operands, flops), flops, format, widened, rate)


def product_rate(format: str, blocks: bool) -> float:
    """Return the rate of products in a format, with scales of `blocks` or of whole tensors."""
    bits = format_named(format).bits
    if bits >= 16:
        return 1.0
    return NARROW_RATES["nvfp4" if bits <= 4 else "mx" if blocks else "current"]
