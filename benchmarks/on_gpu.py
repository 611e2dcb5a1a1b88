"""The step on torch at a GPU: seconds beside torch's own float32, and its sums beside our models.

    python -m benchmarks.on_gpu --nets small gpt2
    python -m benchmarks.on_gpu --sums

Steps are those of a `Trainer`: a batch is fed from the host, the loss is read, and every twentieth
step is looked at. `played` is the median of the steps that are not, `all` the mean of a run of
`--steps` behind the first four, `first` the seconds of those, with what is compiled. Seconds are of
the wall clock: the host waits for the device. torch's step is a module of the same widths with
fused AdamW and its own fastest attention, TF32 off.

`--sums` counts the sums of products of random numbers that our models of an H100's tensor cores
give bit for bit as the device does.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.nets import batch_of
from policysearch.accumulators import accumulator_named
from policysearch.emulator.torch_step import exact_products
from policysearch.formats import format_named
from policysearch.nn.models import gpt
from policysearch.policy.policy import Policy, with_accumulator
from policysearch.policy.presets import preset
from policysearch.products.product import product
from policysearch.rounding.rounder import quantise
from policysearch.train.tasks import Task
from policysearch.train.trainer import PROBE_INTERVAL, Trainer

FIRST = 4
"""Steps that are run, watched or captured before any is timed; the first of all is looked at."""


@dataclass(frozen=True)
class Size:
    """Widths of a GPT, and the batch it takes."""

    time: int
    classes: int
    width: int
    blocks: int
    heads: int
    batch: int


SIZES = {
    "small": Size(256, 65, 384, 6, 6, 8),  # 10.8 M parameters, 2,048 tokens
    "gpt2": Size(1024, 50257, 768, 12, 12, 8),  # 163 M with a head of its own, 8,192 tokens
}
POLICIES = (
    *("float32", "bfloat16", "te.current", "te.delayed", "te.mxfp8", "te.nvfp4"),
    *("bfloat16 matrix_units", "te.current matrix_units"),
)


class Block(nn.Module):
    """A pre-norm block, its attention torch's own."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        parts = self.qkv(self.norms[0](x)).chunk(3, -1)
        q, k, v = (p.view(batch, length, self.heads, -1).transpose(1, 2) for p in parts)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


class Net(nn.Module):
    """A GPT that returns its loss."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size.classes, size.width)
        self.places = nn.Embedding(size.time, size.width)
        self.blocks = nn.Sequential(*(Block(size.width, size.heads) for _ in range(size.blocks)))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, size.classes, bias=False)

    def forward(self, tokens: Any, targets: Any) -> Any:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.blocks(self.tokens(tokens) + self.places(places))
        return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets)


def torch_step(size: Size, place: str) -> Callable[[], object]:
    """Return the call that takes one step of torch's own in float32."""
    net = Net(size).to(place)
    fused = place != "cpu"
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=fused)
    tokens = torch.randint(size.classes, (size.batch, size.time))
    targets = torch.randint(size.classes, (size.batch * size.time,))

    def step() -> float:
        loss = net(tokens.to(place), targets.to(place))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def named(name: str, layers: tuple[str, ...]) -> Policy:
    """Return a preset by name, summed by the accumulator behind a space."""
    found, _, accumulator = name.partition(" ")
    policy = preset(found, layers)
    return with_accumulator(policy, accumulator) if accumulator else policy


def our_step(size: Size, name: str, fast: str) -> Callable[[], object]:
    """Return the call that takes one step of a training under a policy."""
    hidden = (4 * size.width,) * size.blocks
    model = gpt((size.time,), size.classes, size.width, hidden, size.heads)
    task = Task(model=model, batch_size=size.batch, steps=10**6, optimizer="adamw")
    trainer = Trainer(model, task, named(name, tuple(model.layer_names)), 0, fast)
    trainer.load(model.init(np.random.default_rng(0)))
    inputs, labels = batch_of(model, size.batch)
    return lambda: trainer.step([inputs], labels)


def timed(step: Callable[[], object], steps: int) -> str:
    """Return how long the first steps took, the median of plain ones and the mean of all."""
    began = time.perf_counter()
    for _ in range(FIRST):
        step()
    first, taken = time.perf_counter() - began, []
    for _ in range(steps):
        began = time.perf_counter()
        step()
        taken.append(time.perf_counter() - began)
    plain = [t for n, t in enumerate(taken, FIRST) if n % PROBE_INTERVAL]
    played, mean = statistics.median(plain) * 1e3, statistics.fmean(taken) * 1e3
    return f"played {played:8.2f} ms   all {mean:8.2f} ms   first {first:6.2f} s"


def show_steps(nets: list[str], policies: list[str], steps: int, place: str) -> None:
    """Print a line for each net and way."""
    fast = "torch" if place == "cpu" else f"torch:{place}"
    for net in nets:
        with exact_products():
            print(f"{net:6} {'torch, float32':26} {timed(torch_step(SIZES[net], place), steps)}")
        for name in policies:
            line = timed(our_step(SIZES[net], name, fast), steps)
            gib = torch.cuda.max_memory_allocated() / 2**30 if place != "cpu" else math.nan
            print(f"{net:6} {name:26} {line}   at most {gib:5.1f} GiB", flush=True)


def on_device(name: str, left: Any, right: Any, fast_sums: bool) -> Any:
    """Return the product of the device's own units for a format, float32."""
    if name.startswith("float8"):
        kind = getattr(torch, name)
        one, columns = torch.ones((), device=left.device), right.t().contiguous().to(kind).t()
        how = {"out_dtype": torch.float32, "use_fast_accum": fast_sums}
        return torch._scaled_mm(left.to(kind), columns, one, one, **how)
    kind = getattr(torch, name)
    return torch.mm(left.to(kind), right.to(kind), out_dtype=torch.float32)


def show_sums(place: str) -> None:
    """Print the share of sums that a model has to the bit, and how far the others are off."""
    rows = (
        ("bfloat16", "tensor_core.h100", True),
        ("float16", "tensor_core.h100", True),
        ("float8_e4m3fn", "tensor_core.h100", True),
        ("float8_e4m3fn", "tensor_core.h100:promote128", False),
    )
    for name, accumulator, fast_sums in rows:
        fmt = format_named(name)
        model = product(accumulator_named(accumulator), fmt)
        for depth in (16, 32, 64, 128, 512, 2048, 8192):
            rng = np.random.default_rng(depth)
            shapes = ((64, depth), (depth, 64))
            left, right = (quantise(rng.standard_normal(s, np.float32), fmt) for s in shapes)
            ours = np.empty((64, 64), np.float32)
            model(left, right, out=ours)
            there = [torch.from_numpy(x).to(place) for x in (left, right)]
            theirs = on_device(name, there[0], there[1], fast_sums).cpu().numpy()
            blas = left @ right
            scale = np.abs(left) @ np.abs(right)
            off = np.max(np.abs(ours - theirs) / scale)
            plain = np.max(np.abs(blas - theirs) / scale)
            how = "fast sums" if fast_sums and name.startswith("float8") else ""
            print(
                f"{name:14} {accumulator:28} {how:9} depth {depth:5}  equal "
                f"{np.mean(ours == theirs):6.1%}  largest difference {off:.1e} of magnitudes "
                f"(float32 BLAS: equal {np.mean(blas == theirs):6.1%}, {plain:.1e})",
                flush=True,
            )


def main() -> None:
    """Run the command."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--nets", nargs="*", default=["small"], choices=SIZES)
    options.add_argument("--policies", nargs="*", default=list(POLICIES))
    options.add_argument("--steps", type=int, default=40)
    options.add_argument("--sums", action="store_true", help="sums of products, in place of steps")
    options.add_argument("--place", default="cuda")
    given = options.parse_args()
    if given.place != "cpu":
        print(torch.cuda.get_device_name(given.place), "torch", torch.__version__)
    if given.sums:
        show_sums(given.place)
    else:
        show_steps(given.nets, given.policies, given.steps, given.place)


if __name__ == "__main__":
    main()
