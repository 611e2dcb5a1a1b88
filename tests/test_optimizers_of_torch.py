"""Optimizers over 50 steps: torch's classes, the Lion of its authors, LAMB as its paper has it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from policysearch.data.datasets import load_dataset
from policysearch.ops.source import LEARNING_RATE
from policysearch.optimizers.optimizer import Optimizer
from policysearch.policy.presets import preset
from policysearch.train.feeding import batch_order, initial_parameters
from policysearch.train.tasks import Task
from policysearch.train.training import train
from policysearch.verify.verdict import verify
from tests.test_pure_low import both_updated, pure, started, torch_tensors

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

RATES = {
    **{"rmsprop": 0.001, "adagrad": 0.02, "lion": 0.003, "lamb": 0.01},
    **{"muon": 0.02, "adafactor": 0.05},
}
SETTINGS: dict[str, dict[str, Any]] = {"muon": {"momentum": 0.95, "nesterov": True}}
JITTER, OF_PRODUCTS = 1e-6, 1e-5
"""By what initial values are moved. Muon multiplies in bfloat16, where one bit that turns grows by
five steps of Newton and Schulz: OF_PRODUCTS turns some in a thousand, as sums in another order do.
"""
ONE_BY_ONE = tuple(kind for kind in RATES if kind not in ("lamb", "muon"))
"""LAMB without masters has no order of operations that a paper or library in torch gives; Muon has
a test of its own."""


class Lion(torch.optim.Optimizer):  # type: ignore[name-defined]
    """The paper's algorithm 2 in torch's in-place operations, in the order of its authors' code."""

    def __init__(self, params: Any, lr: float, betas: tuple[float, float], decay: float) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": decay})

    def step(self, closure: Callable[[], float] | None = None) -> None:
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                m = state.setdefault("m", torch.zeros_like(p))
                p.data.mul_(1 - group["lr"] * group["weight_decay"])
                update = (m * beta1 + p.grad * (1 - beta1)).sign_()
                p.data.add_(update, alpha=-group["lr"])
                m.mul_(beta2).add_(p.grad, alpha=1 - beta2)


class Lamb(torch.optim.Optimizer):  # type: ignore[name-defined]
    """The paper's algorithm 2, line by line, with the identity as its scaling function."""

    def __init__(self, params: Any, lr: float, row: Optimizer) -> None:
        super().__init__(params, {"lr": lr})
        self.row = row

    def step(self, closure: Callable[[], float] | None = None) -> None:
        beta1, beta2 = self.row.beta1, self.row.beta2
        for group in self.param_groups:
            for x in group["params"]:
                state = self.state[x]
                t = state["t"] = state.get("t", 0) + 1
                m = state["m"] = beta1 * state.get("m", 0.0) + (1 - beta1) * x.grad
                v = state["v"] = beta2 * state.get("v", 0.0) + (1 - beta2) * x.grad**2
                m, v = m / (1 - beta1**t), v / (1 - beta2**t)
                r = m / (v.sqrt() + self.row.epsilon) + self.row.weight_decay * x.data
                length, reach = x.data.norm(), r.norm()
                ratio = float(length / reach) if length > 0 and reach > 0 else 1.0
                x.data.sub_(group["lr"] * ratio * r)


def of_torch(optimizer: Optimizer, tensors: list[Any], rate: float) -> Any:
    """Return the oracle of an optimizer."""
    from policysearch.verify.torch_optimizer import torch_optimizer

    if optimizer.kind == "lamb":
        return Lamb(tensors, rate, optimizer)
    if optimizer.kind != "lion":
        return torch_optimizer(optimizer, tensors, rate)
    betas = optimizer.beta1, optimizer.beta2
    return Lion(tensors, rate, betas, optimizer.weight_decay)


def _in_torch(net: Any, task: Task, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the losses of the task in torch, updated by the oracle."""
    import benchmarks.torch_training as there

    oracle = of_torch(task.build_optimizer(), list(net.params.values()), task.learning_rate)
    monkeypatch.setattr(there, "torch_optimizer", lambda *given: oracle)
    dataset = load_dataset("digits")
    return there.train_in_torch(net, task, dataset, batch_order(task, dataset, 0)).losses


@pytest.mark.parametrize("name", ["float32", "torch.autocast.bfloat16"])
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("kind", RATES)
def test_fifty_steps_are_those_of_torch(
    kind: str, decay: float, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32, and in bfloat16 with float32 masters: within twice torch's own jitter."""
    from benchmarks.torch_nets import TorchNet

    task = Task(
        model="mlp",
        data="digits",
        widths=(24, 24),
        batch_size=32,
        steps=50,
        tail_steps=10,
        optimizer=kind,
        learning_rate=RATES[kind],
        weight_decay=decay,
    )
    task = replace(task, **SETTINGS.get(kind, {}))
    dataset = load_dataset("digits")
    model = task.build_model(dataset)
    policy = preset(name, model.layer_names)
    ours = train(task, policy, 0, dataset=dataset)
    torch.set_num_threads(1)
    theirs, jittered = (
        _in_torch(TorchNet(model, policy, initial_parameters(model, 0, jitter)), task, monkeypatch)
        for jitter in (0.0, OF_PRODUCTS if kind == "muon" else JITTER)
    )
    # Signs and steps over small roots turn the last bit of a sum into another path.
    apart, reach = (abs(each / theirs - 1.0) for each in (ours.losses, jittered))
    assert apart.max() <= max(2e-6, 2.0 * reach.max())
    early = reach.max() if kind == "muon" else 0.0
    assert apart[:5].max() <= max(2e-6, early) and reach.max() < 0.1
    assert apart[0] <= 2e-6
    assert ours.losses[-1] < 0.8 * ours.losses[0]


@pytest.mark.parametrize("decay", [0.0, 0.013])
@pytest.mark.parametrize("kind", ONE_BY_ONE)
def test_without_masters_updates_are_those_of_torch(kind: str, decay: float) -> None:
    """Parameters and state in bfloat16, each operation rounded as a CPU rounds it.

    torch's `addcdiv_` multiplies and adds in one rounding, which moves a bit here and there.
    """
    name, rate = "bfloat16", 10 * RATES[kind]
    optimizer = Optimizer(kind, weight_decay=decay, **SETTINGS.get(kind, {}))
    executable = started(pure(name, "eager", "storage"), optimizer, name)
    executable.arrays[LEARNING_RATE][...] = rate
    tensors = torch_tensors(executable, name)
    theirs = of_torch(optimizer, list(tensors.values()), rate)
    before = {key: value.clone() for key, value in tensors.items()}
    steps = list(both_updated(executable, tensors, theirs))
    assert all((before[key] != value).float().mean() > 0.5 for key, value in tensors.items())
    assert max(steps) <= 1e-3 * sum(tensor.numel() for tensor in tensors.values())


TURNED = 0.004
"""Of values in bfloat16, how many sums in another order leave with another last bit at most."""


class Jittered:
    """An optimizer, and its twin on parameters of its own whose gradients have TURNED bits."""

    def __init__(self, optimizer: Optimizer, tensors: dict[str, Any], rate: float) -> None:
        self.tensors, self.moved = tensors, {k: t.clone() for k, t in tensors.items()}
        self.both = [of_torch(optimizer, [*x.values()], rate) for x in (tensors, self.moved)]
        self.noise = torch.Generator().manual_seed(0)

    def step(self) -> None:
        for key, tensor in self.tensors.items():
            turned = torch.rand(tensor.shape, generator=self.noise) < TURNED
            bits = tensor.grad.view(torch.int16) ^ turned.to(torch.int16)
            self.moved[key].grad = bits.view(tensor.dtype)
        for each in self.both:
            each.step()


@pytest.mark.parametrize("decay", [0.0, 0.013])
def test_muon_without_masters_is_torchs(decay: float) -> None:
    """Within what torch moves by, matrices by Muon and vectors by AdamW, side by side."""
    name, rate = "bfloat16", 0.2
    optimizer = Optimizer("muon", weight_decay=decay, **SETTINGS["muon"])
    executable = started(pure(name, "eager", "storage"), optimizer, name)
    executable.arrays[LEARNING_RATE][...] = rate
    tensors = torch_tensors(executable, name)
    theirs = Jittered(optimizer, tensors, rate)
    assert type(theirs.both[0]).__name__ == "SideBySide"
    before = {key: value.clone() for key, value in tensors.items()}
    steps = both_updated(executable, tensors, theirs)
    assert len(list(steps)) > 10
    for key, tensor in tensors.items():
        ours, own = torch.tensor(np.array(executable.arrays[key], order="C")), tensor.float()
        apart = (ours - own).norm()
        assert apart <= 2.0 * (theirs.moved[key].float() - own).norm(), key
        assert apart <= 0.02 * (own - before[key].float()).norm(), key


@pytest.mark.parametrize("kind", ["rmsprop", "adagrad"])
def test_the_exported_file_trains_so_too(kind: str) -> None:
    task = Task(model="mlp", data="digits", widths=(24,), steps=20, tail_steps=5, optimizer=kind)
    policy = preset("torch.autocast.float16", task.build_model(load_dataset("digits")).layer_names)
    assert verify(policy, task, steps=20).faults == ()
