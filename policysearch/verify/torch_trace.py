"""What an exported torch file does call by call, and what its loss scale does when forced."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

NEAR = 2
"""Steps before a growth at which the counter of good steps is set: so an interval is seen."""


class Trace(TorchDispatchMode):
    """Notes every call of torch, forward and backward: its op, what it reads and what it gives."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        read = " ".join(_dtypes((args, kwargs or {})))
        self.calls.append(f"{function.__name__}({read}) -> {' '.join(_dtypes(made))}")
        return made


def _dtypes(value: Any) -> Iterator[str]:
    if isinstance(value, torch.Tensor):
        yield str(value.dtype).removeprefix("torch.")
    elif isinstance(value, dict):
        yield from _dtypes([*value.values()])
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _dtypes(part)


def scale_events(exported: Any, kind: str) -> list[list[float]]:
    """Return (scale, parameter) after each step of a row with overflows where they tell most.

    The counter is set so that the first growth, the backoff, the floor, the cap and what a step
    with an overflow does are all seen, whatever the interval is.
    """
    scaler = exported.make_grad_scaler(kind)
    parameter = torch.nn.Parameter(torch.zeros(1, device=kind))
    optimizer = torch.optim.SGD([parameter], 1.0)
    events: list[list[float]] = []

    def step(finite: bool) -> None:
        optimizer.zero_grad()
        scaler.scale(parameter.sum() * (2.0**-10 if finite else float("inf"))).backward()
        scaler.step(optimizer)
        scaler.update()
        value = parameter.detach().clone()
        with torch.no_grad():
            parameter.zero_()
        events.append([scaler.get_scale(), float(value.nan_to_num(posinf=1e30, neginf=-1e30))])

    step(True)
    if not scaler.is_enabled():
        return events
    for finite in (False, True, False, False):
        step(finite)
    events.append([float(scaler.get_growth_interval()), 0.0])
    scaler._growth_tracker.fill_(max(0, scaler.get_growth_interval() - NEAR))
    for finite in (True, True, True, False):
        step(finite)
    for scale in (scaler.highest, max(scaler.lowest, 2.0**-100)):
        scaler.update(float(scale))
        step(False)
        scaler.update(float(scale))
        scaler._growth_tracker.fill_(scaler.get_growth_interval() - 1)
        step(True)
    events += [[float(first), scaler.scale_at(first)] for first, _ in scaler.schedule]
    return events
