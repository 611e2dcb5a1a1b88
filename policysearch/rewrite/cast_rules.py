"""Casts that are not needed, or cheaper elsewhere: rules for a step that has its formats.

No bit changes: a value that was only widened in between is the value itself, and an op that moves
values moves narrow ones as it does wide ones.
"""

from __future__ import annotations

from dataclasses import replace

from policysearch.formats import format_named
from policysearch.rewrite.editor import Editor
from policysearch.rewrite.matching import Match
from policysearch.rewrite.patterns import chain, node
from policysearch.rewrite.rules import rule
from policysearch.rounding.inclusion import contains


def _widens(edit: Editor, source: int, wanted: str) -> bool:
    # only a cast that holds every value of its source is exact, so that it can be left out
    return contains(format_named(wanted), format_named(edit.nodes[source].format))


@rule(
    chain(node("wide", op="cast"), node("back", op="cast")),
    stage="formats",
    optional=True,
    overlapping=True,
)
def cancel_casts(edit: Editor, match: Match) -> None:
    """Read the value itself where a cast only widened it for the next cast."""
    (source,) = edit.inputs(match["wide"])
    back = match["back"]
    if not _widens(edit, source, match["wide"].format):
        return
    # From the source to the last format in one cast: it rounds what the first has not changed.
    if edit.nodes[source].format == back.format:
        edit.redirect(back, source, same_value=True)
    else:
        edit.redirect(back, edit.copy(back, (source,)), same_value=True)


@rule(
    chain(
        node("cast", op="cast", single_user=True),
        node("move", op=("reshape", "transpose"), role=("fprop", "dgrad", "wgrad")),
    ),
    stage="formats",
    optional=True,
)
def sink_casts(edit: Editor, match: Match) -> None:
    """Widen behind a reshape or transpose instead of before it: fewer bytes are moved."""
    cast, move = match["cast"], match["move"]
    (source,) = edit.inputs(cast)
    # a move that rounds as well is left alone: behind it the cast would see other values
    if move.format != cast.format or not _widens(edit, source, cast.format):
        return
    moved = edit.copy(replace(move, format=edit.nodes[source].format), (source,))
    widened = replace(cast, shape=move.shape, role=move.role, layer=move.layer, of=move.of)
    edit.redirect(move, edit.copy(widened, (moved,), at=move), same_value=True)
