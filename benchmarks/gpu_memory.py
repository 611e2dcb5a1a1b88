"""Memory of real training steps on a GPU, in float32 and in mixed precision, as JSON rows.

    python -m benchmarks.gpu_memory > rows.json      (torch with CUDA; under three minutes)

Rows have the form of `policysearch/cost/published_memory.json`, so that `policysearch
validate-cost --memory --rows rows.json` judges the memory model by them. Each is one net, batch,
optimizer and mode after three steps. `memory_*_gib` is what the driver shows in use: what the
caching allocator has reserved and the context. Further fields, bytes: `allocated` and `reserved`
(`torch.cuda.max_memory_*`), `start` (before the last step), `forward` and `backward` (allocated
behind each), `step` (peak of the update alone) and `context`.

Modes: `AMP` and `AMP-BF16` are autocast, `FP16` a model in float16 with float32 norms and masters.
Rows of kind "update" time one update of BERT-base's parameters by each of torch's optimizers.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.gpu_nets import NETS, Net

STEPS = 3
MODES = ("FP32", "AMP", "AMP-BF16", "FP16")
AUTOCAST = {"AMP": torch.float16, "AMP-BF16": torch.bfloat16}
NORMS = (nn.BatchNorm2d, nn.LayerNorm)
METRIC = "driver, in use at the end (caching allocator reserved + context)"
UPDATES: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p, **how: torch.optim.SGD(p, lr=1e-3, momentum=0.9, **how),
    "adam": lambda p, **how: torch.optim.Adam(p, lr=1e-4, **how),
    "adamw": lambda p, **how: torch.optim.AdamW(p, lr=1e-4, **how),
    "adadelta": lambda p, **how: torch.optim.Adadelta(p, lr=1e-3, **how),
}


def clean() -> None:
    """Give back what earlier runs have left, and start the peaks anew."""
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def half(model: nn.Module) -> list[nn.Parameter]:
    """Turn a model to float16 but its norms; return float32 masters of its parameters."""
    model.half()
    for module in model.modules():
        if isinstance(module, NORMS):
            module.float()
    return [nn.Parameter(p.detach().float().clone()) for p in model.parameters()]


class Run:
    """A training of one net in one mode."""

    def __init__(self, net: Net, batch: int, mode: str, optimizer: str, device: str) -> None:
        self.model, self.mode = net.model().to(device), mode
        self.masters = half(self.model) if mode == "FP16" else []
        self.optimizer = UPDATES[optimizer](self.masters or list(self.model.parameters()))
        self.scaler = torch.amp.GradScaler(device, enabled=mode == "AMP")
        self.batch = net.batch(batch, device)
        self.loss = net.loss
        self.moments: dict[str, int] = {}

    def step(self, moment: Callable[[str], None]) -> None:
        """Train one step, calling `moment` behind each of its parts."""
        self.optimizer.zero_grad()
        self.model.zero_grad()
        moment("start")
        low = AUTOCAST.get(self.mode)
        inputs = [self._cast(x) for x in self.batch[:-1]]
        with torch.autocast(self.batch[-1].device.type, low or torch.float16, low is not None):
            loss = self.loss(self.model(*inputs), self.batch[-1])
        del inputs
        moment("forward")
        self.scaler.scale(loss * (1024.0 if self.masters else 1.0)).backward()
        del loss
        moment("backward")
        if self.masters:
            self._masters_take_gradients()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.masters:
            with torch.no_grad():
                for own, master in zip(self.model.parameters(), self.masters, strict=True):
                    own.copy_(master)
        moment("step")

    def _cast(self, x: torch.Tensor) -> torch.Tensor:
        return x.half() if self.masters and x.is_floating_point() else x

    def _masters_take_gradients(self) -> None:
        for own, master in zip(self.model.parameters(), self.masters, strict=True):
            if own.grad is not None:
                master.grad = own.grad.float() / 1024.0


def measured(net: Net, batch: int, mode: str, optimizer: str) -> dict[str, int] | None:
    """Return bytes of one training (see above), None where memory does not suffice."""
    clean()
    found: dict[str, int] = {}
    peaks: list[int] = []
    before = torch.cuda.memory_allocated()

    def moment(name: str) -> None:
        torch.cuda.synchronize()
        found[name] = torch.cuda.memory_allocated()
        peaks.append(torch.cuda.max_memory_allocated())
        found[f"{name}_peak"] = peaks[-1]
        torch.cuda.reset_peak_memory_stats()

    try:
        run = Run(net, batch, mode, optimizer, "cuda")
        for _ in range(STEPS):
            run.step(moment)
    except torch.cuda.OutOfMemoryError:
        return None
    free, total = torch.cuda.mem_get_info()
    reserved = torch.cuda.memory_reserved()
    found |= {"allocated": max(peaks), "reserved": reserved, "before": before}
    found |= {"context": total - free - reserved}
    found |= {"parameters": sum(p.numel() for p in run.model.parameters())}
    return found


def rows_of(net: Net, batch: int, optimizer: str, where: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a net at a batch: each mode beside float32."""
    plain = measured(net, batch, "FP32", optimizer)
    rows = []
    for mode in MODES[1:]:
        mixed = None if mode == "FP16" and not net.halves else measured(net, batch, mode, optimizer)
        if plain is None or mixed is None:
            print(f"{net.name} {batch} {mode} {optimizer}: not run", file=sys.stderr)
            continue
        row = {"kind": "step", "model": net.name, **where, "seq_len": net.length, "mode": mode}
        row |= {"batch_baseline": batch, "batch_mixed": batch, "optimizer": optimizer}
        for side, found in (("baseline", plain), ("mixed", mixed)):
            row[f"memory_{side}_gib"] = round((found["reserved"] + found["context"]) / 2**30, 4)
            row[f"bytes_{side}"] = found
        rows.append({**row, "metric": METRIC, "source": "benchmarks/gpu_memory.py"})
    return rows


def update_row(name: str, how: str, where: dict[str, Any]) -> dict[str, Any]:
    """Return time and memory of updating the parameters of BERT-base."""
    clean()
    model = next(net for net in NETS if net.name == "bert-base").model().to("cuda")
    parameters = list(model.parameters())
    for p in parameters:
        p.grad = torch.full_like(p, 1e-3)
    chosen = {"fused": {"fused": True}, "foreach": {"foreach": True}, "single": {"foreach": False}}
    optimizer = UPDATES[name](parameters, **chosen[how])
    for _ in range(3):
        optimizer.step()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(20):
        torch.cuda.synchronize()
        started = time.perf_counter()
        optimizer.step()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    row = {"kind": "update", "optimizer": name, "how": how, **where, "tensors": len(parameters)}
    row |= {"parameters": sum(p.numel() for p in parameters), "allocated": before}
    row |= {"peak": torch.cuda.max_memory_allocated()}
    return row | {"update_seconds": sorted(seconds)[len(seconds) // 4]}


def updates(where: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of all optimizers in every form that torch has for them."""
    rows = []
    for name in UPDATES:
        for how in ("fused", "foreach", "single"):
            try:
                rows.append(update_row(name, how, where))
            except (TypeError, RuntimeError) as error:
                print(f"{name} {how}: {error}", file=sys.stderr)
    return rows


def step_rows(where: dict[str, Any], only: str | None, seconds: float) -> list[dict[str, Any]]:
    """Return the rows of all nets, or of one; none begins after so many seconds."""
    started = time.perf_counter()
    measured(NETS[0], 8, "FP32", "sgd")  # what loads once is loaded
    rows: list[dict[str, Any]] = []
    chosen = [net for net in NETS if only in (None, net.name)]
    for net, optimizer in [(net, name) for net in chosen for name in ("sgd", "adam")]:
        for batch in net.batches:
            if time.perf_counter() - started > seconds:
                print(f"{net.name} {batch} {optimizer}: out of time", file=sys.stderr)
                continue
            rows += rows_of(net, batch, optimizer, where)
    return rows


def main() -> None:
    """Print the rows as one JSON list."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=150, help="no row begins after that")
    parser.add_argument("--net", help="only this net")
    options = parser.parse_args()
    started = time.perf_counter()
    where: dict[str, Any] = {"framework": f"PyTorch {torch.__version__}"}
    where |= {"device_bytes": torch.cuda.mem_get_info()[1]}
    where |= {"hardware": torch.cuda.get_device_name()}
    torch.manual_seed(0)
    rows = updates(where) if options.net is None else []
    rows = step_rows(where, options.net, options.seconds) + rows
    json.dump(rows, sys.stdout, indent=1)
    print()
    print(f"{len(rows)} rows, {time.perf_counter() - started:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
