"""Intervals of gaps over few seeds, and what they keep apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import optimize, special, stats

from policysearch.report.table import caption, front_table
from policysearch.study.results.noise import Interval, change, intervals
from policysearch.study.results.results import Results
from policysearch.study.specification import load_spec
from policysearch.study.study import run_study
from tests.studies import replaced_training, write_study


def drawn(policies: int, seeds: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return true gaps over five decades, and what seeds show of them: spread follows the gap."""
    truth = 10.0 ** rng.uniform(-6, -1, policies)
    return truth, truth[:, None] * (1.0 + 0.3 * rng.standard_normal((policies, seeds)))


def held(found: list[Interval | None], truth: np.ndarray) -> float:
    return float(
        np.mean([i is not None and i.low <= t <= i.high for i, t in zip(found, truth, strict=True)])
    )


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_intervals_hold_as_often_as_they_say(seeds: int) -> None:
    rng = np.random.default_rng(0)
    shares = []
    for _ in range(40):
        truth, seen = drawn(30, seeds, rng)
        shares.append(held(intervals(seen.tolist()), truth))
    assert 0.93 <= np.mean(shares) <= 0.985


def test_policies_that_err_together_are_worth_less_than_others() -> None:
    """Where every policy follows one thing the seed does, thirty of them are no more than one."""
    rng = np.random.default_rng(2)
    shares, degrees = [], []
    for _ in range(100):
        truth = 10.0 ** rng.uniform(-6, -1, 30)
        seen = truth[:, None] * (1.0 + 0.3 * rng.standard_normal(3))
        seen *= 1.0 + 1e-3 * rng.standard_normal((30, 3))
        found = intervals(seen.tolist())
        shares.append(held(found, truth))
        degrees += [i.degrees for i in found if i is not None]
    assert np.median(degrees) < 2.5
    assert 0.90 <= np.mean(shares) <= 0.985
    _, alone = drawn(30, 3, rng)
    assert np.median([i.degrees for i in intervals(alone.tolist()) if i is not None]) > 5.0


def test_sharing_variances_makes_three_seeds_say_more() -> None:
    _, seen = drawn(30, 3, np.random.default_rng(1))
    found = intervals(seen.tolist())
    alone = stats.t.ppf(0.975, 2) * seen.std(axis=1, ddof=1) / np.sqrt(3)
    widths = np.array([i.high - i.mean for i in found if i is not None])
    # Relative to the gap, whose decades would hide everything else.
    assert np.median(widths / np.abs(seen.mean(1))) < np.median(alone / np.abs(seen.mean(1)))
    assert np.ptp(np.log(widths / seen.mean(1))) < np.ptp(np.log(alone / seen.mean(1)))


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_the_shared_variance_is_that_of_the_whole_matrices(seeds: int) -> None:
    """Written with every matrix [policies, policies], whose products are never made."""
    rng = np.random.default_rng(3)
    _, gaps = drawn(40, seeds, rng)
    gaps += 0.3 * gaps.mean(axis=1, keepdims=True) * rng.standard_normal(seeds)
    d, squares = seeds - 1.0, np.var(gaps, axis=1, ddof=1)
    sampling = special.polygamma(1, d / 2)
    size = np.maximum(np.abs(gaps.mean(axis=1)), 1e-2 * np.median(np.sqrt(squares)))
    design = np.stack([np.ones(40), np.log(size)], axis=1)
    hat = design @ np.linalg.pinv(design)
    seen = np.log(squares) - special.digamma(d / 2) + np.log(d / 2)
    line, left = hat @ seen, seen - hat @ seen
    if seeds == 2:
        shared = np.clip(1 - left @ left / 38 / sampling, 0, 1)
        together = shared + (1 - shared) * np.eye(40)
    else:
        together = (np.corrcoef(gaps) ** 2 - 1 / d) / (1 - 1 / d)
    excess = max(0.0, (left @ left - sampling * np.trace((np.eye(40) - hat) @ together)) / 38)
    reach = np.diag(hat @ (sampling * together + excess * np.eye(40)) @ hat.T) + excess
    for place, found in enumerate(intervals(gaps.tolist())):
        assert found is not None
        prior = optimize.brentq(
            lambda v, held=reach[place]: float(special.polygamma(1, v / 2)) - held, 1e-3, 1e6
        )
        share, common = prior / (prior + d), (hat @ together)[place, place]
        spread = share**2 / prior + (1 - share) ** 2 / d + 2 * share * (1 - share) * common / d
        degrees = max(1.0, min(1 / spread, prior + d))
        error = np.sqrt((share * np.exp(line[place]) + (1 - share) * squares[place]) / seeds)
        assert found.degrees == pytest.approx(degrees, rel=1e-7)
        assert found.high - found.mean == pytest.approx(
            stats.t.ppf(0.975, degrees) * error, rel=1e-7
        )


def test_few_policies_stand_for_themselves() -> None:
    rows = [[1.0, 2.0, 3.0], [5.0, 5.5, 7.0]]
    for row, found in zip(rows, intervals(rows), strict=True):
        wanted = stats.t.interval(0.95, 2, np.mean(row), stats.sem(row))
        assert found is not None and (found.low, found.high) == pytest.approx(wanted)


def test_one_seed_has_no_interval_and_equal_gaps_none_of_width() -> None:
    found = intervals([[1.0], [0.0, 0.0, 0.0], [1.0, 1.1, 0.9]])
    assert found[0] is None
    assert found[1] is not None and found[1].low == found[1].high == 0.0


def test_apart_is_welchs_question() -> None:
    a, b = Interval(1.0, 0.8, 1.2, 0.1, 10.0), Interval(1.2, 1.0, 1.4, 0.1, 10.0)
    assert not a.apart(b) and a.apart(replace(b, mean=1.5)) and not a.apart(a)


@pytest.mark.parametrize("seeds", [2, 3, 6])
def test_a_change_is_the_paired_t_interval(seeds: int) -> None:
    rng = np.random.default_rng(seeds)
    shared = rng.standard_normal(seeds)
    before, after = (shared + 0.1 * rng.standard_normal(seeds) for _ in range(2))
    wanted = stats.ttest_rel(after, before).confidence_interval(0.95)
    found = change(before.tolist(), after.tolist())
    assert found is not None and found.mean == pytest.approx(np.mean(after - before))
    assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high))
    assert change([1.0], [2.0]) is None


def studied(folder: Path, spread: float, seeds: str = "[0, 1, 2]") -> Results:
    """A study whose policies differ by their rank, and by `spread` from seed to seed."""
    from policysearch.objective.score import Measurement
    from policysearch.policy.policy import Policy

    def stand(policy: Policy, seed: int) -> Measurement:
        low = sum(layer.compute != "float32" for _, layer in policy.layers)
        loss = 1e-3 * low if policy.master_weights else 3e-3 * low + 1e-3
        return Measurement(0.5 + loss * (1 + spread * (seed - 1)), 0.9, None, 0, (), ())

    changes = (
        ("trials = 6", "trials = 14"),
        ("seeds = [0, 1]", f"seeds = {seeds}"),
        ("widths = [8]", "widths = [256, 256]"),
        ("batch_size = 4096", "batch_size = 65536"),
    )
    with replaced_training(stand):
        return run_study(
            load_spec(write_study(folder, *changes)), folder / "x.journal", processes=0
        )


def test_members_of_the_front_that_seeds_cannot_tell_apart_are_ties(tmp_path: Path) -> None:
    (tmp_path / "sure").mkdir()
    (tmp_path / "noisy").mkdir()
    sure, noisy = studied(tmp_path / "sure", 1e-3), studied(tmp_path / "noisy", 0.9)
    assert len(sure.front) > 2
    for row in (row for row in noisy.rows() if row.on_front):
        reach = (row.gap_high95 or 0.0) - row.loss_gap
        assert f"{row.loss_gap:+.2e} +- {reach:.1e}" in front_table(noisy)
    differ = [t for t in sure.front if t.number not in sure.ties]
    assert len({round(t.loss_gap, 6) for t in differ}) == len(differ)
    assert noisy.ties and len(noisy.ties) > len(sure.ties)
    by_number = {trial.number: trial for trial in noisy.trials}
    for number, head in noisy.ties.items():
        assert by_number[head].cost.speedup >= by_number[number].cost.speedup
        assert f"= {head}" in front_table(noisy)


def test_one_seed_shows_no_interval_and_no_tie(tmp_path: Path) -> None:
    results = studied(tmp_path, 0.9, "[0]")
    assert not results.ties
    assert all(row.gap_low95 is None and row.gap_high95 is None for row in results.rows())
    assert "(one seed)" in front_table(results) and "+-" not in front_table(results)
    assert "one seed, so no interval" in caption(results)
