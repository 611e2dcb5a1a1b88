"""Records a torch training in float32 of every range failure, and asks its log what would be lost.

    python -m benchmarks.failures.logged [CASE ...]

Needs torch. A failure is named where the first finding of the log has its kind, its op in torch's
words, and its direction. Prints a line per case with the longest step of the log in bytes, the
names that are new in it left out, and how many are named.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

import policysearch
from benchmarks.failures.zoo import Failure, failure, module_of, names
from policysearch.diagnose.log import Finding, findings, read_log
from policysearch.formats import format_named
from policysearch.train.loss_scale import initial_state

KINDS = {
    "overflow": ("overflow",),
    "born": ("born", "overflow"),
    "underflow": ("underflow", "born"),
    "loss scale": ("overflow",),
    "never leaves skipping": ("overflow",),
}
"""What a log calls the kinds of failures that a range makes."""

ATEN = {
    "matmul": ("mm", "bmm", "addmm"),
    "bias": ("addmm", "add"),
    "multiply": ("mul", "pow"),
    "scale": ("mul", "div"),
    "divide": ("div",),
    "vector_norm": ("linalg_vector_norm", "div"),
    "sum": ("sum", "mean"),
}
"""What torch calls ops that have another name here."""

BACKWARD = ("loss scale", "never leaves skipping")
"""Kinds of gradients; underflows are theirs where the case names no op."""

LOSSES: dict[str, Callable[[Any, list[Any]], Any]] = {
    "": lambda net, batch: functional.cross_entropy(net(*batch[:-1]), batch[-1]),
    "mean_squared_error": lambda net, batch: functional.mse_loss(net(*batch[:-1]), batch[-1]),
    "own": lambda net, batch: net(*batch),
}

EVERY = 1
"""Trainings of the zoo are short, and one of them fails late: every fifth step misses that."""


class Scale:
    """A loss scale that stays."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def get_scale(self) -> float:
        """Return it."""
        return self.scale


def is_range(case: Failure) -> bool:
    """Return whether the format alone makes the failure, not how tensors are scaled to it."""
    return case.kind in KINDS and case.policy.scaling.recipe == "none"


def recorded(case: Failure, path: Path) -> None:
    """Train a case in torch, in float32, and record it."""
    module, task = module_of(case.name, torch=True), case.objective.task
    torch.manual_seed(0)
    net, data = module.net()[0], [torch.from_numpy(np.asarray(x)) for x in module.data()]
    kind = torch.optim.Adam if task.optimizer.startswith("adam") else torch.optim.SGD
    given: dict[str, Any] = {} if kind is torch.optim.Adam else {"momentum": task.momentum}
    optimizer = kind(net.parameters(), lr=task.learning_rate, **given)
    scaler, rng = Scale(initial_state(case.policy.loss_scale).scale), np.random.default_rng(0)
    with policysearch.record(net, optimizer, path, every=EVERY, scaler=scaler):
        for _ in range(task.steps):
            chosen = torch.from_numpy(rng.choice(len(data[-1]), task.batch_size, replace=False))
            batch = [x[chosen] for x in data]
            loss = LOSSES[getattr(module, "LOSS", "")](net, batch)
            optimizer.zero_grad()
            (loss * scaler.scale).backward()
            for parameter in net.parameters():
                if parameter.grad is not None:
                    parameter.grad /= scaler.scale
            optimizer.step()


def is_named(case: Failure, found: Finding) -> bool:
    """Return whether a finding has the failure's kind, op and direction."""
    ops = {name for op in case.ops for name in ATEN.get(op, (op,))}
    if case.kind in BACKWARD or (case.kind == "underflow" and not ops - {"mm", "bmm", "addmm"}):
        return found.kind in KINDS[case.kind] and found.direction in ("dgrad", "wgrad")
    right = found.kind in KINDS[case.kind] and found.direction == "fprop"
    return right and (not ops or found.op.rstrip("_") in ops)


def main() -> None:
    """Print what the log of each case says first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE")
    cases = [failure(name) for name in parser.parse_args().cases or names()]
    chosen = [case for case in cases if is_range(case)]
    named = 0
    for case in chosen:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "log"
            recorded(case, path)
            lines = path.read_text(encoding="utf-8").splitlines()
            formats = [format_named(row.grad) for _, row in case.policy.layers]
            narrow = min(formats, key=lambda each: each.bits).name
            found = findings(read_log(path), narrow)
        right = bool(found) and is_named(case, found[0])
        named += right
        words = found[0].words if found else "nothing"
        print(f"{case.name:18} {'-+'[right]} {max(map(len, lines[1:])):6,} B  {words}", flush=True)
    print(f"named {named} of {len(chosen)}")


if __name__ == "__main__":
    main()
