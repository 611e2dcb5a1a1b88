"""Layers by policies: which layer runs in which format, forward and backward."""

from __future__ import annotations

from itertools import groupby

from policysearch.policy.policy import LayerPolicy, Policy
from policysearch.policy.products import is_narrow
from policysearch.report.page.element import Html, Section, joined, tag
from policysearch.report.page.sight import Sight
from policysearch.report.page.svg import shortened
from policysearch.report.page.words import colour, power, short, times
from policysearch.study.journal.trials import Trial

SECTION = Section(30, "layers", "Which layer runs in which format?", "Layers")

MOST_COLUMNS = 16

Cell = tuple[str, str, bool, str]
"""Format of the forward operands and of the gradients, whether weights are stored so alone, and how
narrow operands are scaled with what single products read otherwise."""


def body(sight: Sight) -> Html | None:
    """Return the table of formats; layers that are alike in every column share a line."""
    trials = sight.detailed[:MOST_COLUMNS]
    if not trials:
        return None
    layers = [name for name, _ in trials[0].policy.layers]
    columns = [_column(trial, layers) for trial in trials]
    rows = [(name, tuple(column[i] for column in columns)) for i, name in enumerate(layers)]
    lines = [_line(list(alike), trials) for _, alike in groupby(rows, key=lambda row: row[1])]
    head = tag("tr", tag("th", "layer", scope="col"), *(_head(sight, trial) for trial in trials))
    table = tag("table", tag("thead", head), tag("tbody", *lines), cls="matrix")
    intro = (
        "Layers from input to output, one column per policy: the pick, the front, presets, then "
        "what failed. Where gradients have another format than the forward pass, it stands second. "
        "★ is the pick, ✕ fails when trained longer, ! shows an early sign, ∞ diverged. A dark "
        "corner: weights are stored so, with no float32 master copy. Below a format below 16 bits "
        "stands how its tensors are scaled, and what single products read otherwise."
    )
    name = "Formats by layer and policy"
    scroll = tag("div", table, cls="scroll", tabindex=0, role="region", aria_label=name)
    return joined((tag("p", intro), scroll, _key(columns)))


def _column(trial: Trial, layers: list[str]) -> list[Cell]:
    known, policy = dict(trial.policy.layers), trial.policy
    return [
        _cell(known[name], policy, policy.scaling_of(name).recipe)
        if name in known
        else ("", "", False, "")
        for name in layers
    ]


def _cell(layer: LayerPolicy, policy: Policy, recipe: str) -> Cell:
    own = not policy.master_weights and layer.param != "float32"
    more = (
        [recipe.replace("none", "unscaled")] if any(map(is_narrow, layer.operand_formats)) else []
    )
    for role in ("fprop", "dgrad", "wgrad"):
        said = getattr(layer.products, role)
        if said is not None:
            read = dict.fromkeys(short(operand.format) for operand in said.operands)
            more.append(f"{role} {'·'.join(read)}")
    return layer.compute, layer.grad, own, ", ".join(more)


def _line(alike: list[tuple[str, tuple[Cell, ...]]], trials: tuple[Trial, ...]) -> Html:
    names = [name for name, _ in alike]
    said = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]} ({len(names)})"
    cells = [_td(cell) for cell in alike[0][1]]
    return tag("tr", tag("th", shortened(said, 40), scope="row", title=said), *cells)


def _td(cell: Cell) -> Html:
    compute, grad, own, more = cell
    if not compute:
        return tag("td", "–")
    said = short(compute) if grad == compute else f"{short(compute)} · {short(grad)}"
    stored = tag("span", ", weights stored so", cls="unseen") if own else None
    below = (tag("br"), tag("span", more, cls="sub")) if more else ()
    return tag("td", said, *below, stored, cls=f"{colour(compute)}{' own' if own else ''}")


def _head(sight: Sight, trial: Trial) -> Html:
    mark = sight.mark(trial.number)
    gap = "–" if trial.diverged else power(sight.results.counted_gap(trial))
    name = tag("a", f"{trial.number}{mark}", href=sight.href(trial.number))
    preset = trial.presets[0] if trial.presets else ""
    return tag(
        "th",
        name,
        tag("br"),
        times(trial.cost.speedup),
        tag("br"),
        gap,
        tag("br"),
        shortened(preset, 14),
        scope="col",
        cls="pick" if mark == "★" else None,
        data_t=trial.number,
        title=trial.label,
    )


def _key(columns: list[list[Cell]]) -> Html:
    names = {name for column in columns for cell in column for name in cell[:2] if name}
    items = [
        tag("li", tag("span", short(name), cls=f"key {colour(name)}"), f" {name}")
        for name in sorted(names)
    ]
    return tag("ul", *items, cls="legend")
