"""The front of a study as a table of text."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice

from policysearch.report.front_data import caption
from policysearch.search.acquisition import BUDGETS
from policysearch.study.results.fidelity import FidelitySummary
from policysearch.study.results.gain import gain_over_start
from policysearch.study.results.results import Results, Row
from policysearch.study.results.trend import Trend

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

BEHIND = "picked from in the place of members that fail or were not confirmed:"


def front_table(results: Results) -> str:
    """Return the front, fastest first, below a line on the study and above the caption.

    Where the recipe cannot rank policies there is no front, and every policy stands in its place.
    Below the front stand what is picked from in the place of members, what was tried by
    hand and is not on it, and what did not train, and why.
    """
    every = results.rows()
    rows = [row for row in every if row.on_front or (results.cannot_rank and not row.diverged)]
    left = [row for row in every if row not in rows and not row.diverged]
    sound = {trial.number for trial in results.sound_front()} if results.front else set()
    behind = [row for row in left if row.trial in sound]
    others = [row for row in left if row.by_hand and row not in behind]
    lost = [trial for trial in results.trials if trial.diverged]
    head = (
        f"study {results.spec.study.name}: {len(results.trials) + len(results.failed)} policies "
        f"tried, {len(lost)} diverged, {len(results.failed)} failed, "
        f"{len(results.front)} on the front"
    )
    said = [f"trial {t.number}: {t.name}: {t.divergence}" for t in lost]
    said += [f"trial {t.number}: {t.name}: failed: {t.reason}" for t in results.failed]
    table = _blocks({"": rows, BEHIND: behind, "tried by hand, not on the front:": others})
    blocks = [[head, *search_lines(results)], warnings(results), table, said]
    return "\n\n".join("\n".join(block) for block in [*blocks, [caption(results)]] if block)


def _blocks(titled: Mapping[str, Sequence[Row]]) -> list[str]:
    """Return the rows as one table, each part of it with rows below its title."""
    head, *lines = aligned([HEADER, *(cells(row) for rows in titled.values() for row in rows)])
    gain_over_start, rest = [head], iter(lines)
    for title, rows in titled.items():
        gain_over_start += [title] * bool(title and rows) + list(islice(rest, len(rows)))
    return gain_over_start


def search_lines(results: Results) -> list[str]:
    """Return why the search ended, and what it added to the policies it began with."""
    lines = [f"search ended: {results.stopped}"] if results.stopped else []
    lines += _runs(results.fidelity) if results.fidelity else []
    lines += _seeds(results)
    added = gain_over_start(results)
    if added is None:
        return lines
    share = f"{added.gain / added.volume:.0%} of all" if added.volume else "none there is"
    if results.left:
        names = ", ".join(name for name, _ in results.left)
        why = ", for others promised more" if results.stopped else " yet"
        lines.append(f"of the ladder not trained{why}: {names}")
    lines.append(f"gain over the ladder: {added.gain:.3g} of dominated volume, {share}")
    if "speedup" in results.spec.objectives.names and math.isfinite(added.slower):
        lines.append(
            f"at equal gap the ladder alone is {added.slower:.1%} slower than what was found, "
            f"{added.slowest:.1%} at most (mean and worst of {len(BUDGETS)} gaps)"
        )
    return lines


def _seeds(results: Results) -> list[str]:
    """Return how many policies were trained with how many seeds, where the search takes fewer."""
    study = results.spec.study
    if study.searched == study.seeds:
        return []
    counts = Counter(len(trial.scores) for trial in results.trials)
    said = ", ".join(f"{count} policies with {seeds}" for seeds, count in sorted(counts.items()))
    return [f"seeds: {said}; members of the front are to have all {len(study.seeds)}"]


def _runs(fidelity: FidelitySummary) -> list[str]:
    """Return how many runs of which length were spent, and how those of low fidelity rank."""
    kind = fidelity.name
    of, done = f"{fidelity.until} steps, {fidelity.resumed} of these gone on with", "gone on with"
    if fidelity.width < 1.0:
        of, done = f"a net of {fidelity.width:g} of the widths, counted so", "trained"
    worth = f"together the steps of {fidelity.worth:.1f} whole ones"
    spent = f"runs: {fidelity.whole} whole, {fidelity.short} of {of}; {worth}"
    if not fidelity.learns:
        return [spent, f"{kind}: none, for float32 has learned too little by their end"]
    if math.isnan(fidelity.correlation):
        return [spent, f"{kind}: too few of them whole as well ({fidelity.pairs}) to compare"]
    trust = f"what they propose was {done}" if fidelity.carry else "only whole runs count"
    said = (
        f"rank correlation {fidelity.correlation:.2f} with whole runs of {fidelity.pairs} policies"
    )
    said += "" if math.isnan(fidelity.beyond) else f", {fidelity.beyond:.2f} given their prices"
    return [spent, f"{kind}: {said}; {trust}"]


def warnings(results: Results) -> list[str]:
    """Return what makes the results worth less than they look, one line each."""
    told = (results.float32_fault, results.cannot_rank)
    fault = [f"warning: {reason}" for reason in told if reason]
    return fault + [f"warning: results of both sides of a change: {c}" for c in results.mixed]


def cells(row: Row) -> tuple[str, ...]:
    """Return the row under the titles HEADER."""
    return (
        str(row.trial),
        _name(row),
        _gap(row),
        "" if row.tied_with is None else f"= {row.tied_with}",
        or_dash(row.validation_accuracy, 3),
        f"{row.modeled_speedup:.2f} ({row.modeled_speedup_low:.2f} to "
        f"{row.modeled_speedup_high:.2f})",
        *(or_dash(speed, 2) for speed in (row.speedup_over_tf32, row.speedup_over_baseline)),
        f"{row.modeled_memory_ratio:.3f}",
        row.early_sign,
        _confirmed(row),
    )


def _name(row: Row) -> str:
    known = f" = {row.presets}" if row.presets not in ("", row.policy) else ""
    return f"{row.policy}{known}{' (by hand)' if row.by_hand else ''}"


def or_dash(value: float | None, places: int) -> str:
    """Return the value with so many places, "-" for None."""
    return "-" if value is None else f"{value:.{places}f}"


def _gap(row: Row) -> str:
    if row.gap_low95 is None or row.gap_high95 is None:
        return f"{row.loss_gap:+.2e} (one seed)"
    return f"{row.loss_gap:+.2e} +- {(row.gap_high95 - row.gap_low95) / 2:.1e}"


def _confirmed(row: Row) -> str:
    if row.confirmed_gap is None:
        return "-"
    said = f"{row.confirmed_gap:+.2e} at {row.confirmed_steps} steps"
    return f"{said}  FAILS: {row.fault}" if row.fault else said


def confirmed_table(results: Results) -> str:
    """Return every confirmed policy, short gap against long, and what the long one was beside.

    Those of one horizon together, the longest first; then what longer runs said nothing of.
    """
    rows = [row for row in results.rows() if row.confirmed_steps is not None]
    horizons = sorted({row.confirmed_steps or 0 for row in rows}, reverse=True)
    blocks = [
        _at_horizon(results, [row for row in rows if row.confirmed_steps == steps])
        for steps in horizons
    ]
    why = dict(results.unconfirmed)
    lost = [t for t in results.trials if t.digest in why]
    blocks += [[f"trial {t.number} not confirmed: {why[t.digest]}" for t in lost]] * bool(lost)
    said = "\n\n".join("\n".join(block) for block in blocks)
    return said or results.cannot_rank or "nothing confirmed yet"


def _at_horizon(results: Results, rows: Sequence[Row]) -> list[str]:
    first = rows[0]
    head = (
        f"confirmed over {first.confirmed_steps} steps, on seeds the search did not use; float32's "
        f"own loss there is {first.float32_loss:.3g} nats"
    )
    cells = [
        (
            str(row.trial),
            row.label,
            f"{row.modeled_speedup:.2f}",
            f"{row.loss_gap:+.2e}",
            f"{row.confirmed_gap:+.2e}",
            row.fault or "holds",
            *_course(results.confirmed_trend(results.trial(row.trial))),
        )
        for row in rows
    ]
    titles = ("trial", "policy", "modeled speedup", "short gap", "long gap", "verdict")
    course = ("trend", "of float32's loss on the way")
    return [head, "", *aligned([(*titles, *course), *cells])]


def _course(trend: Trend) -> tuple[str, str]:
    """Return where the gap goes, in nats and beside float32's loss, and its shares of that loss."""
    words = trend.gap if trend.gap == trend.relative else f"{trend.gap}, {trend.relative}"
    return words, " ".join(f"{p.relative:+.1%}" for p in trend.points if p.relative is not None)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows as lines, their columns padded to the widest cell."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
