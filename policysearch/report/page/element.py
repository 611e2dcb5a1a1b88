"""Elements of HTML and SVG as text. Whatever is not an element is escaped, so names stay names."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from dataclasses import dataclass

from policysearch.values import printable

VOID = frozenset(("meta", "link", "br", "input", "hr", "col", "wbr"))

_NO_CHARACTER = re.compile("[\ufffe\uffff]")
"""What no document may hold beside what is not printable."""

_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9-]*\Z")


class Html(str):
    """Text that is HTML already; made by `tag` and `joined` alone."""

    __slots__ = ()


Child = str | int | float | None | Iterable["Child"]
Value = str | int | float | bool | None


def text(value: object) -> Html:
    """Return a value as text of a document: nothing in it is an element or ends an attribute."""
    shown = printable(_NO_CHARACTER.sub("\ufffd", str(value)), "\n\t")
    return Html(html.escape(shown, quote=True))


def joined(children: Iterable[Child]) -> Html:
    """Return children one after the other; None is nothing."""
    return Html("".join(_of(child) for child in children))


def _of(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Html):
        return child
    if isinstance(child, (str, int, float)):
        return text(child)
    return joined(child)


def tag(name: str, /, *children: Child, **attributes: Value) -> Html:
    """Return an element. `cls` is its class; in names "_" stands for "-"; None leaves one out.

    Raises ValueError for an attribute that a strict content policy forbids.
    """
    parts = [name]
    for key, value in attributes.items():
        spelled = "class" if key == "cls" else key.rstrip("_").replace("_", "-")
        if spelled == "style" or spelled.startswith("on") or not _NAME.match(spelled):
            raise ValueError(f"attribute {spelled!r}; expected one that a strict policy allows")
        if value is None or value is False:
            continue
        parts.append(spelled if value is True else f'{spelled}="{text(value)}"')
    opened = f"<{' '.join(parts)}>"
    return Html(opened if name in VOID else f"{opened}{joined(children)}</{name}>")


def scrolled(table: Html, name: str) -> Html:
    """Return a table that scrolls where it is wider than its place, and then says so."""
    cue = tag("p", "There is more to the right: scroll the table →", cls="cue note")
    region = tag("div", table, cls="scroll", tabindex=0, role="region", aria_label=name)
    return joined((cue, region))


def code(said: str, name: str, text: str) -> Html:
    """Return text to be copied, below what it is."""
    return tag(
        "div",
        tag("p", said, cls="note"),
        tag("button", "Copy", data_copy=name, cls="script", type="button"),
        tag("pre", tag("code", text, id=name)),
        cls="code",
    )


@dataclass(frozen=True)
class Section:
    """A part of the page: `place` orders it, `anchor` is its id, `title` its heading."""

    place: int
    anchor: str
    title: str
    short: str


@dataclass(frozen=True)
class Picture:
    """A picture of one policy: `place` orders it among the others, `title` stands above it."""

    place: int
    title: str
