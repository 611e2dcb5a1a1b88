"""Steps taken by the emulator from the very values that the target has before each of them.

A chaotic training drifts from itself within a few steps, however right both are: then losses of two
trainings decide nothing. One step from the same values cannot drift. Its loss, and what it moves
each parameter by, are compared with the target's, as far as the emulator's own move where those
values are jittered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from threadpoolctl import threadpool_limits

from policysearch.data.datasets import Dataset
from policysearch.nn.model import Model
from policysearch.policy.policy import Policy
from policysearch.train.feeding import batch_order, initial_parameters
from policysearch.train.tasks import Task
from policysearch.train.trainer import Trainer
from policysearch.verify.jittered_runs import BORDER, Array, gaps, jitter_of

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

    `losses` [steps] in nats; `moves` [steps, parameters], the distance of two updates as a share of
    the target's. `own_losses`, `own_moves`: the largest of the draws to the emulator. `skips` are
    the steps that one of the two skips alone, no gradient near overflow.
    """

    names: tuple[str, ...]
    losses: Array
    moves: Array
    own_losses: Array
    own_moves: Array
    skips: tuple[int, ...]

    @property
    def faults(self) -> tuple[str, ...]:
        """Return what the target does otherwise in a step of its own, one line each."""
        lines = [f"step {i}, from the target's values: one skips it" for i in self.skips[:1]]
        most = max(LEAST_LOSS, BEYOND * float(self.own_losses.max(initial=0.0)))
        if len(far := np.flatnonzero(self.losses > most)):
            said = f"loss {self.losses[far[0]]:.1e} apart; expected at most {most:.1e}"
            lines.append(f"step {far[0]}, from the target's values: {said}")
        allowed = np.maximum(LEAST_MOVE, BEYOND * self.own_moves)
        if len(places := np.argwhere(self.moves > allowed)):
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
    names = tuple(spec.name for spec in model.parameters() if spec.name in values[0])
    trainers = [Trainer(model, task, policy, seed, records=False) for _ in range(1 + FORCED_DRAWS)]
    for trainer in trainers:
        trainer.load(initial_parameters(model, seed))
    inputs, labels = dataset.train
    jitter = jitter_of(task, model)
    rows, skips = [], []
    with threadpool_limits(1):
        for step, indices in enumerate(batch_order(task, dataset, seed)[: len(steps)]):
            batch = [array[indices] for array in inputs], labels[indices]
            scale, drawn = (
                steps[step][1],
                _jittered(values[step], policy, model, jitter, (seed, step)),
            )
            taken = [
                _taken(trainer, given, batch, scale, names)
                for trainer, given in zip(trainers, drawn, strict=True)
            ]
            alike = taken[0][1] == bool(steps[step][2])
            if not alike and not _is_at_border(trainers[0], values[step], batch, scale):
                skips.append(step)
            there = {n: values[step + 1][n] - values[step][n] for n in names}
            rows.append(_row(taken, there, steps[step][0], alike))
    losses, own_losses, moves, own_moves = map(np.array, zip(*rows, strict=True))
    return ForcedSteps(names, losses, moves, own_losses, own_moves, tuple(skips))


Taken = tuple[float, bool, dict[str, Array]]
"""Of a step: its loss, whether it was skipped, and by how much it moved each parameter."""
Batch = tuple[list[Array], Array]


def _jittered(
    given: Values, policy: Policy, model: Model, jitter: float, at: tuple[int, int]
) -> Iterator[dict[str, Array]]:
    """Yield the values, then the same jittered where stored in float32; `at`: seed and step."""
    yield dict(given)
    wide = {s.name for s in model.parameters() if policy.stored(s.layer) == "float32"}
    for draw in range(FORCED_DRAWS):
        rng = np.random.default_rng([at[0], 3, at[1], draw])
        moved = {n: 1.0 + jitter * rng.standard_normal(given[n].shape) for n in wide & given.keys()}
        yield {n: (x * moved.get(n, 1.0)).astype(np.float32) for n, x in given.items()}


def _taken(
    trainer: Trainer, given: Values, batch: Batch, scale: float, names: Sequence[str]
) -> Taken:
    """Take a step from these values, at this loss scale, with the optimizer's own state."""
    _begin(trainer, given, scale)
    loss, _, skipped = trainer.step(*batch)
    after = trainer.params()
    return loss, skipped, {name: after[name] - given[name] for name in names}


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


def _row(
    taken: Sequence[Taken], there: Values, loss_there: float, alike: bool
) -> tuple[float, float, list[float], list[float]]:
    """Return the distances of one step; no moves where only one of the two has any."""
    (loss, _, here), draws = taken[0], taken[1:]
    losses = np.array([loss_there, *(each for each, *_ in draws)])
    apart = gaps(np.full_like(losses, loss), losses)
    own = [[_apart(moves[n], here[n], there[n]) for n in there] for *_, moves in draws]
    return (
        float(apart[0]),
        float(apart[1:].max()),
        [_apart(here[n], there[n], there[n]) if alike else 0.0 for n in there],
        [max(column) for column in zip(*own, strict=True)],
    )


def _apart(one: Array, other: Array, of: Array) -> float:
    """Return the distance of two moves as a share of the length of a third."""
    distance, length = np.linalg.norm(one - other), np.linalg.norm(of)
    return float(distance / length) if length else float(bool(distance))
