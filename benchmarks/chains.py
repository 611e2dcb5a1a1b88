"""`python -m benchmarks.chains --seed 1 --count 120`: random nets of users' idioms, beside torch.

Each chains two or three of the IDIOMS, drawn by the seed, some of them under
`autocast(enabled=False)`. Printed are those that are refused, and those whose first loss or
gradients are apart from torch's: in float32, or under bfloat16 autocast beside the exported file,
as in `benchmarks.census`. No idiom was left out because it was apart.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.census.__main__ import HALF
from benchmarks.census.measure import LEAST, SINGLE, Verdict, verdict
from benchmarks.census.net import Net, normal

INPUTS, WIDTH, TIME, CLASSES = 6, 8, 4, 5
Idiom = Callable[[Any, Tensor, Tensor, Tensor], Tensor]
"""idiom(net, x, h, r): of the input x [b, TIME, INPUTS], of h and of r, one before it, [b, TIME,
WIDTH], something that h can be multiplied with. r is float32 at first, under autocast too."""


def _turned(h: Tensor) -> Tensor:
    return torch.cat((-h[..., WIDTH // 2 :], h[..., : WIDTH // 2]), -1)


def _rms(h: Tensor) -> Tensor:
    wide = h.float()
    return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)


def _filled(h: Tensor, rows: Tensor) -> Tensor:
    out = torch.zeros_like(h)
    out[:, :2] = rows[:, :2]
    return out


def _causal(h: Tensor, like: Tensor) -> Tensor:
    lowest = torch.finfo(like.dtype).min
    mask = torch.full((TIME, TIME), lowest, dtype=like.dtype).triu(1)
    return F.softmax(h @ h.mT + mask, -1) @ h


CASTS: Mapping[str, Idiom] = {
    "softmax in float32, cast back": lambda n, x, h, r: h.softmax(-1, torch.float32).to(h.dtype),
    "softmax in float32": lambda n, x, h, r: F.softmax(h, -1, dtype=torch.float32),
    "sum in float32": lambda n, x, h, r: h.sum(-1, True, dtype=torch.float32).to(h.dtype),
    "mean of float": lambda n, x, h, r: h.float().mean(-1, keepdim=True).type_as(h),
    "rms norm": lambda n, x, h, r: n.weight * _rms(h).to(h.dtype),
    "rms norm, weighed wide": lambda n, x, h, r: (_rms(h) * (1 + n.weight.float())).type_as(h),
    "norm of float": lambda n, x, h, r: F.layer_norm(h.float(), (WIDTH,), n.weight.float()).to(h),
    "rotary, cast": lambda n, x, h, r: (
        h * torch.arange(8.0).cos().to(h.dtype) + _turned(h) * torch.arange(8.0).sin().to(h.dtype)
    ),
    "rotary": lambda n, x, h, r: h * torch.arange(8.0).cos() + _turned(h) * torch.arange(8.0).sin(),
    "input, cast": lambda n, x, h, r: h + x.to(h.dtype).sum(-1, keepdim=True),
    "input": lambda n, x, h, r: h + x.sum(-1, keepdim=True),
    "float twice": lambda n, x, h, r: h.float() * r + h.float().exp(),
    "float, promoted": lambda n, x, h, r: h.float() * 2 + r * h,
    "float, norm": lambda n, x, h, r: h.float() * r + n.norm(h),
    "in the format of a weight": lambda n, x, h, r: h.to(n.weight.dtype) * n.weight + h * h,
    "ones in a format": lambda n, x, h, r: h * torch.full((WIDTH,), 0.3, dtype=h.dtype),
    "ones in another": lambda n, x, h, r: h * torch.full((WIDTH,), 0.3, dtype=r.dtype),
    "a tensor in a format": lambda n, x, h, r: h * h.new_tensor([0.3] * WIDTH),
    "a parameter, cast": lambda n, x, h, r: torch.cat(
        [n.weight.to(h.dtype).expand(len(h), 1, -1), h[:, 1:]], 1
    ),
    "a parameter": lambda n, x, h, r: torch.cat([n.weight.expand(len(h), 1, -1), h[:, 1:]], 1),
    "truths": lambda n, x, h, r: (
        (h * (r > 0).to(h.dtype)).sum(1, True) / (r > 0).sum(1, True).clamp(min=1)
    ),
}
READ: Mapping[str, Idiom] = {
    "joined with itself": lambda n, x, h, r: F.glu(torch.cat([h, h], -1)),
    "stacked with itself": lambda n, x, h, r: (torch.stack([h, h], -1) * h.new_ones(2)).sum(-1),
    "with a share of itself": lambda n, x, h, r: torch.add(h, h, alpha=0.3),
    "added to its product": lambda n, x, h, r: torch.addcmul(h, h, n.weight),
    "added to its quotient": lambda n, x, h, r: torch.addcdiv(h, h, n.weight.abs() + 1),
    "on the way": lambda n, x, h, r: torch.lerp(h, 0.5 * h, h),
    "one attention": lambda n, x, h, r: F.scaled_dot_product_attention(*[h[:, None]] * 3)[:, 0],
    "causal attention": lambda n, x, h, r: F.scaled_dot_product_attention(
        *(h[:, None],) * 3, is_causal=True
    )[:, 0],
    "attention of two": lambda n, x, h, r: F.scaled_dot_product_attention(
        h[:, None], r[:, None], h[:, None]
    )[:, 0],
    "products with itself": lambda n, x, h, r: torch.bmm(torch.bmm(h, h.mT), h),
    "added to a product": lambda n, x, h, r: torch.baddbmm(h @ h.mT, h, h.mT) @ h,
    "halves": lambda n, x, h, r: torch.cat([h[..., :4] * h[..., 4:], h[..., 2:6]], -1) * h,
    "views": lambda n, x, h, r: h.view(-1, WIDTH).view_as(h) * h.mT.mT + h,
    "residuals": lambda n, x, h, r: h + n.norm(h + n.norm(h)),
    "rows by number": lambda n, x, h, r: h[:, [0, 1, 2, 3]] * h[:, [3, 2, 1, 0]] + h,
    "outer": lambda n, x, h, r: (h[..., None] * h[..., None, :]).sum(-1),
    "distances": lambda n, x, h, r: torch.cdist(h, h) @ h,
}
MIXED: Mapping[str, Idiom] = {
    "chosen": lambda n, x, h, r: torch.where(h > 0, h, r),
    "chosen, finfo": lambda n, x, h, r: torch.where(h > 0, h, torch.finfo(h.dtype).min).softmax(-1),
    "clamped": lambda n, x, h, r: torch.clamp(h, min=n.weight),
    "larger": lambda n, x, h, r: torch.maximum(h, r),
    "joined": lambda n, x, h, r: torch.cat([h[..., :4], r[..., 4:]], -1),
    "added in place": lambda n, x, h, r: h.clone().add_(r),
    "added in place, wide": lambda n, x, h, r: r.clone().add_(h),
    "multiplied in place": lambda n, x, h, r: (h * 1).mul_(n.weight),
    "einsum": lambda n, x, h, r: torch.einsum("btd,de->bte", r, n.matrix),
    "einsum of two": lambda n, x, h, r: torch.einsum("btd,bsd->bts", h, r) @ h,
    "product of parameters": lambda n, x, h, r: h @ (n.matrix @ n.matrix),
    "normed weight": lambda n, x, h, r: h @ (n.matrix / n.matrix.norm()),
    "scalar of a parameter": lambda n, x, h, r: h * n.weight[0].exp(),
    "vector": lambda n, x, h, r: (h @ n.weight)[..., None],
    "masked": lambda n, x, h, r: _causal(h, h),
    "masked, wide": lambda n, x, h, r: _causal(h, r),
    "biased": lambda n, x, h, r: F.softmax(h @ h.mT + 0.3 * torch.arange(4.0)[None], -1) @ h,
    "written": lambda n, x, h, r: _filled(h, h) + r,
    "written, wide": lambda n, x, h, r: _filled(h, r) + h,
    "divergence": lambda n, x, h, r: (h.softmax(-1) * (h.log_softmax(-1) - r.log_softmax(-1))).sum(
        -1, keepdim=True
    ),
    "powers": lambda n, x, h, r: (h.abs() + 0.1) ** n.weight,
    "cosine": lambda n, x, h, r: F.cosine_similarity(h, r, dim=-1)[..., None],
    "deviation": lambda n, x, h, r: (
        (h - h.mean(-1, True)) / (h.var(-1, keepdim=True) + 1e-5).sqrt()
    ),
    "scaled": lambda n, x, h, r: h / torch.sqrt(torch.tensor(h.shape[-1])),
    "gelu, by hand": lambda n, x, h, r: (
        0.5 * h * (1 + torch.tanh(0.79788456 * (h + 0.044715 * h.pow(3))))
    ),
    "pooled": lambda n, x, h, r: F.avg_pool1d(h, 3, 1, 1),
    "largest of a window": lambda n, x, h, r: F.max_pool1d(h, 3, 1, 1),
    "convolution": lambda n, x, h, r: n.conv(r.mT).mT,
    "group norm": lambda n, x, h, r: F.group_norm(h.mT, 2).mT,
    "detached": lambda n, x, h, r: h.detach() * r,
    "a loop": lambda n, x, h, r: torch.stack([h[:, i] * r[:, i] for i in range(TIME)], 1),
}
WIDE: Mapping[str, Idiom] = {
    "wide: linear": lambda n, x, h, r: n.gate(h.float()),
    "wide: router": lambda n, x, h, r: n.gate(h.float()).softmax(-1).to(h.dtype),
    "wide: parameter": lambda n, x, h, r: h.float() @ n.matrix,
    "wide: buffer": lambda n, x, h, r: h.float() @ n.table,
    "wide: convolution": lambda n, x, h, r: n.conv(h.float().mT).mT,
    "wide: norm": lambda n, x, h, r: n.norm(n.gate(h.float())),
    "wide: attention": lambda n, x, h, r: (h.float() @ h.float().mT).softmax(-1) @ h.float(),
}
"""Those under `autocast(enabled=False)`."""

IDIOMS: Mapping[str, Idiom] = {**CASTS, **READ, **MIXED, **WIDE}


class Chain(nn.Module):
    """Idioms in turn, each behind a residual or a layer."""

    table: Tensor

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.names = tuple(names)
        self.first, self.last = nn.Linear(INPUTS, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.norm, self.gate, self.between = nn.LayerNorm(WIDTH), nn.Linear(8, 8), nn.Linear(8, 8)
        self.weight = nn.Parameter(0.5 * torch.randn(WIDTH))
        self.matrix = nn.Parameter(0.3 * torch.randn(WIDTH, WIDTH))
        self.conv = nn.Conv1d(WIDTH, WIDTH, 1)
        self.register_buffer("table", 0.3 * torch.randn(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        r = self.norm(h)
        for place, name in enumerate(self.names):
            y = self.idiom(name, x, h, r)
            residual = (place + len(name)) % 2
            before, h = h, torch.tanh(0.5 * y + h if residual else self.between(y * h))
            r = before if len(name) % 3 == 0 else r
        return torch.as_tensor(self.last(h))

    def idiom(self, name: str, x: Tensor, h: Tensor, r: Tensor) -> Tensor:
        if name not in WIDE:
            return IDIOMS[name](self, x, h, r)
        with torch.autocast("cpu", enabled=False):
            return WIDE[name](self, x, h, r)


def chain(rng: np.random.Generator) -> tuple[str, ...]:
    """Draw the names of a chain."""
    return tuple(map(str, rng.choice(sorted(IDIOMS), int(rng.integers(2, 4)))))


def measured(names: Sequence[str]) -> Verdict:
    return verdict(Net(lambda: Chain(names), normal((TIME, INPUTS))))


def said(found: Verdict) -> str:
    """Return what is wrong with a chain, "" if nothing."""
    if found.refusal:
        return f"refused: {found.refusal}"
    single = found.single
    if single is None:
        return "torch itself is not finite"
    if not single.within(SINGLE, LEAST):
        return f"float32 apart: {single}"
    halves = [half for half in (found.half, found.summed) if half is not None]
    if not halves:
        return "no bfloat16 in torch"
    return "" if any(x.within(HALF, LEAST) for x in halves) else f"bfloat16 apart: {found.half}"


def main() -> None:
    """Measure the chains of a seed, and print what is wrong with them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chains", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=120)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rng, wrong = np.random.default_rng(options.seed), 0
    for _ in range(options.count):
        names = chain(rng)
        if fault := said(measured(names)):
            wrong += 1
            print(f"{' -> '.join(names)}: {fault}", flush=True)
    print(
        f"{options.count - wrong} of {options.count} chains of {len(IDIOMS)} idioms are as torch's"
    )


if __name__ == "__main__":
    main()
