"""What every product of a step reads, as its graph has it: a row per operand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields, replace

from policysearch.graph import Graph, Node
from policysearch.report.text import aligned

COPIES = ("cast", "scaled_cast", "block_cast")
"""Ops that round a tensor into an operand; what they read is the tensor, or a copy of it."""

SCALES = {
    "tensor_scale": "float32",
    "inverse_scale": "float32",
    "delayed_scale": "float32, delayed",
    "mx_scale": "E8M0, rounded down",
    "mx_rceil_scale": "E8M0, rounded up",
    "nvfp4_scale": "float8_e4m3fn and a float32 one",
    "four_over_six": "float8_e4m3fn, to 4 or 6, and a float32 one",
}
"""What a scale is, by the op that makes it."""

MOST_NAMED = 3
"""Layers with the same products are named up to so many."""


@dataclass(frozen=True)
class OperandRow:
    """One operand of one product, in words.

    `tensor`: input, weight or gradient; `source`: the tensor in a format, or the forward copy,
    dequantised. `block`: the values that share a scale, `scale`: the scale's own type. `transform`
    is what the tensor goes through before, `accumulator` the product's.
    """

    layers: str
    product: str
    tensor: str
    source: str
    format: str
    block: str = "-"
    scale: str = "-"
    rounding: str = "nearest_even"
    transform: str = "-"
    accumulator: str = "float32"


def operands_of(graph: Graph) -> list[OperandRow]:
    """Return two rows per product of `graph`, a policy applied to it, in the order of its nodes."""
    products = [n for n in graph.nodes if n.op.kind == "gemm" and n.role != "update"]
    return [_row(graph, node, place) for node in products for place in (0, 1)]


def operand_table(graph: Graph) -> list[str]:
    """Return the lines of the table; layers whose products read the same share their rows."""
    by_layer: dict[str, list[OperandRow]] = {}
    for row in operands_of(graph):
        by_layer.setdefault(row.layers, []).append(replace(row, layers=""))
    alike: dict[tuple[OperandRow, ...], list[str]] = {}
    for layer, rows in by_layer.items():
        alike.setdefault(tuple(dict.fromkeys(rows)), []).append(layer)
    head = tuple(field.name for field in fields(OperandRow))
    table = [
        astuple(replace(row, layers=_layer_names(n))) for rows, n in alike.items() for row in rows
    ]
    return aligned([head, *table]) if table else []


def _layer_names(layers: list[str]) -> str:
    more = len(layers) - MOST_NAMED
    return ", ".join(layers[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _row(graph: Graph, product: Node, place: int) -> OperandRow:
    operand = graph.nodes[product.inputs[place]]
    chain = [*_chain(graph, operand)]
    copy = next((node for node in chain if node.op.name in COPIES), None)
    tensor, names = chain[-1], [node.op.name for node in chain]
    copied = "dequantise" in names
    held = chain[names.index("dequantise")] if copied else tensor
    scale, block = _scale(graph, copy) if copy is not None and copy is chain[0] else ("-", "-")
    return OperandRow(
        layers=product.layer or "-",
        product=product.role,
        tensor=_tensor(tensor),
        source=f"forward copy, {held.format}" if copied else f"tensor, {held.format}",
        format=operand.format,
        block=block,
        scale=scale,
        rounding=copy.rounding.mode if copy is not None else "-",
        transform=_transform(chain),
        accumulator=product.accumulator,
    )


def _chain(graph: Graph, node: Node) -> Iterator[Node]:
    """Yield the node and what it was made of, down to the tensor that somebody computed."""
    yield node
    while node.op.name in (*COPIES, "dequantise", "hadamard") or _moves(node):
        node = graph.nodes[node.inputs[0]]
        yield node


def _transform(chain: Sequence[Node]) -> str:
    """Return what a tensor goes through: a scale that is shifted onto it is not rounded away."""
    if any(node.op.name == "scaled_cast" and node.format == "float32" for node in chain):
        return "scale of the other"
    return "Hadamard 16" if any(node.op.name == "hadamard" for node in chain) else "-"


def _moves(node: Node) -> bool:
    return node.op.kind == "move" and len(node.inputs) == 1


def _tensor(node: Node) -> str:
    if node.op.name == "parameter":
        return "weight"
    return "gradient" if node.role in ("dgrad", "wgrad") else "input"


def _scale(graph: Graph, copy: Node) -> tuple[str, str]:
    """Return the type of a copy's scale, and what shares one."""
    if len(copy.inputs) < 2:
        return "-", "-"
    scale = graph.nodes[copy.inputs[1]]
    said, attrs = SCALES[scale.op.name], copy.attributes
    if scale.attributes.get("power_of_two"):
        said = f"{said}, a power of two"
    if "axis" not in attrs:
        return said, "row" if scale.shape else "tensor"
    across = attrs.get("across", ())
    block = f"{attrs['block']} x {across[1]}" if across else f"1 x {attrs['block']}"
    rows = len(copy.inputs) > 2 and graph.nodes[copy.inputs[2]].shape
    return f"{said} per row" if rows else said, block
