"""How sure the gaps of a study are, as text: noise, spread over seeds, and what would tell more."""

from __future__ import annotations

import math
import statistics
from itertools import pairwise

import numpy as np

from policysearch.report.text import aligned
from policysearch.study.journal.trials import Trial
from policysearch.study.results.noise import MOST_SEEDS, Interval, intervals, seeds_needed
from policysearch.study.results.ranking import (
    FEWEST,
    WANTED_SHARE,
    rank_correlation,
    split_half,
)
from policysearch.study.results.results import Results

FURTHEST = 10.0
"""Steps are extrapolated to this many times those of the study."""


def noise_page(results: Results) -> str:
    """Return the analysis of a study's runs: what its gaps can tell, and what more would."""
    seeds = results.spec.study.seeds
    trained = [t for t in results.trials if not t.diverged and len(t.scores) == len(seeds)]
    head = f"study {results.spec.study.name}: how sure the gaps of {len(trained)} policies are"
    blocks = [
        [head],
        [_loss_drop(results), _jitter(results), *_spread(results, trained)],
        [_verdict(results, trained)],
        _along(results, trained),
        _members(results),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _loss_drop(results: Results) -> str:
    loss = results.learned
    if loss is None:
        return (
            "float32's loss drop: not known, for its runs are missing, lost or of an older version"
        )
    return (
        f"float32's loss: {loss.first_loss:.4g} {loss.unit} before any update, "
        f"{loss.tail_loss:.4g} at the end: a drop of {loss.drop:.4g}"
    )


def _jitter(results: Results) -> str:
    if results.noise_gap is None:
        return "noise floor (float32 under a jitter of 1e-6): not measured"
    return (
        f"noise floor (float32 under a jitter of 1e-6): {results.noise_gap:.1e} {results.unit}"
        f"{_share(results, results.noise_gap)}; a gap counts from {results.resolution_gap:.1e} on"
    )


def _share(results: Results, gap: float) -> str:
    loss = results.learned
    return f", {gap / loss.drop:.2g} of the drop" if loss and loss.drop > 0.0 else ""


def _spread(results: Results, trained: list[Trial]) -> list[str]:
    seeds = results.spec.study.seeds
    if len(seeds) < 2:
        return [
            "one seed: nothing is known of the spread over seeds, so there is no interval, no tie "
            "and no rank correlation; study.seeds = [0, 1, 2] shows them"
        ]
    gaps = [[score.loss_gap for score in trial.scores] for trial in trained]
    spreads = [spread for row in gaps if (spread := statistics.stdev(row)) > 0.0]
    if not spreads:
        return ["spread of a gap from seed to seed: none"]
    middle, halves = statistics.median(spreads), split_half(gaps)
    reach = [i.high - i.mean for i in map(results.interval, trained) if i and i.error > 0.0]
    lines = [
        f"spread of a gap from seed to seed: median {middle:.1e} {results.unit}"
        f"{_share(results, middle)}; least {min(spreads):.1e}, most {max(spreads):.1e}",
        f"95 % interval of a mean over {len(seeds)} seeds: +- {statistics.median(reach):.1e} "
        "(median)",
    ]
    if halves is not None:
        lines.append(f"rank correlation of policies between halves of the seeds: {halves:.3f}")
        one = rank_correlation([row[0] for row in gaps], [math.fsum(row[1:]) for row in gaps])
        lines.append(f"of the first seed with the others: {one:.3f}")
    return lines


def _verdict(results: Results, trained: list[Trial]) -> str:
    if results.learned is None:
        return "whether the recipe can rank policies is not known"
    sure = sum(1 for i in map(results.interval, trained) if i and i.error > 0.0)
    clear = " and seeds" if sure >= FEWEST else f"; {sure} policies are too few to say of seeds"
    share = max(WANTED_SHARE, results.spec.objectives.matters)
    older = "" if results.learned.checked else "; that float32 beats a constant is not checked"
    return results.cannot_rank or (
        f"this recipe ranks policies whose gaps differ by {share:.0%} of float32's drop, "
        f"{share * results.learned.drop:.1e} {results.unit}: that stands clear of noise{clear}"
        f"{older}; smaller differences count as equal, and their order is chance"
    )


def _along(results: Results, trained: list[Trial]) -> list[str]:
    """Per point of the runs: the spread there, and how policies rank beside the end."""
    several = len(results.spec.study.seeds) > 1
    points = _points(trained)
    if len(points) < 2 or len(trained) < 3:
        return []
    table = {step: [_gaps_at(trial, step) for trial in trained] for step in points}
    last = [math.fsum(row) for row in table[points[-1]]]
    rows = []
    for step in points:
        spreads = [float(np.std(row, ddof=1)) for row in table[step]] if several else []
        positive = [spread for spread in spreads if spread > 0.0]
        alike = rank_correlation([math.fsum(row) for row in table[step]], last)
        spread = f"{statistics.median(positive):.1e}" if positive else "-"
        rows.append((str(step), spread, f"{alike:.3f}"))
    return aligned([("step", "median spread", "rank correlation with the last"), *rows])


def _points(trained: list[Trial]) -> list[int]:
    """Return the steps at which every run has kept its gap."""
    steps = [{step for step, *_ in score.gap_curve} for trial in trained for score in trial.scores]
    return sorted(set.intersection(*steps)) if steps else []


def _gaps_at(trial: Trial, step: int) -> list[float]:
    return [gap for score in trial.scores for at, gap, _ in score.gap_curve if at == step]


def _members(results: Results) -> list[str]:
    """Per pair of neighbours on the front: whether they are told apart, and what would do it."""
    if len(results.front) < 2:
        return []
    by_gap = sorted(results.front, key=lambda trial: (trial.loss_gap, trial.number))
    rows = [_pair(results, a, b) for a, b in pairwise(by_gap)]
    titles = ("neighbours on the front, by gap", "differ by", "at 95 %", "seeds needed", "or steps")
    return aligned([titles, *rows])


def _pair(results: Results, a: Trial, b: Trial) -> tuple[str, ...]:
    names, differ = f"{a.number} and {b.number}", f"{b.loss_gap - a.loss_gap:.1e}"
    first, second = results.interval(a), results.interval(b)
    if first is None or second is None:
        return names, differ, "unknown: one seed", "-", "-"
    apart = first.apart(second)
    seeds = len(results.spec.study.seeds)
    needed = _seeds(first, second, seeds)
    return (
        names,
        differ,
        "apart" if apart else "a tie",
        str(needed) if needed <= MOST_SEEDS else f"over {MOST_SEEDS}",
        str(results.spec.task.steps) if apart else _steps(results, a, b),
    )


def _seeds(a: Interval, b: Interval, seeds: int) -> int:
    error, degrees = math.hypot(a.error, b.error), min(a.degrees, b.degrees)
    return seeds_needed(error, degrees, seeds, abs(a.mean - b.mean))


def _steps(results: Results, a: Trial, b: Trial) -> str:
    """Return with how many steps the two would be told apart, as their difference has grown.

    The difference in units of its own error is drawn as a power of the steps.
    """
    points = [step for step in _points([a, b]) if step > 0]
    steps, every = results.spec.task.steps, [t for t in results.trials if not t.diverged]
    if len(points) < 3 or points != _points(every):
        return "unknown"
    clear = [_clearness(every, a, b, step) for step in points]
    if min(clear) <= 0.0:
        return "unknown"
    slope, _ = np.polyfit(np.log(points), np.log(clear), 1)
    if slope <= 0.0 or clear[-1] * FURTHEST**slope < 1.0:
        return f"over {FURTHEST * steps:.0f}"
    return str(math.ceil(steps * clear[-1] ** (-1.0 / slope)))


def _clearness(every: list[Trial], a: Trial, b: Trial, step: int) -> float:
    """Return the difference of two gaps at a step as a share of what is told apart there."""
    rows = intervals([_gaps_at(trial, step) for trial in every])
    first, second = rows[every.index(a)], rows[every.index(b)]
    if first is None or second is None:
        return 0.0
    reach = first.reach(second)
    return abs(first.mean - second.mean) / reach if reach else 0.0
