"""Nets that call torch's attention, one step of them in torch and emulated."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

import policysearch
from policysearch.emulator.compile import compile_graph
from policysearch.graph import FloatArray, Graph
from policysearch.nn.model import Attention, Model
from policysearch.ops import attention_blocks
from policysearch.ops.catalogue import FORWARD_OPS, LOSS_OPS
from policysearch.optimizers.optimizer import Optimizer
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import Policy, uniform_layer
from policysearch.policy.presets import preset
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.train.feeding import (
    dropout_mask,
    feed_constants,
    feed_inputs,
    feed_masks,
    feed_scalars,
)
from policysearch.train.step import trace_step
from policysearch.verify.gpu_rounding import AsAGpu

LOSS = "token_cross_entropy"
CLASSES = 17
CAPABILITY = torch.backends.cpu.get_cpu_capability()
AVX512 = pytest.mark.skipif(CAPABILITY != "AVX512", reason="the emulator has vectors of AVX-512")
VECTORS: Mapping[str, int] = {"AVX512": 16, "AVX2": 8}
"""Values in a vector of torch's fast exponential."""


@pytest.fixture
def vectors_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the emulator take the vectors that torch takes on this processor."""
    if CAPABILITY not in VECTORS:
        pytest.skip("torch's fast exponential takes other vectors on this CPU")
    monkeypatch.setattr(attention_blocks, "VECTOR", VECTORS[CAPABILITY])


SCALE: Mapping[str, float] = {"float32": 1.0, "bfloat16": 1.0, "float16": 1024.0}
BACKENDS: Mapping[Attention, list[SDPBackend]] = {
    "math": [SDPBackend.MATH],
    "flash": [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH],
}
COPIES = 4


class Block(nn.Module):
    """A block of a transformer; `options` go to torch's call of attention, its mask a buffer."""

    def __init__(self, width: int, heads: int, pairs: int, norm: Any, **options: Any) -> None:
        super().__init__()
        inner = width // heads
        self.inner, self.options = inner, dict(options)
        mask = self.options.pop("attn_mask", None)
        self.mask: Tensor | None
        self.register_buffer("mask", mask)
        self.norm, self.norm2 = norm(width), norm(width)
        self.q, self.o = nn.Linear(width, width), nn.Linear(width, width)
        self.k, self.v = (nn.Linear(width, inner * pairs) for _ in range(2))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        q, k, v = (
            part(y).unflatten(-1, (-1, self.inner)).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        made = functional.scaled_dot_product_attention(q, k, v, attn_mask=self.mask, **self.options)
        x = x + self.o(made.transpose(1, 2).flatten(2))
        return x + self.down(torch.tanh(self.up(self.norm2(x))))


class Gpt(nn.Module):
    """Two blocks on tokens [batch, length] of CLASSES."""

    def __init__(
        self, length: int, pairs: int = 4, norm: Any = nn.LayerNorm, **options: Any
    ) -> None:
        super().__init__()
        torch.manual_seed(1)
        width, heads = 32, 4
        self.embedding = nn.Embedding(CLASSES, width)
        self.places = nn.Parameter(0.5 * torch.randn(length, width))
        self.blocks = nn.Sequential(
            *(Block(width, heads, pairs, norm, **options) for _ in range(2))
        )
        self.norm, self.head = norm(width), nn.Linear(width, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        made: Tensor = self.head(self.norm(self.blocks(self.embedding(tokens) + self.places)))
        return made


@dataclass(frozen=True)
class Step:
    """The loss of a step, and its gradients by parameter."""

    loss: float
    grads: Mapping[str, FloatArray]


class Called(TorchDispatchMode):
    """While it is entered, the names of the ops of torch that run; drops as is done here."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.drawn = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = function.overloadpacket.__name__
        if name == "bernoulli_":
            drawn = dropout_mask(args[0].numel(), 1.0 - args[1], 0, 0, self.drawn)
            self.drawn += 1
            return args[0].copy_(torch.from_numpy(drawn.reshape(args[0].shape) > 0))
        self.names.add(name)
        return function(*args, **(kwargs or {}))

    @property
    def flash(self) -> bool:
        return "_scaled_dot_product_flash_attention_for_cpu" in self.names


@contextmanager
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def in_torch(net: nn.Module, batch: Batch, name: str, kind: Attention, *, pure: bool) -> Step:
    """Return a step under autocast or, `pure`, of a copy of the parameters in the format."""
    net.zero_grad()
    inputs, labels, dtype = batch.inputs, batch.labels, getattr(torch, name)
    with one_thread(), sdpa_kernel(BACKENDS[kind]), AsAGpu():
        if pure:
            low = {n: p.to(dtype) for n, p in net.named_parameters()}
            low |= {n: b.to(dtype) for n, b in net.named_buffers() if b.is_floating_point()}
            fed = tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs)
            logits = functional_call(net, low, fed)
        else:
            with torch.autocast("cpu", dtype=dtype, enabled=name != "float32"):
                logits = net(*inputs)
        loss = functional.cross_entropy(logits.float().flatten(0, -2), labels.flatten())
        (loss * SCALE[name]).backward()
    own = {n: p.grad.numpy() for n, p in net.named_parameters() if p.grad is not None}
    return Step(loss.item(), {n: grad / np.float32(SCALE[name]) for n, grad in own.items()})


@dataclass(frozen=True)
class Batch:
    """Tensors as forward takes them, and labels of CLASSES."""

    inputs: tuple[Tensor, ...]
    labels: Tensor


def tokens(length: int, count: int = 6, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    inputs, labels = (
        torch.randint(CLASSES, (count, length), generator=generator) for _ in range(2)
    )
    return Batch((inputs,), labels)


def imported(net: nn.Module, batch: Batch, kind: Attention) -> Model:
    model = policysearch.from_torch(net, batch.inputs, loss=LOSS)
    return model if kind == "written" else model.with_attention(kind)


def policy_of(model: Model, name: str, *, pure: bool) -> Policy:
    scale = LossScale("fixed", SCALE[name])
    if not pure:
        autocast = "float32" if name == "float32" else f"torch.autocast.{name}"
        return replace(preset(autocast, model.layer_names), loss_scale=scale)
    formats = uniform_layer(name, param=name)
    return replace(
        preset("float32", model.layer_names),
        name=name,
        layers=tuple((layer, formats) for layer in model.layer_names),
        low_precision_ops=tuple(op for op in FORWARD_OPS if op not in LOSS_OPS),
        fp32_ops=LOSS_OPS,
        promote_ops=(),
        loss_scale=scale,
    )


def emulated(
    net: nn.Module, batch: Batch, name: str, kind: Attention, *, pure: bool
) -> tuple[Step, Graph]:
    """Return the same step emulated, and its graph."""
    model = imported(net, batch, kind)
    count = len(batch.labels)
    traced = trace_step(model, LOSS, Optimizer("sgd"), count)
    graph = apply_policy(traced, policy_of(model, name, pure=pure))
    step = compile_graph(graph)
    for key, value in model.init(np.random.default_rng(0)).items():
        if key in step.arrays:
            step.arrays[key][...] = value
    feed_scalars(step, SCALE[name])
    feed_constants(step, model)
    feed_inputs(step, model, [x.numpy() for x in batch.inputs], batch.labels.numpy())
    feed_masks(step, 0, 0)
    step.forward_backward()
    names = [key.removeprefix("grad:") for key, _ in graph.outputs if key.startswith("grad:")]
    grads = {key: step.value(f"grad:{key}").copy() for key in names}
    return Step(float(step.value("loss")), grads), graph


def moved(net: nn.Module, jitter: float, seed: int) -> nn.Module:
    """Return a copy whose parameters are moved by a share of themselves."""
    near, noise = copy.deepcopy(net), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in near.parameters():
            p *= 1 + jitter * torch.randn(p.shape, generator=noise)
    return near


def apart(one: Step, other: Step) -> tuple[float, float]:
    """Return how far losses are apart, and all gradients, as a share of their norm."""
    squares = sum(float(((one.grads[n] - g) ** 2).sum()) for n, g in other.grads.items())
    norm = sum(float((g**2).sum()) for g in other.grads.values())
    return abs(one.loss - other.loss), (squares / norm) ** 0.5


def own_jitter(
    net: nn.Module, batch: Batch, name: str, kind: Attention, jitter: float, *, pure: bool
) -> tuple[float, float]:
    """Return how far torch's own step moves where the parameters do: loss and gradients."""
    here = in_torch(net, batch, name, kind, pure=pure)
    steps = (
        in_torch(moved(net, jitter, seed), batch, name, kind, pure=pure) for seed in range(COPIES)
    )
    losses, grads = zip(*(apart(step, here) for step in steps), strict=True)
    return max(losses), max(grads)
