"""Live memory of training steps of torch beside what the memory model says, without any device.

    python -m benchmarks.live_memory

torch runs two whole steps (forward, backward, update by Adam) of its own definitions of the nets on
tensors without data, and its `MemTracker` counts the bytes that live at the peak. Modes: float32;
autocast to bfloat16; a model in float16 with float32 norms and masters. The ratio is of a mode over
float32.
Left out: attention under autocast, since torch's list for CPUs does not run softmax and layer norm
in float32 as CUDA's does, and CPU tensors are what there is.
"""

from __future__ import annotations

import itertools
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

from benchmarks.live_nets import NETS, Net
from benchmarks.timing import show
from benchmarks.validation.published_memory import Weights, memory_of
from policysearch.importers.torch_export import from_torch
from policysearch.nn.model import Model
from policysearch.objective.published.models import model_at
from policysearch.objective.published.networks import NETWORKS
from policysearch.objective.published.stacks import FLOAT16, FLOAT32

STEPS = 2
MODES: dict[str, Weights] = {"float32": "float32", "autocast": "cached", "halved": "halved"}
NORMS = (nn.BatchNorm2d, nn.LayerNorm)
MIB = 2**20
COLUMNS = ("net", "batch", "mode", "torch MiB", "model MiB", "error", "moment")


@dataclass(frozen=True)
class Compared:
    """One step: bytes live at its peak in torch and modeled."""

    net: str
    batch: int
    mode: str
    torch_bytes: float
    model_bytes: float
    moment: str

    @property
    def error(self) -> float:
        return self.model_bytes / self.torch_bytes - 1


def as_cuda(self: Any, x: Any) -> Any:
    """Dropout as CUDA has it, with a mask of a byte."""
    return torch.native_dropout(x, self.p, True)[0]


def half(model: nn.Module) -> list[nn.Parameter]:
    """Turn a model to float16 but its norms; return float32 masters of its parameters."""
    for module in model.modules():
        if not isinstance(module, NORMS):
            for name, own in module.named_parameters(recurse=False):
                setattr(module, name, nn.Parameter(own.detach().half()))
    return [nn.Parameter(p.detach().float().clone()) for p in model.parameters()]


def live_in_torch(net: Net, batch: int, mode: str) -> float:
    """Return the bytes that live at the peak of two steps."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = net.model()
        masters = half(model) if mode == "halved" else []
        update = torch.optim.Adam(masters or list(model.parameters()), foreach=True)
        tracker = MemTracker()
        *given, target = net.batch(batch, "cpu")
        tracker.track_external(model, update, *given, target)
        inputs = [x.half() if masters and x.is_floating_point() else x for x in given]
        with tracker:
            for _ in range(STEPS):
                update.zero_grad()
                tracker.reset_mod_stats()
                with torch.autocast("cpu", torch.bfloat16, mode == "autocast"):
                    loss = net.loss(model(*inputs), target)
                loss.backward()
                del loss
                for own, master in zip(model.parameters(), masters, strict=False):
                    master.grad = own.grad.float() if own.grad is not None else None
                update.step()
                for own, master in zip(model.parameters(), masters, strict=False):
                    own.data.copy_(master.data)
                    own.grad = None
        peak = tracker.get_tracker_snapshot("peak")
    return float(sum(parts["Total"] for parts in peak.values()))


def modeled(net: Net, batch: int, mode: str) -> tuple[float, str]:
    """Return the modeled bytes and the node that runs at the peak."""
    model = _imported(net)
    precision = FLOAT32 if mode == "float32" else FLOAT16
    memory = memory_of(model, "adam", precision, MODES[mode], batch)
    return memory.peak_bytes, f"node {memory.peak_node}"


def _imported(net: Net) -> Model:
    """Return the net as it is recorded for published rows, else as it is imported."""
    if net.name in NETWORKS:
        return model_at(NETWORKS[net.name], net.length or 0)
    examples = net.batch(2, "cpu")[:-1]
    return from_torch(net.model(), examples, loss="softmax_cross_entropy", name=net.name)


def compared() -> list[Compared]:
    """Return all steps compared."""
    rows = []
    for net, mode in itertools.product(NETS, MODES):
        if mode == "autocast" and net.name.startswith("bert"):
            continue
        for batch in dict.fromkeys((net.batches[0], net.batches[-1])):
            there = live_in_torch(net, batch, mode)
            here = modeled(net, batch, mode)
            rows.append(Compared(net.name, batch, mode, there, *here))
            print(*vars(rows[-1]).values(), file=sys.stderr)
    return rows


def ratio_errors(rows: list[Compared]) -> list[float]:
    """Return modeled over true ratios of a mode over float32, less one."""
    plain = {(r.net, r.batch): r for r in rows if r.mode == "float32"}
    pairs = [(r, plain[r.net, r.batch]) for r in rows if r.mode != "float32"]
    return [(1 + r.error) / (1 + wide.error) - 1 for r, wide in pairs]


def main() -> None:
    """Print every step, then the errors."""
    nn.Dropout.forward = as_cuda
    rows = compared()
    table = [
        (
            *(r.net, r.batch, r.mode, f"{r.torch_bytes / MIB:.1f}"),
            *(f"{r.model_bytes / MIB:.1f}", f"{r.error:+.1%}", r.moment),
        )
        for r in rows
    ]
    show("live at the peak", COLUMNS, table)
    for name, errors in (("peak", [r.error for r in rows]), ("ratio", ratio_errors(rows))):
        found = np.abs(errors)
        print(f"{name}: {len(found)} rows, mean error {found.mean():.1%}, p90 ", end="")
        print(f"{np.quantile(found, 0.9):.1%}, largest {found.max():.1%}")


if __name__ == "__main__":
    main()
