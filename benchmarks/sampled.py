"""Prints how far log-probabilities of small GPTs are apart as they are trained and as they sample.

    python -m benchmarks.sampled --nets sums-32 sums-128 --seeds 0 1 2

The trainer has autocast, the sampler everything in the same 16 bits, norms and softmax too, or only
the sums of a tensor core in the place of float32 ones, or is float32. Each is looked at with the
logits in float32 on both sides, and with the whole head: its weights, inputs and logits. Both are
the same weights. Log-probabilities are those of the logits in float64, as vLLM's are in float32:
no side rounds them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policysearch import load_study
from policysearch.data.datasets import TIME, VALIDATION_WINDOWS, WINDOWS, Dataset
from policysearch.graph import FloatArray, Shape
from policysearch.layout import in_storage_order
from policysearch.nn.chain import Chain
from policysearch.nn.layers import traced_through
from policysearch.nn.model import Fed, ParameterSpec
from policysearch.nn.models import gpt
from policysearch.objective.sampled import Trained, trained_along
from policysearch.ops.builder import Builder
from policysearch.ops.dense import matmul
from policysearch.policy.policy import LayerPolicy, Policy, uniform_layer, with_accumulator
from policysearch.policy.presets import preset
from policysearch.train.tasks import Task

FORMATS = ("bfloat16", "float16")
SHARES = (0.0, 0.25, 1.0)
"""Of the steps of a training; the first is one step."""

TOKENS = 512
"""Of the walk."""


def _all_low(name: str, trainer: Policy) -> Policy:
    layers = tuple((layer, uniform_layer(name)) for layer, _ in trainer.layers)
    return replace(preset("mindspore.O3", [layer for layer, _ in layers]), layers=layers)


def _other_sums(name: str, trainer: Policy) -> Policy:
    return with_accumulator(trainer, "tensor_core.h100")


def _float32(name: str, trainer: Policy) -> Policy:
    return preset("float32", [layer for layer, _ in trainer.layers])


SAMPLERS: dict[str, Callable[[str, Policy], Policy]] = {
    "all in the format": _all_low,
    "other sums": _other_sums,
    "float32": _float32,
}


def _with_wide_head(policy: Policy) -> Policy:
    return policy.with_layers({policy.layers[-1][0]: uniform_layer("float32")})


def _with_wide_logits(policy: Policy) -> Policy:
    """Return the policy whose head's product is not rounded: vLLM's `head_dtype` on CUDA."""
    head, formats = policy.layers[-1]
    row = LayerPolicy(formats.compute, "float32", formats.grad, accumulator=formats.accumulator)
    return policy.with_layers({head: row})


HEADS: dict[str, Callable[[Policy], Policy]] = {
    "as it is": lambda policy: policy,
    "logits in float32": _with_wide_logits,
    "head in float32": _with_wide_head,
}


def walk() -> Dataset:
    """Return a text of TOKENS tokens, each with one successor that follows it 19 times of 20."""
    rng = np.random.default_rng(0)
    successor, count = rng.permutation(TOKENS), WINDOWS * (TIME + 1)
    text = rng.integers(0, TOKENS, count)
    for place in np.flatnonzero(rng.random(count) < 0.95):
        text[place] = successor[text[place - 1]]
    windows = text.reshape(WINDOWS, TIME + 1)
    counts = WINDOWS - VALIDATION_WINDOWS, VALIDATION_WINDOWS
    inputs, labels = (np.ascontiguousarray(part) for part in (windows[:, :-1], windows[:, 1:]))
    return Dataset("walk", (inputs,), labels, *counts, TOKENS)


@dataclass(frozen=True)
class TiedHead:
    """Logits from the table of the embedding."""

    name: str

    def parameters(self, input_shape: Shape) -> tuple[ParameterSpec, ...]:
        """Return none: the table is the embedding's."""
        return ()

    def trace(self, b: Builder, x: int, fed: Fed) -> int:
        """Emit the product."""
        with b.scope(layer=self.name, role="fprop"):
            return b.emit(matmul, x, fed["embed.weight"], attrs={"transpose_b": True})


class TiedChain(Chain):
    """A chain whose last layer reads the arrays of others."""

    @cached_property
    def _specs(self) -> tuple[ParameterSpec, ...]:
        return traced_through(self.layers[:-1], self.input_shape, self.rows_per_example)[0]


def tied(*widths: int) -> Chain:
    """Return the GPT for the walk whose head has the weights of its embedding."""
    model = gpt((TIME,), TOKENS, widths[0], widths[1:])
    layers = (*model.layers[:-1], TiedHead("head"))
    return TiedChain("tied", layers, (TIME,), TOKENS, True, TIME, loss=model.loss)


def nets() -> Mapping[str, Task]:
    """Return the tasks by name; the number is the width of the residual stream."""
    sums = load_study("studies/gpt-sums.toml").task
    wide, text = (128, 512, 512), replace(sums, data=walk(), steps=600)
    return {
        "sums-32": sums,
        "sums-128": replace(sums, widths=wide),
        "sums-32, 2400 steps": replace(sums, steps=2400),
        "sums-128, 1200 steps": replace(sums, widths=wide, steps=1200),
        "walk-64": replace(text, widths=(64, 256, 256)),
        "walk-128": replace(text, widths=wide),
        "walk-128, 4 blocks": replace(text, widths=(128, *[512] * 4)),
        "walk-128, tied": replace(text, model=tied(*wide), widths=(), activation="relu"),
    }


@dataclass(frozen=True)
class Row:
    """What was found `after` some steps: mean mismatches by sampler and head, in nats.

    `logit` is the mean over labels of the largest magnitude among their logits, `sum` how often
    the root of the sum of the squares of a logit's terms goes into that: by so much terms add up.
    """

    after: str
    loss: float
    logit: float
    sum: float
    apart: Mapping[tuple[str, str], float]

    def taken(self, sampler: str, head: str) -> float:
        """Return the share of the mismatch that a head takes away."""
        return 1.0 - self.apart[sampler, head] / self.apart[sampler, "as it is"]


def _largest(outputs: NDArray[Any], labels: NDArray[Any]) -> float:
    return float(np.abs(outputs).max(axis=-1).mean())


def _terms(weights: Mapping[str, FloatArray]) -> float:
    """Return the root mean square, over classes, of the root of the terms' squares of a logit.

    What the head reads is normalised: numbers of variance 1 times the gain, and the shift.
    """
    table = weights.get("head.weight", weights["embed.weight"])
    read = weights["norm.weight"] ** 2 + weights["norm.bias"] ** 2
    return float(np.sqrt((table**2 @ read).mean()))


def row_of(trained: Trained, name: str) -> Row:
    """Return all mismatches of a net that was trained under autocast in a format."""
    trainer = preset(f"torch.autocast.{name}", trained.model.layer_names)
    logs = cache(trained.log_probabilities)  # policies of a trainer and of some samplers recur
    apart = {
        (said, head): float(np.abs(logs(change(sampler)) - logs(change(trainer))).mean())
        for said, sampler in ((said, make(name, trainer)) for said, make in SAMPLERS.items())
        for head, change in HEADS.items()
    }
    logit = trained.evaluation(trainer, _largest).metric
    assert logit is not None
    loss, terms = -float(logs(trainer).mean()), _terms(trained.weights)
    return Row(f"{trained.step} steps", loss, logit, logit / terms, apart)


def scaled(trained: Trained, name: str, factor: float) -> Row:
    """Return the row of the same net with the weights of its head times a factor."""
    larger = in_storage_order(trained.weights["head.weight"] * np.float32(factor))
    row = row_of(replace(trained, weights={**trained.weights, "head.weight": larger}), name)
    return replace(row, after=f"{row.after}, head times {factor:g}")


def rows(task: Task, name: str, seed: int, factors: Sequence[float]) -> Iterator[Row]:
    """Yield those along a training, then those with the head's weights times each factor."""
    layers = task.build_model(task.load_dataset()).layer_names
    trainer = preset(f"torch.autocast.{name}", layers)
    for trained in trained_along(task, trainer, seed, SHARES):
        yield row_of(trained, name)
    for factor in factors:
        yield scaled(trained, name, factor)


def lines(found: Sequence[Sequence[Row]]) -> Iterator[str]:
    """Yield what is printed of one net under one format: `found` are the rows of each seed."""
    for at in zip(*found, strict=True):
        loss, logit, total = np.mean([(row.loss, row.logit, row.sum) for row in at], axis=0)
        size = f"largest logit {logit:.2f}, {total:.2f} times its terms"
        yield f"  after {at[0].after}: loss {loss:.3f}, {size}"
        for said in SAMPLERS:
            apart = " ".join(f"{row.apart[said, 'as it is']:.2e}" for row in at)
            shares = [
                f"{head} takes " + " ".join(f"{row.taken(said, head):.2f}" for row in at)
                for head in list(HEADS)[1:]
            ]
            yield f"    sampler {said}: {apart}; {'; '.join(shares)}"


def point(at: Sequence[Row]) -> NDArray[np.float64]:
    """Return what a float32 head takes, the largest logit and its sum, means over seeds."""
    taken = [row.taken("float32", "head in float32") for row in at]
    found = [taken, [row.logit for row in at], [row.sum for row in at]]
    return np.asarray(np.mean(found, axis=1), np.float64)


def rule(points: Sequence[NDArray[np.float64]]) -> str:
    """Return how well the largest logit, and its sum, rank what a float32 head takes away."""
    ranks = np.argsort(np.argsort(points, axis=0), axis=0)
    _, with_logit, with_sum = np.asarray(np.corrcoef(ranks, rowvar=False))[0]
    said = f"with the largest logit {with_logit:.2f}, with its terms' sum {with_sum:.2f}"
    return f"rank correlation of what a float32 head takes, sampler float32: {said}"


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sampled", description=__doc__)
    known = nets()
    parser.add_argument("--nets", nargs="+", default=list(known), choices=list(known))
    parser.add_argument("--formats", nargs="+", default=FORMATS, choices=FORMATS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    told = "also with the weights of the head times these, where they are its own"
    parser.add_argument("--factors", nargs="*", type=float, default=[], help=told)
    options = parser.parse_args()
    print("mean |sampled - trained| of log-probabilities in nats, by seed")
    every: dict[str, list[NDArray[np.float64]]] = {name: [] for name in options.formats}
    for net, name in product(options.nets, options.formats):
        print(f"{net}, {name}:")
        found = [list(rows(known[net], name, seed, options.factors)) for seed in options.seeds]
        print("\n".join(lines(found)), flush=True)
        every[name] += [point(at) for at in zip(*found, strict=True)][: len(SHARES)]
    for name, seen in every.items():
        print(f"{name}, {len(seen)} points: {rule(seen)}")


if __name__ == "__main__":
    main()
