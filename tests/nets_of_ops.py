"""Small nets of torch, each around one op that has an import rule: a task of 50 steps for each.

A linear layer and a tanh in front, so that a gradient goes through the op and its values stay
small, and a linear layer behind it. Losses are of a linear layer's logits and are the net's own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

import policysearch
from policysearch.nn.model import Attention
from policysearch.train.tasks import Task
from tests import test_recurrent as recurrent
from tests.imported_steps import Array, shaken, tensors
from tests.shape_rules import GROUPS
from tests.test_import_rules import CASES, INDIRECT
from tests.test_imported_spectra import FUNCTIONS, SIDE
from tests.test_losses_against_torch import CLASSES, LOSSES, PLACES

WIDTH, BATCH, STEPS, EXAMPLES, TRAINED, RATE = 24, 8, 50, 96, 64, 0.02

RANKED = ("topk", "sort", "argsort", "kthvalue", "argmax", "argmin", "cummax", "cummin")
"""Ops that choose among values. Of equal ones torch leaves open which, and in 16 bits there are
many: here they lie apart, one in each interval of the length 1/4."""
MIDDLES = 0.25 * torch.from_numpy(np.random.default_rng(7).permutation(WIDTH)).reshape(4, 6) - 3

COMPLEX = ("complex", "real", "imag", "mul of complex")
"""Functions that, as all linear algebra, torch has in float32 alone: they read casts to it."""

KERNELS: tuple[Attention, ...] = ("math", "flash")

SPELLED: Mapping[str, str] = {
    "_fft_c2c": "algebra: fft2",
    "_fft_r2c": "algebra: rfft",
    "_fft_c2r": "algebra: irfft, odd",
    "polar": "algebra: polar",
    "_linalg_det": "algebra: determinant",
    "_linalg_slogdet": "algebra: logdet",
    "_linalg_solve_ex": "algebra: solve",
    "linalg_inv_ex": "algebra: inverse",
    "linalg_matrix_exp": "algebra: matrix_exp",
    "linalg_householder_product": "algebra: householder",
    "linalg_cholesky_ex": "algebra: cholesky",
    "cholesky_solve": "algebra: cholesky_solve",
    "linalg_solve_triangular": "algebra: solve_triangular",
    "item": "algebra: item",
    "lstm": "layer: lstm with a projection",
    "_pack_padded_sequence": "layer: packed gru",
    "scaled_dot_product_attention": "scaled_dot_product_attention, math",
}
"""Ops whose net has another name than theirs, and that name."""


def _lead(name: str) -> str:
    return re.split("[ ,]", name.rpartition(": ")[2])[0].removesuffix("_")


def _functions() -> dict[str, Any]:
    """Return shapes and functions by name: one for each rule of a function, then others of it."""
    found = {name: case for name, case in CASES.items() if name != "lstm"}
    for group, (shape, functions) in GROUPS.items():
        for name, function in functions.items():
            found[f"{name}, of {group}" if name in found else name] = (shape, function)
    return found


ROWS = _functions()
NETS: Mapping[str, Attention] = {
    **{name: "written" for name in ROWS if not _lead(name).startswith(("scaled", "attention"))},
    **{
        f"{name}, {kernel}": kernel
        for name in ROWS
        if _lead(name).startswith(("scaled", "attention"))
        for kernel in KERNELS
    },
    **{f"algebra: {name}": "written" for name in FUNCTIONS},
    **{f"loss: {name}": "written" for name in LOSSES},
    **{f"layer: {name}": "written" for name in (*recurrent.NETS, "packed gru")},
}
"""The kernel of attention of every net, by the net's name."""

NET_OF: Mapping[str, str] = {**{_lead(name): name for name in list(NETS)[::-1]}, **SPELLED}
"""A net by the op that it is of."""


class Of(nn.Module):
    """A function, by its name, of what a linear layer gives; `order` is that of the head's sums."""

    order: Any = None

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        algebra = name.startswith("algebra: ")
        self.shape = (SIDE, SIDE) if algebra else ROWS[name][0]
        self.fc = nn.Linear(WIDTH, math.prod(self.shape))
        if algebra:
            self.weight = nn.Parameter(0.7 * torch.randn(SIDE, SIDE))
        with torch.no_grad():
            width = self.inside(torch.randn(BATCH, WIDTH)).shape[1]
        self.head = nn.Linear(width, CLASSES)

    def inside(self, x: torch.Tensor) -> Any:
        y = torch.tanh(self.fc(x)).reshape(len(x), *self.shape)
        if self.name.startswith("algebra: "):
            function = FUNCTIONS[self.name.removeprefix("algebra: ")]
            y = function(y.float(), self.weight.float())
        else:
            y = 0.1 * y + MIDDLES.to(y.dtype) if _lead(self.name) in RANKED else y
            y = ROWS[self.name][1](y.float() if self.name in COMPLEX else y)
        return y.reshape(len(y), -1)

    def forward(self, x: torch.Tensor) -> Any:
        y = self.inside(x)
        return self.head(y if self.order is None else y[:, self.order])


class Losing(nn.Module):
    """A loss, by its name, of logits."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.fc = name, nn.Linear(WIDTH, CLASSES * PLACES)

    def forward(self, x: torch.Tensor, classes: torch.Tensor, shares: torch.Tensor) -> Any:
        logits = self.fc(x).reshape(len(x), CLASSES, PLACES)
        return LOSSES[self.name](logits, classes, shares), logits


@dataclass(frozen=True)
class Moved:
    """A net as another seed has it: parameters times 1 + `jitter` of normal numbers.

    Or, without a jitter, the same numbers in another order of features and classes.
    """

    seed: int
    jitter: float = 0.0


def module_of(name: str) -> nn.Module:
    torch.manual_seed(0)
    kind, _, which = name.rpartition(": ")
    if kind == "loss":
        return shaken(Losing(which))
    if kind == "layer":
        packed = which == "packed gru"
        layer = recurrent.Packed(recurrent.LAYERS["gru both ways"], False) if packed else None
        return shaken(layer or recurrent.NETS[which]())
    kernel = next((k for k in KERNELS if name.endswith(f", {k}")), "")
    return shaken(Of(name.removesuffix(f", {kernel}")))


def inputs_of(name: str) -> tuple[tuple[Array, ...], Array]:
    """Return the arguments of a net and its labels, of EXAMPLES."""
    rng, (kind, _, which) = np.random.default_rng(0), name.rpartition(": ")
    if kind == "layer":
        ids = rng.integers(0, recurrent.TOKENS, (EXAMPLES, recurrent.TIME))
        if which == "packed gru":
            lengths = rng.integers(1, recurrent.TIME + 1, EXAMPLES)
            return (ids, lengths), np.pad(ids, ((0, 0), (0, 2))) % 3
        return (ids,), ids.sum(1) % 3 if which in recurrent.CELLS else ids % 3
    x = rng.standard_normal((EXAMPLES, WIDTH)).astype(np.float32)
    labels = (x @ rng.standard_normal((WIDTH, CLASSES))).argmax(1)
    if kind != "loss":
        return (x,), labels
    classes = rng.integers(0, CLASSES, (EXAMPLES, PLACES))
    shares = rng.dirichlet(np.ones(CLASSES), (EXAMPLES, PLACES)).astype(np.float32)
    return (x, classes, shares.swapaxes(1, 2).copy()), labels


def task_of(name: str, moved: Moved | None = None) -> Task:
    """Return the training of a net, as it is or `moved`."""
    net, (inputs, labels) = module_of(name), inputs_of(name)
    if moved is not None and moved.jitter:
        noise = torch.Generator().manual_seed(moved.seed)
        with torch.no_grad():
            for p in net.parameters():
                p *= 1 + moved.jitter * torch.randn(p.shape, generator=noise)
    elif moved is not None and not name.startswith("layer: "):
        inputs, labels = _reordered(net, inputs, labels, np.random.default_rng([9, moved.seed]))
    own = name.startswith("loss: ")
    data = policysearch.Dataset("own", inputs, labels, TRAINED, EXAMPLES - TRAINED, CLASSES)
    example = tensors([array[:BATCH] for array in inputs])
    return Task(
        model=policysearch.from_torch(net, example, **({"loss": "own"} if own else {})),
        data=data,
        batch_size=BATCH,
        loss="" if own else "token_cross_entropy",
        optimizer="momentum",
        learning_rate=RATE,
        weight_decay=0.0,
        attention=NETS[name],
    )


def _reordered(
    net: Any, inputs: tuple[Array, ...], labels: Array, rng: np.random.Generator
) -> tuple[tuple[Array, ...], Array]:
    """Put features, and what they are multiplied with, into another order; classes likewise."""
    features = rng.permutation(WIDTH)
    with torch.no_grad():
        net.fc.weight.copy_(net.fc.weight[:, torch.from_numpy(features)])
        if isinstance(net, Of):
            classes = rng.permutation(CLASSES)
            net.order = torch.from_numpy(rng.permutation(net.head.in_features))
            net.head.weight.copy_(net.head.weight[torch.from_numpy(classes)][:, net.order])
            net.head.bias.copy_(net.head.bias[torch.from_numpy(classes)])
            labels = np.argsort(classes)[labels]
    return (inputs[0][:, features].copy(), *inputs[1:]), labels


OTHER_NAMES: Mapping[str, str] = {
    **{name.removesuffix("_"): other for name, other in INDIRECT.items()},
    "_convolution": "convolution",
    "_local_scalar_dense": "item",
    "nll_loss2d": "nll_loss",
    "nll_loss_nd": "nll_loss",
    "cholesky": "linalg_cholesky_ex",
    "native_channel_shuffle": "channel_shuffle",
    "view_as_complex": "view_as_real",
}
"""Names that torch gives an op after lowering, or what its net calls as well; and the other op."""
