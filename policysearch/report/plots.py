"""Pareto plots: loss gap against modeled speedup and against modeled memory."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from policysearch.report.front_data import caption
from policysearch.search.front import non_dominated
from policysearch.search.results import Results, Row

MARKERS = "sD^v<>pPX*hHd8"


@dataclass(frozen=True)
class View:
    """One plot: what is on its vertical axis, and which way is better."""

    name: str
    label: str
    value: Callable[[Row], float]
    sign: float


VIEWS = (
    View("speedup", "modeled speedup over float32", lambda row: row.modeled_speedup, -1.0),
    View("memory", "modeled peak memory, share of float32", lambda r: r.modeled_memory_ratio, 1.0),
)


def plots(results: Results) -> dict[str, bytes]:
    """Return the plots as PNG files by the name of their `View`."""
    return {view.name: _png(figure(results, view)) for view in VIEWS}


def _png(fig: Figure) -> bytes:
    out = io.BytesIO()
    # Without the version of matplotlib in it, equal results give equal files.
    fig.savefig(out, format="png", dpi=150, metadata={"Software": None})
    return out.getvalue()


def figure(results: Results, view: View) -> Figure:
    """Return the plot of the counted loss gap (see `Results.counted_gap`) against `view`.

    Policies on the front in all objectives are blue, dominated ones grey; the line joins those
    that nothing beats in this plot. Diverged policies are counted, not drawn.
    """
    rows = [row for row in results.rows() if not row.diverged]
    fig = Figure(figsize=(8.0, 5.4), layout="constrained")
    FigureCanvasAgg(fig)
    axes = fig.add_subplot()
    least = min((row.counted_gap for row in rows if row.counted_gap > 0.0), default=1e-6)
    axes.set_xscale("log")
    axes.set_xlim(least / 2.0, max((row.loss_gap_high for row in rows), default=1.0) * 2.0 + least)
    if results.noise_gap:
        left, right = least / 2.0, results.resolution_gap
        axes.axvspan(left, right, color="tab:orange", alpha=0.18, label="10 x noise floor", lw=0)
    _draw_points(axes, rows, view, least)
    _draw_line(axes, rows, view, least)
    _draw_presets(axes, rows, view, least)
    _draw_faults(axes, rows, view, least)
    axes.set_xlabel("loss gap to float32, nats, or its error where that is larger")
    axes.set_ylabel(view.label)
    axes.grid(alpha=0.25)
    diverged = sum(trial.diverged for trial in results.trials)
    lost = f"; {diverged} diverged, not shown" * bool(diverged)
    lost += f"; {len(results.failed)} failed" * bool(results.failed)
    tried = len(results.trials) + len(results.failed)
    axes.set_title(f"{results.spec.study.name}: {tried} policies{lost}", fontsize=11)
    if results.float32_fault:
        axes.text(0.5, 0.5, "float32 itself did not train", transform=axes.transAxes, ha="center")
    if axes.get_legend_handles_labels()[0]:
        fig.legend(loc="outside right upper", fontsize=7)
    fig.supxlabel(caption(results), fontsize=6.5, x=0.01, ha="left")
    return fig


def _draw_points(axes: Axes, rows: list[Row], view: View, least: float) -> None:
    for on_front, color, label in ((False, "0.65", "dominated"), (True, "tab:blue", "front")):
        chosen = [row for row in rows if row.on_front == on_front]
        if not chosen:
            continue
        values = [view.value(row) for row in chosen]
        gaps = [max(row.counted_gap, least) for row in chosen]
        axes.scatter(gaps, values, s=22, color=color, label=label, zorder=2 + on_front)
        if on_front:
            _draw_intervals(axes, chosen, view, least)


def _draw_intervals(axes: Axes, rows: list[Row], view: View, least: float) -> None:
    label = "95 % over seeds"
    for row in rows:
        if row.gap_low95 is not None and row.gap_high95 is not None:
            low, high = max(row.gap_low95, least / 2.0), max(row.gap_high95, least / 2.0)
            axes.hlines(view.value(row), low, high, color="tab:blue", alpha=0.4, lw=1, label=label)
            label = "_once in the legend"


def _draw_line(axes: Axes, rows: list[Row], view: View, least: float) -> None:
    points = [(max(row.counted_gap, least), view.sign * view.value(row)) for row in rows]
    corners = sorted(points[i] for i in non_dominated(points))
    if corners:
        gaps, values = zip(*corners, strict=True)
        heights = [view.sign * value for value in values]
        axes.step(gaps, heights, where="post", color="tab:blue", lw=1, alpha=0.7)


def _draw_presets(axes: Axes, rows: list[Row], view: View, least: float) -> None:
    named = [row for row in rows if row.presets]
    for index, row in enumerate(named):
        axes.scatter(
            [max(row.counted_gap, least)],
            [view.value(row)],
            s=60,
            marker=MARKERS[index % len(MARKERS)],
            facecolors="none",
            edgecolors="tab:red",
            label=row.presets.replace(" ", "\n"),
            zorder=4,
        )


def _draw_faults(axes: Axes, rows: list[Row], view: View, least: float) -> None:
    """Strike out what fails at the longer horizon, and join short gap and long one."""
    failing = [row for row in rows if row.fault]
    for index, row in enumerate(failing):
        label = f"fails at {row.confirmed_steps} steps" if index == 0 else None
        place = max(row.counted_gap, least), view.value(row)
        axes.scatter(*place, s=70, marker="x", color="black", zorder=5, label=label)
