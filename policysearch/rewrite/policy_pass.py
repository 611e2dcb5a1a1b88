"""The policy pass: from a float32 step and a policy to a graph where every cast is a node.

A policy is a list of rules, and the pass one sweep over the step that asks them at every node.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from policysearch.graph import Graph, Node
from policysearch.ops import composite
from policysearch.ops.builder import without_unread
from policysearch.ops.rounded_norms import ROUNDED_NORMS
from policysearch.ops.source import BACK, IN_PLACE, NUMBER, is_number
from policysearch.policy.policy import Policy
from policysearch.policy.preset_row import MOVES, NORMS
from policysearch.rewrite.casting import Casting, deciding, widest
from policysearch.rewrite.patterns import Pattern, node
from policysearch.rewrite.product_rules import product_rules
from policysearch.rewrite.rules import Becomes, Conversion, Pass, sweep
from policysearch.values import InputError

Rules = Sequence[Conversion]
BACKWARD = ("dgrad", "wgrad")

FLASH_GRADIENTS = tuple(f"flash_attention_grad_{name}" for name in "qkv")

COMPOSITE_NORMS = ("group_norm", "rms_norm")
"""Norms that an imported net has as one op each, and their gradients."""


def apply_policy(graph: Graph, policy: Policy, rules: Rules = ()) -> Graph:
    """Return `graph` with a format on every node and a cast wherever formats meet.

    Forward nodes follow the op list their op is in; gradient nodes follow the list of the op
    they differentiate. `rules` are asked before those of the policy. Raises InputError where an op
    is in no list or a layer has no formats.
    """
    return policy_pass(graph, policy, rules).after


def policy_pass(graph: Graph, policy: Policy, rules: Rules = ()) -> Pass:
    """Return what `apply_policy` did, with the nodes that each rule took."""
    at = Casting(graph, policy)
    taken = sweep(graph, (*rules, *policy_rules(policy)), at, at.new)
    graph_with_casts = without_unread(at.finished())
    after = (
        with_inner_formats(graph_with_casts) if policy.norm_inner == "format" else graph_with_casts
    )
    return Pass("policy", len(graph.nodes), graph, after, by_rule=taken)


def policy_rules(policy: Policy) -> tuple[Conversion, ...]:
    """Return the rules that are this policy, in the order in which they are asked.

    The first that takes a node decides, so that exceptions stand before the op lists.
    """
    unscaling = (_rule("unscaling", _unscaled_gradient, op="unscale", role="update"),)
    low, wide, promoted = policy.low_precision_ops, policy.fp32_ops, policy.promote_ops
    wide = ("scale_loss", "divide_loss", *composite.ALWAYS_FLOAT32, *wide)
    return (
        _rule("source", _source, kind="source"),
        _rule("whole numbers", _as_fed, role="input"),
        _rule("sum over micro-batches", _accumulation, op="accumulate"),
        _rule("sum of gradients", _gradient_sum, op="add", role=BACKWARD),
        *(_mixed_rules(low) if policy.casts == "layer" else _move_rules(low)),
        *_both("pinned cast", _pinned_op, _pinned_gradient, ("pinned_cast",)),
        *_both("format of another", _like, _pinned_gradient, ("like",)),
        *((_rule("bias", _bias, op="bias", role="fprop", source=low),) if low else ()),
        *(_attention_rules(low) if low else ()),
        *(product_rules(policy) if low else ()),
        *_both("low-precision op", _low, _low_gradient, low),
        _rule("product in float32", _wide_product, kind="gemm", source=composite.ALWAYS_FLOAT32),
        *_both("float32 op", _float32, _float32_gradient, wide),
        *_both("promoted op", _promoted_op, _promoted_gradient, promoted),
        *(unscaling if policy.loss_scale.kind == "none" else ()),
        _rule("update", _update, role="update"),
        _rule("op in no list", _refusal),
    )


def _rule(name: str, becomes: Becomes, **wanted: Any) -> Conversion:
    return Conversion(name, Pattern((node(**wanted),)), becomes)


def _both(
    name: str, forward: Becomes, gradient: Becomes, ops: tuple[str, ...]
) -> Iterator[Conversion]:
    """Yield the rules for forward ops and their gradients; none for no ops."""
    if ops:
        yield _rule(name, forward, role="fprop", source=ops)
        yield _rule(f"gradient of a {name}", gradient, role=BACKWARD, source=ops)


def _mixed_rules(low: tuple[str, ...]) -> Iterator[Conversion]:
    return _both("mixed op", _mixed_op, _mixed_gradient, low)


def _move_rules(low: tuple[str, ...]) -> Iterator[Conversion]:
    """What only moves a value of the float32 list leaves it there, as in torch, which rounds none.

    Other values are moved in the format of the layer that moves them, as MindSpore's cells do, and
    so are results of norms: there a cell of another format reads them.
    """
    moves = tuple(op for op in low if op in MOVES)

    def follows(at: Casting, move: Node) -> bool:
        """Return whether something it moves was made by an op of the float32 list."""
        made = [at.graph.nodes[i] for i in move.inputs]
        return any(
            follows(at, node)
            if node.source in moves
            else node.source in at.policy.fp32_ops and node.source not in NORMS
            for node in made
        )

    def forward(at: Casting, move: Node) -> int | None:
        return _promoted_op(at, move) if follows(at, move) else None

    def gradient(at: Casting, op: Node) -> int | None:
        return _promoted_gradient(at, op) if follows(at, at.graph.nodes[op.of]) else None

    return _both("move", forward, gradient, moves)


def _attention_rules(low: tuple[str, ...]) -> Iterator[Conversion]:
    """Attention in one kernel reads and gives what its layer gives; its sums are float32."""
    yield _rule("attention", _low, op="flash_attention", role="fprop", source=low)
    yield _rule("gradient of attention", _low_gradient, op=FLASH_GRADIENTS, source=low)


def _source(at: Casting, source: Node) -> int:
    stored, read = "float32", bool(at.readers[source.id])  # what is not read may be of no layer
    if read and source.op.name == "parameter":
        stored = at.policy.stored(source.layer)
    elif read and source.op.name == "state":
        stored = at.policy.state_of(source.layer, source.name.rpartition(".")[2])
    elif source.op.name == "gradient_buffer":
        stored = at.policy.summed(source.layer)
    at.gradient_formats[source.id] = stored
    return at.b.copy(source, (), format=stored)


def _as_fed(at: Casting, op: Node) -> int:
    """Row numbers, classes and masks are no numbers to round, whatever makes them."""
    return at.forward(op, at.emit(op, [at.new[i] for i in op.inputs]), "float32")


def _low(at: Casting, op: Node) -> int:
    layer = at.layer(op)
    new = at.emit(op, at.operands(op, layer.output), layer.output)
    return at.forward(op, new, layer.dgrad)


def _bias(at: Casting, bias: Node) -> int:
    """The bias takes the output format; the sum is rounded once where it is fused."""
    layer = at.layer(bias)
    x, offset = bias.inputs
    summed = "float32" if at.policy.bias == "fp32" else layer.output
    # a fused product is still in its accumulator, unrounded: a cast would round it twice
    fused = at.b.nodes[at.new[x]].fused
    product = at.new[x] if fused else at.operand(x, summed, bias)
    new = at.emit(bias, [product, at.operand(offset, summed, bias)], summed)
    return at.forward(bias, new, layer.dgrad)


def _float32(at: Casting, op: Node) -> int:
    return _computed_in(at, op, "float32", "float32")


def _computed_in(at: Casting, op: Node, wanted: str, gradient: str) -> int:
    """Emit an op that computes in `wanted`; in place, it gives the format of its first input."""
    stored = wanted
    if IN_PLACE in op.attributes:
        stored, gradient = at.format(at.new[op.inputs[0]]), at.gradient_formats[op.inputs[0]]
    return at.forward(op, at.emit(op, at.operands(op, wanted), stored), gradient)


def _wide_product(at: Casting, gemm: Node) -> int | None:
    """Where products of float32 are tfloat32, those that no list places are, too."""
    if at.layer(gemm).compute != "tfloat32":
        return None
    new = at.emit(gemm, at.operands(gemm, "tfloat32"))
    return at.forward(gemm, new, "float32") if gemm.role == "fprop" else new


def _pinned_op(at: Casting, op: Node) -> int:
    if BACK in op.attributes:
        before = at.formats_before[op.attributes[BACK]]
        return at.forward(op, at.operand(op.inputs[0], before, op), before)
    if NUMBER in op.attributes:
        at.formats_before[op.attributes[NUMBER]] = at.format(at.read(op.inputs[0], op))
    wanted = str(op.attributes["format"])
    return at.forward(op, at.emit(op, at.operands(op, wanted), wanted), wanted)


def _like(at: Casting, op: Node) -> int:
    """A value that is in the other's format already is read as it is."""
    other, x = op.inputs
    wanted = at.format(at.new[other])
    as_it_is = at.format(at.read(x, op)) == wanted
    return at.forward(op, at.read(x, op) if as_it_is else _promoted_op(at, op), wanted)


def _pinned_gradient(at: Casting, op: Node) -> int:
    """A cast back passes its gradient on in the format that it gave."""
    return at.operand(op.inputs[0], at.gradient_formats[op.of], op)


def _promoted_op(at: Casting, op: Node) -> int:
    wanted = widest(at.format(at.new[i]) for i in deciding(at.graph, op))
    return _computed_in(at, op, wanted, at.gradients_widest(deciding(at.graph, op)))


def _mixed_op(at: Casting, op: Node) -> int | None:
    """An op that reads another format than its layer's from inside it runs in the widest."""
    if not at.boundaries.find_mixed(op, lambda i: at.format(at.new[i])):
        return None
    wanted = widest(at.format(at.read(i, op)) for i in deciding(at.graph, op))
    new = at.emit(op, at.operands(op, wanted), wanted)
    return at.forward(op, new, widest(at.boundaries.arriving(op, at.gradient_formats)))


def _accumulation(at: Casting, add: Node) -> int:
    """As torch's `.grad`: in the dtype of its parameter, unless another is asked for."""
    stored = at.policy.summed(add.layer)
    inputs = [at.cast(at.new[i], stored, add) for i in add.inputs]
    return at.emit(add, inputs, stored)


def _gradient_sum(at: Casting, add: Node) -> int | None:
    """The gradients of a value are summed in the value's own format."""
    if "gradient_of" not in add.attributes:
        return None
    flowing = at.boundaries.sum_format(add.of) or at.gradient_formats[add.of]
    return at.emit(add, [at.operand(i, flowing, add) for i in add.inputs], flowing)


def _low_gradient(at: Casting, op: Node) -> int:
    layer = at.layer(op)
    stored = layer.wgrad if op.role == "wgrad" else layer.dgrad
    return at.emit(op, at.operands(op, layer.output, layer.dgrad), stored)


def _float32_gradient(at: Casting, op: Node) -> int:
    return at.emit(op, at.operands(op, "float32"))


def _promoted_gradient(at: Casting, op: Node) -> int:
    """Parameters that a promoted op pins have their gradients in their own format.

    Not those without axes beside values with some: torch sums theirs in the format of these.
    """
    forward, nodes = at.graph.nodes[op.of], at.graph.nodes
    decide = deciding(at.graph, forward)
    if IN_PLACE in forward.attributes:  # it computed in the widest, and rounded what it gave
        wanted, flowing = widest(at.format(at.new[i]) for i in decide), at.gradient_formats[op.of]
        return at.emit(op, at.operands(op, wanted, flowing), flowing)
    axes = any(nodes[i].shape for i in decide)
    owned = (i for i in forward.inputs if nodes[i].op.name == "parameter")
    owned = (i for i in owned if nodes[i].shape or not axes)
    return _read_again(at, op, at.gradients_widest((*decide, *owned)))


def _mixed_gradient(at: Casting, op: Node) -> int | None:
    if op.of not in at.boundaries.mixed:
        return None
    return _read_again(at, op, at.layer(op).wgrad)


def _read_again(at: Casting, op: Node, parameters: str) -> int:
    """What the forward op read is read again, in the format it was read in."""
    produced, flowing = at.forward_formats[op.of], at.gradient_formats[op.of]
    inputs = at.operands(op, produced, flowing)
    return at.emit(op, inputs, parameters if op.role == "wgrad" else flowing)


def _unscaled_gradient(at: Casting, unscale: Node) -> int:
    """Without a loss scale the gradient is there already, all but reduced."""
    stored = at.updating.gradient_format(unscale.layer)
    new = _reduced_gradient(at, unscale.inputs[0], unscale, stored)
    at.cast(new, "float32", unscale)  # As updates read it, in its layer: checks of all have none.
    return new


def _update(at: Casting, update: Node) -> int:
    """The new value of a state is rounded to the format it is stored in.

    What an optimizer computes in a format of its own, whatever it reads, is in that.
    """
    if own := update.attributes.get("format"):
        read = own if update.op.kind == "gemm" else "float32"
        return at.b.copy(update, [at.cast(at.new[i], read, update) for i in update.inputs])
    source = at.replaced_by.get(update.id)
    stored = None if source is None else at.format(at.new[source])
    rate = at.updating.rate_format(update, stored)
    inputs = [
        at.operand(i, rate, update)
        if is_number(at.graph.nodes[i])
        else _reduced_gradient(at, i, update)
        for i in update.inputs
    ]
    formats = [at.format(at.new[i]) for i in update.inputs]
    # A fused kernel of torch goes on with a new velocity or moment in a register, as float32, and
    # rounds the copy that it stores (FusedSgdKernel.cu): what is read further stays unrounded. The
    # eager order reads back what it has stored.
    if stored is None or at.updating.eager or not at.readers[update.id]:
        return at.updating.emit(update, inputs, stored, formats)
    new = at.updating.emit(update, inputs, "float32", formats)
    at.stored[update.id] = at.cast(new, stored, update, at.rounding("update"))
    return new


def _reduced_gradient(at: Casting, i: int, update: Node, wanted: str = "float32") -> int:
    """Return old node `i` in format `wanted`; a gradient first passes the all-reduce format."""
    new, old = at.new[i], at.graph.nodes[i]
    reduced = at.policy.reductions.get(update.layer or old.layer, at.policy.all_reduce)
    if old.role in BACKWARD and reduced != "float32":
        new = at.cast(new, reduced, update)
    return at.cast(new, wanted, update)


def _refusal(at: Casting, op: Node) -> int:
    raise InputError(
        f"policy {at.policy.name!r}: op {op.source!r} of layer {op.layer!r} is in "
        "no list; expected it in low_precision_ops, fp32_ops or promote_ops"
    )


def with_inner_formats(graph: Graph) -> Graph:
    """Return the step, whose formats are chosen, with norms that round all they compute.

    A norm below float32 has its own format inside, and so have its statistics and gradients.
    Running averages of statistics stay float32.
    """
    formats: dict[int, str] = {}
    for norm in graph.nodes:
        if norm.op.name in NORMS and norm.format != "float32":
            formats[norm.id] = norm.format
            formats |= dict.fromkeys(_statistics(graph, norm, first=1), norm.format)
    nodes = tuple(_with_inner_format(graph, op, formats) for op in graph.nodes)
    return replace(graph, nodes=nodes)


def _statistics(graph: Graph, norm: Node, first: int) -> tuple[int, ...]:
    """Return what of the inputs from `first` on says what x is normalised by."""
    return tuple(i for i in norm.inputs[first : first + 2] if not _is_parameter(graph.nodes[i]))


def _is_parameter(value: Node) -> bool:
    # A layer norm has one input of statistics, so that what comes after it is its weight, or a
    # cast of that; statistics are pinned inputs, which are never cast.
    return value.op.name in ("parameter", "cast")


def _with_inner_format(graph: Graph, op: Node, formats: dict[int, str]) -> Node:
    if op.op.name.removesuffix("_grad") in COMPOSITE_NORMS and op.format != "float32":
        return replace(op, attrs=(*op.attrs, (composite.INNER_FORMAT, op.format)))
    if op.op.name not in ROUNDED_NORMS:
        return op
    # a gradient reads the incoming gradient first, and what its norm has read after that
    related = (op.id, *(_statistics(graph, op, first=2) if op.role != "fprop" else ()))
    inner = next((formats[i] for i in related if i in formats), None)
    if inner is None:
        return op
    return replace(op, op=ROUNDED_NORMS[op.op.name], attrs=(*op.attrs, ("inner", inner)))
