"""Pictures as SVG: axes, ticks, texts that do not cover one another. No picture holds a style."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from policysearch.formats import FORMATS
from policysearch.policy.presets import PRESETS
from policysearch.report.page.element import Child, Html, tag, text

Corners = tuple[tuple[float, float], ...]


def _around(count: int, turn: float, radius: float = 1.0) -> Corners:
    """Return the corners of a regular figure around zero, the first `turn` turns from the top."""
    angles = (2.0 * math.pi * (place / count + turn) for place in range(count))
    return tuple((radius * math.sin(angle), -radius * math.cos(angle)) for angle in angles)


def _star_of(arms: int, turn: float) -> Corners:
    """Return a plus or a cross: arms that end flat."""
    turns = [(place + turn) * math.pi / 2.0 for place in range(arms)]
    arm = ((-0.35, -0.35), (-0.35, -1.05), (0.35, -1.05))
    return tuple(
        (x * math.cos(a) - y * math.sin(a), x * math.sin(a) + y * math.cos(a))
        for a in turns
        for x, y in arm
    )


OUTLINES: tuple[Corners, ...] = (
    ((-1.0, -1.0), (1.0, -1.0), (1.0, 1.0), (-1.0, 1.0)),
    _around(4, 0.0, 1.25),
    *(_around(3, turn, 1.25) for turn in (0.0, 0.5, 0.75, 0.25)),
    _around(5, 0.0, 1.1),
    _star_of(4, 0.0),
    _star_of(4, 0.5),
    *(_around(6, turn, 1.1) for turn in (0.0, 1 / 12)),
    ((0.0, -1.4), (0.8, 0.0), (0.0, 1.4), (-0.8, 0.0)),
    _around(8, 1 / 16, 1.1),
)
"""What presets are marked by, around zero, down being more: the same in every picture."""

EDGES = ("ink", "bad", "upd", "gold")
"""The colours of these outlines."""


def mark_of(preset: str) -> tuple[int, int]:
    """Return the places of a preset's outline and of its colour, by its place among all presets."""
    place = list(PRESETS).index(preset) if preset in PRESETS else 0
    return place % len(OUTLINES), place // len(OUTLINES) % len(EDGES)


STYLE = "page.css"


@cache
def colours() -> dict[str, str]:
    """Return the colours of all pictures on light paper, by their names in the style sheet."""
    light = Path(__file__).with_name(STYLE).read_text(encoding="utf-8").partition("}")[0]
    return dict(re.findall(r"--([\w]+):(#\w+)", light))


LETTER = 6.1
"""The width of a letter of the small type, in units of the picture; a little more than the mean."""


def svg(width: float, height: float, *children: Child, label: str, links: bool = False) -> Html:
    """Return a picture. One with links is a group: what is in an image cannot be reached."""
    return tag(
        "svg",
        *children,
        viewBox=f"0 0 {width:g} {height:g}",
        role="group" if links else "img",
        aria_label=label,
        cls="picture",
        width=f"{width:g}",
        height=f"{height:g}",
    )


def at(value: float) -> str:
    """Return a coordinate: a tenth of a unit is less than can be seen."""
    return f"{value:.1f}".removesuffix(".0")


def line(x1: float, y1: float, x2: float, y2: float, cls: str) -> Html:
    """Return a line."""
    return tag("path", d=f"M{at(x1)} {at(y1)}L{at(x2)} {at(y2)}", cls=cls)


def polyline(points: Sequence[tuple[float, float]], cls: str) -> Html:
    """Return a line through points."""
    return tag("path", d="M" + "L".join(f"{at(x)} {at(y)}" for x, y in points), cls=cls)


def dots(points: Sequence[tuple[float, float]], cls: str) -> Html | None:
    """Return dots as one path of strokes of no length with round ends; None of no points."""
    if not points:
        return None
    places = sorted({(at(x), at(y)) for x, y in points})
    return tag("path", d="".join(f"M{x} {y}h0" for x, y in places), cls=cls)


def crosses(points: Sequence[tuple[float, float]], cls: str, size: float = 4.0) -> Html | None:
    """Return crosses as one path; None of no points."""
    if not points:
        return None
    s = size
    places = sorted({(round(x, 1), round(y, 1)) for x, y in points})
    d = "".join(
        f"M{at(x - s)} {at(y - s)}L{at(x + s)} {at(y + s)}M{at(x - s)} {at(y + s)}"
        f"L{at(x + s)} {at(y - s)}"
        for x, y in places
    )
    return tag("path", d=d, cls=cls)


def rect(x: float, y: float, width: float, height: float, cls: str, round_: float = 0.0) -> Html:
    """Return a rectangle."""
    return tag(
        "rect",
        x=at(x),
        y=at(y),
        width=at(max(0.0, width)),
        height=at(height),
        rx=round_ or None,
        cls=cls,
    )


def label(x: float, y: float, said: str, cls: str = "", anchor: str = "start") -> Html:
    """Return text at a place; `anchor` is start, middle or end."""
    anchored = None if anchor == "start" else anchor
    return tag("text", said, x=at(x), y=at(y), cls=cls or None, text_anchor=anchored)


LONGEST = max(map(len, FORMATS))


def shortened(said: str, letters: int) -> str:
    """Return a text of at most so many letters, its middle left out where it is longer.

    No name of a format is cut: what is left of "bfloat16" would be the name of another.
    """
    if len(said) <= letters:
        return said
    whole = [m.span() for m in re.finditer(r"\w*\d\w*", said) if len(m[0]) <= LONGEST]
    head = (letters - 1) // 2
    head = next((start for start, end in whole if start < head < end), head)
    tail = len(said) - (letters - 1 - head)
    tail = next((end for start, end in whole if start < tail < end), tail)
    return f"{said[:head]}…{said[tail:]}"


def named(presets: str, name: str, letters: int = 60) -> Html:
    """Return what a policy is called so that a line never ends in the name of a format.

    Lines end behind the dots of presets. The name that a search or a user gave is shortened.
    """
    if not presets:
        return text(shortened(re.sub(r"(?<=\d)/(?=\w)", "/ ", name), letters))
    return Html("<wbr>".join(text(part) for part in re.split(r"(?<=\.)", presets)))


@dataclass(frozen=True)
class Axis:
    """A scale from values to places: linear, logarithmic, or with `bend` logarithmic on both sides.

    Within `bend` of zero that last one is about linear.
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False
    bend: float = 0.0

    def __call__(self, value: float) -> float:
        low, high, value = (self._of(v) for v in (self.low, self.high, value))
        share = (value - low) / ((high - low) or 1.0)
        return self.start + min(1.0, max(0.0, share)) * (self.end - self.start)

    def _of(self, value: float) -> float:
        if self.bend:
            return math.asinh(value / self.bend)
        return math.log10(max(value, 1e-300)) if self.log else value

    def ticks(self, count: int = 5) -> list[float]:
        """Return round values along the axis: powers of ten, or steps of 1, 2 or 5.

        So too along one that has fewer than three powers of ten, or none beside zero.
        """
        if self.log:
            first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
            if last - first < 2:
                fine = (s * 10.0**e for e in range(first - 1, last + 1) for s in (1, 2, 5))
                return [value for value in fine if self.low <= value <= self.high]
            step = max(1, math.ceil((last - first + 1) / count))
            return [10.0**e for e in range(first, last + 1, step)]
        if self.bend:
            sizes = [10.0**e for e in range(math.ceil(math.log10(self.bend * 3)), 9)]
            sides = [v for size in sizes for v in (-size, size) if self.low <= v <= self.high]
            every = max(1, math.ceil(len(sides) / count))
            if sides:
                return sorted([0.0, *sides[::-every]])
        raw = (self.high - self.low) / count or 1.0
        unit = 10.0 ** math.floor(math.log10(raw))
        step_size = next(s * unit for s in (1, 2, 5, 10) if s * unit >= raw * 0.999)
        first = math.ceil(self.low / step_size - 1e-9)
        found = []
        while first * step_size <= self.high + 1e-9 * step_size:
            found.append(round(first * step_size, 12))
            first += 1
        return found


@dataclass(frozen=True)
class Labels:
    """Places texts so that none covers another or a point."""

    width: float
    height: float
    boxes: list[tuple[float, float, float, float]] = field(default_factory=list)

    def taken(self, x: float, y: float, size: float = 5.0) -> None:
        """Keep a point clear."""
        self.boxes.append((x - size, y - size, x + size, y + size))

    def place(self, x: float, y: float, said: str, cls: str, must: bool = False) -> Html | None:
        """Return the text beside (x, y) where it is free; None where it is not and need not be."""
        wide = LETTER * len(said) * (1.12 if "strong" in cls else 1.0)
        for dx, dy, anchor in (
            *((9, -7, "start"), (-9, -7, "end"), (9, 14, "start"), (-9, 14, "end")),
            *((0, -13, "middle"), (0, 22, "middle"), (9, -19, "start"), (9, 27, "start")),
            *((14, 4, "start"), (-14, 4, "end"), (-9, -20, "end"), (-9, 27, "end")),
            *((9, -32, "start"), (9, 40, "start"), (-9, -32, "end"), (-9, 40, "end")),
        ):
            left = x + dx - {"start": 0.0, "middle": wide / 2, "end": wide}[anchor]
            box = (left, y + dy - 10, left + wide, y + dy + 3)
            inside = box[0] >= 0 and box[2] <= self.width and box[1] >= 0 and box[3] <= self.height
            if inside and not any(_meet(box, other) for other in self.boxes):
                self.boxes.append(box)
                return label(x + dx, y + dy, said, cls, anchor)
        return label(min(x + 9, self.width - wide), y - 7, said, cls) if must else None


def _meet(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def level_grid(
    axis: Axis, left: float, right: float, said: Callable[[float], str], count: int = 5
) -> list[Html]:
    """Return level lines at the ticks of an upright axis, each with its value on the left."""
    marks = axis.ticks(count)
    return [
        part
        for value in marks
        for part in (
            line(left, axis(value), right, axis(value), "rule"),
            label(left - 6, axis(value) + 4, said(value), "tick", "end"),
        )
    ]


def upright_grid(
    axis: Axis, top: float, bottom: float, said: Callable[[float], str], count: int = 6
) -> list[Html]:
    """Return upright lines at the ticks of a level axis, each with its value below."""
    parts, free = [], -math.inf
    for value in sorted(axis.ticks(count)):
        place, words = axis(value), said(value)
        parts.append(line(place, top, place, bottom, "rule"))
        half = LETTER * 1.25 * len(words) / 2.0
        if place - half > free or value == 0.0:
            parts.append(label(place, bottom + 16, words, "tick", "middle"))
            free = place + half
    return parts


def titled(element: Html, said: str) -> Html:
    """Return the element with a title that shows where it is pointed at."""
    return tag("g", Html(f"<title>{text(said)}</title>"), element)


def key(said: str, *shapes: Child) -> Html:
    """Return a line of a legend: what a mark says, beside the mark."""
    return tag(
        "li",
        tag("svg", *shapes, width="18", height="14", viewBox="0 0 18 14", aria_hidden="true"),
        said,
    )
