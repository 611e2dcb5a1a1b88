"""Ways in which outstanding policies may come out: drawn as believed, and asked for beside."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from policysearch.search.posterior import Belief, Fantasy, Joint, Sensitivity, fantasies
from policysearch.space.options import Decisions, Option

OPTIONS = (
    Option("float32"),
    Option("bfloat16", 2.0**-7),
    Option("stored", 2.0**-7, 2.0**-7),
    Option("float8", 2.0**-3),
)
DRAWS = 6000


def every_row(modifiers: tuple[int, ...]) -> np.ndarray:
    ranges = [range(len(OPTIONS))] * 3 + [range(count) for count in modifiers]
    return np.array(list(itertools.product(*ranges)), dtype=np.int64)[1:]


def believed(told: int, modifiers: tuple[int, ...]) -> tuple[Sensitivity, np.ndarray]:
    """Return the belief after some trainings, and all other policies in an order drawn once."""
    rows = np.random.default_rng(3).permutation(every_row(modifiers))
    gaps = 10.0 ** np.random.default_rng(4).uniform(-5.0, -2.0, told)
    belief = Sensitivity(Decisions((OPTIONS,) * 3, modifiers), rows[:told], gaps, 1e-4, 0.05)
    return belief, rows[told:]


@pytest.mark.parametrize("told", [0, 5])
@pytest.mark.parametrize("modifiers", [(), (3,)])
def test_over_the_draws_each_policy_is_believed_as_before(
    told: int, modifiers: tuple[int, ...]
) -> None:
    """The laws of total mean and variance, against what is believed with nothing outstanding."""
    belief, rows = believed(told, modifiers)
    outstanding, others = rows[:6], rows[6:16]
    found = fantasies(belief, outstanding, others, DRAWS, np.random.default_rng(0))
    assert len(found) == DRAWS
    assert sum(world.belief.weight for world in found) == pytest.approx(1.0)
    means = np.array([world.belief.mean for world in found])
    second = np.array([world.belief.mean**2 + world.belief.sd**2 for world in found])
    _same(belief.predict(others), means.mean(axis=0), second.mean(axis=0))
    gaps = np.array([world.gaps for world in found])
    _same(belief.predict(outstanding), gaps.mean(axis=0), (gaps**2).mean(axis=0))


def _same(believed: list[Belief], mean: np.ndarray, second: np.ndarray) -> None:
    total = sum(each.weight for each in believed)
    expected = sum(each.weight * each.mean for each in believed) / total
    squares = sum(each.weight * (each.mean**2 + each.sd**2) for each in believed) / total
    sd = np.sqrt(squares - expected**2)
    np.testing.assert_allclose(mean, expected, atol=0.06 * sd.max())
    np.testing.assert_allclose(second, squares, rtol=0.1)


def test_a_policy_like_one_that_is_outstanding_comes_out_like_it() -> None:
    belief, rows = believed(5, (3,))
    twin = rows[:1].copy()
    twin[0, -1] = (twin[0, -1] + 1) % 3  # Another modifier: it costs the same decisions.
    far = belief.predict(twin)[0].sd[0]
    found = fantasies(belief, rows[:4], twin, 64, np.random.default_rng(0))
    apart = [world.belief.mean[0] - world.gaps[0] for world in found]
    assert np.std([world.gaps[0] for world in found]) > 0.5 * far
    assert np.std(apart) < 0.5 * far and max(world.belief.sd[0] for world in found) < far


class Told:
    """A belief of several sets of hyperparameters, as `Sensitivity.joint` tells it."""

    def __init__(self, weights: tuple[float, ...], spread: float = 1.0) -> None:
        rng = np.random.default_rng(0)
        half = rng.standard_normal((len(weights), 5, 5))
        whole = half @ half.transpose(0, 2, 1)
        self.joints = []
        for weight, covariance, mean in zip(weights, whole, rng.normal(size=(3, 5)), strict=False):
            sd = np.sqrt(covariance.diagonal()[2:] * spread)
            others = Belief(weight, mean[2:], sd)
            self.joints.append(Joint(mean[:2], covariance[:2, :2], others, covariance[:2, 2:]))

    def joint(self, some: object, rows: object, least: float) -> list[Joint]:
        return [each for each in self.joints if each.others.weight >= least]


def drawn(told: Told, draws: int) -> list[Fantasy]:
    rng = np.random.default_rng(1)
    rows = np.empty((0, 3), dtype=np.int64)
    return fantasies(told, rows, rows, draws, rng)  # type: ignore[arg-type]


def test_in_each_world_the_rest_is_the_gaussian_given_what_came_out() -> None:
    """The conditional mean and variance, written with the inverse; around the mean in pairs."""
    told = Told((1.0,))
    (joint,) = told.joints
    found = drawn(told, 7)
    inverse = np.linalg.inv(joint.covariance)
    for world in found:
        moved = joint.across.T @ inverse @ (world.gaps - joint.mean)
        np.testing.assert_allclose(world.belief.mean, joint.others.mean + moved, rtol=1e-9)
        left = joint.others.sd**2 - np.diag(joint.across.T @ inverse @ joint.across)
        np.testing.assert_allclose(world.belief.sd**2, left, rtol=1e-6)
        assert world.belief.weight == 1 / 7 and np.abs(moved).max() > 1e-3
    gaps = np.array([world.gaps for world in found])
    np.testing.assert_allclose(gaps[:3] + gaps[4:], np.broadcast_to(2 * joint.mean, (3, 2)))
    np.testing.assert_allclose(Told((1.0,)).joints[0].covariance, joint.covariance)


def test_what_comes_out_for_sure_leaves_a_little_doubt_however_it_is_rounded() -> None:
    assert [world.belief.sd.min() for world in drawn(Told((1.0,), 1e-3), 2)] == [1e-5, 1e-5]


@pytest.mark.parametrize(("least", "expected"), [(0.0085, [60, 3, 1]), (0.0070, [61, 3, 0])])
def test_sets_of_hyperparameters_are_drawn_as_often_as_they_count(
    least: float, expected: list[int]
) -> None:
    """Of 64 draws 60.1, 3.3 and 0.57; what counts less than half a draw leaves its share."""
    told = Told((0.9, 0.05, least))
    means = [joint.others.mean for joint in told.joints]
    counts = [0, 0, 0]
    for world in drawn(told, 64):
        moved = [
            np.linalg.lstsq(joint.across.T, world.belief.mean - mean)[0]
            for joint, mean in zip(told.joints, means, strict=True)
        ]
        fits = [joint.covariance @ m for joint, m in zip(told.joints, moved, strict=True)]
        same = [
            np.allclose(world.gaps - joint.mean, fit)
            for joint, fit in zip(told.joints, fits, strict=True)
        ]
        assert sum(same) == 1
        counts[same.index(True)] += 1
    assert counts == expected
