"""One policy of a study as text: how it trained, layer by layer, its modeled time and memory.

Counts are sums over the seeds. Times and bytes are modeled.
"""

from __future__ import annotations

import math
from itertools import pairwise

from policysearch.objective.score import Score
from policysearch.policy.policy import Policy
from policysearch.report.lost import kept_wide_lines, layer_lines, lost_lines
from policysearch.report.step_cost import (
    default_line,
    kernel_lines,
    live_line,
    memory_lines,
    phase_lines,
    time_lines,
)
from policysearch.report.table import batches, cells, header, speedups
from policysearch.report.text import aligned, figures, or_dash
from policysearch.study.journal.trials import FailedTrial, Trial
from policysearch.study.proposer import lists_sorted
from policysearch.study.results.results import Results
from policysearch.study.results.trend import ONE_SEED, Trend
from policysearch.study.specification import objective_of
from policysearch.values import InputError

SHOWN_CHANGES = 6
"""So many of the first changes of a loss scale, and of the first skips, are written out."""


def trial_page(results: Results, number: int) -> str:
    """Return all that is known of the trial with this number; InputError where there is none."""
    trial = _trial_numbered(results, number)
    if isinstance(trial, FailedTrial):
        return f"verdict: does not train: it failed\n\n{_title(trial)}\n\nfailed: {trial.reason}"
    blocks = [
        [f"verdict: {results.training_verdict(trial)}"],
        [_title(trial), standing(results, trial), results.outlook(trial)],
        [_settings(trial.policy), *filter(None, [trial.clipped]), *_means(results, trial)],
        _seeds(results, trial),
        trend_lines(results, trial),
        scale_lines(results, trial),
        layer_lines(results.spec, trial),
        lost_lines(trial),
        *_cost_blocks(results, trial),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def tried_page(results: Results, number: int, new: bool) -> str:
    """Return what came of a policy tried by hand: its row, its counts, and where it stands."""
    trial = _trial_numbered(results, number)
    if isinstance(trial, FailedTrial):
        return trial_page(results, number)
    (row,) = (row for row in results.rows() if row.trial == number)
    blocks = [
        [f"verdict: {results.training_verdict(trial)}"],
        [] if new else [f"already a trial of {results.spec.study.name}; nothing is added"],
        aligned([header([row]), cells(row)]),
        layer_lines(results.spec, trial),
        [standing(results, trial)],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def exported_notes(results: Results, trial: Trial) -> tuple[str, ...]:
    """Return what an exported file says of the policy: gap, speedups, batches, horizon."""
    gap = "diverged" if trial.diverged else f"loss gap {trial.loss_gap:+.2e} {results.unit}"
    gap += _fewer_seeds(results, trial)
    return (
        f"trial {trial.number} of study {results.spec.study.name}: {gap}",
        *filter(None, [trial.clipped]),
        speedups(results, trial),
        batches(results.spec),
        results.outlook(trial),
        *kept_wide_lines(results.spec, trial),
        f"verdict of the study: {results.verdict}",
    )


def beside_baseline(results: Results, trial: Trial) -> str:
    """Return the axes of the trial and of the study's baseline in two rows, "" without one.

    A line more where the baseline is better on all of them, or nothing is gained over it.
    """
    name = results.spec.study.baseline
    base = next((t for t in results.trials if name in t.presets and not t.diverged), None)
    if base is None or name is None:
        return ""
    lines = [f"{'':36}  loss gap  speedup  memory"]
    for label, shown in ((f"trial {trial.number}", trial), (f"trial {base.number}, {name}", base)):
        cost = shown.cost
        axes = f"{shown.loss_gap:+8.1e}  {cost.speedup:7.3f}  {cost.memory_ratio:6.3f}"
        lines.append(f"{label:36}  {axes}{_fewer_seeds(results, shown)}")
    if all(b < t for b, t in zip(results.point(base), results.point(trial), strict=True)):
        lines.append(f"{name} is better on all axes: export it instead")
    own, today = ((t.cost.speedup, t.cost.memory_ratio) for t in (trial, base))
    if line := nothing_gained(own, today, name):
        lines.append(line)
    return "\n".join(lines[3:] if base is trial else lines)


def nothing_gained(own: tuple[float, float], base: tuple[float, float], baseline: str) -> str:
    """Return a line where a policy is no faster and no smaller than the baseline, "" else.

    Of both the modeled speedup and the share of float32's memory.
    """
    if own[0] > base[0] or own[1] < base[1]:
        return ""
    said = "modeled no faster and no smaller than"
    return f"nothing is gained here: {said} {baseline}, which the study says you run today"


def _fewer_seeds(results: Results, trial: Trial) -> str:
    """Say with how many of the study's seeds a trial was trained, where that is not all."""
    seeds, every = len(trial.scores), len(results.spec.study.seeds)
    return f" (with {seeds} of {every} seeds)" if seeds < every else ""


def standing(results: Results, trial: Trial) -> str:
    """Say whether the trial is on the front, and which members of it are better if not.

    A front of one policy that was tried before anything else says nothing.
    """
    if trial.diverged:
        return f"not on the front: {trial.divergence}"
    if results.cannot_rank:
        return f"not ranked: {results.cannot_rank}"
    if len(results.trials) == 1:
        return "the only policy so far: `policysearch run STUDY.toml` trains others to compare with"
    knee = trial is results.knee()
    if trial in results.front:
        return "on the front" + ", its knee" * knee
    better = results.beaten_by(trial)
    nearest = min(better, key=lambda t: (results.counted_gap(t), -t.cost.speedup, t.number))
    more = f", nor than {len(better) - 1} more of the front" if len(better) > 1 else ""
    return (
        f"not on the front: better in nothing that can be told than trial {nearest.number} "
        f"({nearest.label}){more}" + "; the knee of what does not fail" * knee
    )


def _trial_numbered(results: Results, number: int) -> Trial | FailedTrial:
    for failed in results.failed:
        if failed.number == number:
            return failed
    return results.trial(number)


def number_of(results: Results, policy: Policy, source: str) -> int:
    """Return the number of the trial that is this policy; InputError where none is.

    In what order ops are listed does not matter: a study that decides their lists has its own.
    """
    digest = lists_sorted(policy).digest
    for trial in results.trials:
        if trial.digest == policy.digest or lists_sorted(trial.policy).digest == digest:
            return trial.number
    study = results.spec.study.name
    raise InputError(
        f"policy {source}: no trial of {study}; expected one of its policies "
        f"(`policysearch try {source} --study STUDY.toml` makes it one)"
    )


def _title(trial: Trial | FailedTrial) -> str:
    presets = " ".join(trial.presets)
    alias = f" = {presets}" if presets not in ("", trial.name) else ""
    by_hand = " (tried by hand)" if isinstance(trial, Trial) and trial.by_hand else ""
    return f"trial {trial.number}: {trial.name}{alias}{by_hand}"


def _settings(policy: Policy) -> str:
    masters = "float32" if policy.master_weights else "none"
    sums = sorted({layer.accumulator for _, layer in policy.layers})
    return (
        f"loss scale: {_loss_scale(policy)}; tensor scaling: {', '.join(policy.recipes)}; "
        f"masters: {masters}; optimizer state: {policy.state_summary}; "
        f"accumulator: {', '.join(sums)}"
        + (f"; gradients reduced in {policy.all_reduce}" * (policy.parallel.devices > 1))
    )


def _means(results: Results, trial: Trial) -> list[str]:
    """Return the mean gap, what was expected of it, and what validation shows, with intervals."""
    expected = []
    if trial.expected:
        gap, low, high = trial.expected
        expected = [
            f"before it was trained {gap:.1e} was expected, {low:.1e} to {high:.1e} at 80 %"
        ]
    return [_mean(results, trial), *expected, *results.measured(trial)]


def _mean(results: Results, trial: Trial) -> str:
    interval = results.interval(trial)
    if trial.diverged:
        return "loss gap: none, for a run diverged"
    if interval is None:
        return f"loss gap: {trial.loss_gap:+.2e} {results.unit} (one seed, so no interval)"
    return (
        f"loss gap: {trial.loss_gap:+.2e} {results.unit}, {interval.low:+.2e} to "
        f"{interval.high:+.2e} at 95 % over seeds"
    )


def _loss_scale(policy: Policy) -> str:
    scale = policy.loss_scale
    if scale.kind == "none":
        return "none"
    if scale.kind == "schedule":
        return "schedule " + ", ".join(
            f"{value:g} from step {step}" for step, value in scale.schedule
        )
    grows = f", doubled after {scale.growth_interval} clean steps" * (scale.growth_factor == 2.0)
    return f"{scale.kind} from {scale.init_scale:g}{grows if scale.kind == 'dynamic' else ''}"


def _seeds(results: Results, trial: Trial) -> list[str]:
    """One line per seed: gap, what validation shows, skipped steps, counts; where it diverged.

    What came to be not finite elsewhere than in a cast is no overflow of one: that is a dash.
    """
    classes = trial.validation_accuracy is not None
    metric = [name.rpartition(":")[2]] if (name := results.spec.task.metric_name) else []
    shown = ("val acc", "val loss") if classes else ("val loss",)
    shown = shown if trial.validation_loss is not None else ("val acc",)
    titles = ("seed", "loss gap", *shown, *metric, "skipped steps", "overflows", "underflows")
    values = {
        "val acc": lambda score: or_dash(score.validation_accuracy, 3),
        "val loss": lambda score: figures(score.validation_loss),
    }
    steps = results.spec.task.steps
    rows = [
        (
            str(seed),
            "diverged" if score.diverged else f"{score.loss_gap:+.2e}",
            *(values[title](score) for title in shown),
            *(figures(score.metric) for _ in metric),
            f"{score.skipped_steps} of {steps}",
            str(sum(n for _, n in score.overflows) or ("-" if score.diverged else 0)),
            str(sum(count for _, count in score.underflows)),
        )
        for seed, score in zip(trial.seeds, trial.scores, strict=True)
    ]
    return aligned([titles, *rows]) + [trial.divergence] * bool(trial.divergence)


def scale_lines(results: Results, trial: Trial) -> list[str]:
    """Return how the loss scale moved and which steps were skipped, one line per seed."""
    if trial.policy.loss_scale.kind == "none":
        return []
    return [
        f"seed {seed}: {_scale(score)}; {_skips(score)}"
        for seed, score in zip(trial.seeds, trial.scores, strict=True)
    ]


def _scale(score: Score) -> str:
    if not score.scales:
        return "loss scale not recorded"
    values = [value for _, value in score.scales]
    if len(values) == 1:
        return f"loss scale {_power(values[0])} throughout"
    moves = [f"{_power(value)} from step {step}" for step, value in score.scales[:SHOWN_CHANGES]]
    more = len(values) - len(moves)
    course = ", ".join(moves) + (f" and {more} changes more" if more else "")
    ups = sum(old < new for old, new in pairwise(values))
    return (
        f"loss scale first {_power(values[0])}, last {_power(values[-1])}, lowest "
        f"{_power(min(values))}, highest {_power(max(values))}, raised {ups}x, "
        f"lowered {len(values) - 1 - ups}x ({course})"
    )


def _power(scale: float) -> str:
    """Return a scale as the power of two that it nearly always is."""
    fraction, exponent = math.frexp(scale)
    return f"2^{exponent - 1}" if fraction == 0.5 else f"{scale:g}"


def _skips(score: Score) -> str:
    if not score.skipped_steps:
        return "no step skipped"
    if not score.skips:
        return f"{score.skipped_steps} steps skipped"
    first = ", ".join(str(step) for step in score.skips[:SHOWN_CHANGES])
    more = len(score.skips) - SHOWN_CHANGES
    last = f" and {more} more, the last {score.skips[-1]}" if more > 0 else ""
    return f"{score.skipped_steps} skipped: steps {first}{last}"


def trend_lines(results: Results, trial: Trial) -> list[str]:
    """Return the gap along the study's run and along the longer one, and where it goes."""
    runs = [("over the study's run", results.trend(trial))]
    runs.append(("over the longer run", results.confirmed_trend(trial)))
    unit = results.unit
    return [line for where, trend in runs if trend.points for line in _course(where, trend, unit)]


def _course(where: str, trend: Trend, unit: str) -> list[str]:
    titles = ("steps", *(str(point.steps) for point in trend.points))
    gaps = (f"gap, {unit}", *(f"{point.gap:+.2e}" for point in trend.points))
    shares = ("of float32's loss there", *(f"{point.relative:+.2%}" for point in trend.points))
    return [f"gap {where}: {_direction(trend, unit)}", *aligned([titles, gaps, shares])]


def _direction(trend: Trend, unit: str) -> str:
    """Say where the gap goes from the middle of a run to its end, and by how much."""
    if trend.change is None:
        return "no trend, for the run has no middle and end"
    moved = f"{trend.change:+.1e} {unit} from the middle to the end"
    if trend.gap == ONE_SEED or trend.reach is None:
        return f"{moved}; one seed, so no trend is called"
    return f"{trend.gap} ({moved}, +- {trend.reach:.1e}); beside float32's loss {trend.relative}"


def _cost_blocks(results: Results, trial: Trial) -> list[list[str]]:
    """Return the lines on time, on single kernels and on memory.

    The step is priced anew: records keep its sums, not its kernels. Without the task's data that
    cannot be, and only the sums are said.
    """
    spec, cost = results.spec, trial.cost
    head = [f"{speedups(results, trial)}; {batches(spec)}"]
    objective = objective_of(spec)
    try:
        step = objective.step_price(trial.policy)
    except InputError as error:
        missing = [f"kernel by kernel: not shown: {error}"]
        return [[*head, cost.summary], memory_lines(cost), missing]
    return [
        [
            *head,
            default_line(objective, cost),
            *time_lines(cost, step.time),
            *phase_lines(objective, trial.policy),
        ],
        kernel_lines(step.time),
        [*memory_lines(cost), live_line(step.memory)],
    ]
