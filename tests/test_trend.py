"""Where gaps go over a run: points and trends, against scipy's t-test and trainings themselves."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from policysearch.objective.objective import Objective
from policysearch.objective.score import GapCurve, Measurement, gap_curve
from policysearch.policy.presets import preset
from policysearch.study.results.trend import ONE_SEED, GapPoint, Trend, columns, trends
from policysearch.train.tasks import Task
from policysearch.train.training import train

STEPS = 80


def curve(*gaps: float, losses: tuple[float, ...] = (2.0, 1.0, 0.5, 0.25)) -> GapCurve:
    return tuple(zip((10, 20, 40, 80), gaps, losses, strict=False))


def one(*curves: GapCurve, least: float = 0.0) -> Trend:
    (found,) = trends([curves], STEPS, least)
    return found


def test_points_are_means_and_shares_of_float32s_loss() -> None:
    first, second = curve(0.1, 0.2, 0.3, 0.4), curve(0.3, 0.2, 0.1, 0.0)
    found = one(first, second)
    assert [point.steps for point in found.points] == [10, 20, 40, 80]
    assert [point.gap for point in found.points] == pytest.approx([0.2] * 4)
    assert [point.relative for point in found.points] == pytest.approx([0.1, 0.2, 0.4, 0.8])


@pytest.mark.parametrize("moves", [(0.3, 0.31, 0.29), (-0.3, -0.31, -0.29), (0.3, -0.3, 0.1)])
def test_a_trend_is_called_where_a_t_test_calls_it(moves: tuple[float, ...]) -> None:
    found = one(*(curve(0.0, 0.0, 0.5, 0.5 + move) for move in moves))
    test = stats.ttest_1samp(moves, 0.0)
    low, high = test.confidence_interval(0.95)
    expected = "flat" if low <= 0 <= high else ("growing" if low > 0 else "shrinking")
    assert found.gap == expected == ("flat" if test.pvalue > 0.05 else expected)
    assert found.change == pytest.approx(np.mean(moves))
    assert found.reach == pytest.approx((high - low) / 2)


def test_a_gap_may_shrink_in_nats_and_grow_beside_float32s_loss() -> None:
    losses = (2.0, 1.0, 0.5, 0.05)
    runs = [curve(0.0, 0.0, 0.1, end, losses=losses) for end in (0.05, 0.051, 0.049)]
    found = one(*runs)
    assert (found.gap, found.relative) == ("shrinking", "growing")


def test_beside_a_loss_below_zero_a_gap_is_a_share_of_its_size() -> None:
    gaps, losses = (0.0, 0.1, 0.2, 0.3), (-0.1, -0.5, -0.5, -0.5)
    found = one(*(curve(*gaps[:3], gaps[3] + seed, losses=losses) for seed in (0.0, 1e-3, 2e-3)))
    assert [p.relative for p in found.points] == pytest.approx([0.0, 0.2, 0.4, 0.602])
    assert (found.gap, found.relative) == ("growing", "growing")


def test_what_is_below_the_noise_is_flat() -> None:
    runs = [curve(0.0, 0.0, 0.1, 0.1 + move) for move in (1e-5, 1.01e-5, 0.99e-5)]
    assert one(*runs).gap == "growing" and one(*runs, least=1e-4).gap == "flat"
    assert one(*runs).relative == "growing"
    # a change of exactly the least that counts is none
    even = [curve(0.0, 0.0, 0.5, 0.75 + shift) for shift in (0.0, 2**-10, -(2**-10))]
    assert one(*even, least=0.2499).gap == "growing" and one(*even, least=0.25).gap == "flat"
    # Between the middle and the end the gap grows from 20 to 40 % of float32's loss.
    assert one(*runs, least=0.1).relative == "flat"


@pytest.mark.parametrize(
    ("half", "end", "word"),
    [
        (-0.3, -0.1, "flat"),
        (-0.1, -0.3, "flat"),
        (-0.3, 0.0, "flat"),
        (0.0, -0.3, "flat"),
        (-0.1, 0.1, "growing"),
        (0.1, -0.1, "shrinking"),
        (0.3, 0.1, "shrinking"),
    ],
)
def test_a_loss_below_float32s_is_no_gain(half: float, end: float, word: str) -> None:
    runs = [curve(0.0, 0.0, half + shift, end + 1.1 * shift) for shift in (0.0, 1e-3, -1e-3)]
    assert one(*runs).gap == one(*runs).relative == word


def test_one_seed_calls_nothing() -> None:
    found = one(curve(0.0, 0.0, 0.1, 0.9))
    assert found.gap == found.relative == ONE_SEED
    assert found.change == pytest.approx(0.8) and found.reach is None


def test_a_run_that_ended_early_has_the_points_it_reached() -> None:
    found = one(curve(0.1, 0.2, 0.3, 0.4), curve(0.1, 0.2))
    assert [point.steps for point in found.points] == [10, 20]
    assert found.gap == "" and found.change is None
    assert one() == one((), ()) == Trend()
    both = trends([[curve(0.1), ()], [curve(0, 0, 0.1, 0.9)] * 2], STEPS, 0.0)
    assert [trend.gap for trend in both] == ["", "growing"]


def test_columns_name_the_share_of_the_run() -> None:
    found = columns(one(curve(0.1, 0.2, 0.3)), Trend((), "growing", "flat"), STEPS)
    assert (found["gap_eighth"], found["gap_quarter"], found["gap_half"]) == (0.1, 0.2, 0.3)
    assert found["relative_gap_half"] == pytest.approx(0.6) and found["relative_gap"] is None
    assert (found["gap_trend"], found["confirmed_gap_trend"]) == ("", "growing")
    assert found["confirmed_relative_gap_trend"] == "flat"
    assert columns(Trend((GapPoint(80, 0.5, 2.0),)), Trend(), STEPS)["relative_gap"] == 2.0


def test_a_gap_curve_is_paired_with_float32s_by_step() -> None:
    def ran(*points: tuple[int, float]) -> Measurement:
        return Measurement(0.5, 0.9, None, 0, (), (), curve=points)

    own, base = ran((10, 3.0), (20, 2.0), (40, 1.5)), ran((10, 2.5), (20, 0.0), (40, 1.75))
    assert gap_curve(own, base) == ((10, 0.5, 2.5), (40, -0.25, 1.75))
    assert gap_curve(own, None) == ()


def test_the_curve_of_a_score_is_that_of_two_trainings() -> None:
    task = Task(model="mlp", widths=(8,), data="digits", batch_size=32, steps=16, tail_steps=8)
    objective = Objective(task, "H100-SXM5", "torch.compile")
    policy = preset("float8", objective.model.layer_names)
    found = objective.evaluate(policy, 0).gap_curve
    own = train(task, policy, 0, dataset=objective.dataset).losses
    base = train(task, objective.float32, 0, dataset=objective.dataset).losses
    assert [taken for taken, _, _ in found] == [2, 4, 8, 16]
    for (taken, gap, loss), window in zip(found, (1, 2, 4, 8), strict=True):
        part = slice(taken - window, taken)
        assert loss == pytest.approx(base[part].mean())
        assert gap == pytest.approx(own[part].mean() - base[part].mean(), abs=1e-12) != 0.0
    assert found[-1][1] == pytest.approx(objective.evaluate(policy, 0).loss_gap)
