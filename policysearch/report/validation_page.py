"""The page of `policysearch validate-cost`: every row, and simple rules beside the model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean

from policysearch.objective.published.anchors import LARGEST_ERROR
from policysearch.objective.published.judged import (
    ALL,
    Crossed,
    Judged,
    Summary,
    Validation,
    summary,
)
from policysearch.objective.published.known import COVERAGE
from policysearch.objective.published.rows import Row, emulated
from policysearch.objective.published.steps import FITTED_NAMES

HEADER = (
    f"{'row':>5} {'network':20} {'framework':22} {'device':15} {'batch':>15} {'published':>9} "
    f"{'modeled':>7} {'anchor':>6} {'interval':>12} {'error':>6} {'2x':>6} {'peaks':>6} "
    f"{'roofline':>8}"
)


def validation_page(found: Validation) -> str:
    """Return the page as text; its last line is the mean error."""
    lines = [
        "errors of the modeled speedup; the last three: always 2, ratio of peaks, textbook; "
        "anchor: what anchors have scaled it by",
        "",
    ]
    lines += [HEADER, *(_line(row) for row in found.judged), ""]
    if found.unbuilt:
        lines.append("not built:")
        lines += [f"{row.id:>5} {row.model}: {reason}" for row, reason in found.unbuilt]
        lines.append("")
    doubts = [_contradiction(j.setting.row) for j in found.judged if j.setting.row.doubtful]
    doubts += dict.fromkeys(line for row in found.judged for line in emulated(row.setting))
    lines += [*doubts, *([""] if doubts else [])]
    lines += [*_constants(found), "", *_anchors(found)]
    for crossed in found.crossed:
        lines += _group_lines(crossed)
    if not found.judged:
        return "\n".join([*lines, "no row could be built"])
    families = dict.fromkeys(row.setting.network.family for row in found.judged)
    for family in families:
        rows = [row for row in found.judged if row.setting.network.family == family]
        lines.append(_summary_line(family, _summary(rows)))
    lines += _whole(found.judged)
    return "\n".join(lines)


def _anchors(found: Validation) -> list[str]:
    """Return what became of the anchors, nothing where none were given."""
    if not found.anchors and not found.lost:
        return []
    related = [row for row in found.judged if row.anchored]
    lines = [
        f"anchors: {len(found.anchors)}, related to {len(related)} of {len(found.judged)} rows "
        "(network and framework are the same, or family, version and baseline format are; "
        "judged rows are anchors of no row of their device)"
    ]
    lines += [f"not built: {row.id:>5} {row.model}: {reason}" for row, reason in found.lost]
    lines += [_contradiction(row) for row, _ in found.anchors if row.doubtful]
    most = math.exp(LARGEST_ERROR)
    for row, ratio in found.anchors:
        bound = most if ratio > most else 1 / most if ratio < 1 / most else None
        if bound:
            lines.append(
                f"doubtful: {row.id:>5} {row.model} on {row.hardware}: published {row.speedup:.2f} "
                f"is {ratio:.2f} times the modeled, and counts as {bound:.2f} times"
            )
    return [*lines, ""]


def _contradiction(row: Row) -> str:
    wide, mixed = row.throughputs
    return (
        f"doubtful: {row.id:>5} {row.model} on {row.hardware}: a speedup of {row.speedup:.2f}, "
        f"but {mixed / wide:.2f} by its throughputs"
    )


def _whole(rows: Sequence[Judged]) -> list[str]:
    whole, near = _summary(rows), [row for row in rows if row.anchored]
    twice = _of(rows, [2.0] * len(rows))
    peaks = _of(rows, [row.peak_ratio for row in rows])
    roofline = _of(rows, [row.roofline for row in rows])
    unseen = {what: sum(row.unseen == what for row in rows) for what in ("family", "device")}
    with_anchors = [_summary_line("with anchors", _summary(near))] if near else []
    return [
        *with_anchors,
        _summary_line("all", whole),
        f"held out: {unseen['family']} rows by family, {unseen['device']} by device; "
        f"{len(near)} with anchors",
        f"always 2x {twice.mean:.1%}, ratio of peaks {peaks.mean:.1%}, "
        f"textbook roofline {roofline.mean:.1%}",
        f"the {COVERAGE:.0%} interval holds {whole.covered:.0%} of the rows",
        f"mean error {whole.mean * 100:.1f} %",
    ]


def _line(row: Judged) -> str:
    setting, truth = row.setting, row.setting.row.speedup
    low, high = (row.speedup * factor for factor in row.interval)
    batch = "/".join(str(batch) for batch in setting.row.batches)
    others = (2.0, row.peak_ratio, row.roofline)
    errors = [f"{other / truth - 1:+.0%}" for other in others]
    anchor = f"x{row.factor:.2f}" if row.factor is not None else ""
    return (
        f"{setting.row.id:>5} {setting.row.model[:20]:20} {setting.row.framework[:22]:22} "
        f"{setting.device.name[:15]:15} {batch:>15} {truth:9.2f} {row.speedup:7.2f} {anchor:>6} "
        f"{f'{low:.2f}-{high:.2f}':>12} {row.error:+6.0%} {errors[0]:>6} {errors[1]:>6} "
        f"{errors[2]:>8}"
    )


def _constants(found: Validation) -> Iterable[str]:
    named = ", ".join(f"{name} {getattr(found.constants, name):.4g}" for name in FITTED_NAMES)
    lines = [f"fitted to all rows of the package: {named}"]
    for (low, high), devices in zip(
        found.intervals, ("that have numbers of what they achieve", "that have none"), strict=True
    ):
        lines.append(
            f"{COVERAGE:.0%} interval on devices {devices}: {low:.3f} to {high:.3f} times the "
            "modeled speedup"
        )
    return lines


def _group_lines(found: Crossed) -> Iterable[str]:
    """Return a line for each group that was held out, and one for all."""
    yield f"the package's rows, {found.what} held out:"
    for name, errors in found.summaries.items():
        yield f"{_summary_line(name, errors)}, {COVERAGE:.0%} interval holds {errors.covered:.0%}"
    groups = [errors.covered for name, errors in found.summaries.items() if name != ALL]
    yield f"in the mean over {found.what} the interval holds {fmean(groups):.0%}"
    yield f"step times of {found.times} runs: mean error {found.time_error:.1%}"
    yield ""


def _summary(rows: Sequence[Judged]) -> Summary:
    return _of(rows, [row.speedup for row in rows])


def _of(rows: Sequence[Judged], modeled: Sequence[float]) -> Summary:
    published = [row.setting.row.speedup for row in rows]
    return summary(published, modeled, [row.holds for row in rows])


def _summary_line(name: str, errors: Summary) -> str:
    return (
        f"{name:15} {errors.rows:4} rows: mean {errors.mean:.1%}, p90 {errors.p90:.1%}, "
        f"bias {errors.bias:+.1%}, rank correlation {errors.rank:.3f}"
    )
