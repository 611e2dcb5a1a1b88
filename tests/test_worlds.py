"""Ways in which outstanding policies may come out: drawn as believed, and asked for beside."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from policysearch.search.decisions import Decisions, Option
from policysearch.search.sensitivity import Belief, Sensitivity
from policysearch.search.worlds import worlds

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
    found = worlds(belief, outstanding, others, DRAWS, np.random.default_rng(0))
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
    found = worlds(belief, rows[:4], twin, 64, np.random.default_rng(0))
    apart = [world.belief.mean[0] - world.gaps[0] for world in found]
    assert np.std([world.gaps[0] for world in found]) > 0.5 * far
    assert np.std(apart) < 0.5 * far and max(world.belief.sd[0] for world in found) < far
