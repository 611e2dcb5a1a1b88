"""The front: loss gap against speed, and against memory, with what else there is to compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from policysearch.report.page.element import Child, Html, Section, joined, scrolled, tag
from policysearch.report.page.sight import Sight
from policysearch.report.page.svg import (
    EDGES,
    OUTLINES,
    Axis,
    Labels,
    at,
    crosses,
    dots,
    key,
    label,
    level_grid,
    line,
    mark_of,
    named,
    polyline,
    rect,
    shortened,
    svg,
    titled,
    upright_grid,
)
from policysearch.report.page.words import gap, percent, power, times
from policysearch.search.hypervolume import non_dominated
from policysearch.study.results.rows import Row, none_told

SECTION = Section(20, "front", "Closer to float32, or faster?", "Front")


@dataclass(frozen=True)
class Kind:
    """One picture: what is on its upright axis, and whether more of it is better."""

    title: str
    what: str
    axis: str
    value: Callable[[Row], float]
    more: bool


KINDS = (
    Kind(
        "Speed",
        "speed",
        "speed over float32, modeled; up is faster",
        lambda r: r.modeled_speedup,
        True,
    ),
    Kind(
        "Memory",
        "memory",
        "peak memory, share of float32's, modeled; up needs less",
        lambda r: r.modeled_memory_ratio,
        False,
    ),
)


MOST_TOLD = 100

SLOPE = (
    "Left: its training loss ends closer to float32's; one whose gap cannot be told stands at the "
    "most that it may be."
)
FLAT = (
    "Across: its loss gap as it was measured. None of them can be told from zero, so left is not "
    "better here."
)
NOT_RANKED = "Across: its loss gap as it was measured, by which nothing can be ranked here."
"""What the level axis says, by what can be told of gaps."""


@dataclass(frozen=True)
class Across:
    """The level axis: gaps by their size, or, `flat`, as measured on both sides of zero.

    `least` is drawn of what is smaller.
    """

    axis: Axis
    least: float
    flat: bool

    def at(self, row: Row) -> float:
        """Return the place of a policy."""
        return self.axis(row.loss_gap if self.flat else max(row.counted_gap, self.least))

    def end(self, value: float) -> float:
        """Return the place of an end of an interval."""
        return self.axis(value if self.flat else max(value, self.least / 2.0))


def body(sight: Sight) -> Html | None:
    """Return both pictures and the front as a table; None where nothing trained to its end."""
    rows = [row for row in sight.rows if not row.diverged]
    if not rows:
        return None
    level = (NOT_RANKED if sight.results.cannot_rank else FLAT) if none_told(rows) else SLOPE
    front = "There is no front: no mark can be told to be better than another."
    if any(row.on_front for row in rows):
        front = "Blue marks are the front, which no other policy beats by what can be told."
    if sight.pick:
        front += " The star is the one above."
    if any(map(_cross_class, rows)):
        front += (
            " A cross fails in a longer training, or shows a sign of it, though its gap here is "
            "small: below, How sure is that? has the two measures."
        )
    intro = (
        f"Each mark is one policy. {level} Up: its step takes less. {front} A "
        "mark leads to the policy up close."
    )
    pictures = [
        tag(
            "figure",
            tag("h3", kind.title),
            tag("div", picture(sight, rows, kind, 960.0, 380.0), cls="wide"),
            tag("div", picture(sight, rows, kind, 340.0, 330.0), cls="narrow"),
        )
        for kind in KINDS
    ]
    return joined((tag("p", intro), *pictures, _legend(sight, rows), _table(sight)))


def picture(sight: Sight, rows: list[Row], kind: Kind, width: float, height: float) -> Html:
    """Return the picture of gap against `kind`, so wide and high."""
    left, right, top, bottom = 46.0, width - 10.0, 30.0, height - 44.0
    matters = 0.0 if sight.results.cannot_rank else sight.results.matters_gap
    across = _across(rows, matters, sight.results.resolution_gap, left, right)
    x = across.axis
    y = _upright(sight, rows, kind, bottom, top)
    labels = Labels(width, height)
    place = {r.trial: (across.at(r), y(kind.value(r))) for r in rows}
    spans = _spans(sight, rows, place, across, y, kind)
    labels.boxes.extend((x1 - 2, y1 - 2, x2 + 2, y2 + 2) for x1, y1, x2, y2 in spans)
    for row in rows[:400]:
        labels.taken(*place[row.trial], 9.0 if row.presets else 5.0)
    said = f"loss gap at the end of training, {sight.results.unit}; left is better"
    if across.flat:
        rank = sight.results.cannot_rank
        said = "nothing is ranked by it" if rank else "none can be told from zero"
        said = f"loss gap as measured, {sight.results.unit}; {said}"
    parts: list[Child] = [
        _noise(sight, x, top, bottom),
        level_grid(y, left, right, lambda v: f"{v:g}×"),
        upright_grid(x, top, bottom, across_said(across.flat), 6 if width > 600 else 4),
        line(x(0.0), top, x(0.0), bottom, "base") if across.flat else None,
        label(0, 14, kind.axis, "axis"),
        label(
            (left + right) / 2,
            height - 6,
            said if width > 600 else f"loss gap, {sight.results.unit}",
            "axis",
            "middle",
        ),
        _matters(matters, x, top, bottom, labels),
        _references(sight, y, left, right, labels) if kind.more else None,
        None if across.flat else _staircase(rows, place),
        *(line(*span, "range") for span in spans),
        *_marks(sight, rows, place, kind),
        *_links(sight, rows, place, labels, kind),
    ]
    name = f"{kind.title} against loss gap of {len(rows)} policies; the table below has the front"
    return svg(width, height, *parts, label=name, links=True)


def _across(rows: list[Row], matters: float, edge: float, left: float, right: float) -> Across:
    """Return the level axis: as long as what is drawn on it, and no longer."""
    least = min((row.counted_gap for row in rows if row.counted_gap > 0.0), default=1e-6)
    if not none_told(rows):
        most = max(max(row.counted_gap for row in rows), matters, least)
        return Across(Axis(least / 2.0, most * 2.5, left, right, log=True), least, False)
    low, high = flat_ends(rows, matters, edge)
    return Across(Axis(low, high, left, right), least, True)


def flat_ends(rows: Sequence[Row], matters: float, edge: float) -> tuple[float, float]:
    """Return the ends of an axis of gaps as measured, on both sides of zero.

    What matters, and the edges of the noise, are on it where most of it would not be empty then.
    """
    ends = [row.loss_gap for row in rows] or [0.0]
    ends += [v for r in rows if r.on_front for v in (r.gap_low95, r.gap_high95) if v is not None]
    wide = max(map(abs, ends)) or edge or matters or 1e-6
    ends += [0.0, *(v for v in (-edge, edge, matters) if abs(v) <= 2.0 * wide)]
    margin = 0.08 * (max(ends) - min(ends) or wide)
    return min(ends) - margin, max(ends) + margin


def across_said(flat: bool) -> Callable[[float], str]:
    """Return what writes a value of the level axis."""
    return (lambda v: power(v, 1, sign=True)) if flat else (lambda v: power(v, 0))


def _upright(sight: Sight, rows: list[Row], kind: Kind, bottom: float, top: float) -> Axis:
    values = [kind.value(row) for row in rows] + [1.0]
    if kind.more:
        front = [row for row in rows if row.on_front]
        values += [row.modeled_speedup_high for row in front]
        values += [row.modeled_speedup_low for row in front]
        values += [speed for _, speed in sight.references]
    low, high = min(values), max(values)
    margin = 0.12 * (high - low or 1.0)
    ends = (bottom, top) if kind.more else (top, bottom)
    return Axis(max(0.0, low - margin), high + margin, *ends)


def _noise(sight: Sight, x: Axis, top: float, bottom: float) -> Html | None:
    edge = sight.results.resolution_gap
    if not edge or edge <= x.low:
        return None
    return rect(x(-edge), top, x(edge) - x(-edge), bottom - top, "noise")


def _matters(matters: float, x: Axis, top: float, bottom: float, labels: Labels) -> Html | None:
    if matters <= 0.0 or not x.low < matters < x.high:
        return None
    wide = labels.width > 600
    said = "a gap matters from here on" if wide else "matters"
    long = 6.2 * len(said)
    fits = x(matters) - long > x.start
    written = label(
        x(matters) + (-5 if fits else 5), top + 12, said, "small halo", "end" if fits else "start"
    )
    left = x(matters) - (long + 5.0 if fits else 0.0)
    labels.boxes.append((left, top, left + long + 5.0, top + 16))
    return joined((line(x(matters), top, x(matters), bottom, "matter"), written))


def _references(sight: Sight, y: Axis, left: float, right: float, labels: Labels) -> Html:
    parts = []
    for name, speed in sight.references:
        said = shortened(f"{name} {times(speed)}", 60 if labels.width > 600 else 30)
        parts.append(line(left, y(speed), right, y(speed), "ref"))
        parts.append(labels.place(right + 4, y(speed) + 2, said, "small halo") or Html())
    return joined(parts)


def _staircase(rows: list[Row], place: dict[int, tuple[float, float]]) -> Html | None:
    members = [row for row in rows if row.on_front]
    points = [place[row.trial] for row in members]
    corners = sorted(points[i] for i in non_dominated(points)) if points else []
    steps: list[tuple[float, float]] = []
    for px, py in corners:
        if steps:
            steps.append((px, steps[-1][1]))
        steps.append((px, py))
    return polyline(steps, "step") if len(steps) > 1 else None


def _spans(
    sight: Sight,
    rows: list[Row],
    place: dict[int, tuple[float, float]],
    across: Across,
    y: Axis,
    kind: Kind,
) -> list[tuple[float, float, float, float]]:
    """Return the ends of intervals: of speed, upright, and of gaps over seeds, level."""
    found = []
    for row in rows:
        if not _is_spanned(sight, row):
            continue
        px, py = place[row.trial]
        if kind.more:
            found.append((px, y(row.modeled_speedup_high), px, y(row.modeled_speedup_low)))
        if row.gap_low95 is not None and row.gap_high95 is not None:
            found.append((across.end(row.gap_low95), py, across.end(row.gap_high95), py))
    return found


def _is_spanned(sight: Sight, row: Row) -> bool:
    return row.on_front or row.trial in sight.sound


def _marks(
    sight: Sight, rows: list[Row], place: dict[int, tuple[float, float]], kind: Kind
) -> list[Html | None]:
    """Draw all that is not on the front: dots, and crosses on what will not hold.

    The first of those that lead nowhere say what they are where they are pointed at.
    """
    others = [row for row in rows if not row.on_front]
    told = [row for row in others if row.trial not in sight.linked][:MOST_TOLD]
    hidden = {row.trial for row in told}
    plain = [place[row.trial] for row in others if row.trial not in hidden]
    marks = [dots(plain, "dot-other")]
    marks += [
        titled(dots([place[row.trial]], "dot-other") or Html(), _told(sight, row, kind))
        for row in told
    ]
    for cls in ("dot-early", "dot-fail"):
        crossed = [place[row.trial] for row in others if _cross_class(row) == cls]
        marks.append(crosses(crossed, cls, 5.0))
    return marks


def _told(sight: Sight, row: Row, kind: Kind) -> str:
    """Return what a mark is, in a line."""
    said = f"trial {row.trial}, {row.label}: {times(kind.value(row))} float32's {kind.what}"
    return f"{said}, gap {sight.gap_said(row)} {sight.results.unit}; {sight.state(row)}"


def _cross_class(row: Row) -> str:
    """Return the cross of what fails when trained longer, or shows the early sign; "" of others."""
    early = row.early_sign and row.confirmed_gap is None
    return "dot-fail" if row.fault else "dot-early" if early else ""


def _links(
    sight: Sight,
    rows: list[Row],
    place: dict[int, tuple[float, float]],
    labels: Labels,
    kind: Kind,
) -> list[Html]:
    """Draw what leads to a policy up close: the front with numbers, presets with their outline."""
    linked = [row for row in rows if row.trial in sight.linked]
    linked.sort(key=lambda row: (row.on_front, sight.mark(row.trial) == "★"))
    parts = []
    for row in linked:
        x, y = place[row.trial]
        shapes: list[Child] = [tag("circle", cx=at(x), cy=at(y), r=11, cls="hit")]
        if row.presets:
            shapes.append(outline(row.presets.split()[0], x, y))
        if row.baseline in row.presets.split():
            shapes.append(tag("circle", cx=at(x), cy=at(y), r=13, cls="ring"))
        if sight.mark(row.trial) == "★":
            shapes.append(_star(x, y))
        elif row.on_front:
            shapes.append(tag("circle", cx=at(x), cy=at(y), r=5.5, cls="dot-front"))
        if row.on_front and (cls := _cross_class(row)):
            shapes.append(crosses([(x, y)], cls, 7.5))
        said = _told(sight, row, kind)
        link = tag(
            "a", *shapes, href=f"#t{row.trial}", data_t=row.trial, aria_label=shortened(said, 160)
        )
        parts.append(titled(link, said))
    return [*parts, *_numbers(sight, linked, place, labels)]


def _numbers(
    sight: Sight, linked: list[Row], place: dict[int, tuple[float, float]], labels: Labels
) -> list[Html]:
    """Write the numbers of the front, and the names of presets, beside their marks."""
    written = []
    for row in reversed(linked):
        x, y = place[row.trial]
        wanted = row.on_front or sight.mark(row.trial) == "★"
        said = f"{row.trial} ★" if sight.mark(row.trial) == "★" else str(row.trial)
        if not wanted and row.presets:
            said = shortened(row.presets.split()[0], 26)
        if wanted or (row.presets and labels.width > 600):
            strong = "strong halo" if wanted else "small halo"
            written.append(labels.place(x, y, said, strong, must=wanted) or Html())
    return written


def _star(x: float, y: float, size: float = 1.0) -> Html:
    points = (
        *((0, -10), (2.6, -3.5), (9.5, -3.1), (4.2, 1.4), (5.9, 8.1), (0, 4.4)),
        *((-5.9, 8.1), (-4.2, 1.4), (-9.5, -3.1), (-2.6, -3.5)),
    )
    corners = (f"{at(x + size * a)} {at(y + size * b)}" for a, b in points)
    return tag("path", d="M" + "L".join(corners) + "Z", cls="star")


def outline(preset: str, x: float, y: float, s: float = 8.5) -> Html:
    """Return the outline of a preset around a place, `s` in radius."""
    place, edge = mark_of(preset)
    corners = (f"{at(x + s * a)} {at(y + s * b)}" for a, b in OUTLINES[place])
    return tag("path", d="M" + "L".join(corners) + "Z", cls=f"ring ring-{EDGES[edge]}")


def _legend(sight: Sight, rows: list[Row]) -> Html:
    """Explain what is drawn, and nothing else."""
    crossed = {_cross_class(row) for row in rows}
    base = sight.results.spec.study.baseline
    spanned = [row for row in rows if _is_spanned(sight, row)]
    level = any(row.gap_low95 is not None for row in spanned)
    matters = sight.results.matters_gap and not sight.results.cannot_rank
    items = [
        (sight.pick, key("the pick", _star(9, 7, 0.7))),
        (
            any(row.on_front for row in rows),
            key("on the front", tag("circle", cx=9, cy=7, r=5, cls="dot-front")),
        ),
        (
            not all(row.on_front for row in rows),
            key("not on the front", dots([(9, 7)], "dot-other") or ""),
        ),
        *((True, part) for part in _preset_keys(sight, rows)),
        (
            any(base in row.presets.split() for row in rows),
            key("ring: your baseline", tag("circle", cx=9, cy=7, r=6, cls="ring")),
        ),
        (
            "dot-early" in crossed,
            key("early sign: updates vanish", crosses([(9, 7)], "dot-early", 4.5) or ""),
        ),
        (
            "dot-fail" in crossed,
            key("fails when trained longer", crosses([(9, 7)], "dot-fail", 5) or ""),
        ),
        (spanned, key("upright interval: of the speed model", line(9, 0, 9, 14, "range"))),
        (level, key("level interval: 95% over seeds", line(1, 7, 17, 7, "range"))),
        *((True, part) for part in _reference_keys(sight)),
        (matters, key("from here on a gap matters", line(9, 0, 9, 14, "matter"))),
        (
            sight.results.resolution_gap,
            key("too small to tell from float32's own noise", rect(0, 1, 18, 12, "noise")),
        ),
    ]
    return tag("ul", *(item for drawn, item in items if drawn), cls="legend")


def _reference_keys(sight: Sight) -> list[Html]:
    mark = line(0, 7, 18, 7, "ref")
    return [key(f"{name} {times(speed)}", mark) for name, speed in sight.references]


def _preset_keys(sight: Sight, rows: list[Row]) -> list[Html]:
    names = {p: None for r in rows if r.trial in sight.linked for p in r.presets.split()[:1]}
    return [key(f"preset {name}", outline(name, 9, 7, 5.5)) for name in names]


def _table(sight: Sight) -> Html | None:
    members = [row for row in sight.rows if row.on_front]
    sound = {t.number for t in sight.results.sound_front()} if members else set()
    members += [row for row in sight.rows if row.trial in sound and not row.on_front]
    if not members:
        return tag("p", f"There is no front: {sight.results.cannot_rank}.")
    titles = (
        "Trial",
        "Policy",
        "Speed",
        "Memory",
        f"Loss gap, {sight.results.unit}",
        "95% over seeds",
        "Accuracy",
        "Where it stands",
    )
    top = tag("tr", *(tag("th", name, scope="col") for name in titles))
    lines = [_line(sight, row) for row in members]
    table = tag("table", tag("thead", top), tag("tbody", *lines), cls="list")
    head = tag("h3", "The front and what may be picked, fastest first")
    return joined((head, scrolled(table, "The front")))


def _line(sight: Sight, row: Row) -> Html:
    mark = sight.mark(row.trial)
    number = tag("a", str(row.trial), href=sight.href(row.trial))
    spread = "one seed"
    if row.gap_low95 is not None and row.gap_high95 is not None:
        spread = f"{gap(row.gap_low95)} to {gap(row.gap_high95)}"
    tie = f", ties with {row.tied_with}" if row.tied_with is not None else ""
    span = f"{row.modeled_speedup_low:.2f} to {row.modeled_speedup_high:.2f}"
    speed = f"{times(row.modeled_speedup)} ({span})"
    accuracy = "–" if row.validation_accuracy is None else percent(row.validation_accuracy)
    return tag(
        "tr",
        tag("th", number, f" {mark}" if mark else "", scope="row"),
        tag("td", named(row.presets, row.policy, 200)),
        tag("td", speed, cls="keep"),
        tag("td", times(row.modeled_memory_ratio), cls="number"),
        tag("td", gap(row.loss_gap), cls="number"),
        tag("td", spread + tie),
        tag("td", accuracy, cls="number"),
        tag("td", sight.state(row)),
        cls="pick" if mark == "★" else None,
        data_t=row.trial,
    )
