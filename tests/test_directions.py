"""The early sign of second moments that stay where they are, on a recipe and on healthy ones."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.directions import BFLOAT16, FORETOLD, Found, foretold, healthy, nets, sign_of
from policysearch.policy.presets import preset

TASK = nets(300)["mlp-tanh"]


def test_moments_that_cannot_fall_are_foretold_and_healthy_ones_are_not() -> None:
    whole = preset(BFLOAT16, TASK.build_model(TASK.load_dataset()).layer_names)
    kept = replace(whole, second_moment="bfloat16")
    sign = sign_of(TASK, kept, 30, seed=0)
    # those that are not zero, at the rate that the mean of squares would have by the end
    assert FORETOLD < sign.low <= 1.0 - 0.999**135
    assert sign.drift > 0.0
    for policy in healthy(whole):
        assert sign_of(TASK, policy, 30, seed=0).low == 0.0
    assert sign_of(replace(TASK, beta2=0.95), kept, 30, seed=0).low == 0.0
    assert sign_of(replace(TASK, steps=100), kept, 30, seed=0).low < FORETOLD


def test_what_is_foretold_is_counted_by_what_comes() -> None:
    rows = [
        Found("a", "moments", (1.0,), fine=True, behind=True, foretold=True),
        Found("b", "moments", (1.0,), behind=True, foretold=True, alarms=1),
        Found("c", "moments", (1.0,), fine=True, behind=True),
        Found("d", "moments", (1.0,), fine=True, foretold=True),
    ]
    assert foretold(rows) == (
        "foretold nets: 2 of 3 that are behind at the end, 1 of 2 that are behind at the end and "
        "fine at a tenth, 1 of 1 that are not behind; alarms on controls: 1"
    )
