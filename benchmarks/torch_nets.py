"""A model of this package in torch, each layer in its policy's formats by plain casts.

Written from what autograd does with `Tensor.to`, not from the policy pass: an op runs in the dtype
that its list and its layer say, and autograd casts gradients back on its own. It serves policies
whose layers have one format of torch throughout (`uniform_layer`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from policysearch.graph import FloatArray
from policysearch.nn.attention import JoinTokens, Position, SelfAttention, Tokens
from policysearch.nn.chain import Chain
from policysearch.nn.layers import Activation, Conv2d, Flatten, Layer, Linear, Pool, Residual
from policysearch.nn.model import Model
from policysearch.nn.norms import LayerNorm
from policysearch.policy.policy import Policy

ACTIVATIONS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "relu": ("relu", torch.relu),
    "tanh": ("tanh", torch.tanh),
    "sigmoid": ("sigmoid", torch.sigmoid),
    "gelu": ("gelu", functional.gelu),
    "gelu_tanh": ("gelu", lambda x: functional.gelu(x, approximate="tanh")),
}
"""By the name of the activation: the op that the lists of a policy speak of, and the function."""


class _Exact(torch.autograd.Function):
    """A function of tensors in float64 forward and backward, its results rounded once."""

    @staticmethod
    def forward(ctx: Any, function: Callable[..., Any], *inputs: Any) -> Any:
        ctx.function, ctx.dtypes = function, [x.dtype for x in inputs]
        ctx.save_for_backward(*inputs)
        return function(*(x.double() for x in inputs)).to(inputs[0].dtype)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        with torch.enable_grad():
            inputs = [x.detach().double().requires_grad_() for x in ctx.saved_tensors]
            found = torch.autograd.grad(ctx.function(*inputs), inputs, grad.double())
        return None, *(g.to(dtype) for g, dtype in zip(found, ctx.dtypes, strict=True))


class TorchNet:
    """The model's parameters as leaves, and its forward pass.

    `params` maps names to tensors: float32 where the policy keeps master weights, else in the
    `param` format of their layer. `jitter`, a seed, gives another float32 arithmetic of the same
    right: products are summed in float64 and rounded once, and other results change where the last
    bit of a float32 number decides how they round. How far the losses move is torch's own noise.
    """

    def __init__(
        self,
        model: Model,
        policy: Policy,
        initial: Mapping[str, FloatArray],
        jitter: int | None = None,
    ) -> None:
        assert isinstance(model, Chain)
        self.model, self.policy = model, policy
        self.draws = None if jitter is None else torch.Generator().manual_seed(jitter)
        self.params: dict[str, Any] = {}
        for spec in model.parameters():
            stored = "float32" if policy.master_weights else policy.layer(spec.layer).param
            value = torch.from_numpy(initial[spec.name].copy()).to(getattr(torch, stored))
            self.params[spec.name] = value.requires_grad_()

    def __call__(self, images: Any) -> Any:
        """Return the logits [batch, classes], in float32."""
        x = images
        for layer in self.model.layers:
            x = self._layer(layer, x)
        return x.float()

    def _dtype(self, layer: str) -> Any:
        formats = self.policy.layer(layer)
        one = {formats.compute, formats.output, formats.grad, formats.wgrad}
        assert len(one) == 1, f"layer {layer}: {formats}"
        return getattr(torch, one.pop())

    def _op(self, name: str, layer: str, function: Callable[..., Any], *inputs: Any) -> Any:
        """Return the op's result: in the layer's dtype, in float32, or in the widest of inputs."""
        if name in self.policy.low_precision_ops:
            dtype = self._dtype(layer)
        elif name in self.policy.fp32_ops:
            dtype = torch.float32
        else:
            dtype = inputs[0].dtype
            for x in inputs[1:]:
                dtype = torch.promote_types(dtype, x.dtype)
        cast = [x.to(dtype) for x in inputs]
        if self.draws is None:
            return function(*cast)
        if name == "matmul":
            return _Exact.apply(function, *cast)
        made = function(*cast)
        return made if name in MOVES else made + self._change(made.detach())

    def _change(self, made: Any) -> Any:
        """Return one unit up, down or nothing, where float32's last bit would decide it."""
        unit = torch.finfo(made.dtype).eps
        decides = torch.finfo(torch.float32).eps / unit
        drawn = torch.rand(made.shape, generator=self.draws)
        ways = (drawn < decides / 3).float() - (drawn > 1.0 - decides / 3).float()
        return (made.float() * ways * unit).to(made.dtype)

    def _owned(self, layer: str, part: str) -> Any:
        """Return a parameter as it is read: rounded to its `param` format first."""
        value = self.params[f"{layer}.{part}"]
        return value.to(getattr(torch, self.policy.layer(layer).param))

    def _layer(self, layer: Layer, x: Any) -> Any:
        name = layer.name
        if isinstance(layer, Linear | Conv2d):
            function = functional.linear if isinstance(layer, Linear) else _convolution(layer)
            return self._op("matmul", name, function, x, *(self._owned(name, p) for p in PARTS))
        if isinstance(layer, Activation):
            op, function = ACTIVATIONS[layer.function]
            return self._op(op, name, function, x)
        if isinstance(layer, Pool):
            pools: dict[str, Callable[..., Any]] = {
                "max": functional.max_pool2d,
                "average": functional.avg_pool2d,
            }
            pool, size = pools[layer.function], layer.window
            return self._op(f"{layer.function}_pool", name, lambda v: pool(v, size), x)
        if isinstance(layer, Flatten):
            return self._op("reshape", name, lambda v: v.flatten(1), x)
        return self._of_tokens(layer, x)

    def _of_tokens(self, layer: Layer, x: Any) -> Any:
        name = layer.name
        if isinstance(layer, Tokens):
            batch, channels, rows, columns = x.shape
            shape = (batch * rows, channels * columns)
            return self._op("transpose", name, lambda v: v.transpose(1, 2).reshape(shape), x)
        if isinstance(layer, JoinTokens):
            shape = (len(x) // layer.time, -1)
            return self._op("reshape", name, lambda v: v.reshape(shape), x)
        if isinstance(layer, Position):
            whole = x.reshape(len(x) // layer.time, -1)
            moved = self._op("bias", name, torch.add, whole, self._owned(name, "bias"))
            return moved.reshape(x.shape)
        if isinstance(layer, LayerNorm):
            owned = [self._owned(name, part) for part in PARTS]
            width = (layer.width,)
            normed = lambda v, w, b: functional.layer_norm(v, width, w, b)  # noqa: E731
            return self._op("layer_norm", name, normed, x, *owned)
        if isinstance(layer, SelfAttention):
            return self._attention(layer, x)
        assert isinstance(layer, Residual), layer
        inner = x
        for part in layer.layers:
            inner = self._layer(part, inner)
        return self._op("add", name, torch.add, x, inner)

    def _attention(self, layer: SelfAttention, x: Any) -> Any:
        name, part = layer.name, layer.width // layer.heads
        shape = (len(x) // layer.time, layer.time, layer.heads, part)
        heads = lambda v: v.reshape(shape).transpose(1, 2)  # noqa: E731
        q, k, v = (
            self._op("transpose", own.name, heads, self._layer(own, x)) for own in layer.layers
        )
        alike = self._op("matmul", name, lambda a, b: a @ b.transpose(-1, -2), q, k)
        alike = self._op("scale", name, lambda a: a * part**-0.5, alike)
        shares = self._op("softmax", name, lambda a: torch.softmax(a, -1), alike)
        mixed = self._op("matmul", name, torch.matmul, shares, v)
        back = lambda a: a.transpose(1, 2).reshape(x.shape)  # noqa: E731
        return self._op("transpose", name, back, mixed)


PARTS = ("weight", "bias")
MOVES = ("relu", "max_pool", "reshape", "transpose")
"""Ops that compute nothing new."""


def _convolution(layer: Conv2d) -> Callable[..., Any]:
    return lambda x, weight, bias: functional.conv2d(x, weight, bias, layer.stride, layer.padding)
