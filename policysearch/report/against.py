"""What speaks against what a study picks: rivals as fast, intervals that reach them, no proof."""

from __future__ import annotations

from collections.abc import Iterator

from policysearch.policy.presets import TF32
from policysearch.study.journal.trials import Trial
from policysearch.study.results.results import Results

FLOAT32 = "float32"


def picked(results: Results) -> Trial | None:
    """Return the policy that views put first: that of the verdict, else the knee, if any is."""
    if not results.front:
        return None
    number = results.verdict.trial
    return results.knee() if number is None else results.trial(number)


def against(results: Results) -> list[str]:
    """Return a line for each rival that is as fast as what is picked, by the verdict or knee.

    Rivals are TF32, one switch, and the baseline; where the interval of a speedup reaches 1 that
    is said too.
    """
    if not results.front:
        return []
    lines = []
    first, knee = picked(results), results.knee()
    for trial, name in ((first, "pick"), (knee, "knee")):
        if trial is None or (name == "knee" and trial is first):
            continue
        lines += _beside(results, trial, f"the {name}, trial {trial.number} ({trial.label})")
    return lines


def _beside(results: Results, trial: Trial, called: str) -> list[str]:
    lines = []
    baseline = results.spec.study.baseline
    for over in results.speedups(trial):
        if over.over == FLOAT32 or over.over in trial.presets:
            if over.over == baseline and over.over in trial.presets:
                lines.append(f"{called} is the baseline itself")
            continue
        rival = "TF32, one switch," if over.over == TF32 else f"the baseline {over.over}"
        if over.value <= 1.0:
            lines.append(
                f"{rival} is modeled as fast as {called}, or faster: that is "
                f"{over.value:.2f}x its speed ({over.low:.2f} to {over.high:.2f})"
            )
        elif over.low <= 1.0:
            lines.append(
                f"{called} may be no faster than {rival.rstrip(',')}: modeled "
                f"{over.value:.2f}x, between {over.low:.2f} and {over.high:.2f}"
            )
    return lines


def _other_batch(results: Results, pick: Trial) -> Iterator[str]:
    spec = results.spec
    trained, priced = spec.task.batch_size, spec.priced_batch_size
    if trained != priced:
        of = f"speed and memory of trial {pick.number} are those of batch {priced}"
        yield f"{of}; it was trained at batch {trained}: {spec.cost.batch_size_reason}"


def unproven(results: Results) -> list[str]:
    """Return what is not known of the pick: another batch, how it does later, how seeds spread."""
    pick = picked(results)
    if pick is None or FLOAT32 in pick.presets:
        return []
    lines = [*_other_batch(results, pick)]
    if results.confirmation(pick) is None:
        lines.append(f"trial {pick.number} was not trained longer than the search did yet")
    if len(pick.scores) == 1:
        lines.append(f"trial {pick.number} was trained with one seed, so no interval is known")
    return lines
