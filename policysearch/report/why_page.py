"""Why a layer is as it is, as text."""

from __future__ import annotations

from collections.abc import Sequence

from policysearch.report.text import aligned
from policysearch.study.journal.trials import FailedTrial, Trial
from policysearch.study.questions.next_decision import Change
from policysearch.study.questions.why import NeighbourTrial, Why

HEADER = ("step", "format", "trial", "loss gap", "more gap", "speed", "memory", "beside it")
BOUGHT = ("decision", "value", "speed", "memory", "expected gain")
MOST = 12


def why_page(why: Why) -> str:
    """Return the neighbours of a policy in one layer: what each gains and costs, and a verdict."""
    here, results = why.trial, why.results
    if isinstance(here, FailedTrial):
        return f"trial {here.number}: {here.name}: failed: {here.reason}"
    rows = [_row("as it is", "", here, here, "")]
    rows += [
        _row(row.neighbour.step, _format(row), here, row.trial, row.verdict or "failed")
        for row in why.tried
    ]
    layers = ", ".join(why.layers)
    head = f"trial {here.number}: {here.label}; {why.group} ({layers}) one step away"
    seeds = len(results.spec.study.seeds)
    foot = (
        f"gaps in {results.unit}, means of {seeds} seed{'s' * (seeds > 1)}; speed and "
        "memory modeled, over those of the policy as it is. better, worse: on every axis that "
        "differs by what can be told of it, gaps by their differences seed by seed; "
        "trade: each on one"
    )
    return "\n\n".join([head, "\n".join(aligned([HEADER, *rows])), foot])


def bought_page(trial: Trial, changes: Sequence[Change]) -> str:
    """Return the untried changes of one decision, the most promising first."""
    if not changes:
        return f"trial {trial.number}: {trial.label}: every change of one decision was tried"
    rows = [
        (c.decision, str(c.value), f"{c.speed:.3f}x", f"{c.memory:.3f}x", f"{c.gain:.2e}")
        for c in changes[:MOST]
    ]
    head = f"trial {trial.number}: {trial.label}; what one more decision would buy"
    foot = (
        "speed and memory modeled, over those of the policy as it is; expected gain in the volume "
        "that the front dominates, by what the study has learned. Nothing was trained"
    )
    return "\n\n".join([head, "\n".join(aligned([BOUGHT, *rows])), foot])


def _format(tried: NeighbourTrial) -> str:
    format = tried.neighbour.format
    return format if tried.runs_in == format else f"{format}, which runs as {tried.runs_in}"


def _row(
    step: str, format: str, here: Trial, trial: Trial | FailedTrial, verdict: str
) -> tuple[str, ...]:
    if isinstance(trial, FailedTrial):
        return step, format, str(trial.number), trial.reason, "", "", "", verdict
    gap = "diverged" if trial.diverged else f"{trial.loss_gap:+.2e}"
    no_gap = trial.diverged or here.diverged
    more = "" if no_gap or trial is here else f"{trial.loss_gap - here.loss_gap:+.2e}"
    speed = trial.cost.speedup / here.cost.speedup
    memory = trial.cost.memory_ratio / here.cost.memory_ratio
    costs = ("", "") if trial is here else (f"{speed:.3f}x", f"{memory:.3f}x")
    return step, format, str(trial.number), gap, more, *costs, verdict
