"""Steps taken by the emulator from the very values that the target has before each of them.

A chaotic training drifts from itself within a few steps, however right both are: then losses of two
trainings decide nothing. One step from the same values cannot drift. Its loss, and what it moves
each parameter by, are compared with the target's, as far as the emulator's own move where those
values are jittered.

A parameter stored in a narrow format moves by whole spacings of it, or not at all. Where it lies
at the boundary between two neighbours the last bit of a sum decides: so of those the emulator's
value before that rounding is compared, with all that round to what the target has.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from policysearch.data.datasets import Dataset
from policysearch.formats import Format, format_named
from policysearch.graph import Graph
from policysearch.nn.model import Model
from policysearch.policy.policy import Policy
from policysearch.rounding.rounder import quantise
from policysearch.train.feeding import batch_order, initial_parameters
from policysearch.train.tasks import Task
from policysearch.train.trainer import Trainer
from policysearch.verify.jittered_runs import BORDER, Array, gaps, jitter_of, summed_otherwise

FORCED_DRAWS = 4
"""Of every step; they are taken together, over all steps, so that few of each will do."""

Values = Mapping[str, Array]


LEAST_MOVE, LEAST_LOSS = 1e-5, 5e-5
"""Distances of a move, as a share of it, and of a loss in nats, below which two steps are one."""
BEYOND = 3.0
"""A single move further apart than so many of the emulator's own is the target's doing."""


@dataclass(frozen=True, eq=False)
class ForcedSteps:
    """How far single steps from the target's values go from the target's own.

    `losses` [steps] in nats; `moves` [steps, parameters], the least distance of two updates that
    are stored as they are, as a share of one. `own_losses`, `own_moves`: the largest of the draws
    to the emulator; `own_updates`: of their updates before they are rounded. `skips` are the steps
    that one of the two skips alone, no gradient near overflow; `off` the formats, by parameter, on
    whose numbers the target's values do not lie. `alone` is the most moves of a draw that are as
    far beyond those of the other draws as none of the target's should be beyond the draws: signs
    that turn, which Adam's first steps move by, turn seldom and far.
    """

    names: tuple[str, ...]
    losses: Array
    moves: Array
    own_losses: Array
    own_moves: Array
    own_updates: Array
    skips: tuple[int, ...]
    off: Mapping[str, str]
    alone: int = 0

    @property
    def faults(self) -> tuple[str, ...]:
        """Return what the target does otherwise in a step of its own, one line each."""
        lines = [f"step {i}, from the target's values: one skips it" for i in self.skips[:1]]
        for name, format in [*self.off.items()][:1]:
            lines.append(f"{name}: the target's values are no numbers of {format}; expected those")
        most = max(LEAST_LOSS, BEYOND * float(self.own_losses.max(initial=0.0)))
        if len(far := np.flatnonzero(self.losses > most)):
            said = f"loss {self.losses[far[0]]:.1e} apart; expected at most {most:.1e}"
            lines.append(f"step {far[0]}, from the target's values: {said}")
        allowed = np.maximum(LEAST_MOVE, BEYOND * self.own_updates)
        if len(places := np.argwhere(self.moves > allowed)) > self.alone:
            step, place = places[0]
            said = f"{self.names[place]} moves {self.moves[step, place]:.1e} of a move apart"
            lines.append(
                f"step {step}, from the target's values: {said}; "
                f"expected at most {allowed[step, place]:.1e}"
            )
        if self.farther > 0.5:
            said = f"{self.farther:.0%} of all moves are further apart than jittered ones"
            lines.append(f"from the target's values: {said}; expected at most 50%")
        return tuple(lines)

    @property
    def farther(self) -> float:
        """The share of moves further apart than all draws: about a fifth where two are alike."""
        return float(np.mean(self.moves > np.maximum(LEAST_MOVE, self.own_moves)))


def forced_steps(
    task: Task,
    policy: Policy,
    model: Model,
    dataset: Dataset,
    seed: int,
    values: Sequence[Values],
    steps: Sequence[Sequence[float]],
) -> ForcedSteps:
    """Return the comparison with `values` before each step and after the last.

    `steps` are the target's (loss, scale, skipped) of each.
    """
    names = [spec.name for spec in model.parameters() if spec.name in values[0]]
    stored = {spec.name: policy.stored(spec.layer) for spec in model.parameters()}
    trainers, rounded = _trainers(task, policy, model, seed)
    inputs, labels = dataset.train
    jitter = jitter_of(task, model)
    rows, skips = [], []
    with threadpool_limits(1):
        for step, indices in enumerate(batch_order(task, dataset, seed)[: len(steps)]):
            batch = [array[indices] for array in inputs], labels[indices]
            scale, drawn = (
                steps[step][1],
                _jittered_values(values[step], stored, jitter, (seed, step)),
            )
            taken = [
                _taken(trainer, given, batch, scale)
                for trainer, given in zip(trainers, drawn, strict=True)
            ]
            alike = taken[0].skipped == bool(steps[step][2])
            if not alike and not _is_at_border(trainers[0], values[step], batch, scale):
                skips.append(step)
            there = [(n, values[step + 1][n], format_named(stored[n])) for n in names]
            of = [_distances(taken, *each, opened=each[0] in rounded) for each in there]
            apart, *others = map(np.array, zip(*of, strict=True))
            rows.append((*_losses(taken, steps[step][0]), apart * alike, *others))
    off = {n: stored[n] for n in names if not _is_on(values[-1][n], stored[n])}
    wide = np.array([stored[name] == "float32" for name in names])
    return _comparison(tuple(names), wide, rows, tuple(skips), off)


def _comparison(
    names: tuple[str, ...],
    wide: Array,
    rows: Sequence[tuple[Any, ...]],
    skips: tuple[int, ...],
    off: Mapping[str, str],
) -> ForcedSteps:
    """Return the comparison from a row for each step; `wide`: whether names are in float32."""
    losses, own_losses, moves, own, updates, draws = map(np.array, zip(*rows, strict=True))
    # a bit of a gradient turns seldom: the draws of one step may show none
    updates = np.where(wide, updates, updates.max(axis=0))
    found = losses, moves, own_losses, own, updates, skips, off
    return ForcedSteps(names, *found, alone=_alone(draws[:, wide]))


def _alone(draws: Array) -> int:
    """Return the most moves of one draw that lie BEYOND the others'; `draws` [steps, names, draws].

    Of values stored in float32: others move by a spacing, and are judged over all steps.
    """
    counts = []
    for draw in range(FORCED_DRAWS):
        others = np.delete(draws, draw, axis=2).max(axis=2)
        counts.append(int(np.sum(draws[..., draw] > np.maximum(LEAST_MOVE, BEYOND * others))))
    return max(counts)


def _trainers(
    task: Task, policy: Policy, model: Model, seed: int
) -> tuple[list[Trainer], set[str]]:
    """Return the trainers of the policy and of the draws, their last rounding of parameters undone.

    And the parameters that have one.
    """
    step_graphs = task.tracing(model, task.batch_size).step_graphs

    def graphs(given: Policy) -> tuple[Graph, ...]:
        last, *before = step_graphs(given)
        ids = _rounded_last(last)
        nodes = tuple(replace(n, format="float32") if n.id in ids else n for n in last.nodes)
        return (replace(last, nodes=nodes), *before)

    policies = [policy, *(summed_otherwise(policy, draw) for draw in range(FORCED_DRAWS))]
    made = [Trainer(model, task, each, seed, records=False, graphs=graphs) for each in policies]
    for trainer in made:
        trainer.load(initial_parameters(model, seed))
    return made, {*_rounded_last(step_graphs(policy)[0]).values()}


def _rounded_last(graph: Graph) -> dict[int, str]:
    """Return the new values rounded to nearest that nothing but a parameter reads, with its name.

    Where others read them, or chance rounds them, two may differ by a spacing and be as good.
    """
    nodes, readers = graph.nodes, graph.readers()
    pairs = [(nodes[old], nodes[new]) for old, new in graph.updates]
    return {
        new.id: old.name
        for old, new in pairs
        if old.op.name == "parameter"
        and new.format != "float32"
        and new.rounding.mode == "nearest_even"
        and not readers[new.id]
    }


@dataclass(frozen=True, eq=False)
class _Taken:
    """A step: its loss, whether it was skipped, parameters before and after."""

    loss: float
    skipped: bool
    before: Values
    after: Values


Batch = tuple[list[Array], Array]


def _jittered_values(
    given: Values, stored: Mapping[str, str], jitter: float, at: tuple[int, int]
) -> Iterator[dict[str, Array]]:
    """Yield the values, then the same jittered where stored in float32; `at`: seed and step."""
    yield dict(given)
    wide = {name for name, format in stored.items() if format == "float32"}
    for draw in range(FORCED_DRAWS):
        rng = np.random.default_rng([at[0], 3, at[1], draw])
        moved = {n: 1.0 + jitter * rng.standard_normal(given[n].shape) for n in wide & given.keys()}
        yield {n: (x * moved.get(n, 1.0)).astype(np.float32) for n, x in given.items()}


def _taken(trainer: Trainer, given: Values, batch: Batch, scale: float) -> _Taken:
    """Take a step from these values, at this loss scale, with the optimizer's own state."""
    _begin(trainer, given, scale)
    loss, _, skipped = trainer.step(*batch)
    return _Taken(loss, skipped, given, trainer.params())


def _begin(trainer: Trainer, given: Values, scale: float) -> None:
    trainer.put_back({name: given[name] for name in trainer.params() if name in given})
    trainer.scale_state = replace(trainer.scale_state, scale=scale)


def _is_at_border(trainer: Trainer, given: Values, batch: Batch, scale: float) -> bool:
    """Whether a loss scale BORDER higher or lower decides if the gradients are finite."""
    now, finite = trainer.params(), set()
    for share in (1.0 - BORDER, 1.0 + BORDER):
        _begin(trainer, given, scale)
        step, _ = trainer.forward_backward(False, *batch, scale * share)
        finite.add(bool(step.value("finite") == 1.0))
    trainer.put_back(now)
    return len(finite) > 1


def _losses(taken: Sequence[_Taken], there: float) -> tuple[float, float]:
    """Return how far the emulator's loss is from the target's, and at most from those of draws."""
    losses = np.array([there, *(each.loss for each in taken[1:])])
    apart = gaps(np.full_like(losses, taken[0].loss), losses)
    return float(apart[0]), float(apart[1:].max())


def _distances(
    taken: Sequence[_Taken], name: str, there: Array, format: Format, *, opened: bool
) -> tuple[float, float, float, list[float]]:
    """Return how far the updates of a parameter are apart, as shares of one.

    Of the emulator's and the target's, which is `there` after it; then, at most, of the emulator's
    and those of draws, as they are stored, and as they are before that where it is `opened`; then
    the latter draw by draw.
    """
    before, wide = taken[0].before[name], taken[0].after[name]
    here, *draws = (each.after[name] - each.before[name] for each in taken)
    own: list[Array] = [np.abs(each - here) for each in draws]
    if opened:
        others = (quantise(each.after[name], format) for each in taken[1:])
        kept = [_beyond(wide, each, format) for each in others]
        apart = _beyond(wide, there, format)
        each = [_share([x], here) for x in own]
        return _share([apart], here), _share(kept, here), max(each), each
    of, apart = there - before, np.abs(here - (there - before))
    single = [] if format.name == "float32" else [2.0 * _halves(wide, format).max(initial=0.0)]
    each = [_share([x], of) for x in own]
    return _share([apart], of), max(each), _share([*own, *single], of), each


def _halves(values: Array, format: Format) -> Array:
    """Return half the spacing of a format's numbers where values are."""
    exponents, at = np.unique(np.frexp(values)[1] - 1, return_inverse=True)
    halves = np.array([math.ldexp(0.5, format.quantum_exponent(int(x))) for x in exponents])
    return halves[at.reshape(values.shape)]


def _beyond(wide: Array, stored: Array, format: Format) -> Array:
    """Return how far values are from the nearest that would be rounded to what is stored."""
    towards = np.nextafter(stored, wide)  # on the near side: a power of two has two spacings
    beyond: Array = np.abs(stored - wide) - _halves(towards, format)
    return beyond.clip(0.0)


def _is_on(values: Array, format: str) -> bool:
    return np.array_equal(values, quantise(values, format_named(format)), equal_nan=True)


def _share(distances: Sequence[Array], of: Array) -> float:
    """Return the longest distance as a share of the length of an update."""
    length, distance = np.linalg.norm(of), max(map(np.linalg.norm, distances))
    return float(distance / length) if length else float(bool(distance))
