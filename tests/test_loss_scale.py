"""The loss-scale rules: the known trace, floors and caps, and torch's GradScaler itself."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from policysearch.policy.loss_scale import RULES, LossScale, LossScaleRule
from policysearch.train.loss_scale import (
    ScaleState,
    gave_up,
    initial_state,
    inverse,
    next_state,
    scale_changes,
    skips_update,
)
from policysearch.values import InputError, choices

DYNAMIC = tuple(n for n, row in RULES.items() if row.moves and row.hysteresis == 1)


def dynamic(rule: str, init: float = 1024.0, interval: int = 3, **changes: object) -> LossScale:
    config = LossScale("dynamic", init, growth_interval=interval, rule=rule)
    return replace(config, **changes)  # type: ignore[arg-type]


def trace(config: LossScale, overflows: str) -> list[float]:
    """Return the scale after each step of a string of F (finite) and O (overflow)."""
    state, scales = initial_state(config), []
    for step, event in enumerate(overflows):
        state = next_state(config, state, event == "F", step)
        scales.append(state.scale)
    return scales


def test_every_rule_of_a_policy_has_its_row() -> None:
    assert set(RULES) == set(choices(LossScaleRule))


@pytest.mark.parametrize("rule", DYNAMIC)
def test_the_trace_that_all_frameworks_gave(rule: str) -> None:
    """Sequence and scales as recorded from the frameworks themselves, window 3."""
    expected = [1024, 1024, 2048, 2048, 1024, 1024, 1024, 2048, 1024, 1024]
    assert trace(dynamic(rule), "FFFFOFFFOF") == expected


FLOORS = {
    "torch.GradScaler": 0.125,
    "mindspore.DynamicLossScaleManager": 1.0,
    "mindspore.DynamicLossScaler": 1.0,
    "apex": 0.125,
    "keras.LossScaleOptimizer": 0.125,
    "jmp.DynamicLossScale": 1.0,
}


@pytest.mark.parametrize("rule", FLOORS)
def test_floor(rule: str) -> None:
    assert trace(dynamic(rule, init=2.0), "OOOO")[-1] == FLOORS[rule]
    assert trace(dynamic(rule, init=2.0, min_scale=0.5), "OOOO")[-1] == 0.5


TOPS = {
    "torch.GradScaler": 2.0**127,
    "mindspore.DynamicLossScaleManager": math.inf,
    "mindspore.DynamicLossScaler": 2.0**127,
    "apex": 2.0**24,
    "keras.LossScaleOptimizer": math.inf,
    "jmp.DynamicLossScale": 2.0**127,
}


@pytest.mark.parametrize("rule", TOPS)
def test_top(rule: str) -> None:
    init = 2.0**23 if rule == "apex" else 2.0**126
    assert trace(dynamic(rule, init=init, interval=1), "FFF")[-1] == TOPS[rule]
    assert trace(dynamic(rule, interval=1, max_scale=3000.0), "FFF")[-1] == 3000.0


def test_apex_begins_at_its_cap_at_most() -> None:
    """apex/amp/scaler.py: `self._loss_scale = min(max_loss_scale, init_scale)`."""
    assert trace(dynamic("apex", init=2.0**30), "FOF") == [2.0**24, 2.0**23, 2.0**23]
    assert trace(dynamic("apex", init=2.0**30, max_scale=2.0**26), "F") == [2.0**26]
    assert trace(dynamic("torch.GradScaler", init=2.0**30), "F") == [2.0**30]


@pytest.mark.parametrize("rule", RULES)
def test_fixed_scale_never_moves(rule: str) -> None:
    config = LossScale("fixed", 128.0, growth_interval=1, rule=rule)
    assert set(trace(config, "FOFOOFF")) == {128.0}


def test_schedule_holds_from_its_first_step() -> None:
    config = LossScale("schedule", 4.0, schedule=((2, 8.0), (4, 16.0)))
    assert initial_state(config).scale == 4.0
    assert trace(config, "FFFOF") == [4.0, 8.0, 8.0, 16.0, 16.0]
    assert initial_state(replace(config, schedule=((0, 2.0),))).scale == 2.0


@pytest.mark.parametrize(
    ("config", "skips"),
    [
        (LossScale(), False),
        (LossScale("fixed", 8.0), True),
        (LossScale("fixed", 8.0, skip_on_overflow=False), False),
        (LossScale("fixed", 8.0, rule="apex"), False),
        (LossScale("dynamic", 8.0, rule="apex"), True),
        (LossScale("dynamic", 8.0, skip_on_overflow=False), True),
        (LossScale("schedule", schedule=((0, 8.0),), skip_on_overflow=False), False),
    ],
)
def test_what_skips(config: LossScale, skips: bool) -> None:
    assert skips_update(config, finite=False) is skips
    assert not skips_update(config, finite=True)


def test_mindspore_manager_gives_up_after_a_thousand_overflows() -> None:
    config = dynamic("mindspore.DynamicLossScaleManager")
    state = ScaleState(1.0, 0, 999)
    state = next_state(config, state, False, 0)
    assert not gave_up(config, state)
    assert gave_up(config, next_state(config, state, False, 1))
    assert not gave_up(config, next_state(config, state, True, 1))
    assert not gave_up(dynamic("apex"), next_state(dynamic("apex"), state, False, 1))


@pytest.mark.parametrize(
    "config",
    [
        dynamic("keras.LossScaleOptimizer", growth_factor=4.0),
        dynamic("mindspore.DynamicLossScaleManager", init=0.5),
        dynamic("mindspore.FixedLossScaleManager"),
        LossScale("fixed", 0.5, rule="mindspore.FixedLossScaleManager"),
    ],
)
def test_what_a_framework_refuses_is_an_input_error(config: LossScale) -> None:
    with pytest.raises(InputError, match=r"loss_scale.*; expected"):
        initial_state(config)


def test_inverse_is_the_double_quotient_rounded_once() -> None:
    rng = np.random.default_rng(0)
    scales = np.exp2(rng.uniform(-60, 60, 500)).astype(np.float32)
    expected = (1.0 / scales.astype(np.float64)).astype(np.float32)
    assert [inverse(float(scale)) for scale in scales] == expected.tolist()
    assert inverse(math.inf) == 0.0
    assert inverse(0.0) == math.inf


@pytest.mark.torch
@pytest.mark.parametrize("share", [0.8, 0.0])
@pytest.mark.parametrize("factors", [(2.0, 0.5), (1.7, 0.3)])
def test_against_grad_scaler(factors: tuple[float, float], share: float) -> None:
    """From a number that float32 lacks; without a finite step the scale falls to 0 and stays."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    init, (growth, backoff) = 1000.1, factors
    config = dynamic("torch.GradScaler", init, growth_factor=growth, backoff_factor=backoff)
    scaler = torch.amp.GradScaler(
        "cpu",
        init_scale=init,
        growth_factor=factors[0],
        backoff_factor=factors[1],
        growth_interval=3,
    )
    weight = torch.zeros(2, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    state = initial_state(config)
    assert state.scale != init
    for step, finite in enumerate(rng.random(200) < share):
        scaler.scale(torch.ones(()))
        weight.grad = torch.tensor([1.0, 1.0 if finite else math.inf])
        before = weight.detach().clone()
        scaler.step(optimizer)
        scaler.update()
        state = next_state(config, state, bool(finite), step)
        assert scaler.get_scale() == state.scale
        assert torch.equal(before, weight) is skips_update(config, bool(finite))
        inverted = scaler._scale.double().reciprocal().float()
        assert inverted.item() == inverse(state.scale)
    assert (state.scale == 0.0) is (share == 0.0)


def test_the_changes_of_a_scale_are_all_of_it() -> None:
    """Every step's scale is read back from them, for each rule's own trace."""
    for rule in DYNAMIC:
        config = dynamic(rule)
        scales = np.array(trace(config, "FFFFOFFFOFOOFFFFFFF"))
        changes = scale_changes(config, scales)
        assert 3 < len(changes) < len(scales) and changes[0] == (0, scales[0])
        again = [dict(changes).get(step) for step in range(len(scales))]
        for step in range(1, len(again)):
            if again[step] is None:
                again[step] = again[step - 1]
        assert again == scales.tolist()
    assert scale_changes(LossScale("fixed", 128.0), np.full(9, 128.0)) == ((0, 128.0),)
    assert scale_changes(LossScale(), np.ones(9)) == ()


def test_an_infinite_scale_is_kept_as_a_number() -> None:
    scales = np.array([2.0**127, math.inf, math.inf, 1.0])
    changes = scale_changes(LossScale("dynamic", 2.0**126), scales)
    assert [step for step, _ in changes] == [0, 1, 3]
    assert 2.0**127 < changes[1][1] < math.inf
