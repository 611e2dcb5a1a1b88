"""A step on torch: every node's op of tensors, its values rounded there on their bits.

It is the reference on another array type. A value is dropped behind its last reader, so that a
device holds what is alive alone. Sums are in torch's order: results are no bits of the other ways.

On a GPU a step that asks the host for nothing is captured once and played from then on: the same
kernels on the same memory, without Python between them.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from policysearch.emulator.nodes import Observer, attributes, draws
from policysearch.emulator.plan import needs_rounding
from policysearch.emulator.torch_array import TorchArray
from policysearch.formats import format_named
from policysearch.graph import FloatArray, Graph, Node, size
from policysearch.layout import empty, logical_view, stored_flat, stored_view
from policysearch.ops.loss import IGNORED
from policysearch.products.product import MatrixUnits
from policysearch.rounding.grid import grid_of
from policysearch.rounding.rounder import Fast, check_fast
from policysearch.rounding.torch_bits import keys_of, rounded

Values = dict[int, TorchArray]


class Capture:
    """A part of a step, free of side effects, that is captured once and played from then on.

    The second run is watched: what waits for the device there is never captured. The third is
    captured, and played only if that gives the bits of a run. A part that reads what another left
    is captured after that one alone, whose values then stay in place.
    """

    def __init__(self, part: Callable[[], Values], after: Capture | None = None) -> None:
        self._part, self._after = part, after
        self._runs, self._is_free = 0, False
        self._graph: Any = None
        self._left: Values = {}

    @property
    def is_played(self) -> bool:
        return self._graph is not None

    def __call__(self) -> Values:
        """Run or play the part; return what it leaves, when played in the same tensors."""
        self._runs += 1
        if self._graph is not None:
            self._graph.replay()
            return self._left
        if self._runs == 2:
            return self._watched_part()
        found = self._part()
        if self._is_free and (self._after is None or self._after.is_played):
            self._capture(found)
        return self._left if self.is_played else found

    def _watched_part(self) -> Values:
        with _waiting_is_an_error(), contextlib.suppress(RuntimeError):
            found = self._part()
            self._is_free = True
            return found
        return self._part()

    def _capture(self, expected: Values) -> None:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            left = self._part()
        graph.replay()
        self._is_free = all(_has_bits(left[i], value) for i, value in expected.items())
        if self._is_free:
            self._graph, self._left = graph, left


def _has_bits(one: TorchArray, other: TorchArray) -> bool:
    return bool(torch.equal(one.tensor.view(torch.int32), other.tensor.view(torch.int32)))


@contextlib.contextmanager
def _waiting_is_an_error() -> Iterator[None]:
    """Let torch raise RuntimeError where the host would wait for the device."""
    asked = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(action="ignore"):  # "a prototype feature"
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(asked)


class TorchStep:
    """Runs a step on the device that `fast` names, "torch" or "torch:cuda:0" (see `Step`).

    `arrays` lie on the device: what numpy does with them is done there, and what is written to
    them goes there.
    """

    def __init__(
        self,
        graph: Graph,
        seed: int,
        fast: Fast,
        sources: Mapping[str, FloatArray],
        observer: Observer | None,
    ) -> None:
        self.graph, self.seed, self.fast, self.step_index = graph, seed, check_fast(fast), 0
        self.device = torch.device(fast.partition(":")[2] or "cpu")
        if self.device.type == "cpu":
            torch.set_num_threads(1)  # more would change the order of sums
        self._observer = None if observer is None else partial(_told, observer)
        self._fed = {
            node.id: self._source(node, sources) for node in graph.nodes if node.op.kind == "source"
        }
        self.arrays: dict[str, Any] = {graph.nodes[i].name: each for i, each in self._fed.items()}
        self._grids = {
            node.id: grid_of(format_named(node.format), node.rounding)
            for node in graph.nodes
            if node.op.kind != "source" and needs_rounding(graph, node)
        }
        self._attributes = {
            node.id: self._attrs(node) for node in graph.nodes if node.op.kind != "source"
        }
        early = graph.needed({i for _, i in graph.outputs}) - self._fed.keys()
        late = graph.needed({new for _, new in graph.updates}) - early - self._fed.keys()
        self._parts = sorted(early), sorted(late)
        self._dead = self._last_reads()
        self._drawing = tuple(i for i, grid in self._grids.items() if grid.stochastic)
        self._keys = {
            i: keys_of(size(graph.nodes[i].shape), 0, 0).to(self.device) for i in self._drawing
        }
        self._values = dict(self._fed)
        self._outputs: Callable[[], Values] = self._computed_outputs
        self._moved: Callable[[], Values] = self._computed_updates
        if observer is None and self.device.type == "cuda":
            self._outputs = first = Capture(self._computed_outputs)
            self._moved = Capture(self._computed_updates, after=first)

    def forward_backward(self) -> None:
        for i in self._drawing:
            node = self.graph.nodes[i]
            keys = keys_of(size(node.shape), self.seed, draws(node, self.step_index))
            self._keys[i].copy_(keys)
        self.step_index += 1
        self._values = dict(self._outputs())

    def apply_updates(self) -> None:
        self._values = dict(self._moved())
        moved = {old: self._values[new].tensor for old, new in self.graph.updates}
        for old, value in moved.items():
            self._fed[old].tensor.copy_(value)

    def _computed_outputs(self) -> Values:
        return self._run(self._fed, self._parts[0])

    def _computed_updates(self) -> Values:
        return self._run(self._values, self._parts[1])

    def value(self, name: str) -> Any:
        return self._values[self.graph.output(name).id]

    def _source(self, node: Node, given: Mapping[str, Any]) -> TorchArray:
        array = given.get(node.name)
        if isinstance(array, TorchArray):
            return array
        array = empty(node.shape) if array is None else np.asarray(array)
        return TorchArray(torch.from_numpy(array).to(self.device))

    def _attrs(self, node: Node) -> dict[str, Any]:
        attrs = attributes(self.graph, node, "off", self._observer)
        product = attrs.get("product")
        if isinstance(product, MatrixUnits) and self.device.type == "cuda":
            attrs["product"] = partial(on_units, getattr(torch, product.operands))
        elif product is not None:
            attrs["product"] = partial(_product_on_host, product)
        return attrs

    def _last_reads(self) -> dict[int, list[int]]:
        """Return, by position in the order of execution, the values that are not read again."""
        kept = {i for _, i in self.graph.outputs} | {new for _, new in self.graph.updates}
        last: dict[int, int] = {}
        for i in (*self._parts[0], *self._parts[1]):
            last.update(dict.fromkeys((i, *self.graph.nodes[i].inputs), i))
        found: dict[int, list[int]] = {}
        for value, reader in last.items():
            if value not in kept and value not in self._fed:
                found.setdefault(reader, []).append(value)
        return found

    def _run(self, before: Values, order: list[int]) -> Values:
        values = dict(before)
        with exact_products(), np.errstate(all="ignore"):
            for i in order:
                node = self.graph.nodes[i]
                values[i] = self._node_value(node, [values[j] for j in node.inputs])
                for dead in self._dead.get(i, ()):
                    values.pop(dead, None)
        return values

    def _node_value(self, node: Node, inputs: Any) -> TorchArray:
        forward = OWN.get(node.op.name, node.op.forward)
        found: Any = forward(inputs, self._attributes[node.id])
        tensor = found.tensor if isinstance(found, TorchArray) else self._from_host(found)
        if node.id in self._grids:
            return TorchArray(self._rounded_value(node, tensor))
        shared, fed = tensor.untyped_storage().data_ptr(), self._fed.keys() & set(node.inputs)
        if any(shared == self._fed[i].tensor.untyped_storage().data_ptr() for i in fed):
            tensor = tensor.clone()  # a source moves
        return TorchArray(tensor.float())

    def _from_host(self, value: Any) -> Any:
        return torch.from_numpy(np.array(value, np.float32)).to(self.device)

    def _rounded_value(self, node: Node, x: Any) -> Any:
        grid, x = self._grids[node.id], x.float()
        if not grid.stochastic:
            found = rounded(grid, x)
        else:  # elements draw in the order in which they are stored
            given: Any = TorchArray(x)
            flat: Any = stored_view(given)
            drawn = rounded(grid, flat.tensor.contiguous(), self._keys[node.id])
            there: Any = TorchArray(drawn)
            back: Any = logical_view(there)
            found = back.tensor
        if self._observer is not None:
            self._observer(node, TorchArray(x), TorchArray(found))
        return found


def _all_finite(inputs: Any, attrs: Any) -> TorchArray:
    every = torch.stack([torch.isfinite(each.tensor).all() for each in inputs])
    return TorchArray(every.all().float())


def _class_counts(targets: Any, attrs: Any) -> tuple[Any, Any, Any]:
    """Return the class of each row, 0 where it does not count, which do, and a row's share."""
    classes = targets.tensor.long()
    counts = classes != attrs.get("ignore_index", IGNORED)
    return torch.where(counts, classes, 0)[:, None], counts, 1.0 / counts.sum().float()


def _token_cross_entropy(inputs: Any, attrs: Any) -> TorchArray:
    logits, targets = inputs
    classes, counts, share = _class_counts(targets, attrs)
    log_p, smoothing = torch.log_softmax(logits.tensor, 1), attrs.get("label_smoothing", 0.0)
    rows = log_p.gather(1, classes)[:, 0]
    if smoothing:
        rows = rows * (1.0 - smoothing) + log_p.sum(1) * (smoothing / log_p.shape[1])
    return TorchArray(-torch.where(counts, rows, 0.0).sum() * share)


def _token_cross_entropy_grad(inputs: Any, attrs: Any) -> TorchArray:
    grad, logits, targets = inputs
    classes, counts, share = _class_counts(targets, attrs)
    smoothing, slope = attrs.get("label_smoothing", 0.0), torch.softmax(logits.tensor, 1)
    if smoothing:
        slope -= smoothing / slope.shape[1]
    slope.scatter_add_(1, classes, torch.full_like(classes, smoothing - 1.0, dtype=slope.dtype))
    weight = torch.where(counts, grad.tensor * share, 0.0)[:, None]
    return TorchArray(torch.where(weight == 0.0, 0.0, slope * weight))


def _embedding_grad(inputs: Any, attrs: Any) -> TorchArray:
    """Sum rows by their numbers. torch sorts these: a sum has always the same order."""
    grad, numbers = (each.tensor for each in inputs)
    table = torch.zeros(attrs["shape"], device=grad.device)
    rows = grad.reshape(-1, table.shape[1])
    table.index_put_((numbers.long().reshape(-1),), rows, accumulate=True)
    if attrs.get("padding_index") is not None:
        table[attrs["padding_index"]] = 0.0
    return TorchArray(table)


APPROXIMATE: Mapping[str, str] = {"erf": "none", "tanh": "tanh"}
"""By form of GELU, torch's word for it."""


def _gelu(inputs: Any, attrs: Any) -> TorchArray:
    return TorchArray(functional.gelu(inputs[0].tensor, approximate=APPROXIMATE[attrs["form"]]))


def _gelu_grad(inputs: Any, attrs: Any) -> TorchArray:
    grad, x = (each.tensor for each in inputs)
    form = APPROXIMATE[attrs["form"]]
    return TorchArray(torch.ops.aten.gelu_backward(grad, x, approximate=form))


def _softmax(inputs: Any, attrs: Any) -> TorchArray:
    x, axis = inputs[0].tensor, attrs.get("axis", -1)
    y = torch.softmax(x, axis)
    if attrs.get("empty_rows"):
        y = torch.where(torch.isneginf(x).all(axis, keepdim=True), 0.0, y)
    return TorchArray(y)


def _softmax_grad(inputs: Any, attrs: Any) -> TorchArray:
    grad, y = (each.tensor for each in inputs)
    axis = attrs.get("axis", -1)
    return TorchArray(torch.ops.aten._softmax_backward_data(grad, y, axis, y.dtype))


OWN: Mapping[str, Any] = {
    "all_finite": _all_finite,
    "embedding_grad": _embedding_grad,
    "gelu": _gelu,
    "gelu_grad": _gelu_grad,
    "softmax": _softmax,
    "softmax_grad": _softmax_grad,
    "token_cross_entropy": _token_cross_entropy,
    "token_cross_entropy_grad": _token_cross_entropy_grad,
}
"""Ops whose numpy asks the device for an answer before it goes on, or passes over the largest
values of a transformer many times where torch has one kernel.
"""


def _told(observer: Observer, node: Node, before: Any, after: Any) -> None:
    """Tell an observer of what was rounded, where it lies, in the order in which it is stored."""
    flat: list[Any] = [stored_flat(each) for each in (before, after)]
    observer(node, *flat)


def _product_on_host(
    product: Any, left: Any, right: Any, *, out: Any, scales: Sequence[Any] = ()
) -> Any:
    """Write a product that no function of torch sums: of a model of hardware, in C."""
    result = np.empty(out.shape, np.float32)
    given: dict[str, Any] = {"scales": [np.asarray(each) for each in scales]} if scales else {}
    product(np.asarray(left), np.asarray(right), out=result, **given)
    out[...] = result
    return out


def on_units(dtype: Any, left: Any, right: Any, *, out: Any) -> Any:
    """Write a product of operands that `dtype` holds, summed by the device's units in float32."""
    a, b = (each.tensor.to(dtype) for each in (left, right))
    shape = out.shape
    if b.ndim == 2:
        found = torch.mm(a.reshape(-1, a.shape[-1]), b, out_dtype=torch.float32)
    else:
        lead = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        a, b = (x.expand(*lead, *x.shape[-2:]).reshape(-1, *x.shape[-2:]) for x in (a, b))
        found = torch.bmm(a, b, out_dtype=torch.float32)
    out[...] = TorchArray(found.reshape(shape))
    return out


@contextlib.contextmanager
def exact_products() -> Iterator[None]:
    """Let products of float32 be those of float32: no TF32, whatever the process has asked for."""
    asked = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(asked)
