"""Pareto plots: loss gap against modeled speedup and against modeled memory."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable
from dataclasses import dataclass

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.path import Path as Outline
from matplotlib.patheffects import withStroke
from matplotlib.transforms import Bbox

from policysearch.report.page.front import flat_ends
from policysearch.report.page.svg import EDGES, OUTLINES, colours, mark_of
from policysearch.report.table import caption, reference_names
from policysearch.search.hypervolume import non_dominated
from policysearch.study.results.results import Results
from policysearch.study.results.rows import Row, none_told

LINES = (":", "--")
CAPTION_LETTERS = 150
"""So many letters of the caption fit on a line; one narrow letter takes less, a wide one more."""

TITLE_LETTERS = 56
KNEE, VERDICT = "knee", "the policy of the verdict"
VERDICT_LETTERS = 116
FRONT, OTHERS = "front, numbered by trial", "not on the front"
LINE = "best of the front in this plot"
DPI, DOT = 150, 4.5
"""Dots of a file in an inch, and the width of a policy's in points."""

PLACES = ((4, 4), (4, -10), (-4, 4), (-4, -10), (4, 12), (4, -18), (-4, 12), (-4, -18))
"""Where a number may stand beside its point, in points of type; the first that is free is taken."""


@dataclass(frozen=True)
class View:
    """One plot: what is on its vertical axis, and which way is better."""

    name: str
    label: str
    value: Callable[[Row], float]
    sign: float
    better: str
    low: Callable[[Row], float] | None = None
    high: Callable[[Row], float] | None = None


VIEWS = (
    View(
        "speedup",
        "modeled speedup over float32",
        lambda row: row.modeled_speedup,
        -1.0,
        "up is faster",
        lambda row: row.modeled_speedup_low,
        lambda row: row.modeled_speedup_high,
    ),
    View(
        "memory",
        "modeled peak memory, share of float32",
        lambda row: row.modeled_memory_ratio,
        1.0,
        "up needs less memory",
    ),
)


def _colour(name: str) -> str:
    """Return a colour of the page of a study."""
    return colours()[name]


def plots(results: Results) -> dict[str, bytes]:
    """Return the plots as PNG files by the name of their `View`."""
    return {view.name: image(figure(results, view)) for view in VIEWS}


def image(fig: Figure, format: str = "png") -> bytes:
    """Return a figure as a file of this format: png, svg or pdf."""
    out = io.BytesIO()
    # Without versions, dates and names at random in it, equal results give equal files.
    metadata = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with rc_context({"svg.hashsalt": "policysearch", "svg.fonttype": "none"}):
        fig.savefig(out, format=format, dpi=DPI, metadata=metadata[format])
    return out.getvalue()


def figure(results: Results, view: View) -> Figure:
    """Return the plot of the counted loss gap (see `Results.counted_gap`) against `view`.

    Where no gap can be told, or ranked, it is the measured one, on both sides of zero.

    Policies on the front in all objectives, and those that may be picked, are blue and numbered,
    others grey. The line joins those to be picked that no other beats in this plot; a grey point
    beyond it fails, or gains less there than can be told. Of those to be picked upright bars are
    intervals of the model, level ones of the seeds; level lines across the plot of speed are what
    else speed is compared with. Diverged policies are counted, not drawn.
    """
    rows = [row for row in results.rows() if not row.diverged]
    sound = {trial.number for trial in results.sound_front()} if results.front else set()
    front = [row for row in rows if row.on_front or row.trial in sound]
    others = [row for row in rows if not (row.on_front or row.trial in sound)]
    pickable = [row for row in rows if row.trial in sound]
    fig = Figure(figsize=(8.0, 5.4), layout="constrained")
    FigureCanvasAgg(fig)
    axes = fig.add_subplot()
    least = None if none_told(rows) else min(r.counted_gap for r in rows if r.counted_gap > 0.0)
    _lay_out(axes, results, rows, least)
    _draw_points(axes, others, view, least, "other", OTHERS)
    _draw_points(axes, front, view, least, "accent", FRONT)
    _draw_intervals(axes, pickable, view, least)
    _draw_line(axes, pickable, view, least)
    _draw_presets(axes, rows, view, least)
    _draw_references(axes, results, rows, view, least)
    _draw_by_hand(axes, rows, view, least)
    _draw_signs(axes, rows, view, least)
    _draw_star(axes, results, view, least)
    _draw_matters(axes, results)
    _draw_faults(axes, rows, view, least)
    axes.set_ylabel(view.label)
    if view.sign > 0.0:
        axes.invert_yaxis()
    axes.grid(alpha=0.25)
    axes.set_title("\n".join(_title(results, view, least)), fontsize=9, loc="left")
    _write(fig, axes, results)
    _number(fig, axes, front, view, least)
    return fig


def _write(fig: Figure, axes: Axes, results: Results) -> None:
    """Write the verdict above the plot, the legend beside it and the caption below."""
    fault = "float32 itself did not train" if results.float32_fault else results.cannot_rank
    verdict = textwrap.fill(f"Verdict: {results.verdict}", VERDICT_LETTERS)
    fig.suptitle(verdict, fontsize=8.5, x=0.01, ha="left")
    axes.text(0.5, 0.5, fault.partition(":")[0], transform=axes.transAxes, ha="center")
    if axes.get_legend_handles_labels()[0]:
        fig.legend(loc="outside right center", fontsize=7)
    lines = [textwrap.fill(line, CAPTION_LETTERS) for line in caption(results).splitlines()]
    fig.supxlabel("\n".join(lines), fontsize=6.5, x=0.01, ha="left")


def _across(row: Row, least: float | None) -> float:
    """Return where a policy stands across: at its counted gap, or where none is told, its own."""
    return row.loss_gap if least is None else max(row.counted_gap, least)


def _lay_out(axes: Axes, results: Results, rows: list[Row], least: float | None) -> None:
    """Set the axis of gaps, which has a place for all that is drawn, and shade the noise on it."""
    if least is None:
        said = "as measured: none can be told from zero, or ranked"
        axes.set_xlabel(f"loss gap to float32, {results.unit}, {said}")
        edge, matters = results.resolution_gap, 0.0 if results.cannot_rank else results.matters_gap
        axes.set_xlim(*flat_ends(rows, matters, edge))
        axes.axvline(0.0, color=_colour("soft"), lw=0.8)
        if edge:
            axes.axvspan(-edge, edge, color=_colour("shade"), label="10 x noise floor", lw=0)
        return
    axes.set_xlabel(f"loss gap to float32, {results.unit}, or its error where that is larger")
    axes.set_xscale("log")
    largest = max((max(row.loss_gap_high, row.counted_gap, least) for row in rows), default=1.0)
    largest = max(largest, 0.0 if results.cannot_rank else results.matters_gap)
    axes.set_xlim(least / 2.0, largest * 2.0 + least)
    if results.noise_gap:
        left, right = least / 2.0, results.resolution_gap
        axes.axvspan(left, right, color=_colour("shade"), label="10 x noise floor", lw=0)


def _title(results: Results, view: View, least: float | None) -> list[str]:
    diverged = sum(trial.diverged for trial in results.trials)
    missing = f"; {diverged} diverged, not shown" * bool(diverged)
    missing += f"; {len(results.failed)} failed" * bool(results.failed)
    count = len(results.trials) + len(results.failed)
    task = results.spec.task
    head = f"{results.spec.study.name}: {count} policies for {task.said}"
    way = view.better if least is None else f"left is closer to float32, {view.better}"
    star = _star(results)
    way += f"; the star is {'the knee' if star[1] == KNEE else star[1]}" if star else ""
    return [*textwrap.wrap(head + missing, TITLE_LETTERS), way]


def _number(fig: Figure, axes: Axes, rows: list[Row], view: View, least: float | None) -> None:
    """Write trials beside their points, clear of other numbers and points where that can be."""
    # Laid out, so that places are known; and once, for that takes longer than to draw.
    if engine := fig.get_layout_engine():
        engine.execute(fig)
    fig.set_layout_engine("none")
    points = [(_across(row, least), view.value(row)) for row in rows]
    centres = [axes.transData.transform(point) for point in points]
    r = DOT / 2.0 * fig.dpi / 72.0
    boxes = [Bbox.from_extents(x - r, y - r, x + r, y + r) for x, y in centres]
    for row, point in zip(rows, points, strict=True):
        for x, y in PLACES:
            number = axes.annotate(
                str(row.trial),
                point,
                (x, y),
                textcoords="offset points",
                ha="left" if x > 0 else "right",
                fontsize=7,
                color=_colour("accent"),
                zorder=6,
                path_effects=[withStroke(linewidth=1.5, foreground="white")],
            )
            box = number.get_window_extent()
            if (x, y) == PLACES[-1] or not any(box.overlaps(other) for other in boxes):
                boxes.append(box)
                break
            number.remove()


def _draw_points(
    axes: Axes, rows: list[Row], view: View, least: float | None, colour: str, label: str
) -> None:
    if rows:
        gaps = [_across(row, least) for row in rows]
        values = [view.value(row) for row in rows]
        order = 3 if label == FRONT else 2
        axes.scatter(gaps, values, s=DOT**2, color=_colour(colour), label=label, zorder=order)


def _draw_intervals(axes: Axes, rows: list[Row], view: View, least: float | None) -> None:
    label = "interval of the model (upright)"
    for row in rows:
        if view.low is not None and view.high is not None:
            gap = _across(row, least)
            low, high = view.low(row), view.high(row)
            axes.vlines(gap, low, high, color=_colour("accent"), alpha=0.4, lw=0.8, label=label)
            label = "_once in the legend"
    label = "95 % over seeds (level)"
    for row in rows:
        if row.gap_low95 is not None and row.gap_high95 is not None:
            low, high = row.gap_low95, row.gap_high95
            if least is not None:
                low, high = max(low, least / 2.0), max(high, least / 2.0)
            axes.hlines(view.value(row), low, high, color=_colour("accent"), alpha=0.4, label=label)
            label = "_once in the legend"


def _draw_line(axes: Axes, rows: list[Row], view: View, least: float | None) -> None:
    if least is None:
        return
    points = [(_across(row, least), view.sign * view.value(row)) for row in rows]
    corners = sorted(points[i] for i in non_dominated(points))
    if corners:
        gaps, values = zip(*corners, strict=True)
        heights = [view.sign * value for value in values]
        axes.step(gaps, heights, where="post", color=_colour("accent"), alpha=0.7, label=LINE)


def _draw_presets(axes: Axes, rows: list[Row], view: View, least: float | None) -> None:
    """Mark every preset; those that are one policy around one another."""
    for row in rows:
        for size, name in enumerate(row.presets.split()):
            place, edge = mark_of(name)
            axes.scatter(
                [_across(row, least)],
                [view.value(row)],
                s=60 + 40 * size,
                marker=Outline(
                    [(x, -y) for x, y in (*OUTLINES[place], OUTLINES[place][0])], closed=True
                ),
                facecolors="none",
                edgecolors=_colour(EDGES[edge]),
                label=name,
                zorder=4,
            )


def _draw_references(
    axes: Axes, results: Results, rows: list[Row], view: View, least: float | None
) -> None:
    """Ring the baseline and, where speed is drawn, lay a line at each reference's."""
    if view.low is not None:
        for (name, speedup), style in zip(reference_names(results).items(), LINES, strict=False):
            label = f"{name}:\n{speedup:.2f}x float32"
            axes.axhline(speedup, color=_colour("soft"), alpha=0.6, lw=0.9, ls=style, label=label)
    for row in rows:
        if row.baseline in row.presets.split():
            place = _across(row, least), view.value(row)
            axes.scatter(
                *place, s=150, color="none", edgecolors=_colour("ink"), label="baseline", zorder=3.5
            )


def _draw_star(axes: Axes, results: Results, view: View, least: float | None) -> None:
    """Put a star where the verdict's policy lies, or the knee where it names none."""
    if number := _star(results):
        (row,) = (row for row in results.rows() if row.trial == number[0])
        place = _across(row, least), view.value(row)
        axes.scatter(
            *place,
            s=130,
            marker="*",
            color=_colour("goldfill"),
            edgecolors=_colour("ink"),
            label=number[1],
            zorder=3.5,
        )


def _star(results: Results) -> tuple[int, str] | None:
    """Return the trial that the star is at, and what it is called; None without a front."""
    if not results.front:
        return None
    if results.verdict.trial is not None:
        return results.verdict.trial, VERDICT
    return results.knee().number, KNEE


def _draw_matters(axes: Axes, results: Results) -> None:
    """Draw from where on a gap matters."""
    if 0.0 < results.matters_gap < axes.get_xlim()[1] and not results.cannot_rank:
        label = f"a gap matters from here:\n{results.matters_gap:.1e} {results.unit}"
        axes.axvline(results.matters_gap, color=_colour("good"), lw=0.9, ls="-.", label=label)


def _draw_by_hand(axes: Axes, rows: list[Row], view: View, least: float | None) -> None:
    by_hand = [row for row in rows if row.by_hand]
    if by_hand:
        gaps = [_across(row, least) for row in by_hand]
        values = [view.value(row) for row in by_hand]
        axes.scatter(
            gaps,
            values,
            s=110,
            label="tried by hand",
            zorder=4,
            color="none",
            edgecolors=_colour("good"),
        )


def _draw_signs(axes: Axes, rows: list[Row], view: View, least: float | None) -> None:
    """Cross what a longer run would lose."""
    label = "updates vanish (early sign)"
    for row in rows:
        if not row.early_sign:
            continue
        place = _across(row, least), view.value(row)
        axes.scatter(*place, s=70, marker="x", color=_colour("warn"), zorder=5, label=label)
        label = "_once in the legend"


def _draw_faults(axes: Axes, rows: list[Row], view: View, least: float | None) -> None:
    """Strike out what fails at the longer horizon, and join short gap and long one."""
    failing = [row for row in rows if row.fault]
    for index, row in enumerate(failing):
        label = f"fails at {row.confirmed_steps} steps" if index == 0 else None
        place = _across(row, least), view.value(row)
        axes.scatter(*place, s=70, marker="x", color=_colour("bad"), zorder=5, label=label)
