"""Single kernels of torch, by the ops of a training step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch.nn import functional

from policysearch.cost.timings import Work
from policysearch.optimizers.optimizer import Optimizer, Rule, timed_updates
from policysearch.verify.torch_optimizer import SMALL_RATE, torch_optimizer

aten: Any = torch.ops.aten
Call = Callable[[], object]
Make = Callable[["Operands"], Call]


@dataclass(frozen=True)
class Operands:
    """Where the operands of a kernel lie, their dtypes and extents."""

    work: Work
    place: torch.device

    @property
    def dtypes(self) -> tuple[torch.dtype, torch.dtype]:
        """Of the first operand and of the result."""
        first, _, last = self.work.format.partition(">")
        return getattr(torch, first), getattr(torch, last or first)

    def normal(self, *shape: int) -> torch.Tensor:
        """Return a tensor of the extents, or of `shape`, in the dtype of the first operand."""
        extents = shape or self.work.extents
        return torch.randn(extents, device=self.place).to(self.dtypes[0])

    def labels(self) -> torch.Tensor:
        rows, classes = self.work.extents
        return torch.randint(0, classes, (rows,), device=self.place)


def _product(o: Operands) -> Call:
    batch, rows, columns, depth = o.work.extents
    sides = "nt" if o.work.op == "linear" else o.work.op[-2:]
    first, second = sides[0], sides[1]
    lead = (batch,) if batch > 1 else ()
    # A side that is read transposed is made so, as a view: its place in memory decides the kernel.
    a = o.normal(*lead, *((depth, rows) if first == "t" else (rows, depth)))
    b = o.normal(*lead, *((columns, depth) if second == "t" else (depth, columns)))
    if o.work.op == "linear":
        bias = o.normal(columns)
        return lambda: functional.linear(a, b, bias)
    left, right = a.mT if first == "t" else a, b.mT if second == "t" else b
    return lambda: left @ right


def _cast(o: Operands) -> Call:
    x, dtype = o.normal(), o.dtypes[1]
    return lambda: x.to(dtype)


def _one(call: Callable[[Any], object]) -> Make:
    def make(o: Operands) -> Call:
        x = o.normal()
        return lambda: call(x)

    return make


def _two(call: Callable[[Any, Any], object]) -> Make:
    def make(o: Operands) -> Call:
        x, y = o.normal(), o.normal()
        return lambda: call(x, y)

    return make


def _layer_norm(o: Operands) -> Call:
    x, weight, bias = o.normal(), o.normal(o.work.extents[-1]), o.normal(o.work.extents[-1])
    return lambda: functional.layer_norm(x, x.shape[-1:], weight, bias)


def _layer_norm_grad(o: Operands) -> Call:
    grad, x, width = o.normal(), o.normal(), o.work.extents[-1]
    weight, bias = o.normal(width), o.normal(width)
    _, mean, inverse = aten.native_layer_norm(x, [width], weight, bias, 1e-5)
    fed = grad, x, [width], mean, inverse, weight, bias, [True, True, True]
    return lambda: aten.native_layer_norm_backward(*fed)


def _cross_entropy(o: Operands) -> Call:
    x, labels = o.normal(), o.labels()
    return lambda: functional.cross_entropy(x, labels)


def _cross_entropy_grad(o: Operands) -> Call:
    x, labels = o.normal(), o.labels()
    logs = torch.log_softmax(x, -1)
    # what autograd calls for cross_entropy, without its graph: 1 is the mean, -100 is ignored
    _, total = aten.nll_loss_forward(logs, labels, None, 1, -100)
    one = torch.ones((), device=o.place, dtype=x.dtype)

    def call() -> object:
        grad = aten.nll_loss_backward(one, logs, labels, None, 1, -100, total)
        return aten._log_softmax_backward_data(grad, logs, -1, x.dtype)

    return call


def _transpose(o: Operands) -> Call:
    x, axes = o.normal(), [int(axis) for axis in o.work.op.rpartition(".")[2]]
    return lambda: x.permute(axes).contiguous()


def _update(row: Rule) -> Make:
    def kernel(o: Operands) -> Call:
        tensors, elements = o.work.extents
        parts = [max(1, elements // tensors)] * tensors
        parameters = [o.normal(part).requires_grad_() for part in parts]
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        optimizer = torch_optimizer(Optimizer(row.name), parameters, SMALL_RATE, fused=True)
        optimizer.step()  # the first makes the states
        return lambda: optimizer.step()

    return kernel


KERNELS: Mapping[str, Make] = MappingProxyType(
    {
        "linear": _product,
        "matmul.nn": _product,
        "matmul.nt": _product,
        "matmul.tn": _product,
        "matmul.tt": _product,
        "cast": _cast,
        "add": _two(torch.add),
        "multiply": _two(torch.mul),
        "bias": _two(torch.add),
        "scale": _one(lambda x: x * 0.25),
        "relu": _one(torch.relu),
        "relu_grad": _two(lambda grad, x: aten.threshold_backward(grad, x, 0)),
        "gelu": _one(functional.gelu),
        "gelu_grad": _two(aten.gelu_backward),
        "tanh": _one(torch.tanh),
        "tanh_grad": _two(aten.tanh_backward),
        "sigmoid": _one(torch.sigmoid),
        "sigmoid_grad": _two(aten.sigmoid_backward),
        "silu": _one(functional.silu),
        "silu_grad": _two(aten.silu_backward),
        "softmax": _one(lambda x: torch.softmax(x, -1)),
        "softmax_grad": _two(lambda grad, y: aten._softmax_backward_data(grad, y, -1, grad.dtype)),
        "bias_grad": _one(lambda grad: grad.sum(0)),
        "layer_norm": _layer_norm,
        "layer_norm_grad": _layer_norm_grad,
        "softmax_cross_entropy": _cross_entropy,
        "softmax_cross_entropy_grad": _cross_entropy_grad,
        "token_cross_entropy": _cross_entropy,
        "token_cross_entropy_grad": _cross_entropy_grad,
        "transpose": _transpose,
    }
)
"""By op but those of updates, what makes the operands of a kernel and the call that is timed."""


def kernel(work: Work, place: torch.device) -> Call | None:
    """Return the call of torch that does `work`, its operands made; None where there is none."""
    update = timed_updates().get(work.op)
    make = KERNELS.get(work.op) or KERNELS.get(work.op.partition(".")[0])
    make = _update(update) if update else make
    formats = work.format.split(">")
    if make is None or any(not hasattr(torch, name) for name in formats):
        return None
    return make(Operands(work, place))
