"""Shadow gradients: what a policy makes of moments of the float32 run, without training it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

from policysearch.formats import format_named
from policysearch.graph import FloatArray, Graph, Node
from policysearch.objective.objective import Objective
from policysearch.objective.rounding_errors import named_values
from policysearch.policy.policy import Policy
from policysearch.train.loss_scale import initial_state
from policysearch.train.lost_values import listed_op
from policysearch.train.origin import Link, Traced, Tracer, births, chain_to, largest_of
from policysearch.train.paired_run import Gradients, Moment, PairedRun, moments, norm
from policysearch.train.trainer import Trainer

MOMENTS = (0.0, 0.5, 1.0)
"""Where along float32's run shadows are taken."""

HEADROOM = 4.0
"""A value within this factor of its format's largest is as good as beyond: trainings differ."""

SMALLEST = 1e-30
"""Norms below it count as it: a gradient of zeros has no relative error."""


@dataclass(frozen=True)
class ShadowError:
    """How far a policy's gradient and loss are from float32's at its worst moment, relative to it.

    Infinite where something is not finite.
    """

    gradient: float
    loss: float

    @property
    def worst(self) -> float:
        """The larger of the two."""
        return max(self.gradient, self.loss)


@dataclass(frozen=True)
class NodeError:
    """A value whose rounding error grew: `before` in what the op read, `after` in what it gave.

    Both are norms of the difference from float32's value over the norm of that.
    """

    op: str
    layer: str
    role: str
    before: float
    after: float
    line: str = ""


@dataclass(frozen=True)
class Beyond:
    """A value that float32 has up to `largest`, where the `limit` of its format is lower."""

    op: str
    layer: str
    role: str
    largest: float
    limit: float


class Shadows:
    """Compares policies with float32 at the same parameters, on the same batches, of one seed.

    At `shares` of its run, and in the steps `others` till `beside` asks for another.
    """

    def __init__(
        self,
        objective: Objective,
        seed: int,
        shares: Sequence[float] = MOMENTS,
        others: Sequence[int] = (),
    ) -> None:
        self._objective, self._seed = objective, seed
        last = objective.task.steps - 1
        self._usual = frozenset(round(share * last) for share in shares)
        self._met = self._float32_moments(self._usual.union(others))
        self._take(self._usual.union(others))

    def _float32_moments(
        self, steps: Collection[int]
    ) -> dict[int, tuple[Moment, tuple[float, Gradients]]]:
        """Train float32 up to the last of these steps; return them, and its loss and gradients."""
        objective = self._objective
        task, model, policy = objective.task, objective.model, objective.float32
        trainer = Trainer(model, task, policy, self._seed, objective.fast, records=False)
        with threadpool_limits(1):
            met = moments(trainer, objective.dataset, steps)
            exact = PairedRun(task, model, policy, self._seed)
            return {moment.step: (moment, exact.at(moment)) for moment in met}

    def _take(self, steps: Collection[int]) -> None:
        rows = [self._met[step] for step in sorted(steps) if step in self._met]
        self.moments = tuple(moment for moment, _ in rows)
        self._exact = tuple(exact for _, exact in rows)

    def beside(self, step: int) -> Shadows:
        """Return the usual moments and that step's: a batch may be what a policy fails on."""
        wanted = self._usual | {step}
        if step not in self._met:
            self._met |= self._float32_moments([step])
        other = copy(self)
        other._take(wanted)
        return other

    def error(self, policy: Policy) -> ShadowError:
        """Return how far a policy is from float32 at its worst moment."""
        objective = self._objective
        with threadpool_limits(1):
            beside = PairedRun(objective.task, objective.model, policy, self._seed)
            found = [beside.at(moment) for moment in self.moments]
        pairs = list(zip(found, self._exact, strict=True))
        gradients = [_distance(low, exact) for (_, low), (_, exact) in pairs]
        losses = [abs(a - b) / max(abs(b), SMALLEST) for (a, _), (b, _) in pairs]
        return ShadowError(_worst(gradients), _worst(losses))

    def grown(self, policy: Policy) -> list[NodeError]:
        """Return the values whose error grew, in the order of execution, at the first moment."""
        low, exact = (self.traced(each) for each in (policy, self._objective.float32))
        scale, errors = initial_state(policy.loss_scale).scale, dict[int, float]()
        names = {name: node.id for name, node in named_values(exact.graph)}
        rows = []
        for key, node in named_values(low.graph):
            i = node.id
            if key in names and low.values[i].shape == exact.values[names[key]].shape:
                by = scale if node.role in ("dgrad", "wgrad") else 1.0
                errors[i] = _relative(low.values[i] / np.float32(by), exact.values[names[key]])
                before = max((errors[x] for x in _read(low.graph, node) if x in errors), default=0)
                named = listed_op(node), node.layer, node.role
                rows.append(NodeError(*named, before, errors[i], node.line))
        return [row for row in rows if row.after > row.before]

    def beyond(self, policy: Policy) -> list[Beyond]:
        """Return what of float32's moments does not fit the formats of `policy`, or nearly so.

        In the order of execution, with the ops that read it: all that has to be wider, where the
        first alone does not help.
        """
        exact, sizes_of = self._sizes()
        tracing = self._objective.task.tracing(
            self._objective.model, self._objective.task.batch_size
        )
        low = tracing.step_graph(policy)
        names = {name: node.id for name, node in named_values(exact)}
        large: dict[int, tuple[float, float]] = {}
        for key, node in named_values(low):
            if key in names and node.role == "fprop" and not node.fused:
                largest = sizes_of[names[key]]
                limit = format_named(node.format).max
                if largest > limit / HEADROOM:
                    large[names[key]] = largest, limit
        found = []
        for node in exact.nodes:
            sizes = [large[i] for i in (node.id, *node.inputs) if i in large]
            if sizes and node.role == "fprop":
                found.append(Beyond(listed_op(node), node.layer, node.role, *max(sizes)))
        return found

    def _sizes(self) -> tuple[Graph, dict[int, float]]:
        """Return float32's step, and the largest of each forward value over the moments."""
        largest: dict[int, float] = {}
        for traced in self._traces(self._objective.float32):
            for node in traced.graph.nodes:
                if node.role == "fprop":
                    size = largest_of(traced.values[node.id])
                    largest[node.id] = max(size, largest.get(node.id, 0.0))
        return traced.graph, largest

    def lost(self, policy: Policy) -> tuple[Link, ...]:
        """Return the chain to the first value not finite at a moment; () where all are finite."""
        for traced in self._traces(policy):
            for found in ("loss", "gradients"):
                born = births(traced, found)
                if born:
                    return tuple(traced.link(node) for node in chain_to(traced, born[0]))
        return ()

    def near(self, policy: Policy) -> list[Link]:
        """Return the values of the moments that nearly fill their formats: trainings differ.

        Gradients only where no loss scale may be lowered instead.
        """
        roles = ("fprop", "dgrad", "wgrad") if policy.loss_scale.kind == "none" else ("fprop",)
        found = []
        for traced in self._traces(policy):
            for node in traced.graph.nodes:
                if node.role in roles and node.op.kind != "source" and not node.fused:
                    link = traced.link(node)
                    if link.largest_out * HEADROOM > link.limit:
                        found.append(link)
        return found

    def traced(self, policy: Policy) -> Traced:
        """Return a step under `policy` at the first moment, with every value."""
        return next(self._traces(policy))

    def _traces(self, policy: Policy) -> Iterator[Traced]:
        """Yield the step at every moment, each valid until the next."""
        objective = self._objective
        graph = objective.task.tracing(objective.model, objective.task.batch_size)
        tracer = Tracer(graph.step_graph(policy), self._seed, {})
        beside = PairedRun(objective.task, objective.model, policy, self._seed, step=tracer.step)
        for moment in self.moments:
            tracer.clear()
            with threadpool_limits(1):
                beside.at(moment)
            yield tracer.traced()


def _distance(low: Gradients, exact: Gradients) -> float:
    if not all(np.isfinite(low[name]).all() for name in exact):
        return math.inf
    off = norm({name: low[name] - exact[name] for name in exact})
    return off / max(norm(exact), SMALLEST)


def _worst(errors: Sequence[float]) -> float:
    return max((error if math.isfinite(error) else math.inf for error in errors), default=0.0)


def _relative(low: FloatArray, exact: FloatArray) -> float:
    wide = exact.astype(np.float64)
    with np.errstate(invalid="ignore"):  # infinity less infinity
        off, whole = float(np.linalg.norm(low - wide)), float(np.linalg.norm(wide))
    error = off / max(whole, SMALLEST)
    return error if math.isfinite(error) else math.inf


def _read(graph: Graph, node: Node) -> Iterator[int]:
    """Yield what a node reads, casts passed over."""
    for i in node.inputs:
        while graph.nodes[i].op.name == "cast":
            i = graph.nodes[i].inputs[0]
        yield i
