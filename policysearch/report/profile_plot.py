"""`profile` as a plot: modeled time by layer and live memory along the step."""

from __future__ import annotations

import io

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from policysearch.report.causes import Changes
from policysearch.report.profile_page import KINDS
from policysearch.report.step_cost import KIND_NAMES, MIB

MOST_BARS = 24
"""So many layers have a bar of their own; the others share one."""


def profile_plot(changes: Changes, title: str) -> bytes:
    """Return the plot as a PNG file."""
    fig = Figure(figsize=(12, 6), layout="constrained")
    FigureCanvasAgg(fig)
    left, right = fig.subplots(1, 2)
    fig.suptitle(title, fontsize=11)
    _time(left, changes)
    _memory(right, changes)
    out = io.BytesIO()
    fig.savefig(out, format="png", dpi=120, metadata={"Software": None})
    return out.getvalue()


def _time(axes: Axes, changes: Changes) -> None:
    layers = _by_layer(changes)
    formats = sorted({name for parts in layers.values() for name in parts if name != "casts"})
    places = np.arange(len(layers))
    start = np.zeros(len(layers))
    for name in (*formats, "casts"):
        widths = np.array([parts.get(name, 0.0) for parts in layers.values()])
        if widths.any():
            style = {"color": "black", "alpha": 0.7} if name == "casts" else {}
            axes.barh(places, widths, left=start, label=name, **style)  # type: ignore[arg-type]
            start += widths
    axes.set_yticks(places, list(layers), fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("share of the kernels' modeled time")
    axes.legend(title="computed in", fontsize=8)


def _by_layer(changes: Changes) -> dict[str, dict[str, float]]:
    """Return by layer, in the order of the step, the shares by format, casts apart."""
    layers: dict[str, dict[str, float]] = {}
    total = changes.price.time.kernel_seconds
    for kernel in changes.price.time.kernels:
        parts = layers.setdefault(
            "update" if kernel.role == "update" else kernel.layer or kernel.op, {}
        )
        name = "casts" if kernel.is_cast else kernel.format
        parts[name] = parts.get(name, 0.0) + kernel.seconds / total
    largest = sorted(layers, key=lambda layer: -sum(layers[layer].values()))[:MOST_BARS]
    bars = {layer: parts for layer, parts in layers.items() if layer in largest}
    rest: dict[str, float] = {}
    for layer in layers.keys() - bars.keys():
        for name, share in layers[layer].items():
            rest[name] = rest.get(name, 0.0) + share
    return {**bars, **({f"{len(layers) - len(bars)} others": rest} if rest else {})}


def _memory(axes: Axes, changes: Changes) -> None:
    moments = changes.live()
    bytes_of = [[live.get(kind, 0) / MIB for _, live in moments] for kind in KINDS]
    areas = [(kind, row) for kind, row in zip(KINDS, bytes_of, strict=True) if any(row)]
    rows, labels = [row for _, row in areas], [KIND_NAMES[kind] for kind, _ in areas]
    axes.stackplot(range(len(moments)), rows, labels=labels)
    peak = int(np.argmax(np.sum(bytes_of, axis=0)))
    axes.axvline(peak, color="black", linestyle=":", label=f"peak: {moments[peak][0]}")
    axes.set_xlim(0, len(moments) - 1)
    axes.set_xlabel("nodes of the step, forward to update")
    axes.set_ylabel("live MiB, modeled")
    axes.legend(fontsize=8)
