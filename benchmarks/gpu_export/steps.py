"""Seconds and bytes of training steps: float32, exported policies, autocast."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch.nn import functional

from benchmarks.gpu_export.cases import drawn, exported
from benchmarks.gpu_export.nets import LARGE, torch_net
from policysearch.nn.chain import Chain
from policysearch.policy.policy import Policy
from policysearch.policy.presets import preset

WARM, STEPS = 5, 20
POLICIES = ("torch.autocast.bfloat16", "torch.autocast.float16", "bfloat16", "apex.O2", "random 0")
COMPILED = ("float32", "autocast bfloat16", "policy torch.autocast.bfloat16", "policy random 0")


def step_costs(name: str, place: str, compiles: bool) -> list[dict[str, Any]]:
    """Return a row per way of training the net called `name` in LARGE."""
    model = LARGE[name].make()
    ways = COMPILED if compiles else _ways()
    return [_row(name, way, model, place, compiles) for way in ways]


def _ways() -> tuple[str, ...]:
    plain = ("float32", "tfloat32", "autocast bfloat16", "autocast float16")
    return (*plain, *(f"policy {policy}" for policy in POLICIES))


def _row(net: str, way: str, model: Chain, place: str, compiles: bool) -> dict[str, Any]:
    named = {"net": net, "way": way, "compiled": compiles}
    try:
        return named | _measured(net, way, model, place, compiles)
    except Exception as error:  # one way must not end the others
        told = f"{type(error).__name__}: {error}"[:400]
        return named | {"error": told, "trace": traceback.format_exc()[-1500:]}


def _measured(net: str, way: str, model: Chain, place: str, compiles: bool) -> dict[str, Any]:
    _tfloat32(way == "tfloat32")
    inputs, targets = LARGE[net].batch(model, place)
    module, scaler, around = _trained_by(way, torch_net(model, place), model, place)
    torch._dynamo.reset()
    run = torch.compile(module) if compiles else module
    optimizer = torch.optim.SGD(module.parameters(), 1e-3, momentum=0.9)

    def step() -> Any:
        with around():
            loss = functional.cross_entropy(run(inputs).float(), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        return loss

    begun = time.perf_counter()
    for _ in range(WARM):
        step()
    _wait(place)
    warm_seconds = time.perf_counter() - begun
    return {"warm_seconds": warm_seconds, **_timed(step, place)}


def _timed(step: Callable[[], Any], place: str) -> dict[str, float]:
    """Return the median of STEPS steps, each waited for, and the mean of as many in a row."""
    if place == "cuda":
        torch.cuda.reset_peak_memory_stats()
    taken = []
    for _ in range(STEPS):
        begun = time.perf_counter()
        loss = step()
        _wait(place)
        taken.append(time.perf_counter() - begun)
    begun = time.perf_counter()
    for _ in range(STEPS):
        step()
    _wait(place)
    in_a_row = (time.perf_counter() - begun) / STEPS
    peak = torch.cuda.max_memory_allocated() if place == "cuda" else 0
    median = sorted(taken)[STEPS // 2]
    return {
        "step_seconds": median,
        "row_seconds": in_a_row,
        "peak_bytes": peak,
        "loss": loss.item(),
    }


def _trained_by(way: str, net: Any, model: Chain, place: str) -> tuple[Any, Any, Any]:
    """Return the module, its loss scale, and the context that its forward pass runs in."""
    kind, _, name = way.partition(" ")
    if kind == "policy":
        file = exported(_policy(name, model), model)
        net = file.apply_policy(net, device_type=place)
        return net, file.make_grad_scaler(place), nullcontext
    if kind == "autocast":
        scaler = torch.amp.GradScaler(place, enabled=name == "float16")
        return net, scaler, lambda: torch.autocast(place, getattr(torch, name))
    return net, torch.amp.GradScaler(place, enabled=False), nullcontext


def _policy(name: str, model: Chain) -> Policy:
    if name.startswith("random "):
        return drawn(model.layer_names, int(name.split()[1]))
    return preset(name, model.layer_names)


def _tfloat32(on: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = on


def _wait(place: str) -> None:
    if place == "cuda":
        torch.cuda.synchronize()
