"""The benchmark's training steps in torch, with rounding functions at the places ours rounds.

Every tensor that ours rounds is rounded once: weights and their gradients, results of products
and of every other op that leaves the format, and the gradients that come back to them. A value
that is on the format already (after ReLU, pooling, reshape) is not rounded again. Biases are not
rounded, in favour of the peers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.peers import Round
from benchmarks.torch_resnet import resnet
from policysearch.graph import FloatArray
from policysearch.nn.attention import SelfAttention
from policysearch.nn.chain import Chain
from policysearch.nn.layers import Residual
from policysearch.policy.policy import LayerPolicy

LEARNING_RATE, MOMENTUM = 0.01, 0.9


class _Rounded(torch.autograd.Function):
    """x rounded by one function forward, its gradient by another backward."""

    @staticmethod
    def forward(ctx: Any, x: Any, forward: Round | None, backward: Round | None) -> Any:
        ctx.rounding = backward
        return forward(x) if forward else x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return (ctx.rounding(grad) if ctx.rounding else grad), None, None


@dataclass(frozen=True)
class Places:
    """What is rounded, by the formats of one layer policy; `by_format` gives the functions.

    `before_pools`: a gradient is rounded where a product gives it back, not again after the
    backward of ReLU and pooling, which keep the format and spread it over more elements.
    """

    formats: LayerPolicy
    by_format: Callable[[str], Round | None]
    before_pools: bool = False

    def weight(self, x: Any) -> Any:
        return self._at(x, self.formats.compute, self.formats.wgrad)

    def images(self, x: Any) -> Any:
        return self._at(x, self.formats.compute, "float32")

    def operand(self, x: Any) -> Any:
        """An operand of a product: on the format already where that is the format of results."""
        if self.formats.compute != self.formats.output:
            return self._at(x, self.formats.compute, self.formats.dgrad)
        return self._at(x, "float32", self.formats.dgrad) if self.before_pools else x

    def product(self, x: Any) -> Any:
        again = self.formats.grad != self.formats.dgrad or not self.before_pools
        return self._at(x, self.formats.output, self.formats.grad if again else "float32")

    def logits(self, x: Any) -> Any:
        """The end of the net: the gradient of the loss comes in here."""
        return self._at(x, "float32", self.formats.dgrad) if self.before_pools else x

    def result(self, x: Any) -> Any:
        return self._at(x, self.formats.output, self.formats.dgrad)

    def _at(self, x: Any, forward: str, backward: str) -> Any:
        functions = self.by_format(forward), self.by_format(backward)
        return x if functions == (None, None) else _Rounded.apply(x, *functions)


NO_PLACES = Places(LayerPolicy(), lambda name: None)


class Dense(nn.Linear):
    def __init__(self, n_in: int, n_out: int, at: Places) -> None:
        super().__init__(n_in, n_out)
        self.at = at

    def forward(self, x: Any) -> Any:
        at = self.at
        return at.product(functional.linear(at.operand(x), at.weight(self.weight), self.bias))


class Conv(nn.Conv2d):
    def __init__(self, n_in: int, n_out: int, at: Places) -> None:
        super().__init__(n_in, n_out, 5)
        self.at = at

    def forward(self, x: Any) -> Any:
        at = self.at
        return at.product(functional.conv2d(at.operand(x), at.weight(self.weight), self.bias))


class Block(nn.Module):
    """One pre-norm transformer block; `sdpa`: attention is one call of torch."""

    def __init__(
        self, width: int, hidden: int, heads: int, at: Places, sdpa: bool, causal: bool = False
    ) -> None:
        super().__init__()
        self.causal = causal
        self.heads, self.at, self.sdpa = heads, at, sdpa
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (Dense(width, width, at) for _ in range(4))
        self.fc1, self.fc2 = Dense(width, hidden, at), Dense(hidden, width, at)

    def forward(self, x: Any) -> Any:
        at = self.at
        x = at.result(x + self.o(self.attention(at.result(self.norm1(x)))))
        inner = functional.gelu(self.fc1(at.result(self.norm2(x))))
        return at.result(x + self.fc2(at.result(inner)))

    def attention(self, x: Any) -> Any:
        at, (batch, time, width) = self.at, x.shape
        part = width // self.heads
        q, k, v = (
            at.operand(layer(x).view(batch, time, self.heads, part).transpose(1, 2))
            for layer in (self.q, self.k, self.v)
        )
        if self.sdpa:
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
            return mixed.transpose(1, 2).reshape(batch, time, width)
        alike = at.result(at.product(q @ k.transpose(2, 3)) / math.sqrt(part))
        if self.causal:
            later = torch.ones(time, time, dtype=torch.bool).triu(1)
            alike = alike.masked_fill(later, -math.inf)
        mixed = at.product(at.operand(at.result(alike.softmax(-1))) @ v)
        return mixed.transpose(1, 2).reshape(batch, time, width)


class Transformer(nn.Module):
    """The model of `policysearch.nn.models.transformer`, in torch's own layout."""

    def __init__(self, model: Chain, at: Places, sdpa: bool) -> None:
        super().__init__()
        shapes = {spec.name: spec.shape for spec in model.parameters()}
        width, n_in = shapes["embed.weight"]
        time = shapes["position.bias"][0] // width
        heads = next(find.heads for find in _attentions(model))
        hidden = [shapes[f"block{i}.fc1.weight"][0] for i in range(1, 1 + len(_attentions(model)))]
        self.embed, self.at = Dense(n_in, width, at), at
        self.position = nn.Parameter(torch.zeros(time, width))
        self.blocks = nn.Sequential(*(Block(width, inner, heads, at, sdpa) for inner in hidden))
        self.norm, self.head = nn.LayerNorm(width), Dense(time * width, model.classes, at)

    def forward(self, x: Any) -> Any:
        x = self.blocks(self.at.result(self.embed(x[:, 0]) + self.position))
        return self.head(self.at.result(self.norm(x)).flatten(1))


class Gpt(nn.Module):
    """The model of `policysearch.nn.models.gpt`: logits of every token, [batch * time, classes]."""

    def __init__(self, model: Chain, sdpa: bool) -> None:
        super().__init__()
        shapes = {spec.name: spec.shape for spec in model.parameters()}
        (count, width), (time,) = shapes["embed.weight"], model.input_shape
        inner = _attentions(model)
        hidden = [shapes[f"block{i}.fc1.weight"][0] for i in range(1, 1 + len(inner))]
        self.embed, self.position = (
            nn.Embedding(count, width),
            nn.Parameter(torch.zeros(time, width)),
        )
        self.blocks = nn.Sequential(
            *(Block(width, n, inner[0].heads, NO_PLACES, sdpa, True) for n in hidden)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, count, bias=False)

    def forward(self, tokens: Any) -> Any:
        x = self.blocks(self.embed(tokens) + self.position)
        return self.head(self.norm(x)).flatten(0, 1)


def _attentions(model: Chain) -> list[SelfAttention]:
    inner = [layer for each in model.layers if isinstance(each, Residual) for layer in each.layers]
    return [layer for layer in inner if isinstance(layer, SelfAttention)]


def net_of(model: Chain, at: Places, sdpa: bool) -> nn.Module:
    if model.name == "mlp":
        first, second, last = Dense(784, 512, at), Dense(512, 512, at), Dense(512, 10, at)
        return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), last)
    if model.name == "transformer":
        return Transformer(model, at, sdpa)
    if model.name == "gpt":
        return Gpt(model, sdpa)
    if model.name == "resnet":
        shapes = {spec.name: spec.shape for spec in model.parameters()}
        stages = [name for name in shapes if name.endswith(".0.conv1.weight")]
        return resnet(model.input_shape[0], [shapes[name][0] for name in stages], model.classes)
    layers: list[nn.Module] = [Conv(1, 6, at), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [Conv(6, 16, at), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    layers += [Dense(400, 120, at), nn.ReLU(), Dense(120, 84, at), nn.ReLU(), Dense(84, 10, at)]
    return nn.Sequential(*layers)


def torch_step(
    model: Chain,
    images: FloatArray,
    targets: FloatArray,
    at: Places = NO_PLACES,
    *,
    autocast: str = "",
    fused: bool = False,
    sdpa: bool = False,
    channels_last: bool = False,
) -> Callable[[], float]:
    """Return the call that takes one step on this batch and returns its loss.

    `autocast` names the format of torch.autocast ("" for none), `fused` takes torch's fused SGD,
    `sdpa` its one call for attention, `channels_last` that layout of images and weights.
    """
    layout = torch.channels_last if channels_last else torch.preserve_format
    net = net_of(model, at, sdpa).to(memory_format=layout)
    optimizer = torch.optim.SGD(
        net.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM, fused=fused or None
    )
    labels = torch.from_numpy(targets.astype(int) if model.loss else targets.argmax(axis=1))
    given = torch.from_numpy(np.ascontiguousarray(images)).to(memory_format=layout)
    given = given.long() if model.loss else given

    def region() -> Any:
        if not autocast:
            return nullcontext()
        return torch.autocast("cpu", getattr(torch, autocast))

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        with region():
            out = net(at.images(given) if at.formats.compute == at.formats.output else given)
        loss = functional.cross_entropy(at.logits(out.float()), labels)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def on_numpy(rounding: Round) -> Round:
    """Return a numpy rounding function for torch tensors; their memory is shared."""
    return lambda x: torch.from_numpy(rounding(x.detach().contiguous().numpy()))
