"""What every loss-scale rule has to do, over overflows drawn at random."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from policysearch.nn.models import mlp
from policysearch.policy.loss_scale import RULES, LossScale
from policysearch.policy.policy import from_json
from policysearch.policy.policy_file import policy_schema
from policysearch.policy.presets import preset
from policysearch.train.checkpoint import Checkpoint
from policysearch.train.feeding import initial_parameters
from policysearch.train.loss_scale import (
    ScaleState,
    gave_up,
    highest,
    initial_state,
    lowest,
    next_state,
    scale_changes,
    skips_update,
)
from policysearch.train.tasks import Task
from policysearch.train.trainer import Trainer
from policysearch.values import InputError

ALL = pytest.mark.parametrize("rule", RULES)
MOVING = pytest.mark.parametrize("rule", [name for name, row in RULES.items() if row.moves])
SHARES = pytest.mark.parametrize("overflow_share", [0.0, 0.02, 0.3, 1.0])
AT_ONCE = pytest.mark.parametrize(
    "rule", [name for name, row in RULES.items() if row.moves and row.hysteresis == 1]
)
"""Rules without hysteresis; those with it are compared with their frameworks' (test_hysteresis)."""
INTERVAL = 5


def scale_of(rule: str, kind: str = "dynamic", init: float = 1024.0, **changes: Any) -> LossScale:
    config = LossScale(kind, init, growth_interval=INTERVAL, rule=rule)  # type: ignore[arg-type]
    return replace(config, **changes)


def drawn(config: LossScale, overflow_share: float, steps: int = 600) -> list[ScaleState]:
    """Return the states before each step of a run with random overflows, and those after it."""
    rng, states = np.random.default_rng(7), [initial_state(config)]
    for step in range(steps):
        finite = bool(rng.random() >= overflow_share)
        states.append(next_state(config, states[-1], finite, step))
    return states


@SHARES
@MOVING
def test_a_dynamic_scale_stays_within_its_bounds(rule: str, overflow_share: float) -> None:
    given: list[dict[str, Any]] = [{}, {"min_scale": 4.0, "max_scale": 2.0**15}]
    for changes in given:
        config = scale_of(rule, **changes)
        low, high = lowest(config) or 0.0, highest(config) or math.inf
        scales = [state.scale for state in drawn(config, overflow_share)]
        assert all(low <= scale <= high for scale in scales)
        assert all(np.float32(scale) == scale for scale in scales)
        if RULES[rule].stays_finite:
            assert np.isfinite(scales).all()


@AT_ONCE
def test_an_overflow_backs_off_and_the_interval_grows(rule: str) -> None:
    """And nothing else moves it, as far as no bound is met."""
    config, moves = scale_of(rule), set()
    states = drawn(config, 0.1, 60)
    for before, after in pairwise(states):
        grows = before.good_steps + 1 == INTERVAL
        overflow = after.overflows_in_a_row > 0
        factor = config.backoff_factor if overflow else config.growth_factor if grows else 1.0
        assert after.scale == before.scale * factor
        assert after.good_steps == (0 if overflow or grows else before.good_steps + 1)
        moves.add(factor)
    assert moves == {0.5, 1.0, 2.0}


@ALL
def test_an_overflow_skips_the_step_as_declared(rule: str) -> None:
    row = RULES[rule]
    fixed = scale_of(rule, "fixed")
    assert skips_update(fixed, finite=False) is row.skips_fixed
    assert not skips_update(replace(fixed, skip_on_overflow=False), finite=False)
    assert skips_update(scale_of(rule), finite=False)
    assert not any(skips_update(each, finite=True) for each in (fixed, scale_of(rule)))


@SHARES
@ALL
def test_a_fixed_scale_never_moves(rule: str, overflow_share: float) -> None:
    states = drawn(scale_of(rule, "fixed"), overflow_share)
    assert {state.scale for state in states} == {1024.0}
    assert not any(gave_up(scale_of(rule, "fixed"), state) for state in states)


@ALL
def test_what_the_framework_refuses_is_one_line(rule: str) -> None:
    row, refused = RULES[rule], []
    if row.lowest_init:
        refused.append(scale_of(rule, "fixed", row.lowest_init / 2))
    if not row.moves:
        refused.append(scale_of(rule))
    if row.factors:
        refused.append(scale_of(rule, growth_factor=row.factors[0] * 2))
    for config in refused:
        with pytest.raises(InputError, match=r"^loss_scale.*; expected [^\n]*$"):
            initial_state(config)
    kind = "dynamic" if row.moves else "fixed"
    assert initial_state(scale_of(rule, kind)) == ScaleState(1024.0)


@ALL
def test_it_gives_up_after_as_many_overflows_as_declared(rule: str) -> None:
    config, most = scale_of(rule), RULES[rule].most_overflows
    for count in (most or 5000, (most or 5000) + 1):
        state = ScaleState(1.0, 0, count)
        assert gave_up(config, state) is (most is not None and count > most)


@ALL
def test_a_policy_with_it_is_read_back_and_its_changes_are_kept(rule: str) -> None:
    kind = "dynamic" if RULES[rule].moves else "fixed"
    policy = replace(preset("float16", ("fc1",)), loss_scale=scale_of(rule, kind))
    assert from_json(policy.to_json()) == policy
    names = policy_schema()["$defs"]["LossScale"]["properties"]["rule"]["enum"]
    assert names == list(RULES)
    scales = np.array([state.scale for state in drawn(policy.loss_scale, 0.05, 100)])
    changes = dict(scale_changes(policy.loss_scale, scales))
    kept = [changes[max(step for step in changes if step <= at)] for at in range(len(scales))]
    assert kept == scales.tolist()


@ALL
def test_its_state_goes_through_a_checkpoint(rule: str) -> None:
    """A first scale that overflows, steps either side of the file, and the same bits."""
    kind = "dynamic" if RULES[rule].moves else "fixed"
    model, rng = mlp((6, 5, 3), "tanh"), np.random.default_rng(0)
    task = Task(steps=20, tail_steps=1, batch_size=4, learning_rate=0.1)
    init = 2.0**24 if kind == "dynamic" else 8.0
    scale = scale_of(rule, kind, init, growth_interval=2)
    policy = replace(preset("float16", model.layer_names), loss_scale=scale)
    batches = [
        ((rng.standard_normal((4, 6)).astype(np.float32),), rng.integers(0, 3, 4))
        for _ in range(12)
    ]

    def begun() -> Trainer:
        trainer = Trainer(model, task, policy, seed=0)
        trainer.load(initial_parameters(model, 0))
        return trainer

    whole, part, resumed = begun(), begun(), begun()
    expected = [whole.step(*batch) for batch in batches]
    taken = [part.step(*batch) for batch in batches[:7]]
    kept = Checkpoint.from_bytes(part.checkpoint("x", taken).to_bytes())
    assert kept.state.scale == part.scale_state
    resumed.restore(kept)
    assert [resumed.step(*batch) for batch in batches[7:]] == expected[7:]
    assert any(skipped for *_, skipped in expected) is (kind == "dynamic")
