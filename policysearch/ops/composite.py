"""One call of a library that is several ops here: float32 inside, rounded at its end alone.

So torch computes `rms_norm` and `group_norm` of 16-bit tensors. Gradients are computed in the same
way, from the inputs: what is between is computed anew, as fused kernels do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from policysearch.graph import Attrs, FloatArray, GradientRule, Graph, Node, Op, Shape
from policysearch.layout import empty
from policysearch.ops import elementwise, source
from policysearch.ops.builder import Builder, backward, renumbered
from policysearch.ops.rounded_arithmetic import inner_arithmetic

Emit = Callable[[Builder, Sequence[int]], int]
"""Of a Builder and the nodes of the inputs: the node of the result, in ops without attributes that
depend on a policy."""

INNER_FORMAT = "inner"
"""The attribute that names a format onto which all that is inside is rounded, too."""

MATH_ATTENTION = "math_attention"
"""What nodes are listed as that are the inside of attention: float32 in any policy."""

FLOAT32_ALONE = "float32_alone"
"""What nodes are listed as that torch has for no 16 bits: complex numbers, linear algebra."""

ALWAYS_FLOAT32 = (MATH_ATTENTION, FLOAT32_ALONE)

RESULT = "result"


def composite(name: str, shapes: Sequence[Shape], emit: Emit, whole: Collection[int] = ()) -> Op:
    """Return the op `name` of inputs of these shapes, float32 inside, that is what `emit` emits.

    The shapes are those of one batch size; so is the op. The inputs at the places `whole` hold
    whole numbers or truth values: no policy casts them, and they have no gradient.
    """
    b = Builder()
    names = tuple(f"x{place}" for place in range(len(shapes)))
    inputs = [
        _source(b, name, shape, whole=place in whole)
        for place, (name, shape) in enumerate(zip(names, shapes, strict=True))
    ]
    result = emit(b, inputs)
    grad = _source(b, "grad", b.shape(result))
    paths = [backward(b, result, grad, [i], elementwise.add).get(i) for i in inputs]
    wanted = [None if place in whole else path for place, path in enumerate(paths)]
    rules = tuple(
        None if path is None else _rule(_op(f"{name}_grad", _alone(b, path), ("grad", *names)))
        for path in wanted
    )
    op = _op(name, _alone(b, result), names, rules)
    return replace(op, pinned=tuple(whole))


def _source(b: Builder, name: str, shape: Shape, *, whole: bool = False) -> int:
    attrs = {"shape": tuple(shape), **({source.WHOLE: True} if whole else {})}
    return b.emit(source.data, attrs=attrs, name=name, role="input")


def _alone(b: Builder, result: int) -> Graph:
    """Return the graph of one value, without sources that it does not read."""
    graph = b.graph({RESULT: result})
    needed = graph.needed({result})
    return renumbered(graph, [node for node in graph.nodes if node.id in needed])


def _rule(op: Op) -> GradientRule:
    return lambda b, node, grad: b.emit(op, grad, *node.inputs, attrs=node.attributes)


def _op(
    name: str, graph: Graph, names: tuple[str, ...], gradients: tuple[GradientRule | None, ...] = ()
) -> Op:
    def forward(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
        rounded = None
        if attrs.get(INNER_FORMAT):
            rounded = inner_arithmetic(attrs[INNER_FORMAT], attrs)
        sources, values = dict(zip(names, inputs, strict=True)), list[FloatArray]()
        for node in graph.nodes:
            if node.op.kind == "source":
                values.append(sources[node.name])
                continue
            value = empty(node.shape, inputs[0])  # in storage order, as the ops expect their inputs
            value[...] = node.op.forward([values[i] for i in node.inputs], node.attributes)
            if rounded is not None:
                value[...] = rounded(value)
            values.append(value)
        return values[graph.output(RESULT).id]

    inside = [node for node in graph.nodes if node.op.kind != "source"]
    return Op(
        name,
        shape=lambda inputs, attrs: inside[-1].shape,
        forward=forward,
        gradients=gradients,
        flops=lambda inputs, out, attrs: sum(_flops_of(graph, node) for node in inside),
        kind="reduce",
        placement="fp32",
    )


def _flops_of(graph: Graph, node: Node) -> int:
    shapes = [i.shape for i in graph.inputs_of(node)]
    return node.op.flops(shapes, node.shape, node.attributes)
