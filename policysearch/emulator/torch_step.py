"""A step on torch: every node's op of tensors, its values rounded there on their bits.

It is the reference on another array type. A value is dropped behind its last reader, so that a
device holds what is alive alone. Sums are in torch's order: results are no bits of the other ways.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

from policysearch.emulator.nodes import Observer, attributes, draws
from policysearch.emulator.plan import needs_rounding
from policysearch.emulator.torch_array import TorchArray
from policysearch.formats import format_named
from policysearch.graph import FloatArray, Graph, Node
from policysearch.layout import empty, logical_view, stored_view
from policysearch.rounding.grid import grid_of
from policysearch.rounding.rounder import Fast, check_fast
from policysearch.rounding.torch_bits import rounded


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
        self._step, self._values = 0, dict(self._fed)

    def forward_backward(self) -> None:
        self._step, self._values = self.step_index, dict(self._fed)
        self.step_index += 1
        self._run(self._parts[0])

    def apply_updates(self) -> None:
        self._run(self._parts[1])
        moved = {old: self._values[new] for old, new in self.graph.updates}
        for old, value in moved.items():
            self._fed[old].tensor.copy_(value.tensor)

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
        if "product" in attrs:
            attrs["product"] = partial(_product_on_host, attrs["product"])
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

    def _run(self, order: list[int]) -> None:
        with exact_products(), np.errstate(all="ignore"):
            for i in order:
                self._values[i] = self._computed(self.graph.nodes[i])
                for dead in self._dead.get(i, ()):
                    self._values.pop(dead, None)

    def _computed(self, node: Node) -> TorchArray:
        inputs: Any = [self._values[i] for i in node.inputs]
        forward = OWN.get(node.op.name, node.op.forward)
        found: Any = forward(inputs, self._attributes[node.id])
        tensor = found.tensor if isinstance(found, TorchArray) else self._from_host(found)
        if node.id in self._grids:
            return TorchArray(self._rounded(node, tensor))
        shared = tensor.untyped_storage().data_ptr()
        if any(shared == each.tensor.untyped_storage().data_ptr() for each in inputs):
            tensor = tensor.clone()  # an input may be a source, which moves
        return TorchArray(tensor.float())

    def _from_host(self, value: Any) -> Any:
        return torch.from_numpy(np.array(value, np.float32)).to(self.device)

    def _rounded(self, node: Node, x: Any) -> Any:
        grid, x = self._grids[node.id], x.float()
        if not grid.stochastic:
            found = rounded(grid, x.contiguous())
        else:  # elements draw in the order in which they are stored
            given: Any = TorchArray(x)
            flat: Any = stored_view(given)
            drawn = rounded(grid, flat.tensor.contiguous(), self.seed, draws(node, self._step))
            there: Any = TorchArray(drawn)
            back: Any = logical_view(there)
            found = back.tensor
        if self._observer is not None:
            self._observer(node, TorchArray(x), TorchArray(found))
        return found


def _all_finite(inputs: Any, attrs: Any) -> TorchArray:
    every = torch.stack([torch.isfinite(each.tensor).all() for each in inputs])
    return TorchArray(every.all().float())


OWN: Mapping[str, Any] = {"all_finite": _all_finite}
"""Ops whose numpy asks the device for an answer before it goes on."""


def _told(observer: Observer, node: Node, before: Any, after: Any) -> None:
    """Tell an observer of what was rounded on the device, in the order in which it is stored."""
    flat = (
        np.ascontiguousarray(stored_view(np.asarray(each))).reshape(-1) for each in (before, after)
    )
    observer(node, *flat)


def _product_on_host(product: Any, left: Any, right: Any, *, out: Any) -> Any:
    """Write a product that no function of torch sums: of a model of hardware, in C."""
    result = np.empty(out.shape, np.float32)
    product(np.asarray(left), np.asarray(right), out=result)
    out[...] = result
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
