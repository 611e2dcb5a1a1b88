"""What recording a torch training takes: CPU time of a step, and bytes of a line of the log.

    python -m benchmarks.recorder [--every 10] [--rounds 5] [NET ...]

Needs torch. Trains each net in turns of `every` steps, with `policysearch.record`, which looks at
one of them, and without. The figures are medians of the CPU milliseconds of a step, averaged over a
turn, and the bytes of the longest line that names nothing new.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import policysearch


class Attention(nn.Module):
    """A block of a transformer with its attention written out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        heads = [
            t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.qkv(self.before(x)).chunk(3, -1)
        ]
        scores = heads[0] @ heads[1].transpose(-2, -1) / heads[0].shape[-1] ** 0.5
        x = x + self.proj((scores.softmax(-1) @ heads[2]).transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.between(x))))


class Residual(nn.Module):
    """Two convolutions with batch norms beside a path without them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.norm, self.last = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.last(self.second(torch.relu(self.norm(self.first(x))))))


def _dense() -> nn.Module:
    sizes = (256, *(1024,) * 6, 10)
    layers = [part for a, b in itertools.pairwise(sizes) for part in (nn.Linear(a, b), nn.GELU())]
    return nn.Sequential(*layers[:-1])


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "transformer, 10 blocks": (
        lambda: nn.Sequential(*(Attention(128) for _ in range(10)), nn.Linear(128, 10)),
        (16, 64, 128),
    ),
    "transformer, 4 blocks": (
        lambda: nn.Sequential(*(Attention(256) for _ in range(4)), nn.Linear(256, 10)),
        (8, 128, 256),
    ),
    "convolutions, 8 blocks": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 32, 3),
            *(Residual(32) for _ in range(8)),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(32, 10),
        ),
        (16, 3, 32, 32),
    ),
    "dense, 7 layers": (_dense, (256, 256)),
}


def cost(name: str, every: int, rounds: int) -> tuple[float, float, int]:
    """Return the milliseconds of a step without a record and with one, and the bytes of a line."""
    torch.manual_seed(0)
    build, shape = NETS[name]
    net, x = build(), torch.randn(shape)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)

    def turn() -> float:
        started = time.process_time()
        for _ in range(every):
            net(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return 1e3 * (time.process_time() - started) / every

    turn()
    plain, recorded = list[float](), list[float]()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        for _ in range(rounds):
            plain.append(turn())
            with policysearch.record(net, optimizer, path, every=every):
                recorded.append(turn())
        with policysearch.record(net, optimizer, path, every=1):
            turn()
        line = max(map(len, path.read_text().splitlines()[1:]))
    return float(np.median(plain)), float(np.median(recorded)), line


def main() -> None:
    """Print a line for every net."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nets", nargs="*", default=list(NETS), metavar="NET")
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.nets:
        plain, recorded, line = cost(name, options.every, options.rounds)
        times = f"{plain:7.1f} ms, recorded {recorded:7.1f} ms, {recorded / plain:.2f} times"
        print(f"{name:24} {times}, {line} bytes a line", flush=True)


if __name__ == "__main__":
    main()
