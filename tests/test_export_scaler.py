"""The loss scale of an exported torch file: how it moves, skips, and goes on from its state."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from policysearch.export.torch import losses, runs
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import Policy, uniform_layer
from policysearch.policy.presets import preset
from policysearch.train.loss_scale import initial_state, next_state
from tests.test_export_torch import MODEL, run, torch_lenet


def stepped(scale: LossScale, overflow: str, state: Any = None, unscaled: bool = False) -> Any:
    """Return the exported scaler after these steps, its scales as `seen`; "O" is an overflow."""
    torch = pytest.importorskip("torch")
    policy = dataclasses.replace(preset("float32", MODEL.layer_names), loss_scale=scale)
    scaler = run(policy)["make_grad_scaler"]()
    if state is not None:
        scaler.load_state_dict(state)
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler.seen, scaler.weights = [], []
    for mark in overflow:
        scaler.seen.append(scaler.get_scale())
        weight.grad = torch.full((1,), math.inf if mark == "O" else 1.0)
        scaler.scale(torch.ones(()))
        if unscaled:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        scaler.weights.append(weight.item())
    return scaler


def scales_of(scale: LossScale, overflow: str) -> list[float]:
    """Return the scale of every step of the exported scaler."""
    seen: list[float] = stepped(scale, overflow).seen
    return seen


@pytest.mark.torch
@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        (LossScale(), [1.0] * 7),
        (LossScale("fixed", 128.0), [128.0] * 7),
        (LossScale("dynamic", 8.0, growth_interval=2), [8, 4, 2, 2, 4, 4, 8]),
        (
            LossScale("dynamic", 8.0, growth_interval=2, min_scale=4.0, max_scale=4.0),
            [4] * 7,
        ),
        (
            LossScale("dynamic", 8.0, growth_interval=2, min_scale=4.0, max_scale=8.0),
            [8, 4, 4, 4, 8, 8, 8],
        ),
        # One bound alone leaves the other side free.
        (LossScale("dynamic", 8.0, growth_interval=1, min_scale=4.0), [8, 4, 4, 8, 16, 32, 64]),
        (LossScale("dynamic", 8.0, growth_interval=1, max_scale=4.0), [4, 2, 1, 2, 4, 4, 4]),
        (LossScale("dynamic", 8.0, 1.0, 1.0, 1), [8.0] * 7),
        # Without bounds float32's largest power of two is one.
        (
            LossScale("dynamic", 2.0**126, growth_interval=1),
            [2.0**k for k in (126, 125, 124, 125, 126, 127, 127)],
        ),
        (LossScale("schedule", 2.0, schedule=((1, 4.0), (5, 16.0))), [2, 4, 4, 4, 4, 16, 16]),
        (LossScale("schedule", 2.0, schedule=((0, 4.0), (3, 8.0))), [4, 4, 4, 8, 8, 8, 8]),
    ],
)
def test_the_exported_loss_scale_moves_as_asked(scale: LossScale, expected: list[float]) -> None:
    assert scales_of(scale, "OOFFFFF") == expected
    state, emulated = initial_state(scale), []
    for step, mark in enumerate("OOFFFFF"):
        emulated.append(state.scale)
        state = next_state(scale, state, mark == "F", step)
    assert emulated == expected


@pytest.mark.torch
def test_a_scale_is_within_its_bounds_from_the_first_step() -> None:
    for bounds in ({"max_scale": 4.0}, {"min_scale": 16.0}):
        scale = LossScale("dynamic", 8.0, growth_interval=5, **bounds)  # type: ignore[arg-type]
        state, emulated = initial_state(scale), []
        for step in range(3):
            emulated.append(state.scale)
            state = next_state(scale, state, True, step)
        assert scales_of(scale, "FFF") == emulated == [*bounds.values()] * 3


@pytest.mark.torch
@pytest.mark.parametrize(
    "scale",
    [
        LossScale("schedule", 2.0, schedule=((1, 4.0), (5, 16.0))),
        LossScale("dynamic", 8.0, growth_interval=2, min_scale=4.0, max_scale=8.0),
        LossScale("fixed", 128.0),
    ],
)
def test_a_loss_scale_goes_on_from_its_state(scale: LossScale) -> None:
    whole = stepped(scale, "OOFFFFF")
    first = stepped(scale, "OOFF")
    state = first.state_dict()
    assert (state["steps"], state["skipped"]) == (4, 2)
    assert {"schedule", "lowest", "highest"} <= state.keys()
    second = stepped(scale, "FFF", state)
    assert second.seen == whole.seen[4:] and second.state_dict() == whole.state_dict()
    plain = {
        k: state[k] for k in state.keys() - {"schedule", "lowest", "highest", "steps", "skipped"}
    }
    assert stepped(scale, "", plain).get_scale() == first.get_scale()


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["fixed", "schedule"])
@pytest.mark.parametrize("skips", [True, False])
@pytest.mark.parametrize("unscaled", [True, False])
def test_a_scale_that_does_not_skip_takes_every_step(
    kind: Any, skips: bool, unscaled: bool
) -> None:
    schedule = ((0, 8.0),) if kind == "schedule" else ()
    scale = LossScale(kind, 8.0, skip_on_overflow=skips, schedule=schedule)
    scaler = stepped(scale, "FOF", unscaled=unscaled)
    assert [math.isfinite(w) for w in scaler.weights] == [True, skips, skips]
    assert scaler.skipped == skips and scaler.steps == 3


SCALES = (
    LossScale("fixed", 8.0),
    LossScale("fixed", 8.0, skip_on_overflow=False),
    LossScale("dynamic", 8.0, rule="apex"),
    LossScale("schedule", 8.0, schedule=((2, 16.0),)),
)


def stored(formats: dict[str, str], masters: bool, scale: LossScale) -> Policy:
    """Return a policy of float16 layers, some of whose parameters are stored so."""
    layers = {name: uniform_layer("float16", param=param) for name, param in formats.items()}
    policy = preset("torch.autocast.float16", MODEL.layer_names).with_layers(layers)
    return dataclasses.replace(policy, master_weights=masters, loss_scale=scale)


def trains_with(policy: Policy, make_scaler: Any) -> bool:
    """Return whether a step of the exported module is taken with a scaler, not refused by it."""
    torch = pytest.importorskip("torch")
    net = run(policy)["apply_policy"](torch_lenet())
    optimizer, scaler = torch.optim.SGD(net.parameters(), 0.01), make_scaler(policy)
    scaler.scale(net(torch.zeros(2, 1, 32, 32)).sum()).backward()
    try:
        scaler.step(optimizer)
    except ValueError as error:
        assert "Attempting to unscale FP16 gradients" in str(error)
        return False
    return True


@pytest.mark.torch
@pytest.mark.parametrize(
    ("formats", "masters", "refused"),
    [
        (dict.fromkeys(MODEL.layer_names, "float16"), False, True),
        (dict.fromkeys(MODEL.layer_names, "float16"), True, False),
        (dict.fromkeys(MODEL.layer_names, "bfloat16"), False, False),
        ({"fc3": "float16", "conv1": "bfloat16"}, False, True),  # one gradient is enough
        ({"relu1": "float16", "pool1": "float16"}, False, False),  # they store nothing
    ],
)
def test_what_the_scaler_of_torch_refuses_is_not_scaled(
    formats: dict[str, str], masters: bool, refused: bool
) -> None:
    torch = pytest.importorskip("torch")
    for scale in SCALES:
        policy = stored(formats, masters, scale)
        assert trains_with(policy, lambda _: torch.amp.GradScaler("cpu")) != refused
        running = runs(policy, MODEL)
        assert (running.loss_scale == LossScale()) == refused
        said = [line for line in losses(policy, MODEL) if "GradScaler refuses" in line]
        assert len(said) == refused and not any("refuses" in x for x in losses(running, MODEL))
        assert trains_with(policy, lambda policy: run(policy)["make_grad_scaler"]())
