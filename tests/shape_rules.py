"""Small functions of torch, by the import rule that each is for: shapes, reductions, products."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch.nn import functional as F

Function = Callable[[Any], Any]

ROWS, PLANES, CUBES = (4, 6), (2, 4, 6), (2, 3, 4, 2)
HALVES = torch.tensor([[0.5, 1.0, 1.5, 2.0, 2.5, 3.0]])
TURNS = torch.polar(torch.ones(4, 3), torch.arange(12.0).reshape(4, 3))
"""Rotations, as of rotary positions (arXiv 2104.09864)."""

MASK = (torch.arange(24) % 5 != 0).reshape(4, 6)


def _weights(x: Any, *shape: int) -> Any:
    """Return an array of this shape made of x, the same for all examples."""
    return x[0].reshape(-1)[: math.prod(shape)].reshape(shape)


def _grouped(x: torch.Tensor) -> torch.Tensor:
    rows = F.pad(x[0], (0, 2))
    matrices = torch.stack([torch.cat([rows, rows * rows]), torch.cat([rows + 1, rows])] * 2)
    ends = torch.tensor([1, 1, 3, 4], dtype=torch.int32)
    return x * F.grouped_mm(rows, matrices, offs=ends)[:, :6]


def _mean_of_some(x: Any) -> Any:
    """Return the mean of the rows that a mask leaves."""
    return (x * MASK).sum(1) / MASK.sum(0)


def _turned(x: Any) -> Any:
    pairs = torch.view_as_complex(x.float().reshape(len(x), 4, 3, 2))
    return torch.view_as_real(pairs * TURNS).flatten(2).type_as(x)


def _spun(x: Any) -> Any:
    return torch.complex(x, x + 1.0) * TURNS[:, :1]


MOVES: Mapping[str, Function] = MappingProxyType(
    {
        "repeat": lambda x: x.repeat(1, 2, 3),
        "repeat of more axes": lambda x: x[:, :, None].repeat(1, 1, 2, 1),
        "tile": lambda x: x.tile(2, 1),
        "repeat_interleave": lambda x: x.repeat_interleave(3, 1),
        "view_as": lambda x: x.reshape(len(x), -1).view_as(x),
        "reshape_as": lambda x: x.mT.reshape_as(x),
        "ravel": lambda x: x * x[0, 0].ravel(),
        "swapaxes": lambda x: x.swapaxes(1, 2),
        "swapdims": lambda x: torch.swapdims(x[:, None], 1, 3),
        "movedim": lambda x: x[:, None].movedim((1, 3), (2, 1)),
        "moveaxis": lambda x: x.moveaxis(-1, 1),
        "adjoint": lambda x: x.adjoint(),
        "mH": lambda x: x.mH,
        "flip": lambda x: x.flip(1, 2) * x,
        "fliplr": lambda x: torch.fliplr(x) * x,
        "flipud": lambda x: torch.flipud(x[0]) * x,
        "rot90": lambda x: torch.rot90(x, 1, (1, 2)),
        "rot90 backwards": lambda x: torch.rot90(x, -1, (1, 2)),
        "rot90 twice": lambda x: torch.rot90(x, 2, (1, 2)),
        "diagonal": lambda x: x.diagonal(1, 1, 2),
        "diagonal below": lambda x: x.diagonal(-2, 2, 1),
        "tril": lambda x: x.tril(1) * x,
        "triu": lambda x: x.triu(-1) * x,
        "unfold": lambda x: x.unfold(2, 3, 2),
        "unfold inside": lambda x: x.unfold(1, 2, 1),
        "unsafe_split": lambda x: torch.unsafe_split(x, 2, 1)[1],
        "unsafe_chunk": lambda x: torch.unsafe_chunk(x, 2, 2)[1],
        "tensor_split": lambda x: torch.tensor_split(x, 4, 2)[1],
        "tensor_split at places": lambda x: torch.tensor_split(x, (1, 4), 2)[1],
        "hsplit": lambda x: torch.hsplit(x, 2)[1],
        "vsplit": lambda x: torch.vsplit(x[0], 2)[1] * x[:, :2],
        "concatenate": lambda x: torch.concatenate([x, 2.0 * x], 1),
        "hstack": lambda x: torch.hstack([x, 2.0 * x]),
        "vstack": lambda x: torch.vstack([x[0], x[0, 0]]) * x[:, :1],
        "dstack": lambda x: torch.dstack([x, 2.0 * x]),
        "column_stack": lambda x: x @ torch.column_stack([x[0, 0], x[0, 1]]),
        "atleast_1d": lambda x: torch.atleast_1d(x[0, 0, 0]) * x,
        "atleast_2d": lambda x: torch.atleast_2d(x[0, 0]) * x,
        "empty_like": lambda x: x + 0.0 * torch.zeros_like(torch.empty_like(x)),
        "zero_": lambda x: x + (2.0 * x).zero_(),
        "full_like": lambda x: x * torch.full_like(x, 2.5),
        "new_full": lambda x: torch.cat([x, x.new_full((len(x), 1, 6), 0.5)], 1),
        "new_zeros": lambda x: torch.cat([x, x.new_zeros(len(x), 1, 6)], 1) + 1.0,
        "new_ones": lambda x: x * x.new_ones(6),
        "new_empty": lambda x: x + 0.0 * torch.zeros_like(x.new_empty(x.shape)),
        "view_as_real": _turned,
    }
)

REDUCTIONS: Mapping[str, Function] = MappingProxyType(
    {
        "max": lambda x: x.max(2)[0] + x.max(),
        "max and where": lambda x: (1 + x.max(1, keepdim=True).indices) * x,
        "min": lambda x: x.min(1).values,
        "min of all": lambda x: x * x.min(),
        "amax": lambda x: x.amax((1, 2), keepdim=True) * x,
        "amin": lambda x: x.amin(-1),
        "aminmax": lambda x: torch.aminmax(x, dim=1)[1],
        "var": lambda x: x.var(1) + x.var(),
        "var of all": lambda x: x * torch.var(x, False),
        "std": lambda x: x.std((1, 2), correction=0, keepdim=True) * x,
        "var_mean": lambda x: torch.cat(torch.var_mean(x, 2), 1),
        "std_mean": lambda x: torch.cat(torch.std_mean(x, (1,), keepdim=True), 1),
        "linalg_vector_norm": lambda x: x / x.norm(dim=2, keepdim=True),
        "linalg_vector_norm 1": lambda x: x.norm(1, 2),
        "linalg_vector_norm 3": lambda x: torch.linalg.vector_norm(x, 3, 2),
        "linalg_vector_norm inf": lambda x: torch.linalg.vector_norm(x, math.inf, 1),
        "linalg_norm": lambda x: torch.linalg.norm(x, dim=2) + torch.linalg.norm(x),
        "norm": lambda x: torch.ops.aten.norm(x, 2, [1], True) * x,
        "frobenius_norm": lambda x: torch.ops.aten.frobenius_norm(x, [1, 2], True) * x,
        "pairwise_distance": lambda x: F.pairwise_distance(x, x * x),
        "cumsum": lambda x: x.cumsum(1),
        "cumprod": lambda x: (1.0 + 0.3 * x).cumprod(2),
        "cumprod of zeros": lambda x: (x * MASK).cumprod(1),
        "prod": lambda x: x.prod(2) + (1.0 + 0.1 * x[0]).prod(),
        "prod of zeros": lambda x: (x * MASK).prod(1),
        "logsumexp": lambda x: x.logsumexp(2),
        "logcumsumexp": lambda x: (9.0 * x).logcumsumexp(1),
        "cdist": lambda x: torch.cdist(x, x.roll(1, 1) + 0.1),
        "cdist of another order": lambda x: torch.cdist(x, x[:, :2] * x[:, :2], 1.0),
        "special_logsumexp": lambda x: torch.special.logsumexp(x, (1, 2), keepdim=True) * x,
        "trace": lambda x: x * x[0].trace(),
        "masked mean": _mean_of_some,
    }
)

PRODUCTS: Mapping[str, Function] = MappingProxyType(
    {
        "einsum": lambda x: torch.einsum("bij,bkj->bik", x, x),
        "einsum of three": lambda x: torch.einsum("bij,jk,...kl->...bil", x, x[0].mT, x[0]),
        "einsum of one": lambda x: torch.einsum("bij->jb", x).mT,
        "einsum of a diagonal": lambda x: torch.einsum("bii->bi", x[:, :, :4]),
        "matmul of one of a stack": lambda x: x[:1] @ x.mT,
        "_grouped_mm": _grouped,
        "einsum of early sums": lambda x: torch.einsum("bij,bkl->bk", x, x * x),
        "einsum without a sum": lambda x: torch.einsum("bi,bj->bij", x[:, 0], x[:, 1]),
        "einsum of heads": lambda x: torch.einsum(
            "bqhd,bkhd->bhqk", x.unflatten(2, (2, 3)), 2.0 * x.unflatten(2, (2, 3))
        ),
        "einsum without an arrow": lambda x: torch.einsum("bij,kj", x, x[0]),
        "tensordot": lambda x: torch.tensordot(x, x[0], dims=([2, 1], [1, 0]))[:, None] * x[:, 0],
        "tensordot of the last": lambda x: torch.tensordot(x, x[0].mT, 1),
        "inner": lambda x: torch.inner(x, x[0]),
        "outer": lambda x: torch.outer(x[:, 0, 0], x[0, 0]),
        "ger": lambda x: torch.ger(x[:, 0, 0], x[0, 1]),
        "dot": lambda x: x * torch.dot(x[0, 0], x[0, 1]),
        "vdot": lambda x: x * torch.vdot(x[0, 0], x[0, 1]),
        "mv": lambda x: torch.mv(x[:, 0], x[0, 1])[:, None] * x[:, 0],
        "addmm": lambda x: torch.addmm(x[0, 0, :4], x[:, 0], x[0].mT),
        "addmm with factors": lambda x: torch.addmm(
            x[:, 1, :4], x[:, 0], x[0].mT, beta=0.5, alpha=2.0
        ),
        "addmm of a column": lambda x: torch.addmm(x[:, 0, :1], x[:, 0], x[0].mT),
        "baddbmm": lambda x: torch.baddbmm(x[:, :, :4], x, x.mT, beta=0.5, alpha=0.3),
        "baddbmm of a row": lambda x: torch.baddbmm(x[0, 0, :4], x, x.mT),
        "addbmm": lambda x: torch.addbmm(x[0, :, :4], x[:1], x[:1].mT) * x[:, :, :1],
        "addmv": lambda x: torch.addmv(x[:, 0, 0], x[:, 1], x[0, 2], beta=0.5)[:, None] * x[:, 0],
        "bilinear": lambda x: F.bilinear(x[..., :2], x, _weights(x, 2, 2, 6), x[0, 0, :2]),
        "complex": lambda x: torch.view_as_real(_spun(x)).flatten(2),
        "real": lambda x: _spun(x).real,
        "imag": lambda x: (_spun(x) * torch.complex(x * x, x)).imag,
        "mul of complex": lambda x: torch.view_as_real(
            torch.view_as_complex(x.reshape(len(x), 4, 3, 2)) * HALVES[0, :3]
        ),
    }
)

IMAGES: Mapping[str, Function] = MappingProxyType(
    {
        "pad": lambda x: F.pad(x, (1, -1, 2, 0), value=0.5),
        "pad by reflection": lambda x: F.pad(x, (3, 2, 1, 0), mode="reflect"),
        "pad by the edge": lambda x: F.pad(x, (3, 2, 1, 0), mode="replicate"),
        "pad around": lambda x: F.pad(x, (3, 2, 1, 0), mode="circular"),
        "constant_pad_nd": lambda x: torch.ops.aten.constant_pad_nd(x, [1, 1, 0, 1], 2.0),
        "reflection_pad2d": lambda x: torch.ops.aten.reflection_pad2d(x, [1, 1, 0, 1]),
        "replication_pad2d": lambda x: torch.ops.aten.replication_pad2d(x, [1, 1, 0, 1]),
        "_pad_circular": lambda x: torch.ops.aten._pad_circular(x, [1, 1, 0, 1]),
        "upsample_nearest2d": lambda x: F.interpolate(x, scale_factor=(1.7, 0.5)),
        "_upsample_nearest_exact2d": lambda x: F.interpolate(x, (3, 9), mode="nearest-exact"),
        "upsample_bilinear2d": lambda x: F.interpolate(x, scale_factor=1.6, mode="bilinear"),
        "upsample_bilinear2d aligned": lambda x: F.interpolate(
            x, (7, 3), mode="bilinear", align_corners=True
        ),
        "upsample_bicubic2d": lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
        "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, (3, 4)),
        "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x, (3, 4)),
        "adaptive_max_pool2d that divides": lambda x: F.adaptive_max_pool2d(x, (2, 3)),
        "max_pool2d": lambda x: F.max_pool2d(x, 2, 1, 1, 2),
        "max_pool2d_with_indices": lambda x: (
            F.max_pool2d(x, 3, 2, 1, return_indices=True)[1] * x[..., :2, :3]
        ),
        "avg_pool2d": lambda x: F.avg_pool2d(x, 2, 1, divisor_override=3),
        "im2col": lambda x: F.unfold(x, (2, 3), 1, 1, 2),
        "col2im": lambda x: F.fold(x.reshape(len(x), 4, 12), (4, 5), 2, 1, 0, 1),
        "pixel_shuffle": lambda x: F.pixel_shuffle(x.reshape(len(x), 4, 3, 4), 2),
        "pixel_unshuffle": lambda x: F.pixel_unshuffle(x, 2),
        "channel_shuffle": lambda x: F.channel_shuffle(x.reshape(len(x), 6, 2, 4), 2),
        "conv2d same": lambda x: F.conv2d(x, _weights(x, 2, 2, 2, 3), padding="same", dilation=2),
        "instance_norm": lambda x: F.instance_norm(x, weight=x[0, :, 0, 0], bias=x[0, :, 0, 1]),
    }
)

LINES: Mapping[str, Function] = MappingProxyType(
    {
        "reflection_pad1d": lambda x: torch.ops.aten.reflection_pad1d(x, [2, 1]),
        "replication_pad1d": lambda x: torch.ops.aten.replication_pad1d(x, [1, 1]),
        "pad around": lambda x: F.pad(x, (2, 1), mode="circular"),
        "pad around what a crop leaves": lambda x: F.pad(x, (2, -1), mode="circular"),
        "upsample_nearest1d": lambda x: F.interpolate(x, 10),
        "_upsample_nearest_exact1d": lambda x: F.interpolate(x, 10, mode="nearest-exact"),
        "upsample_linear1d": lambda x: F.interpolate(x, scale_factor=2, mode="linear"),
        "adaptive_avg_pool1d": lambda x: F.adaptive_avg_pool1d(x, 4),
        "adaptive_max_pool1d": lambda x: F.adaptive_max_pool1d(x, 4),
        "max_pool1d": lambda x: F.max_pool1d(x, 3, 2, 1),
        "max_pool1d_with_indices": lambda x: F.max_pool1d(x, 3, 2, 1, return_indices=True)[0],
        "avg_pool1d": lambda x: F.avg_pool1d(x, 3, 2, 1, True, False),
        "conv1d": lambda x: F.conv1d(x, _weights(x, 2, 2, 3), None, 2, 2, 2, 2),
        "conv1d same": lambda x: F.conv1d(x, _weights(x, 2, 4, 2), x[0, 0, :2], padding="same"),
        "conv1d valid": lambda x: F.conv1d(x, _weights(x, 2, 4, 2), padding="valid"),
        "conv1d of one": lambda x: F.conv1d(x[0], _weights(x, 2, 4, 3)) * x[:, :2, :4],
        "conv_transpose1d": lambda x: F.conv_transpose1d(x, _weights(x, 4, 2, 3), None, 2, 1, 1),
        "native_channel_shuffle": lambda x: F.channel_shuffle(x[..., None], 2),
    }
)

SPACES: Mapping[str, Function] = MappingProxyType(
    {
        "reflection_pad3d": lambda x: torch.ops.aten.reflection_pad3d(x, [1, 0, 0, 1, 1, 1]),
        "replication_pad3d": lambda x: torch.ops.aten.replication_pad3d(x, [1, 0, 0, 1, 1, 1]),
        "upsample_nearest3d": lambda x: F.interpolate(x, scale_factor=2),
        "_upsample_nearest_exact3d": lambda x: F.interpolate(x, (2, 5, 3), mode="nearest-exact"),
        "upsample_trilinear3d": lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"),
        "adaptive_avg_pool3d": lambda x: F.adaptive_avg_pool3d(x, (2, 3, 1)),
        "adaptive_max_pool3d": lambda x: F.adaptive_max_pool3d(x, (2, 3, 1)),
        "max_pool3d": lambda x: F.max_pool3d(x, 2, 1),
        "max_pool3d_with_indices": lambda x: F.max_pool3d(x, 2, return_indices=True)[0],
        "avg_pool3d": lambda x: F.avg_pool3d(x, 2, 1, 1, False, False),
        "conv3d": lambda x: F.conv3d(x, _weights(x, 2, 1, 2, 2, 2), x[0, 0, 0, 0], 1, 1, 1, 2),
        "conv_transpose3d": lambda x: F.conv_transpose3d(
            x, _weights(x, 2, 1, 2, 3, 1), x[0, 0, 0, 0], (1, 2, 1), (0, 1, 0), (0, 1, 0), 2
        ),
        "convolution": lambda x: torch.ops.aten.convolution(
            x, _weights(x, 2, 2, 2, 2, 2), None, [1] * 3, [0] * 3, [1] * 3, False, [0] * 3, 1
        ),
        "convolution backwards": lambda x: torch.ops.aten.convolution(
            x, _weights(x, 2, 2, 2, 2, 2), None, [1] * 3, [0] * 3, [1] * 3, True, [0] * 3, 1
        ),
        "local_response_norm": lambda x: F.local_response_norm(x, 3),
    }
)

GROUPS: Mapping[str, tuple[tuple[int, ...], Mapping[str, Function]]] = MappingProxyType(
    {
        "moves": (ROWS, MOVES),
        "reductions": (ROWS, REDUCTIONS),
        "products": (ROWS, PRODUCTS),
        "images": (PLANES, IMAGES),
        "lines": (ROWS, LINES),
        "spaces": (CUBES, SPACES),
    }
)
"""By family: the shape of an example, and functions that keep the batch in front."""

OTHERS = ("any", "all", "count_nonzero", "view_as_complex", "_convolution")
"""Rules that other tests are for, or that torch.export calls otherwise."""

NAMES = frozenset(
    {name.split()[0] for _, functions in GROUPS.values() for name in functions} | {*OTHERS}
)
