"""What a net's own loss comes to without its inputs: no constant is known for such a loss.

The loss itself is asked: beside labels that have changed places, and of outputs that are constant.
A net whose loss is no lower than both has learned nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtri, stdtrit

from policysearch.emulator.compile import Step
from policysearch.graph import Graph, size
from policysearch.nn.model import Model
from policysearch.ops.source import data, own
from policysearch.train.constant import CHANCE, log_odds
from policysearch.train.feeding import Array, feed_constants

EXCHANGES, EXAMPLES = 16, 1024
"""How often labels change places, and of how many examples at most: that tells far less apart than
what a net that has learned gains.
"""

OUTPUTS = own("outputs")


@dataclass(frozen=True)
class ByChance:
    """A net's mean `loss` beside those where each example has the labels of another.

    And beside that of the best `constant`: None where the loss does not follow from outputs and
    labels alone.
    """

    loss: float
    exchanged: tuple[float, ...]
    constant: float | None

    @property
    def gain(self) -> tuple[float, float] | None:
        """By how much the loss is below both, and how far chance takes that.

        By chance alone the loss is one draw more of `exchanged`: it is beyond these where it is
        further off than a multiple of their deviation. That is as much larger than the deviation as
        Student's t for so few is than the normal quantile that it will be multiplied by. Where the
        constant is nearer, both numbers are less by the same share. None where one is not finite.
        """
        draws = np.array(self.exchanged)
        less = float(draws.mean()) - self.loss
        beside = less if self.constant is None else self.constant - self.loss
        if not math.isfinite(less) or not math.isfinite(beside):
            return None
        nearer = min(less, beside)
        wider = float(stdtrit(len(draws) - 1, 1.0 - CHANCE) / ndtri(1.0 - CHANCE))
        error = float(draws.std(ddof=1)) * math.sqrt(1.0 + 1.0 / len(draws)) * wider
        return nearer, error * (nearer / less if 0.0 < nearer < less else 1.0)


def by_chance(
    graph: Graph,
    model: Model,
    labels: Array,
    mean_loss: Callable[[Array], float],
    compiled: Callable[[Graph], Step],
    seed: int,
) -> ByChance | None:
    """Return what the own loss of a `graph` is by chance, of all `labels`; None if nothing tells.

    `mean_loss` is that of the model with such labels, `compiled` makes a step of a graph. A loader
    may give labels that its loss does not read, as to an autoencoder, and of a low format nobody
    asks whether it has learned.
    """
    nodes = [graph.nodes[i] for i in graph.needed({dict(graph.outputs)["loss"]})]
    is_read = any(node.op.kind == "source" and node.name == model.labels for node in nodes)
    if not is_read or any(node.format != "float32" for node in graph.nodes if node.inputs):
        return None
    labels = labels[: max(EXAMPLES, graph.source(model.labels).shape[0])]
    rng = np.random.default_rng(seed)
    draws = tuple(mean_loss(labels[rng.permutation(len(labels))]) for _ in range(EXCHANGES))
    return ByChance(mean_loss(labels), draws, _constant_loss(graph, model, labels, compiled))


def _constant_loss(
    graph: Graph, model: Model, labels: Array, compiled: Callable[[Graph], Step]
) -> float | None:
    """Return the own loss of the best constant outputs; None where it needs more than these.

    The best of a few for numbers, by the labels that are judged, so that it is rather too good.
    """
    outputs = dict(graph.outputs)
    place, result = outputs["logits"], graph.output("logits")
    rows = graph.source(model.labels).shape
    if labels.dtype == np.int64 or size(result.shape) != size(rows):
        return None
    attrs = (("shape", result.shape),)
    source = replace(result, op=data, inputs=(), role="input", name=OUTPUTS, attrs=attrs)
    nodes = tuple(source if node.id == place else node for node in graph.nodes)
    cut = Graph(nodes, (("loss", outputs["loss"]),))
    ids = cut.needed({outputs["loss"]})
    sources = {node.name for node in nodes if node.id in ids and node.op.kind == "source"}
    if sources - {model.labels, *model.constants} != {OUTPUTS}:
        return None
    step = compiled(cut)
    feed_constants(step, model)
    return min(_loss_of(step, model.labels, labels, row) for row in _constants(labels))


def _constants(labels: Array) -> Iterator[Array]:
    """Yield what may be the best: by place or one for all, as numbers and as logits of shares."""
    exact = labels.astype(np.float64)
    for row in (exact.mean(axis=0), np.median(exact, axis=0), np.asarray(exact.mean())):
        yield from (row, log_odds(row, 1e-6))


def _loss_of(step: Step, name: str, labels: Array, row: Array) -> float:
    outputs, losses = step.arrays[OUTPUTS], list[float]()
    count = len(step.arrays[name])
    outputs[...] = np.broadcast_to(row, (count, *labels.shape[1:])).reshape(outputs.shape)
    for start in range(0, len(labels) - count + 1, count):
        step.arrays[name][...] = labels[start : start + count]
        step.forward_backward()
        losses.append(float(step.value("loss")))
    return math.fsum(losses) / len(losses)
