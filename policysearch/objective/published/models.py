"""Networks of published trainings as models, from their records or from functions of the user's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from policysearch.cost.roofline import Work
from policysearch.cost.update_price import update_works
from policysearch.graph import Graph
from policysearch.importers.record import model_of
from policysearch.importers.torch_model import ATTENTION, TorchModel
from policysearch.nn.model import Model
from policysearch.objective.published.networks import Network
from policysearch.optimizers.optimizer import Optimizer, rules, trained
from policysearch.train.step import trace_step
from policysearch.train.user_code import own_dataset, own_model
from policysearch.values import InputError, one_of

RECORDS = Path(__file__).parent / "records"
"""One file per network and length, written by `python -m benchmarks.validation.record`."""

BY_ADAM = "adam"
"""What emits the update of an optimizer that the step graph lacks, scaled by the bytes it moves."""


def record_path(name: str, length: int = 0) -> Path:
    """Return the file of a network at a sequence length, 0 for one without sequences."""
    return RECORDS / (f"{name}.{length}.json.gz" if length else f"{name}.json.gz")


@lru_cache(maxsize=64)
def model_at(network: Network, length: int = 0, fused: bool = False) -> Model:
    """Return a network at a sequence length; InputError where it has no record of it.

    With `fused` its calls of torch's attention are one kernel, dropout included, as on CUDA from
    torch 2 on.
    """
    if fused:
        return _fused_model(model_at(network, length))
    if network.code:
        return own_model(network.code, own_dataset(network.data), "")
    path = record_path(network.name, length)
    if not path.exists():
        there = ", ".join(map(str, network.lengths))
        raise InputError(
            f"network {network.name}: no record of length {length}; expected one of {there}"
        )
    return model_of(path.read_bytes())


def _fused_model(model: Model) -> Model:
    if not isinstance(model, TorchModel):
        return model
    calls = tuple(
        replace(call, options=tuple(o for o in call.options if o[0] != "dropout_p"))
        if call.op == ATTENTION
        else call
        for call in model.program.calls
    )
    if not any(call.op == ATTENTION for call in calls):
        return model
    return replace(model, program=replace(model.program, calls=calls)).with_attention("flash")


def own_network(code: str, data: str = "", optimizer: str = "") -> Network:
    """Return the network of a function of the user's, "net.py:model".

    Its examples are those of the function `data`, by default that of the same file. InputError
    where it cannot be made.
    """
    kind = optimizer or "momentum"
    one_of("optimizer", kind, tuple(trained()))
    examples = data or f"{code.rpartition(':')[0]}:data"
    network = Network(code, code, optimizer=kind, code=code, data=examples)
    model_at(network)
    return network


@lru_cache(maxsize=4)
def float32_step(network: Network, length: int, batch: int, fused: bool = False) -> Graph:
    """Return the float32 step of a network at a sequence length and batch; see `model_at`."""
    model = model_at(network, length, fused)
    kind = network.optimizer if network.optimizer in trained() else BY_ADAM
    return trace_step(model, model.loss, Optimizer(kind), batch)


def update_share(network: Network) -> float:
    """Return the share of an update of BY_ADAM that a micro-batch of a network costs."""
    kind, share = network.optimizer, 1 / network.micro_batches
    if kind in trained():
        return share
    return share * rules()[kind].fused_tensors / rules()[BY_ADAM].fused_tensors


def update_ops(step: Graph) -> frozenset[str]:
    """Return the ops of the optimizer: those behind the finite check."""
    checked = step.output("finite").id
    return frozenset(n.op.name for n in step.nodes[checked + 1 :] if n.role == "update")


def update_apart(network: Network, step: Graph, together: bool) -> Iterator[Work]:
    """Yield the update of a step as frameworks run it that do not fuse it: op by op.

    `together`: each op of `torch.optim` takes many tensors at once, as from torch 2 on; an
    optimizer of the scripts' own takes one.
    """
    own, rule = network.recipe.update, rules()[network.optimizer]
    rule = replace(rule, separate=own or rule.separate)
    updated = (step.nodes[i] for i, _ in step.updates)
    shapes = [node.shape for node in updated if node.op.name == "parameter"]
    yield from update_works(rule, "foreach" if together and not own else "single", shapes)
