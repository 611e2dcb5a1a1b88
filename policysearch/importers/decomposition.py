"""Ops without an import rule taken apart by torch's own decomposition of that one call.

The pieces take the place of the call in the graph of an export, before it is read. Each says which
op of the user's it is a piece of and, where torch has one kernel for that, which kernel: the pieces
of one kernel are float32 inside and round once (`kernels.py`). An op that torch itself writes out
(CompositeImplicitAutograd) is several kernels, each of which rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from policysearch.importers.aliases import VIEWS, op_of, written
from policysearch.importers.program import Piece

PIECE = "piece"
"""The key of a node's `meta` that says what it is a piece of."""

WRITTEN_OUT = torch._C.DispatchKey.CompositeImplicitAutograd

PRODUCTS = frozenset(
    {
        *("matmul", "mm", "bmm", "mv", "linear", "addmm", "addmv", "addbmm", "baddbmm"),
        *("conv1d", "conv2d", "conv3d"),
    }
)
"""Ops that autocast runs low whatever they read."""

Known = Callable[[str], Any]
"""Of an op named as in "aten.linear": whether it has a rule."""


def piece_of(node: Any) -> Piece | None:
    """Return what call of the user's this one is a piece of, None where it is whole."""
    piece: Piece | None = node.meta.get(PIECE)
    return piece


def multiplies(node: Any) -> bool:
    """Return whether a call is one of the PRODUCTS, of floats."""
    name = op_of(node).removeprefix("aten.")
    return name in PRODUCTS and bool(node.meta["val"].is_floating_point())


def meets_two(node: Any) -> bool:
    """Return whether a call is a product of floats of two formats, as autocast alone has them."""
    read = (x.meta.get("val") for x in node.all_input_nodes)
    floats = (x for x in read if isinstance(x, torch.Tensor) and x.is_floating_point())
    return len({x.dtype for x in floats}) > 1 and multiplies(node)


def take_apart(program: Any, known: Known) -> None:
    """Replace the calls in an export that have no rule, and a decomposition, by their pieces."""
    graph, signature = program.graph, program.graph_signature
    live = {*signature.user_inputs, *signature.inputs_to_parameters}
    for node in list(graph.nodes):
        if multiplies(node) or any(x.name in live for x in node.all_input_nodes):
            live |= {node.name, *_memory(node)}
            live |= {piece.name for piece in _apart(graph, node, known)}
    graph.lint()


def _memory(node: Any) -> Iterator[str]:
    """Yield what a call writes into, and what that is a view of."""
    place = written(node)
    while place is not None:
        yield place.name
        is_view = op_of(place).removeprefix("aten.") in VIEWS
        place = place.args[0] if is_view else written(place)


def _apart(graph: Any, node: Any, known: Known) -> Iterator[Any]:
    """Put pieces in the place of a node; yield them, taken apart themselves."""
    pieces = _pieces(node) if _is_unknown(node, known) else None
    if pieces is None:
        yield node
        return
    written = piece_of(node) or Piece(str(node.target.overloadpacket), "")
    kernel = written.kernel or ("" if _is_written_out(node.target) else node.name)
    for new in _inline_copy(graph, node, pieces):
        new.meta = {**node.meta, "val": new.meta.get("val"), PIECE: Piece(written.op, kernel)}
        yield from _apart(graph, new, known)


def _is_unknown(node: Any, known: Known) -> bool:
    """Return whether a node calls an op of torch that has no rule and draws nothing."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    random = torch.Tag.nondeterministic_seeded in node.target.tags
    return not random and not known(str(node.target.overloadpacket))


def _is_written_out(target: Any) -> bool:
    return bool(target.has_kernel_for_dispatch_key(WRITTEN_OUT))


def _pieces(node: Any) -> Any:
    """Return the graph of a call's decomposition, None where it has none that can be read."""
    from torch._decomp import decomposition_table  # a second of imports, for few modules

    target = node.target
    rule = target.decompose if _is_written_out(target) else decomposition_table.get(target)
    operands = node.all_input_nodes
    values = [x.meta.get("val") for x in operands]
    if rule is None or not all(isinstance(x, torch.Tensor) for x in values):
        return None

    def call(*tensors: Any) -> Any:
        real = dict(zip(operands, tensors, strict=True))
        arguments, options = torch.fx.node.map_arg((node.args, node.kwargs), real.__getitem__)
        return rule(*arguments, **options)

    fakes = [_float32(x) for x in values]
    try:
        with torch.no_grad(), values[0].fake_mode:
            pieces = make_fx(torch.func.functionalize(call))(*fakes).graph
    except Exception:  # torch's decompositions raise what they like where they do not apply
        return None
    # some, as sym_size, come back as they were
    apart = all(_is_readable(x) and x.target is not target for x in pieces.nodes)
    return pieces if apart else None


def _float32(value: Any) -> Any:
    """Return a fake tensor like `value`, floats in float32: of every export the same pieces."""
    dtype = torch.float32 if value.is_floating_point() else value.dtype
    with value.fake_mode:
        return torch.empty_strided(value.shape, value.stride(), dtype=dtype)


def _is_readable(node: Any) -> bool:
    """Return whether a piece is an argument, a result or a call of ATen."""
    if node.op != "call_function":
        return bool(node.op != "get_attr")
    return getattr(node.target, "namespace", "aten") == "aten"


def _inline_copy(graph: Any, node: Any, pieces: Any) -> list[Any]:
    """Copy the graph of a call in front of it and erase it; return the new nodes."""
    copies: dict[Any, Any] = {}
    operands = iter(node.all_input_nodes)
    result: Any = None
    with graph.inserting_before(node):
        for piece in pieces.nodes:
            if piece.op == "placeholder":
                copies[piece] = next(operands)
            elif piece.op == "output":
                result = torch.fx.node.map_arg(piece.args[0], copies.__getitem__)
            elif piece.users or written(piece) is not None:
                copies[piece] = graph.node_copy(piece, copies.__getitem__)
    new = [x for x in copies.values() if x not in node.all_input_nodes]
    if isinstance(result, list | tuple):
        for user in list(node.users):
            user.replace_all_uses_with(result[user.args[1]])
            graph.erase_node(user)
    else:
        node.replace_all_uses_with(result)
    graph.erase_node(node)
    return new
