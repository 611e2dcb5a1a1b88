"""Trainings of imported nets in 16 bits beside torch's: a module cast to them, float32 masters."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode

from policysearch.nn.model import OWN_LOSS, Model
from policysearch.ops.catalogue import FORWARD_OPS, LOSS_OPS
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import Policy, uniform_layer
from policysearch.policy.preset_row import PRODUCTS
from policysearch.policy.presets import preset
from policysearch.train.feeding import DRAWS
from policysearch.train.tasks import Task
from policysearch.train.trainer import Trainer
from tests.imported_steps import LOSS, first_of, imported, labels_for, tensors
from tests.imported_trainings import Training

STEPS, BATCH, COPIES, SCALE, SEED = 50, 8, 3, 256.0, 0


def low_policy(model: Model, name: str) -> Policy:
    """Return the policy of a module cast to the format `name`, its loss in float32.

    What the net itself casts to float32 is added in it, and its own loss made of such.
    """
    low: tuple[str, ...] = tuple(op for op in FORWARD_OPS if op not in ("add", *LOSS_OPS))
    if model.loss == OWN_LOSS:
        low = (*PRODUCTS, "exp")
    return replace(
        preset("float32", model.layer_names),
        name=name,
        layers=tuple((layer, uniform_layer(name)) for layer in model.layer_names),
        low_precision_ops=low,
        fp32_ops=LOSS_OPS,
        promote_ops=tuple(op for op in FORWARD_OPS if op not in (*low, *LOSS_OPS)),
        loss_scale=LossScale("fixed", SCALE),
    )


class Fed(TorchDispatchMode):
    """While it is entered, what torch draws is what the emulator is fed in this step."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step, self.drawn = step, 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = function.overloadpacket.__name__
        kind = DRAWN.get(name.removesuffix("_"))
        if kind is None:
            return function(*args, **(kwargs or {}))
        result = args[0] if name.endswith("_") else function(*args, **(kwargs or {}))
        in_place, likened = name.endswith("_"), name.endswith("_like")
        numbers = [x for x in args[in_place or likened :] if isinstance(x, int | float)]
        numbers = numbers if kind == "integers" else [*numbers, *DEFAULTS[kind][len(numbers) :]]
        numbers = [] if kind == "permutation" else numbers
        rng = np.random.default_rng([SEED, self.step, self.drawn, 3])
        self.drawn += 1
        values = DRAWS[kind](rng, tuple(result.shape), *numbers)
        if name == "bernoulli":  # of probabilities: as many uniform draws below them
            rng = np.random.default_rng([SEED, self.step, self.drawn - 1, 3])
            values = DRAWS["uniform"](rng, tuple(result.shape), 0.0, 1.0) < args[0].float().numpy()
        return result.copy_(torch.from_numpy(np.array(values)))


DRAWN = {
    **dict.fromkeys(("randn", "randn_like", "normal"), "normal"),
    **dict.fromkeys(("rand", "rand_like", "uniform"), "uniform"),
    "bernoulli": "bernoulli",
    "exponential": "exponential",
    "randint": "integers",
    "randperm": "permutation",
}
DEFAULTS: dict[str, list[float]] = {
    "normal": [0.0, 1.0],
    "uniform": [0.0, 1.0],
    "bernoulli": [0.5],
    "exponential": [1.0],
    "integers": [],
    "permutation": [],
}


@dataclass(frozen=True)
class InTorch:
    """Float32 masters of a module that computes in `dtype`, and SGD with momentum on them."""

    module: Any
    dtype: torch.dtype
    optimizer: Any
    own_loss: bool

    def step(self, index: int, inputs: Any, labels: Any) -> float:
        self.optimizer.zero_grad()
        low = {name: p.to(self.dtype) for name, p in self.module.named_parameters()}
        fed = [x.to(self.dtype) if x.is_floating_point() else x for x in tensors(inputs)]
        with Fed(index):
            result = first_of(functional_call(self.module.train(), low, tuple(fed)))
        loss = result.float()
        if not self.own_loss:
            flat = loss.reshape(-1, loss.shape[-1])
            loss = torch.nn.functional.cross_entropy(flat, torch.from_numpy(labels).reshape(-1))
        (loss * SCALE).backward()
        for p in self.module.parameters():
            p.grad = None if p.grad is None else p.grad / SCALE
        self.optimizer.step()
        return float(loss.detach())


FLIPPED = 0.004
"""The share of 16-bit results of products that another order of the same sums rounds otherwise."""


def _jittered(module: Any, seed: int, dtype: torch.dtype) -> Any:
    """Return a copy whose parameters are moved so that this share of them rounds otherwise.

    In float32 by its rounding.
    """
    jitter = 1e-7 if dtype == torch.float32 else FLIPPED * torch.finfo(dtype).eps
    near, noise = copy.deepcopy(module), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in near.parameters():
            p *= 1 + jitter * torch.randn(p.shape, generator=noise)
    return near


def _trainer(training: Training, module: Any, name: str, own_loss: bool) -> Trainer:
    options = {"loss": "own"} if own_loss else {}
    model = imported(module, training.batch(0), **options)
    task = Task(
        model=model,
        loss="" if own_loss else LOSS,
        optimizer="momentum",
        learning_rate=training.rate,
        weight_decay=0.0,
        batch_size=BATCH,
        steps=STEPS,
    )
    policy = preset("float32", model.layer_names)
    if name != "float32":
        policy = low_policy(model, name)
    trainer = Trainer(model, task, policy, seed=SEED)
    trainer.load(model.init(np.random.default_rng(0)))
    return trainer


def trained_low_as_torch(
    training: Training, name: str, *, own_loss: bool = False, steps: int = STEPS
) -> float:
    """Assert that losses stay within twice what those of jittered copies move, or 1e-4.

    Return how far a loss is from the first: what batches and training move in the net.
    """
    dtype, module = getattr(torch, name), training.module()
    trainer = _trainer(training, module, name, own_loss)
    nets = [module, *(_jittered(module, seed, dtype) for seed in range(COPIES))]
    theirs = [
        InTorch(net, dtype, torch.optim.SGD(net.parameters(), training.rate, 0.9), own_loss)
        for net in nets
    ]
    with torch.no_grad():
        logits = first_of(copy.deepcopy(module).eval()(*tensors(training.batch(0))))
    losses, noise = [], 0.0
    for step in range(steps):
        inputs = training.batch(step)
        shaped = torch.zeros(BATCH, 1) if own_loss else logits
        labels = labels_for(shaped, np.random.default_rng((step, 1)))
        expected, *others = (net.step(step, inputs, labels) for net in theirs)
        loss, _, skipped = trainer.step(inputs, labels)
        noise = max(noise, *(abs(other - expected) for other in others))
        assert not skipped
        assert abs(loss - expected) <= max(1e-4 * abs(expected), 2.0 * noise), (
            step,
            loss,
            expected,
            noise,
        )
        losses.append(expected)
    return max(abs(loss - losses[0]) for loss in losses)
