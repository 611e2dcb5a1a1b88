"""Layers by policies: which layer runs in which format, forward and backward."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from policysearch.policy.policy import LayerPolicy, Policy
from policysearch.policy.products import is_narrow
from policysearch.report.page.element import Html, Section, joined, scrolled, tag
from policysearch.report.page.sight import Sight
from policysearch.report.page.svg import named, shortened
from policysearch.report.page.words import colour, short, times
from policysearch.report.runs_in import Runs, RunsIn
from policysearch.study.journal.trials import Trial
from policysearch.values import NO_LAYER

SECTION = Section(30, "layers", "Which layer runs in which format?", "Layers")

MOST_COLUMNS = 16
COLUMNS = 8
"""So many policies stand side by side: as many as fit, so that nothing is cut."""

OF_THE_GRAPH = (
    "These are the formats that the graph of the step has. A layer with products (a convolution, a "
    "linear layer) shows the format that they read; one without (a norm, an activation) the format "
    "of its result."
)

OF_THE_POLICY = (
    "The net was not kept beside the journal, so that these are the formats the policies name: of "
    "them those below 16 bits, and tf32, hold for products, and a layer without products runs in a "
    "wider one."
)


@dataclass(frozen=True)
class Cell:
    """What one layer runs in: `forward`, `backward` formats, those of its gradients.

    `stored`: where its weights are kept, without a float32 copy; "" with one. `more`: how narrow
    operands are scaled, with what single products read otherwise.
    """

    forward: tuple[str, ...] = ()
    backward: tuple[str, ...] = ()
    stored: str = ""
    more: str = ""


def body(sight: Sight) -> Html | None:
    """Return the table of formats; layers that are alike in every column share a line."""
    trials = sight.detailed[:MOST_COLUMNS]
    if not trials:
        return None
    layers = [name for name, _ in trials[0].policy.layers]
    runs = [sight.runs[trial.number] for trial in trials]
    columns = [
        _column(t.policy, layers, known or {}) for t, known in zip(trials, runs, strict=True)
    ]
    whence = OF_THE_POLICY if None in runs else OF_THE_GRAPH
    intro = (
        "Layers from input to output, one column per policy, with its speed beside float32's and "
        f"its loss gap in {sight.results.unit}. {whence} Where gradients have another format, "
        "it stands second. " + _signs(sight, trials, columns)
    )
    first, second = (
        _table(sight, layers, trials[part], columns[part])
        for part in (slice(COLUMNS), slice(COLUMNS, None))
    )
    more = len(trials) - COLUMNS
    rest = None
    if second is not None:
        said = tag("summary", tag("b", f"{more} more policies"), " fail, or gain less")
        rest = tag("details", said, second, cls="policy")
    return joined((tag("p", intro), first, _key(columns), rest))


def _table(
    sight: Sight, layers: list[str], trials: tuple[Trial, ...], columns: list[list[Cell]]
) -> Html | None:
    if not trials:
        return None
    rows = [(name, tuple(column[i] for column in columns)) for i, name in enumerate(layers)]
    lines = [_line(list(alike)) for _, alike in groupby(rows, key=lambda row: row[1])]
    head = tag("tr", tag("th", "layer", scope="col"), *(_head(sight, trial) for trial in trials))
    table = tag("table", tag("thead", head), tag("tbody", *lines), cls="matrix")
    numbers = f"{trials[0].number} to {trials[-1].number}"
    return scrolled(table, f"Formats by layer and policy, trials {numbers}")


def _signs(sight: Sight, trials: tuple[Trial, ...], columns: list[list[Cell]]) -> str:
    """Explain the signs that are there."""
    marks = {sight.mark(trial.number) for trial in trials}
    cells = [cell for column in columns for cell in column]
    floors = any("≤" in sight.gap_said(sight.row[trial.number]) for trial in trials)
    words = {
        "★": "★ is the pick.",
        "✕": "✕ fails when trained longer.",
        "!": "! shows an early sign of failing.",
        "∞": "∞ diverged.",
    }
    said = [text for mark, text in words.items() if mark in marks]
    said += ["≤: the gap cannot be told from float32's; it is at most about so much."] * floors
    if any(cell.stored for cell in cells):
        said.append("A dark corner: weights are kept low, with no float32 master copy.")
    if any(cell.more for cell in cells):
        said.append("Small: how tensors are scaled, and what single products read otherwise.")
    return " ".join(said)


def _column(policy: Policy, layers: list[str], runs: Runs) -> list[Cell]:
    known = dict(policy.layers)
    return [
        _cell(known[name], policy, policy.scaling_of(name).recipe, runs.get(name))
        if name in known
        else Cell()
        for name in layers
    ]


def _cell(layer: LayerPolicy, policy: Policy, recipe: str, runs: RunsIn | None) -> Cell:
    stored = "" if policy.master_weights or layer.param == "float32" else layer.param
    if runs is not None and not runs.product:
        return Cell(runs.forward, runs.backward, stored)
    more = (
        [recipe.replace("none", "unscaled")] if any(map(is_narrow, layer.operand_formats)) else []
    )
    for role in ("fprop", "dgrad", "wgrad"):
        said = getattr(layer.products, role)
        if said is not None:
            read = dict.fromkeys(short(operand.format) for operand in said.operands)
            more.append(f"{role} {'·'.join(read)}")
    shown = runs or RunsIn((layer.compute,), (layer.grad,), True)
    return Cell(shown.forward, shown.backward, stored, ", ".join(more))


def _line(alike: list[tuple[str, tuple[Cell, ...]]]) -> Html:
    names = [name or NO_LAYER for name, _ in alike]
    said = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]} ({len(names)})"
    cells = [_td(cell) for cell in alike[0][1]]
    return tag("tr", tag("th", shortened(said, 60), scope="row", title=said), *cells)


def _td(cell: Cell) -> Html:
    if not cell.forward:
        return tag("td", "–")
    said = _together(cell.forward)
    if cell.backward and cell.backward != cell.forward:
        said += f" · {_together(cell.backward)}"
    kept = f", weights stored in {short(cell.stored)}" if cell.stored else ""
    stored = tag("span", kept, cls="unseen") if kept else None
    below = (tag("br"), tag("span", cell.more, cls="sub")) if cell.more else ()
    kind = f"{colour(cell.forward[0])}{' own' if kept else ''}"
    return tag("td", said, *below, stored, cls=kind)


def _together(names: tuple[str, ...]) -> str:
    return "+".join(map(short, names))


def _head(sight: Sight, trial: Trial) -> Html:
    mark = sight.mark(trial.number)
    base = sight.results.spec.study.baseline
    return tag(
        "th",
        tag("a", f"{trial.number}{mark}", href=sight.href(trial.number)),
        tag("br"),
        named(base if base in trial.presets else next(iter(trial.presets), ""), trial.name),
        tag("br"),
        times(trial.cost.speedup),
        tag("br"),
        sight.gap_said(sight.row[trial.number]),
        scope="col",
        cls="pick" if mark == "★" else None,
        data_t=trial.number,
        title=trial.label,
    )


def _key(columns: list[list[Cell]]) -> Html:
    names = {n for column in columns for cell in column for n in (*cell.forward, *cell.backward)}
    items = [
        tag("li", tag("span", short(name), cls=f"key {colour(name)}"), f" {name}")
        for name in sorted(names)
    ]
    return tag("ul", *items, cls="legend")
