"""Functions of one tensor that index, write into parts, rank and stop gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

Function = Callable[[Any], Any]

FLAT, ROWS, PLANES = (24,), (4, 6), (2, 3, 4)
MASK = torch.arange(24).reshape(4, 6) % 3 == 0
NUMBERS = torch.tensor([[1, 0, 2], [3, 3, 1]])
"""The first row holds each number once, the second one twice."""


def _set(part: Any, value: Callable[[Any], Any]) -> Function:
    """Return a function that writes into a part of a copy."""

    def function(x: Any) -> Any:
        y = x.clone()
        y[part] = value(x)
        return y * x

    return function


def _changed_diagonals(x: Any) -> Any:
    """Write into views of diagonals, as the loss of Barlow Twins does, and read both."""
    y = x[:, :4, :4] * 2.0
    ends = y.diagonal(0, 1, 2).add_(-1.0).pow_(2).sum(-1)
    return y * ends[:, None, None] * x[:, :4, :4]


def _along(x: Any, row: int, columns: int) -> Any:
    return NUMBERS[row, :, None].expand(len(x), 3, columns)


def _bags(x: Any, mode: str) -> Any:
    table = x[0].reshape(6, 4)
    return x * F.embedding_bag(NUMBERS.roll(1, 1), table, mode=mode, padding_idx=3).sum()


def _added_below(x: Any) -> Any:
    y = x * 2.0
    y[:, 0].add_(x[:, 1])
    return y


def _changed_above(x: Any) -> Any:
    y = x * 2.0
    part = y.mT
    y.relu_()
    return part * 1.5


def _changed_in_parts(x: Any) -> Any:
    y = x * 2.0
    first = y[:, :2]
    y[:, :2].mul_(x[:, 2:])
    y.transpose(1, 2)[:, 1:3].select(2, 0).fill_(0.5)
    return y.permute(0, 2, 1) * first[:, 0, :1, None] + y.flatten(1).unflatten(1, (6, 4))


def _without_gradients(x: Any) -> Any:
    with torch.no_grad():
        y = x * 2.0
        z = y.tanh()
    return x * z + y


def _with_gradients_inside(x: Any) -> Any:
    with torch.no_grad():
        y = x * 2.0
        with torch.enable_grad():
            y = y * x
        return y + x.tanh()


def _steps(x: Any) -> Any:
    """Return x less what is left of halves, so that some values are equal."""
    return x - (x - (2.0 * x).round() / 2.0).detach()


def _reduced(x: Any, how: str, inside: bool) -> Any:
    values = _steps(x * x)[:, :3]
    return _steps(x).scatter_reduce(1, _along(x, 1, 6), values, how, include_self=inside)


def _everything_at_once(x: Any) -> Any:
    values, places = x.topk(2)
    return torch.zeros_like(x).scatter(-1, places, 1.0) * x + values.sum(-1, keepdim=True)


CASES: dict[str, tuple[tuple[int, ...], Function]] = {
    "index": (ROWS, lambda x: x[:, [1, 0, 1, -1]]),
    "index of two axes": (
        PLANES,
        lambda x: x[:, torch.tensor([[0], [1]]), torch.tensor([1, 1, 2])],
    ),
    "index apart": (
        PLANES,
        lambda x: x[:, [0, 1], :, torch.tensor([1, 3])].permute(1, 0, 2),
    ),
    "index of examples": (ROWS, lambda x: x[torch.arange(len(x))[:, None], NUMBERS[1]]),
    "index of a bare value": (FLAT, lambda x: x * x[0].reshape(4, 6)[NUMBERS].sum()),
    "index by a constant mask": (
        ROWS,
        lambda x: x[:, torch.tensor([True, False, True, True])] * x[:, 1:],
    ),
    "nonzero": (FLAT, lambda x: x * x[(x[:, 0] > -0.5).nonzero().squeeze(-1)].mean()),
    "nonzero_numpy": (ROWS, lambda x: x * x[(x > 0.1).nonzero(as_tuple=True)].mean()),
    "index by a mask": (ROWS, lambda x: x * x[x > 0.1].mean()),
    "masked_select": (ROWS, lambda x: x * torch.masked_select(x, x > 0.1).mean()),
    "index_select": (ROWS, lambda x: x.index_select(2, torch.tensor([0, 0, 5]))),
    "index_select of rows": (
        FLAT,
        lambda x: x * x[0].reshape(4, 6).index_select(0, NUMBERS[1]).sum(),
    ),
    "gather": (ROWS, lambda x: x.gather(1, _along(x, 1, 4))),
    "take_along_dim": (ROWS, lambda x: torch.take_along_dim(x, NUMBERS[None, :, :1], 1)),
    "take_along_dim of all": (FLAT, lambda x: x * torch.take_along_dim(x[0], NUMBERS).sum()),
    "scatter": (ROWS, lambda x: x.scatter(1, _along(x, 0, 6), (x * x)[:, :3])),
    "scatter of a number": (ROWS, lambda x: x.scatter(1, _along(x, 0, 2), 0.3)),
    "scatter_add": (ROWS, lambda x: x.scatter_add(1, _along(x, 1, 4), (x * x)[:, :3, :4])),
    "scatter_reduce": (ROWS, lambda x: x.scatter_reduce(1, _along(x, 1, 6), (x * x)[:, :3], "sum")),
    **{
        f"scatter_reduce {how}, {inside}": (ROWS, partial(_reduced, how=how, inside=inside))
        for how in ("mean", "amax", "amin")
        for inside in (True, False)
    },
    "to whole numbers": (
        ROWS,
        lambda x: x * F.one_hot((x.abs() * 2).long().clamp(max=3), 4).sum(-1),
    ),
    "index_add": (
        ROWS,
        lambda x: x.index_add(1, torch.tensor([1, 1, 0]), x[:, 1:] * x[:, :3], alpha=0.5),
    ),
    "index_put": (
        ROWS,
        lambda x: x.index_put((torch.arange(len(x))[:, None], NUMBERS[:1]), x[:, :3] * 2.0),
    ),
    "index_put, added": (
        ROWS,
        lambda x: x.index_put(
            (torch.arange(len(x))[:, None], NUMBERS[1:]), x[:, :3] * x[:, 1:], True
        ),
    ),
    "index_copy": (ROWS, lambda x: x.index_copy(1, torch.tensor([2, 0]), x[:, :2] * x[:, 1:3])),
    "index_fill": (ROWS, lambda x: x.index_fill(1, torch.tensor([2, 0]), 0.7) * x),
    "slice_scatter": (ROWS, lambda x: torch.slice_scatter(x, x[:, :2] * x[:, 2:], 1, 1, 4, 2)),
    "select_scatter": (ROWS, lambda x: torch.select_scatter(x, x[:, 0] * x[:, 1], 1, -1)),
    "copy_": (ROWS, _set((slice(None), 0), lambda x: x[:, 1] * 2.0)),
    "fill_": (ROWS, _set((slice(None), slice(1, 3)), lambda x: 0.5)),
    "writing at numbers": (ROWS, _set((slice(None), [0, 2]), lambda x: x[:, 1:3] * 3.0)),
    "writing by a mask": (ROWS, lambda x: _set(MASK.expand(len(x), 4, 6), lambda x: 0.5)(x)),
    "writing into a part": (ROWS, _added_below),
    "writing below a view": (ROWS, _changed_above),
    "writing into views of views": (ROWS, _changed_in_parts),
    "topk": (ROWS, lambda x: x.topk(2)[0] * x[..., :2]),
    "topk, the smallest": (ROWS, lambda x: x.topk(3, 1, largest=False)[0]),
    "topk, its places": (ROWS, _everything_at_once),
    "sort": (ROWS, lambda x: x.sort(1, descending=True)[0] * x),
    "argsort": (ROWS, lambda x: x.gather(-1, x.argsort(-1)) * x),
    "kthvalue": (ROWS, lambda x: x.kthvalue(2, 1)[0]),
    "argmax": (ROWS, lambda x: x * F.one_hot(x.argmax(-1), 6)),
    "argmin": (ROWS, lambda x: x.gather(2, x.argmin(-1, keepdim=True))),
    "one_hot": (ROWS, lambda x: x * F.one_hot(x.argmin(1), 4).mT),
    "bucketize": (
        ROWS,
        lambda x: F.embedding(torch.bucketize(x, torch.tensor([-0.5, 0.0, 0.5])), x[0]).sum(-1),
    ),
    "searchsorted": (
        ROWS,
        lambda x: x[0][torch.searchsorted(torch.tensor([-0.5, 0.5]), x, right=True)].sum(-1) * x,
    ),
    "arange": (FLAT, lambda x: x * F.cross_entropy(x @ x.t(), torch.arange(len(x)))),
    "diagonal_scatter": (
        FLAT,
        lambda x: (x @ x.t()).diagonal_scatter(x.sum(-1).square()).sum(-1, keepdim=True) * x,
    ),
    "diagonals in place": (ROWS, _changed_diagonals),
    "fill_diagonal_": (FLAT, lambda x: (x @ x.t()).fill_diagonal_(0.5).sum(-1, keepdim=True) * x),
    "eye": (FLAT, lambda x: ((x @ x.t()) * torch.eye(len(x))).sum(-1, keepdim=True) * x),
    "embedding_bag": (
        FLAT,
        lambda x: x * F.embedding_bag(NUMBERS, x[0].reshape(6, 4), mode="sum").sum(),
    ),
    "embedding_bag of means": (
        FLAT,
        lambda x: x * F.embedding_bag(NUMBERS, x[0].reshape(6, 4)).square().sum(),
    ),
    "embedding_bag of maxima": (
        FLAT,
        lambda x: x * F.embedding_bag(NUMBERS, x[0].reshape(6, 4), mode="max").sum(),
    ),
    **{
        f"embedding_bag of {mode}s, some left out": (FLAT, partial(_bags, mode=mode))
        for mode in ("sum", "mean", "max")
    },
    "embedding_bag, bags of other sizes": (
        FLAT,
        lambda x: (
            x * F.embedding_bag(NUMBERS.ravel(), x[0].reshape(6, 4), torch.tensor([0, 2, 2])).sum()
        ),
    ),
    "ones": (
        FLAT,
        lambda x: (x @ x.t() * (2 * torch.eye(len(x)) - torch.ones(len(x), len(x)))) @ x,
    ),
    "zeros": (FLAT, lambda x: (x @ x.t() * (torch.eye(len(x)) - torch.zeros(len(x), len(x)))) @ x),
    "full": (
        FLAT,
        lambda x: (x @ x.t() * (torch.eye(len(x)) - torch.full((len(x), len(x)), 3))) @ x,
    ),
    "detach": (ROWS, lambda x: x * x.detach()),
    "no gradients": (ROWS, _without_gradients),
    "gradients inside": (ROWS, lambda x: _with_gradients_inside(x) + x),
}
"""By name, where it has no space that of the rule: the shape of an example and the function."""
