"""The results of a study as text: the front as a table, its caption, and the CSV file."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from types import MappingProxyType

from policysearch.accumulators import accumulator_named
from policysearch.policy.presets import TF32
from policysearch.report.against import against
from policysearch.report.text import aligned, figures, or_dash
from policysearch.search.acquisition import BUDGETS
from policysearch.study.journal.trials import Confirmation, Trial
from policysearch.study.results.fidelity import FidelitySummary
from policysearch.study.results.gain import as_expected, gain_over_start
from policysearch.study.results.results import Results
from policysearch.study.results.rows import Row
from policysearch.study.results.trend import Trend, later_trends, points_of
from policysearch.study.specification import StudySpec

HEADER = (
    "trial",
    "policy",
    "loss gap",
    "tie",
    "val acc",
    "modeled speedup",
    "over TF32",
    "over baseline",
    "modeled memory",
    "early sign",
    "gap confirmed, later",
)

EMULATORS: Mapping[str, str] = MappingProxyType(
    {"c": "C and numpy", "numpy": "numpy", "off": "the reference", "torch": "torch"}
)
"""What ran (`Score.fast`), in words; the bits are the same, but for those of torch."""

INTERVALS = "95 % intervals by t, variances shared between policies"

BEHIND = "next in line, for members of the front failed or were not confirmed:"


def front_table(results: Results) -> str:
    """Return the verdict, then the front, fastest first, a line on the study and a caption.

    Where the recipe cannot rank policies there is no front, and every policy stands in its place.
    Below the front stand what is picked from in the place of members, the baseline, what was tried
    by hand and is not on it, and what did not train, and why.
    """
    every = results.rows()
    rows = [row for row in every if row.on_front or (results.cannot_rank and not row.diverged)]
    left = [row for row in every if row not in rows and not row.diverged]
    sound = {trial.number for trial in results.sound_front()} if results.front else set()
    behind = [row for row in left if row.trial in sound]
    others = [row for row in left if row.by_hand and row not in behind]
    shown = [*behind, *others]
    run = [r for r in left if r.baseline in r.presets.split() and r not in shown]
    diverged = [trial for trial in results.trials if trial.diverged]
    head = (
        f"study {results.spec.study.name}: {len(results.trials) + len(results.failed)} policies "
        f"tried, {len(diverged)} diverged, {len(results.failed)} failed, "
        f"{len(results.front)} on the front"
    )
    reasons = [f"trial {t.number}: {t.name}: {t.divergence}" for t in diverged]
    reasons += [f"trial {t.number}: {t.name}: failed: {t.reason}" for t in results.failed]
    titled = {BEHIND: behind, "what you run:": run, "tried by hand, not on the front:": others}
    table = _blocks({"": rows, **titled})
    said = [f"verdict: {results.verdict}", head, *search_lines(results)]
    blocks = [said, warnings(results), table, reasons]
    return "\n\n".join("\n".join(block) for block in [*blocks, [caption(results)]] if block)


def _blocks(titled: Mapping[str, Sequence[Row]]) -> list[str]:
    """Return the rows as one table, each part of it with rows below its title."""
    every = [row for rows in titled.values() for row in rows]
    head, *lines = aligned([header(every), *map(cells, every)])
    lines_of, rest = [head], iter(lines)
    for title, rows in titled.items():
        lines_of += [title] * bool(title and rows) + list(islice(rest, len(rows)))
    return lines_of


def search_lines(results: Results) -> list[str]:
    """Return why the search ended, and what it added to the policies it began with."""
    goal = results.spec.goal
    lines = [f"goal: {goal.words}"] if goal is not None else []
    lines += [f"search ended: {results.stopped}"] if results.stopped else []
    lines += _runs(results.fidelity) if results.fidelity else []
    lines += _seeds(results)
    lines += as_expected(results)
    lines += _untrained_policies(results)
    added = None if results.cannot_rank else gain_over_start(results)
    if added is None:
        return lines
    share = f"{added.gain / added.volume:.0%} of all" if added.volume else "none there is"
    held = f" (of what holds: {added.left_out} that fail later are left out)"
    held = held if added.left_out else ""
    gain = f"{added.gain:.3g} of dominated volume, {share}{held}"
    lines.append(f"what the search found beyond the policies it began with: {gain}")
    if "speedup" in results.spec.objectives.names and math.isfinite(added.slower):
        lines.append(
            f"at equal gap these alone are {added.slower:.1%} slower than what was found, "
            f"{added.slowest:.1%} at most (mean and worst of {len(BUDGETS)} gaps)"
        )
    return lines


def _untrained_policies(results: Results) -> list[str]:
    """Return which policies of the ladder were left out, and what of the space no policy had."""
    lines = []
    if results.left:
        names = ", ".join(name for name, _ in results.left)
        why = ", since others were expected to gain more" if results.stopped else " yet"
        lines.append(f"uniform policies not trained{why}: {names}")
    # float32 is what all are compared with
    others = [name for name in results.spec.space.formats if name != "float32"]
    missed = [name for name in others if not _is_trained(results, name)]
    if missed and results.trials:
        lines.append(
            f"offered by the study, and in no policy that was trained: {', '.join(missed)}"
        )
    return lines


def _is_trained(results: Results, name: str) -> bool:
    """Return whether a layer of some policy has products in this format, from texts as they are.

    Reading thousands of deep policies to their last field would take minutes.
    """
    said = re.compile(rf'"(compute|output|grad|wgrad)": ?"{name}"')
    return any(said.search(trial.text) for trial in results.trials)


def _seeds(results: Results) -> list[str]:
    """Return how many policies were trained with how many seeds, where the search takes fewer."""
    study = results.spec.study
    if study.searched == study.seeds:
        return []
    counts = Counter(len(trial.scores) for trial in results.trials)
    groups = ", ".join(f"{count} policies with {seeds}" for seeds, count in sorted(counts.items()))
    return [f"seeds: {groups}; members of the front are to have all {len(study.seeds)}"]


def _runs(fidelity: FidelitySummary) -> list[str]:
    """Return how many runs of which length were spent, and how those of low fidelity rank."""
    kind = fidelity.name
    of, then = f"{fidelity.until} steps, {fidelity.resumed} of these gone on with", "gone on with"
    if fidelity.width < 1.0:
        of, then = f"a net of {fidelity.width:g} of the widths, counted so", "trained"
    worth = f"together the steps of {fidelity.worth:.1f} whole ones"
    spent = f"runs: {fidelity.whole} whole, {fidelity.short} of {of}; {worth}"
    if not fidelity.learns:
        return [spent, f"{kind}: none, for float32 has learned too little by their end"]
    if math.isnan(fidelity.correlation):
        return [spent, f"{kind}: too few of them whole as well ({fidelity.pairs}) to compare"]
    trust = f"what they propose was {then}" if fidelity.carry else "only whole runs count"
    ranks = (
        f"rank correlation {fidelity.correlation:.2f} with whole runs of {fidelity.pairs} policies"
    )
    ranks += "" if math.isnan(fidelity.beyond) else f", {fidelity.beyond:.2f} given their prices"
    return [spent, f"{kind}: {ranks}; {trust}"]


def warnings(results: Results) -> list[str]:
    """Return what makes the results worth less than they look, one line each.

    That nothing can be ranked is the verdict's to say.
    """
    mixed = [f"warning: results of both sides of a change: {c}" for c in results.mixed]
    rivals = [f"warning: {line}" for line in against(results)]
    return mixed + rivals + _clip_warnings(results)


def _clip_warnings(results: Results) -> list[str]:
    return [f"warning: trial {t.number}: {t.clipped}" for t in results.trials if t.clipped]


def header(rows: Sequence[Row]) -> tuple[str, ...]:
    """Return the titles of the rows: HEADER, with the loss where no labels are classes, and the
    metric where the task has one."""
    classes = any(row.validation_accuracy is not None for row in rows)
    losses = any(row.validation_loss is not None for row in rows)
    place = HEADER.index("val acc")
    shown = "val loss" if losses and not classes else "val acc"
    named = [row.metric_name.rpartition(":")[2] for row in rows[:1] if row.metric_name]
    return (*HEADER[:place], shown, *named, *HEADER[place + 1 :])


def cells(row: Row) -> tuple[str, ...]:
    """Return the row under the titles of `header`."""
    accuracy = row.validation_accuracy is not None
    return (
        str(row.trial),
        _name(row),
        _gap(row),
        "" if row.tied_with is None else f"= {row.tied_with}",
        or_dash(row.validation_accuracy, 3) if accuracy else figures(row.validation_loss),
        *([figures(row.metric)] if row.metric_name else []),
        f"{row.modeled_speedup:.2f} ({row.modeled_speedup_low:.2f} to "
        f"{row.modeled_speedup_high:.2f})",
        *(or_dash(speed, 2) for speed in (row.speedup_over_tf32, row.speedup_over_baseline)),
        f"{row.modeled_memory_ratio:.3f}",
        row.early_sign,
        _long_gap(row),
    )


def _name(row: Row) -> str:
    alias = f" = {row.presets}" if row.presets not in ("", row.policy) else ""
    return f"{row.policy}{alias}{' (by hand)' if row.by_hand else ''}"


def _gap(row: Row) -> str:
    if row.gap_low95 is None or row.gap_high95 is None:
        return f"{row.loss_gap:+.2e} (one seed)"
    return f"{row.loss_gap:+.2e} +- {(row.gap_high95 - row.gap_low95) / 2:.1e}"


def _long_gap(row: Row) -> str:
    if row.confirmed_gap is None:
        return "-"
    gap = f"{row.confirmed_gap:+.2e} at {row.confirmed_steps} steps"
    return f"{gap}  FAILS: {row.fault}" if row.fault else gap


def confirmed_table(results: Results) -> str:
    """Return every confirmed policy, short gap against long, and what the long one was beside.

    Those of one horizon together, the longest first; then what longer runs said nothing of.
    """
    lengths: dict[int, dict[int, Confirmation]] = {}
    known = dict(results.horizons)
    for trial in results.trials:
        for found in known.get(trial.digest, ()):
            lengths.setdefault(found.steps, {})[trial.number] = found
    blocks = [_at_horizon(results, lengths[steps]) for steps in sorted(lengths, reverse=True)]
    why = dict(results.unconfirmed)
    missing = [t for t in results.trials if t.digest in why]
    blocks += [[f"trial {t.number} not confirmed: {why[t.digest]}" for t in missing]]
    blocks += [_clip_warnings(results)]
    pages = "\n\n".join("\n".join(block) for block in blocks if block)
    return f"verdict: {results.verdict}\n\n{pages or 'nothing confirmed yet'}"


def _at_horizon(results: Results, found: Mapping[int, Confirmation]) -> list[str]:
    """Return the table of one horizon, from what each trial came to there."""
    rows = [row for row in results.rows() if row.trial in found]
    first = found[rows[0].trial]
    head = (
        f"confirmed over {first.steps} steps, on seeds the search did not use; float32's "
        f"own loss there is {first.float32_loss:.3g} {results.unit}"
    )
    pairs = [(str(number), each) for number, each in found.items()]
    courses = later_trends(pairs, results.resolution_gap)
    ends = points_of(first.steps)
    cells = [
        (
            str(row.trial),
            row.label,
            f"{row.modeled_speedup:.2f}",
            f"{row.loss_gap:+.2e}",
            f"{found[row.trial].loss_gap:+.2e}",
            found[row.trial].fault(row.counted_gap) or "holds",
            *_course(courses.get(str(row.trial), Trend()), ends),
        )
        for row in rows
    ]
    titles = ("trial", "policy", "modeled speedup", "short gap", "long gap", "verdict", "trend")
    points = tuple(f"at step {steps}" for steps in ends)
    shares = f"under {points[0]!r} and so on: the gap there, as a share of float32's loss there"
    return [head, shares, "", *aligned([(*titles, *points), *cells])]


def _course(trend: Trend, ends: Sequence[int]) -> tuple[str, ...]:
    """Return where the gap goes, by itself and beside float32's loss, and its share at each end."""
    words = trend.gap if trend.gap == trend.relative else f"{trend.gap}, {trend.relative}"
    shares = {point.steps: point.relative for point in trend.points}
    return words, *("-" if (s := shares.get(end)) is None else f"{s:+.1%}" for end in ends)


def csv_text(results: Results) -> str:
    """Return `Results.to_frame` as CSV with a header line; a `noise_gap` not measured is empty."""
    text: str = results.to_frame().to_csv(index=False, lineterminator="\n")
    return text


def batches(spec: StudySpec) -> str:
    """Say at which batch a step was trained and priced, why at two, and what it computes again."""
    trained, priced = spec.task.batch_size, spec.priced_batch_size
    blocks = ", ".join(spec.cost.recompute)
    again = f", {blocks} computed again in backward" if blocks else ""
    if spec.cost.net is not None:
        again = f"{again}; priced as {spec.cost.net.words}, and not as the net that is trained"
    if trained == priced:
        return f"trained and priced at batch {trained}{again}"
    why = spec.cost.batch_size_reason
    return f"trained at batch {trained}, priced at batch {priced} ({why}){again}"


def speedups(results: Results, trial: Trial) -> str:
    """Return the modeled speedups of a policy over each reference, with their intervals."""
    texts = (
        f"{x.value:.2f} ({x.low:.2f} to {x.high:.2f}) over {_name_beside(results, x.over)}"
        for x in results.speedups(trial)
    )
    return "modeled speedup " + ", ".join(texts)


def _name_beside(results: Results, name: str) -> str:
    """Return what a reference is called beside others."""
    if name == results.spec.study.baseline:
        return f"the baseline {name}"
    return {TF32: "TF32"}.get(name, name)


def reference_names(results: Results) -> dict[str, float]:
    """Return what else than strict float32 speed is compared with, and its speedup over that."""
    others = list(results.reference_speedups.items())[1:]
    return {_name_beside(results, name): speedup for name, speedup in others}


def _references(results: Results) -> str:
    """Say over what a speedup is, and how fast the other references are."""
    others = (f"{name} is {value:.2f}x" for name, value in reference_names(results).items())
    speeds = ", ".join(others)
    return f" Speedup is over strict float32; {speeds} that." if speeds else ""


def _spread(spec: StudySpec) -> str:
    """Say over how many devices a step is spread, and what of that is emulated."""
    base = spec.parallel.base
    if base.devices == 1:
        return ""
    return (
        f" Each of {spec.parallel.devices} devices, float32 with {base.summary}; trained is one "
        "replica of the whole batch, gradients rounded once to the format they are reduced in."
    )


def _price_source(results: Results) -> str:
    """Say what the prices are: with their error where they were compared with measured steps."""
    labels = [trial.cost.label for trial in results.trials[:1]] or ["modeled"]
    return "Modeled, not measured" if labels == ["modeled"] else labels[0].capitalize()


def _matters(results: Results) -> str:
    """Say what the least gap that matters rests on."""
    if results.matters_gap <= results.resolution_gap:
        return "what noise leaves to be told"
    return f"{results.spec.objectives.matters:.3g} of what float32 learns"


def emulator(fast: str) -> str:
    """Return what ran, in words, and where."""
    name, _, place = fast.partition(":")
    return EMULATORS.get(name, "?") + (f" on {place}" if place else "")


def caption(results: Results) -> str:
    """Return on what the results rest: device, stack, batches, seeds, accumulator, noise."""
    spec = results.spec
    accumulators = [accumulator_named(name) for name in results.accumulators or ("float32",)]
    sums = "; ".join(f"{row.name} ({row.not_modelled})" for row in accumulators)
    seeds = ", ".join(str(seed) for seed in spec.study.seeds)
    ways = ", ".join(sorted({emulator(s.fast) for t in results.trials for s in t.scores}))
    between = "one seed, so no interval" if len(spec.study.seeds) == 1 else INTERVALS
    if spec.study.searched != spec.study.seeds:
        first = ", ".join(str(seed) for seed in spec.study.searched)
        between = f"the front; others {first} alone; {between}"
    noise = "not measured"
    if results.noise_gap is not None:
        noise = f"{results.noise_gap:.1e} {results.unit}"
        noise += f", counted from {results.resolution_gap:.1e} on"
    least = f"{results.matters_gap:.1e} {results.unit}"
    gaps = f" Gaps up to {least} are equal here ({_matters(results)})."
    return (
        f"{_price_source(results)}: speed and memory of {spec.cost.device} "
        f"with {spec.cost.stack}, {batches(spec)}.{_references(results)}{_spread(spec)}\n"
        f"Trained: {spec.task.said}, batch {spec.task.batch_size}, "
        f"{spec.task.steps} steps, seeds {seeds} ({between}). Noise under jitter: {noise}.{gaps}\n"
        f"{f'Emulated by {ways}. ' if ways else ''}Accumulator, and what it does not model: {sums}."
    )
