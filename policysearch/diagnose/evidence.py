"""What a failed run shows of its cause: the kind of failure, the op, the value and its limit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from policysearch.diagnose.log import percent
from policysearch.diagnose.shadow import Beyond, NodeError, ShadowError
from policysearch.formats import format_named
from policysearch.graph import Graph, Node
from policysearch.objective.score import Measurement
from policysearch.policy.policy import Policy
from policysearch.train.lost_values import Kind as LostKind
from policysearch.train.lost_values import LostValues, listed_op
from policysearch.train.origin import Link, Origin, first_harm

Kind = Literal[
    "none",
    "overflow",
    "born",
    "underflow",
    "rounding",
    "swamped updates",
    "decay",
    "state",
    "loss scale",
    "never leaves skipping",
]

BAD_GRADIENT = 0.3
"""Relative error of the gradient, at its worst moment, from which on the gradient is to blame."""

GROWTH = 4.0
"""So many times larger than what an op has read, its error is the op's own."""

LARGE_ERROR = 0.05
"""Relative error of a value that is worth naming."""

FORWARD = 0.2
"""Share of what an op reads or gives going forward that becomes zero where that is the cause."""

MANY = 0.1
"""Share of the updates, or of a state's, that are lost where that is the cause."""

SKIPPED = 0.05
"""Share of the steps that are skipped where that is the cause, if nothing that was applied is."""

BACKWARD = ("dgrad", "wgrad")


@dataclass(frozen=True)
class Cause:
    """Why a run failed: `kind`, and where: the op of a layer in a role, first in `step`.

    `value` stood against `limit`, what each is says `words`. `chain` is what led there, and `line`
    the place in the user's file, where it is known.
    """

    kind: Kind
    op: str = ""
    layer: str = ""
    role: str = ""
    step: int = 0
    value: float = 0.0
    limit: float = 0.0
    words: str = ""
    chain: tuple[Link, ...] = ()
    line: str = ""

    @property
    def place(self) -> str:
        """The op, layer, role and step in words."""
        where = f"{self.role}, step {self.step}"
        return f"{self.op or 'update'} of {self.layer or 'no layer'} ({where})"

    def located(self, graph: Graph) -> Cause:
        """Return it with the line of what `graph` has in its place, where that is one line."""
        lines = {node.line for node in graph.nodes if self._is(node)}
        return replace(self, line=lines.pop()) if not self.line and len(lines) == 1 else self

    def _is(self, node: Node) -> bool:
        place = listed_op(node), node.layer, node.role
        return place == (self.op, self.layer, self.role)


@dataclass(frozen=True)
class Evidence:
    """What is known of a failed policy: its run, its shadow, and what of it stands out there.

    `grown` are values whose errors grew, `beyond` those that float32 has beyond their formats.
    """

    policy: Policy
    run: Measurement
    steps: int
    shadow: ShadowError
    grown: Sequence[NodeError]
    beyond: Sequence[Beyond] = ()

    @property
    def cause(self) -> Cause:
        """The cause that this shows; kinds are asked in the order in which they explain others."""
        return (
            self._skip_cause()
            or self._not_finite()
            or self._skips()
            or (self._gradients() if self.shadow.worst > BAD_GRADIENT else None)
            or self._updates()
            or self._gradients()
            or Cause("rounding", words="nothing that was counted explains it")
        )

    def _skip_cause(self) -> Cause | None:
        tail = set(range(max(0, self.steps - max(1, self.steps // 4)), self.steps))
        taken = self.run.diverged_at
        every = self.run.skipped_steps >= (self.steps if taken is None else taken + 1)
        if not self.run.skipped_steps or not (every or tail <= set(self.run.skips)):
            return None
        origin = first_harm(self.run.origins)
        scale = self.run.scales[-1][1] if self.run.scales else 0.0
        words = f"every step is skipped; the scale is {scale:g} at the end"
        if origin is None:
            return Cause("never leaves skipping", words=words, value=scale)
        return self._of(origin, "never leaves skipping", f"{words}; {origin.words}")

    def _skips(self) -> Cause | None:
        """Return the loss scale as the cause where it cost many steps, but not all."""
        origin = first_harm(self.run.origins)
        if origin is None or self.run.skipped_steps < SKIPPED * self.steps:
            return None
        words = f"{self.run.skipped_steps} of {self.steps} steps are skipped; {origin.words}"
        return self._of(origin, "loss scale", words)

    def _not_finite(self) -> Cause | None:
        origins = [origin for origin in self.run.origins if not origin.skipped]
        origin = first_harm(origins)
        if origin is None:
            return None
        link = origin.link
        if link.role == "update":
            return self._of(origin, "state", origin.words)
        if link.role in BACKWARD and self._is_scaled_up(origin):
            scale = self.run.scales[0][1]
            return self._of(origin, "loss scale", f"{origin.words}; the scale is {scale:g}")
        cancelled = self._cancellation(origin) if origin.kind == "born" else None
        return cancelled or self._of(origin, origin.kind, origin.words)

    def _cancellation(self, origin: Origin) -> Cause | None:
        """Return the difference that lost its digits before a NaN was made of it, if one did.

        The square root of a variance below zero is not to blame, but the subtraction before it.
        """
        before = [(link.op, link.layer, link.role, link.line) for link in origin.chain[:-1]]
        for row in self.grown:
            if (row.op, row.layer, row.role, row.line) in before and _is_own(row):
                cause = self._underflow(row) or _rounding(row)
                words = f"{cause.words}; then {origin.words}"
                return replace(cause, step=origin.step, words=words, chain=origin.chain)
        return None

    def _underflow(self, row: NodeError) -> Cause | None:
        """Return the underflow that made the error of a value, if one did."""
        place = row.op, row.layer, row.role
        lost = [
            each
            for each in self.run.lost
            if each.kind == "underflow" and (each.op, each.layer, each.role) == place
        ]
        if not lost or _share(lost[0]) < FORWARD:
            return None
        return replace(_lost(lost[0], "underflow", 0.0, "became zero"), line=row.line)

    def _is_scaled_up(self, origin: Origin) -> bool:
        """Return whether a gradient would have fitted its format without the loss scale."""
        if not self.run.scales or self.policy.loss_scale.kind == "none":
            return False
        scale = max(value for _, value in self.run.scales)
        size = origin.link.largest_out or origin.link.largest_in
        return scale > 1.0 and size / scale <= origin.link.limit

    def _of(self, origin: Origin, kind: Kind, words: str) -> Cause:
        link = origin.link
        return Cause(
            kind,
            link.op,
            link.layer,
            link.role,
            origin.step,
            link.largest_out,
            link.limit,
            words,
            origin.chain,
            link.line,
        )

    def _gradients(self) -> Cause | None:
        """Saturation, underflow or rounding, whichever is the largest share where it happens."""
        saturated = self._most("overflow", ("fprop", *BACKWARD))
        vanished, read = self._most("underflow", BACKWARD), self._most("underflow", ("fprop",))
        if _share(read) >= max(FORWARD, _share(vanished)):
            vanished = read
        over, under = _share(saturated), _share(vanished)
        own = self._grown()
        if max(over, under) < LARGE_ERROR and own is not None:
            return own
        if saturated is not None and over >= under:
            limit = self._limit(saturated.layer)
            return _lost(saturated, "overflow", limit, "became infinite or were saturated")
        if vanished is not None:
            return _lost(vanished, "underflow", 0.0, "became zero")
        return own

    def _grown(self) -> Cause | None:
        rows = [row for row in self.grown if _is_own(row)]
        rows = rows or sorted(self.grown, key=lambda row: row.before - row.after)[:1]
        if not rows or rows[0].after < LARGE_ERROR / 10:
            return None
        return _rounding(rows[0])

    def _updates(self) -> Cause | None:
        kinds: tuple[tuple[LostKind, Kind, str], ...] = (
            ("state", "state", "of the changes of optimizer states are too small to move them"),
            ("swamped", "swamped updates", "of the updates are too small to move their parameters"),
            ("decay", "decay", "of the decays are too small to move their parameters"),
        )
        found = []
        for lost, kind, words in kinds:
            row = self._most(lost, ("update",))
            if row is not None and _share(row) >= MANY:
                found.append((_share(row), _lost(row, kind, 0.0, words)))
        return max(found, key=lambda pair: pair[0])[1] if found else None

    def _most(self, kind: LostKind, roles: Iterable[str]) -> LostValues | None:
        rows = [row for row in self.run.lost if row.kind == kind and row.role in roles]
        return max(rows, key=_share, default=None)

    def _limit(self, layer: str) -> float:
        named = dict(self.policy.layers)
        return format_named(named[layer].compute).max if layer in named else math.inf


def _share(row: LostValues | None) -> float:
    return row.count / row.seen if row is not None and row.seen else 0.0


def _is_own(row: NodeError) -> bool:
    """Return whether the error of a value is the op's own: cancellation is the usual reason."""
    return row.after > LARGE_ERROR and row.after > GROWTH * row.before


def _rounding(row: NodeError) -> Cause:
    words = (
        f"the relative error of {row.op} of {row.layer or 'no layer'} ({row.role}) grows from "
        f"{row.before:.2g} in what it reads to {row.after:.2g}"
    )
    place, sizes = (row.op, row.layer, row.role, 0), (row.after, row.before)
    return Cause("rounding", *place, *sizes, words, line=row.line)


def _lost(row: LostValues, kind: Kind, limit: float, what: str) -> Cause:
    words = f"{percent(_share(row))} {what} in {row.layer or 'no layer'} ({row.role})"
    return Cause(
        kind, row.op, row.layer, row.role, row.first_step, row.largest, limit, f"{words}, {row.op}"
    )
