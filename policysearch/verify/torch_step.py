"""Training steps of a policy in torch: the forward nodes of its graph under torch's autograd."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from policysearch.graph import Graph, Node
from policysearch.nn.model import Model
from policysearch.ops.source import TARGETS
from policysearch.optimizers.optimizer import Optimizer, OptimizerKind
from policysearch.policy.policy import Policy
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.train.step import trace_step
from policysearch.values import InputError
from policysearch.verify.torch_optimizer import SMALL_RATE, torch_optimizer

Bound = tuple[int, Callable[..., Any], tuple[int, ...]]
"""The node that is made, what makes it, and the nodes it reads."""

LOSS = "softmax_cross_entropy"


def _matmul(node: Node) -> Callable[..., Any]:
    first, second = (bool(node.attributes.get(f"transpose_{side}")) for side in "ab")
    return lambda a, b: (a.mT if first else a) @ (b.mT if second else b)


def _cast(node: Node) -> Callable[..., Any]:
    dtype = getattr(torch, node.format)
    return lambda x: x.to(dtype)


def _scale(node: Node) -> Callable[..., Any]:
    factor = node.attributes["factor"]
    return lambda x: x * factor


def _reshape(node: Node) -> Callable[..., Any]:
    return lambda x: x.reshape(node.shape)


def _transpose(node: Node) -> Callable[..., Any]:
    split, axes = node.attributes["split"], node.attributes["axes"]
    return lambda x: x.reshape(split).permute(axes).reshape(node.shape)


def _layer_norm(node: Node) -> Callable[..., Any]:
    width = node.shape[-1:]
    return lambda x, _, weight, bias: functional.layer_norm(x, width, weight, bias)


def _plain(call: Callable[..., Any]) -> Callable[[Node], Callable[..., Any]]:
    return lambda node: call


MEANINGS: Mapping[str, Callable[[Node], Callable[..., Any]]] = MappingProxyType(
    {
        "matmul": _matmul,
        "bias": _plain(torch.add),
        "cast": _cast,
        "relu": _plain(torch.relu),
        "gelu": _plain(functional.gelu),
        "tanh": _plain(torch.tanh),
        "add": _plain(torch.add),
        "scale": _scale,
        "softmax": _plain(lambda x: torch.softmax(x, -1)),
        "reshape": _reshape,
        "transpose": _transpose,
        "layer_statistics": _plain(lambda x: None),
        "layer_norm": _layer_norm,
        LOSS: _plain(functional.cross_entropy),
    }
)
"""By op of the forward pass, what makes the call of torch that does as a node says."""


def forward_calls(graph: Graph) -> tuple[tuple[Bound, ...], int]:
    """Return the calls of a forward pass in order, and the id of the loss.

    A bias that is added before the one rounding of its product is added by the same call.
    InputError where the graph has an op or a format that torch does not run here.
    """
    calls: list[Bound] = []
    products: dict[int, tuple[int, ...]] = {}
    root, readers = graph.output("loss").id, graph.readers()
    for node in graph.nodes:
        name = node.op.name
        if name == "parameter" and node.format != "float32":
            raise InputError(f"{node.name} in {node.format}: not timed; expected float32 masters")
        if node.role not in ("input", "fprop") or node.op.kind == "source" or name == "scale_loss":
            continue
        if name not in MEANINGS or not hasattr(torch, node.format):
            raise InputError(
                f"op {name!r} in {node.format}: not timed in torch; expected one of "
                f"{', '.join(MEANINGS)} in formats of torch"
            )
        if name == "matmul" and (node.fused or _is_linear(node, readers[node.id])):
            products[node.id] = node.inputs
        elif name == "bias" and node.inputs[0] in products:
            fed = (*products[node.inputs[0]], node.inputs[1])
            calls.append((node.id, functional.linear, fed))
        else:
            calls.append((node.id, MEANINGS[name](node), node.inputs))
    return tuple(calls), root


def _is_linear(node: Node, readers: list[Node]) -> bool:
    sides = (node.attributes.get("transpose_a"), node.attributes.get("transpose_b"))
    alone = len(readers) == 1 and readers[0].op.name == "bias"
    return alone and not sides[0] and bool(sides[1]) and readers[0].format == node.format


@dataclass(frozen=True)
class Net:
    """A model with its parameters as torch holds them, an optimizer, and one random batch.

    The steps of all its policies train the same float32 parameters. `graph` is the float32 step.
    """

    model: Model
    graph: Graph
    parameters: Mapping[str, torch.Tensor]
    optimizer: torch.optim.Optimizer
    fed: Mapping[str, torch.Tensor]

    def policy_graph(self, policy: Policy) -> Graph:
        """Return one training step under `policy`."""
        return apply_policy(self.graph, policy)

    def step(self, graph: Graph) -> Callable[[], torch.Tensor]:
        """Return a function that trains one step of `graph` and returns its loss []."""
        calls, root = forward_calls(graph)
        ids = {node.name: node.id for node in graph.nodes if node.op.kind == "source"}
        fed = [(ids[name], value) for name, value in {**self.parameters, **self.fed}.items()]
        optimizer, count = self.optimizer, len(graph.nodes)

        def run() -> torch.Tensor:
            values: list[Any] = [None] * count
            for i, value in fed:
                values[i] = value
            for i, call, inputs in calls:
                values[i] = call(*[values[read] for read in inputs])
            loss: torch.Tensor = values[root]
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return loss.detach()

        return run


def net(
    model: Model,
    optimizer: OptimizerKind,
    batch_size: int,
    rng: np.random.Generator,
    place: torch.device,
) -> Net:
    """Return `model` with initial parameters and one batch of `batch_size` drawn from `rng`."""
    graph = trace_step(model, LOSS, Optimizer(optimizer), batch_size)
    parameters = {
        name: torch.tensor(value, device=place).requires_grad_()
        for name, value in model.init(rng).items()
    }
    classes = graph.output("logits").shape[-1]
    fed = {
        one.name: torch.tensor(
            rng.standard_normal((batch_size, *one.shape), np.float32), device=place
        )
        for one in model.inputs
    }
    labels = torch.tensor(rng.integers(0, classes, batch_size), device=place)
    row = Optimizer(optimizer)
    optimizing = torch_optimizer(row, list(parameters.values()), SMALL_RATE, fused=True)
    return Net(model, graph, parameters, optimizing, {**fed, TARGETS: labels})
