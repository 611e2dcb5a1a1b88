"""One call of a library that is several ops here: float32 inside, rounded at its end alone.

So torch computes `rms_norm` and `group_norm` of 16-bit tensors. Gradients are computed in the same
way, from the inputs: what is between is found anew, as fused kernels do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from policysearch.formats import format_named
from policysearch.graph import Attrs, Bind, FloatArray, GradientRule, Graph, Node, Op, Shape, size
from policysearch.layout import stored
from policysearch.ops import elementwise, source
from policysearch.ops.builder import Builder, backward, renumbered
from policysearch.ops.inner import Inner

Emit = Callable[[Builder, Sequence[int]], int]
"""Of a Builder and the nodes of the inputs: the node of the result, in ops without attributes that
depend on a policy."""

INNER = "inner"
"""The attribute that names a format onto which all that is inside is rounded, too."""


def called(name: str, shapes: Sequence[Shape], emit: Emit) -> Op:
    """Return the op `name` of inputs of these shapes, float32 inside, that is what `emit` emits.

    The shapes are those of one batch size; so is the op.
    """
    b = Builder()
    given = [_source(b, f"x{place}", shape) for place, shape in enumerate(shapes)]
    made = emit(b, given)
    grad = _source(b, "grad", b.shape(made))
    gradients = [_whole(b, backward(b, made, grad, [i], elementwise.add)[i]) for i in given]
    rules = tuple(
        _rule(_op(f"{name}_grad", graph, ("grad", *_names(given)))) for graph in gradients
    )
    return _op(name, _whole(b, made), _names(given), rules)


def _source(b: Builder, name: str, shape: Shape) -> int:
    return b.emit(source.data, attrs={"shape": tuple(shape)}, name=name, role="input")


def _names(given: Sequence[int]) -> tuple[str, ...]:
    return tuple(f"x{place}" for place in range(len(given)))


def _whole(b: Builder, made: int) -> Graph:
    """Return the graph of one value, without sources that it does not read."""
    graph = b.graph({"made": made})
    needed = graph.needed({made})
    return renumbered(graph, [node for node in graph.nodes if node.id in needed])


def _rule(op: Op) -> GradientRule:
    return lambda b, node, grad: b.emit(op, grad, *node.inputs, attrs=node.attributes)


def _op(
    name: str, graph: Graph, names: tuple[str, ...], gradients: tuple[GradientRule, ...] = ()
) -> Op:
    inside = [node for node in graph.nodes if node.op.kind != "source"]
    between = inside[:-1]
    shared = max(_work_of(graph, node) for node in inside)
    work = sum(size(node.shape) for node in between) + shared
    return Op(
        name,
        shape=lambda inputs, attrs: inside[-1].shape,
        bind=_binding(graph, names, between),
        gradients=gradients,
        flops=lambda inputs, out, attrs: sum(_flops_of(graph, node) for node in inside),
        kind="reduce",
        placement="fp32",
        work=lambda inputs, out, attrs: work,
    )


def _shapes(graph: Graph, node: Node) -> list[Shape]:
    return [given.shape for given in graph.inputs_of(node)]


def _work_of(graph: Graph, node: Node) -> int:
    return node.op.work(_shapes(graph, node), node.shape, node.attributes)


def _flops_of(graph: Graph, node: Node) -> int:
    return node.op.flops(_shapes(graph, node), node.shape, node.attributes)


def _binding(graph: Graph, names: tuple[str, ...], between: Sequence[Node]) -> Bind:
    def bind(
        inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
    ) -> Callable[[], object]:
        known = dict(zip(names, inputs, strict=True))
        arrays, place = {graph.output("made").id: out}, 0
        for node in between:
            arrays[node.id] = stored(work[place : place + size(node.shape)], node.shape)
            place += size(node.shape)
        rounded = Inner(format_named(attrs[INNER])) if attrs.get(INNER) else None
        runs = []
        for node in graph.nodes:
            if node.op.kind == "source":
                arrays[node.id] = known[node.name]
                continue
            read, made = [arrays[i] for i in node.inputs], arrays[node.id]
            runs.append(node.op.bind(read, made, node.attributes, work[place:]))
            if rounded is not None:
                runs.append(_rounding(made, rounded))
        return lambda: [run() for run in runs]

    return bind


def _rounding(made: FloatArray, rounded: Inner) -> Callable[[], object]:
    return lambda: np.copyto(made, rounded(made))
