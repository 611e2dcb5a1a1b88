"""Six questions that people answer by ablations on large nets, asked of two small GPTs.

    python -m benchmarks.ablations --steps 200 --seeds 0 1 2

Each answer is what hurts most, or helps most, by its gap to float32 at the end: that of the
tail-averaged training loss, with the same seed and batches, in nats. It is an answer where it is
ahead of the second in the mean by more than the standard error of the difference over seeds, else
"cannot tell". A policy is NVFP4 as Transformer Engine ships it, with what the question says in
bfloat16; gradients are asked about under current scaling in float8. The net of experts is a
module of torch, imported: four experts for each token, of which two count.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from benchmarks.directions import gap_of
from benchmarks.directions import nets as recipes
from policysearch.objective.objective import Objective
from policysearch.policy.policy import LayerPolicy, Phase, Policy, uniform_layer
from policysearch.policy.presets import preset
from policysearch.policy.product_words import with_words
from policysearch.report.text import aligned
from policysearch.train.tasks import Task

BLOCKS = 4
WIDE = uniform_layer("bfloat16")
Policies = Mapping[str, Policy]


@dataclass(frozen=True)
class Question:
    """Policies of which one is the answer: that with the least gap, or with the largest."""

    asked: str
    policies: Policies
    best: bool


def widened(low: Policy, *parts: str) -> Policy:
    """Return the policy with the layers whose names hold one of `parts` in bfloat16."""
    return _changed(low, lambda name, row: WIDE if _holds(name, parts) else row)


def narrowed(low: Policy, *parts: str) -> Policy:
    """Return the policy with all other layers in bfloat16."""
    return _changed(low, lambda name, row: row if _holds(name, parts) else WIDE)


def _changed(low: Policy, row_of: Callable[[str, LayerPolicy], LayerPolicy]) -> Policy:
    return low.with_layers({name: row_of(name, row) for name, row in low.layers})


def _holds(name: str, parts: Sequence[str]) -> bool:
    return any(part in name for part in parts)


def _late(low: Policy, words: str, steps: int) -> Policy:
    layers = tuple((name, with_words(row, words)) for name, row in low.layers)
    return replace(low, phases=(Phase(round(0.9 * steps), layers),))


def _with_gradients(low: Policy, name: str) -> Policy:
    return low.with_layers({layer: replace(row, grad=name) for layer, row in low.layers})


def dense_questions(layers: tuple[str, ...], steps: int) -> Iterator[Question]:
    """Yield the five questions about a GPT with these layers."""
    low, current = preset("te.nvfp4", layers), preset("te.current", layers)
    yield Question(
        "which end of the stack is worth bfloat16 more under 4 bits",
        {
            "first two blocks": widened(low, "block1.", "block2."),
            "last two blocks": widened(low, f"block{BLOCKS - 1}.", f"block{BLOCKS}."),
        },
        best=True,
    )
    bare = narrowed(current, "nothing")
    table = replace(WIDE, param="float8_e4m3fn")
    yield Question(
        "output head or embedding in bfloat16 first, the other in e4m3",
        {
            "head": narrowed(current, "head"),
            "embedding": bare.with_layers(dict.fromkeys(("embed", "position"), table)),
        },
        best=False,
    )
    yield Question(
        "which gradient format beside e4m3 forward",
        {name: _with_gradients(current, f"float8_{name}") for name in ("e4m3fn", "e5m2")},
        best=True,
    )
    yield Question(
        "which projection of attention is the most sensitive",
        {name: narrowed(low, f"attention.{name}") for name in "qkvo"},
        best=False,
    )
    yield Question(
        "forward or backward products wide in the last tenth",
        {
            "forward": _late(low, "fprop=bfloat16", steps),
            "backward": _late(low, "dgrad=bfloat16 wgrad=bfloat16", steps),
        },
        best=True,
    )


def expert_questions(layers: tuple[str, ...]) -> Iterator[Question]:
    """Yield the question about a GPT with experts."""
    low = preset("te.nvfp4", layers)
    yield Question(
        "experts or attention in bfloat16 first",
        {"experts": widened(low, "experts"), "attention": widened(low, "attention")},
        best=True,
    )


def with_experts(task: Task) -> Task:
    """Return the recipe with the net of experts in the place of its GPT."""
    import torch

    from benchmarks.torch_experts import Net
    from policysearch import api

    dense = Objective(task, "B200-SXM", "torch.compile")
    time, classes = dense.dataset.inputs[0].shape[1], dense.dataset.classes
    tokens = torch.zeros((2, time), dtype=torch.int64)
    model = api.from_torch(partial(Net, time, classes), tokens, loss="token_cross_entropy")
    return replace(task, model=model, widths=(), activation="relu")


def answered(question: Question, objective: Objective, seeds: Sequence[int]) -> tuple[str, str]:
    """Return the answer, and the mean gap of each policy with its standard error."""
    names = [*question.policies]
    gaps = np.array(
        [[gap_of(objective, question.policies[n], seed) for n in names] for seed in seeds]
    )
    order = np.argsort(gaps.mean(0) if question.best else -gaps.mean(0))
    ahead = gaps[:, order[1]] - gaps[:, order[0]]
    error = ahead.std(ddof=1) / len(seeds) ** 0.5
    mean, spread = gaps.mean(0), gaps.std(0, ddof=1) / len(seeds) ** 0.5
    numbers = ", ".join(f"{n} {mean[i]:+.1e} +- {spread[i]:.0e}" for i, n in enumerate(names))
    return (names[order[0]] if abs(ahead.mean()) > error else "cannot tell"), numbers


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    recipe = recipes(options.steps)["gpt"]
    dense = replace(recipe, widths=(32, *(64,) * BLOCKS))
    rows = [("question", "answer", "mean gaps")]
    for task, questions in (
        (dense, lambda names: dense_questions(names, options.steps)),
        (with_experts(recipe), expert_questions),
    ):
        objective = Objective(task, "B200-SXM", "torch.compile")
        learned = [objective.baseline(seed).tail_loss for seed in options.seeds]
        print(f"float32 ends at {learned}", flush=True)
        for question in questions(tuple(objective.model.layer_names)):
            rows.append((question.asked, *answered(question, objective, options.seeds)))
            print(*rows[-1], sep=": ", flush=True)
    print(f"{options.steps} steps, seeds {options.seeds}; gaps in nats, of the emulator")
    print("\n".join(aligned(rows)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
