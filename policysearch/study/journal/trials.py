"""What is known of one policy of a study: its scores, why it failed, how it does later on.

And of all of them, what made them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from policysearch.cost.price import PolicyCost
from policysearch.objective.score import DIVERGED_GAP, GapCurve, Score, share_of
from policysearch.policy.policy import CLIPPING, Policy, clipping_of, from_json
from policysearch.train.origin import first_harm
from policysearch.values import Shown, brief

GROWTH = 3.0
"""A gap that grew more than this many times has not come to rest."""

SHARE_OF_LOSS = 0.1
"""A gap above this share of float32's own loss is a different result."""

SMALL_SHARE = 0.01
"""Growth of a gap that stays below this share of float32's own loss is no failure."""

SWAMPED = 0.1
"""Share of updates that are swamped from which on they are said to vanish (docs/horizon.md)."""


@dataclass(frozen=True)
class Trial(Shown):
    """One trained policy: `scores` holds one score per training seed, `seeds` says which.

    `text` is the policy as JSON. `presets` names the presets of the ladder that are this policy;
    none for a sampled one. `divergence` says where the first run that diverged did; "" if none.
    `by_hand`: a user tried it. `start`: the search began with it. `expected`: the gap that was
    expected of it before it was trained, with the ends of an interval for four in five.
    """

    number: int
    digest: str
    text: str
    presets: tuple[str, ...]
    scores: tuple[Score, ...]
    divergence: str
    by_hand: bool = False
    start: bool = False
    seeds: tuple[int, ...] = ()
    expected: tuple[float, ...] | None = None

    def __repr__(self) -> str:
        cost = f"{self.cost.speedup:.2f}x modeled, {self.cost.memory_ratio:.2f}x memory"
        gap = self.divergence if self.diverged else f"gap {self.loss_gap:+.1e} {self.loss_unit}"
        return brief(f"Trial({self.number}, {self.label!r}: {cost}, {gap}, seeds {self.seeds})")

    @cached_property
    def policy(self) -> Policy:
        """The policy as a value."""
        return from_json(self.text, f"trial {self.number} policy")

    @cached_property
    def name(self) -> str:
        """The policy's name."""
        return policy_name(self.text)

    @property
    def clipped(self) -> str:
        """How the policy of an older journal clipped gradients, in words; "" where it did not."""
        limit = clipping_of(json.loads(self.text)) if f'"{CLIPPING}"' in self.text else None
        return (
            ""
            if limit is None
            else (
                f"trained with gradients clipped to {limit:g}, float32 without; clipping is of the "
                "recipe now (clip_norm of the task), and this policy trains without from here on"
            )
        )

    @property
    def label(self) -> str:
        """The name to show: the presets where there are any."""
        return " ".join(self.presets) or self.name

    @property
    def diverged(self) -> bool:
        """Whether any of the runs diverged."""
        return any(score.diverged for score in self.scores)

    @property
    def loss_gap(self) -> float:
        """Mean loss gap to float32 over the seeds, in nats; DIVERGED_GAP if any run diverged."""
        if self.diverged:
            return DIVERGED_GAP
        return math.fsum(score.loss_gap for score in self.scores) / len(self.scores)

    @property
    def gap_range(self) -> tuple[float, float]:
        """The smallest and largest loss gap over the seeds, in nats."""
        gaps = [score.loss_gap for score in self.scores]
        return min(gaps), max(gaps)

    @property
    def gap_error(self) -> float:
        """Standard error of `loss_gap` over the seeds, in nats; 0 for a single seed."""
        count = len(self.scores)
        squares = math.fsum((score.loss_gap - self.loss_gap) ** 2 for score in self.scores)
        return math.sqrt(squares / (count - 1) / count) if count > 1 else 0.0

    @property
    def validation_accuracy(self) -> float | None:
        """Mean share of validation labels got right; None where there are no classes."""
        return _mean(score.validation_accuracy for score in self.scores)

    @property
    def validation_loss(self) -> float | None:
        """Mean loss on the validation part; None where a run has none."""
        return _mean(score.validation_loss for score in self.scores)

    @property
    def metric(self) -> float | None:
        """Mean of the task's metric; None where there is none."""
        return _mean(score.metric for score in self.scores)

    @property
    def loss_unit(self) -> str:
        """What losses and gaps are counted in."""
        return next((score.loss_unit for score in self.scores if score.loss_unit), "nats")

    @property
    def skipped_steps(self) -> int:
        """Most steps that one of the runs skipped."""
        return max(score.skipped_steps for score in self.scores)

    @property
    def swamped_share(self) -> float:
        """Share of updates swamped at the smallest learning rate, by the last probed step, mean."""
        return math.fsum(score.swamped.projected for score in self.scores) / len(self.scores)

    @property
    def swamped_step(self) -> int | None:
        """The last step in which updates were looked at, of any run; None where there is none."""
        steps = [step for score in self.scores for step, _ in score.swamped.shares[-1:]]
        return max(steps, default=None)

    @property
    def swamped_layer(self) -> str:
        """The layer that loses the largest share of its updates in any of the runs; "" if none."""
        return max((score.swamped for score in self.scores), key=lambda s: s.layer_share).layer

    @property
    def early_sign(self) -> str:
        """What the run says of longer ones: that updates vanish; "" where they do not.

        The first step says nothing: momentum has yet to gather.
        """
        step = self.swamped_step
        if not step or self.swamped_share < SWAMPED:
            return ""
        return f"updates vanish: {100 * self.swamped_share:.0f} % swamped at step {step}"

    @property
    def first_not_finite(self) -> str:
        """Where the first value not finite came from, of the run where it came first; "" if none.

        "" also in records older than that.
        """
        rows = zip((first_harm(s.origins) for s in self.scores), self.seeds, strict=False)
        found = [(row, seed) for row, seed in rows if row is not None]
        if not found:
            return ""
        first, seed = min(found, key=lambda pair: (pair[0].skipped, pair[0].step))
        return f"{first.words} (seed {seed})"

    @property
    def cost(self) -> PolicyCost:
        """The modeled cost; it does not depend on the seed."""
        return self.scores[0].cost


@dataclass(frozen=True)
class Confirmation:
    """A policy trained longer than in the search, on seeds of its own, beside float32.

    `loss_gap`: mean over `seeds` of the tail loss minus float32's, in nats; `gap_spread` its
    standard deviation, None for one seed. `float32_loss`: float32's own tail loss there.
    `gap_curves`: of each seed, as `Score.gap_curve`.
    """

    steps: int
    seeds: tuple[int, ...]
    loss_gap: float
    gap_spread: float | None
    float32_loss: float
    diverged: bool
    gap_curves: tuple[GapCurve, ...] = ()

    def fault(self, short_gap: float) -> str:
        """Return why the policy fails at this horizon, in words; "" where it does not.

        `short_gap` is the gap that the search counted, in nats.
        """
        if self.diverged:
            return f"diverges within {self.steps} steps"
        most = math.inf if self.loss_gap > 0.0 else 0.0
        share = share_of(self.loss_gap, self.float32_loss) if self.float32_loss else most
        if share > SHARE_OF_LOSS:
            return f"loss {share:.0%} above float32's at {self.steps} steps"
        if share > SMALL_SHARE and self.loss_gap > GROWTH * short_gap:
            grew = f"{self.loss_gap / short_gap:.0f}-fold" if short_gap else "from none"
            return f"gap grew {grew} by {self.steps} steps"
        return ""


@dataclass(frozen=True)
class FailedTrial:
    """A policy whose training did not end in a result, and why."""

    number: int
    text: str
    presets: tuple[str, ...]
    reason: str

    @cached_property
    def name(self) -> str:
        """The policy's name."""
        return policy_name(self.text)


@dataclass(frozen=True)
class Provenance:
    """What made the results, as the journal says it.

    `makers`: (name, version or machine) pairs for each machine and set of versions that added to
    the journal, the last one last; of older journals numpy and its BLAS alone. `started` and
    `ended`: of the first and the last trial, in the time of the machine, "" without trials.
    `runs`: trainings recorded, `trained_seconds` what they took together, 0 in older journals.
    """

    makers: tuple[tuple[tuple[str, str], ...], ...] = ()
    started: str = ""
    ended: str = ""
    runs: int = 0
    trained_seconds: float = 0.0

    @property
    def versions(self) -> dict[str, str]:
        """The last machine and versions, by name."""
        return dict(self.makers[-1]) if self.makers else {}


_NAME_FIRST = re.compile(r'\{\s*"name":\s*("(?:[^"\\]|\\.)*")')


def policy_name(text: str) -> str:
    """Return the name of the policy written in the JSON `text`."""
    # The name comes first; all of a deep policy takes milliseconds, and there are thousands.
    first = _NAME_FIRST.match(text)
    name: str = json.loads(first[1]) if first else json.loads(text)["name"]
    return name


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None
