"""The loss scale of an exported file on a device, beside torch's own GradScaler."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from benchmarks.exported.cases import exported
from policysearch.nn.models import mlp
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.presets import preset

OVERFLOWS = (3, 4, 9)
"""Steps whose gradients are made infinite."""
STEPS = 14


def scaler_checks(place: str) -> dict[str, bool]:
    """Return what holds of the scaler on a device."""
    growing = LossScale("dynamic", 2.0**16, growth_interval=3)
    own, skipped, weights = _trained(place, growing)
    options = {"init_scale": 2.0**16, "growth_interval": 3}
    plain, _, expected = _trained(place, growing, torch.amp.GradScaler(place, **options))
    fixed, steps, reached = _trained(place, LossScale("fixed", 1024.0, skip_on_overflow=False))
    bounded, _, _ = _trained(place, LossScale("dynamic", 2.0**16, min_scale=2.0**15))
    scheduled, _, _ = _trained(place, LossScale("schedule", 8.0, schedule=((0, 8.0), (5, 32.0))))
    return {
        "dynamic scales are GradScaler's": own == plain and len(set(own)) > 2,
        "so are the weights": torch.equal(weights, expected),
        "skipped are counted": skipped == len(OVERFLOWS),
        "a fixed scale that does not skip, does not": steps == 0 and not reached.isfinite().all(),
        "a fixed scale stays": set(fixed) == {1024.0},
        "a floor holds": min(bounded) == 2.0**15,
        "a schedule is followed": scheduled == [8.0] * 5 + [32.0] * (STEPS - 5),
        "a state goes on where it was": _resumes(place, growing),
    }


def _file(scale: LossScale) -> tuple[Any, Any]:
    model = mlp((8, 8, 4))
    policy = preset("torch.autocast.float16", model.layer_names)
    return exported(replace(policy, loss_scale=scale), model), model


def _net(place: str) -> Any:
    torch.manual_seed(0)
    net = torch.nn.Sequential()
    net.add_module("fc1", torch.nn.Linear(8, 8))
    net.add_module("relu1", torch.nn.ReLU())
    net.add_module("fc2", torch.nn.Linear(8, 4))
    return net.to(place)


def _trained(place: str, scale: LossScale, scaler: Any = None) -> tuple[list[float], int, Any]:
    """Return the scales of the steps, how many were skipped, and the last weight."""
    file, _ = _file(scale)
    net = file.apply_policy(_net(place), device_type=place)
    scaler = scaler or file.make_grad_scaler(place)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    scales = [_step(net, optimizer, scaler, step in OVERFLOWS) for step in range(STEPS)]
    return scales, getattr(scaler, "skipped", 0), net.fc2.weight.detach()


def _step(net: Any, optimizer: Any, scaler: Any, overflows: bool) -> float:
    x = torch.linspace(-1, 1, 40, device=optimizer.param_groups[0]["params"][0].device)
    scale: float = scaler.get_scale()
    optimizer.zero_grad()
    loss = net(x.reshape(5, 8)).square().mean()
    scaler.scale(loss * float("inf") if overflows else loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return scale


def _resumes(place: str, scale: LossScale) -> bool:
    file, _ = _file(scale)
    first, second = (file.make_grad_scaler(place) for _ in range(2))
    net = file.apply_policy(_net(place), device_type=place)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    for step in range(4):
        _step(net, optimizer, first, step in OVERFLOWS)
    second.load_state_dict(first.state_dict())
    return bool(second.get_scale() == first.get_scale() and second.steps == 4)
