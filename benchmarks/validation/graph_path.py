"""Published rows judged by the graphs of their networks, beside the layer lists."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.validation.fit import speedups, steps_of
from benchmarks.validation.networks.recorded_only import RECORDED_ONLY
from benchmarks.validation.published import Row, Setting, emulated, setting_of
from benchmarks.validation.recorded import Run, micro_batch_seconds
from benchmarks.validation.row_file import built_of
from policysearch.cost.roofline import FITTED


@dataclass(frozen=True)
class GraphJudged:
    """A row with its modeled speedups, by the graph and by the list, with the same constants.

    `listed` is nan where the network has no list.
    """

    setting: Setting
    graph: float
    listed: float

    def error(self, speedup: float) -> float:
        return speedup / self.setting.row.speedup - 1


def graph_speedup(setting: Setting) -> float:
    """Return the mixed throughput over the baseline's; InputError for a network not recorded."""
    stacks = (setting.stacks.baseline, setting.stacks.mixed)
    pairs = zip(setting.row.batches, setting.precisions, stacks, strict=True)
    rates = [
        batch
        / micro_batch_seconds(
            Run(setting.network.name, setting.length, batch, precision, setting.device, stack)
        )
        for batch, precision, stack in pairs
    ]
    return rates[1] / rates[0]


def graph_judged(
    rows: Sequence[Row],
) -> tuple[list[GraphJudged], list[tuple[Row, str]]]:
    """Return the rows priced by graphs with the package's constants, and the others with why."""
    settings, lost = built_of(rows, setting_of)
    by_row = {id(setting.row): setting for setting in settings}
    priced, refused = built_of(
        [setting.row for setting in settings], lambda row: (row, graph_speedup(by_row[id(row)]))
    )
    kept = [by_row[id(row)] for row, _ in priced]
    has_list = [setting for setting in kept if setting.network.name not in RECORDED_ONLY]
    values = speedups(steps_of(has_list, listed=True), FITTED) if has_list else ()
    listed = {id(s.row): float(value) for s, value in zip(has_list, values, strict=True)}
    judged = [
        GraphJudged(setting, graph, listed.get(id(setting.row), float("nan")))
        for setting, (_, graph) in zip(kept, priced, strict=True)
    ]
    return judged, [*lost, *refused]


def graph_page(judged: Sequence[GraphJudged], refused: Sequence[tuple[Row, str]]) -> str:
    """Return per-family errors of both, and the refusals, as text."""
    lines = [f"{'family':16} {'rows':>4} {'graph':>7} {'bias':>7} {'list':>7} {'bias':>7}"]
    families: dict[str, list[GraphJudged]] = defaultdict(list)
    for row in judged:
        families[row.setting.network.family].append(row)
    for name, rows in [*sorted(families.items()), ("all", list(judged))]:
        if rows:
            lines.append(_line(name, rows))
    lines += ["", *dict.fromkeys(line for row in judged for line in emulated(row.setting))]
    lines += [f"{len(judged)} rows priced, {len(refused)} not:"]
    counts: dict[str, int] = defaultdict(int)
    for unpriced, reason in refused:
        counts[f"{unpriced.model}: {reason}"] += 1
    return "\n".join([*lines, *(f"{count:4} {reason}" for reason, count in sorted(counts.items()))])


def _line(name: str, rows: Sequence[GraphJudged]) -> str:
    parts = []
    for speedup in ("graph", "listed"):
        errors = np.array([row.error(getattr(row, speedup)) for row in rows])
        known = errors[np.isfinite(errors)]
        parts.append(
            f"{np.abs(known).mean():7.1%} {np.median(known):+7.1%}" if len(known) else f"{'-':>15}"
        )
    return f"{name:16} {len(rows):4} {' '.join(parts)}"
