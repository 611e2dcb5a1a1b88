"""Prints how far log-probabilities of a small GPT are apart as it is trained and as it samples.

    python -m benchmarks.sampled studies/gpt-sums.toml --seeds 0 1 2

The trainer has autocast, the sampler everything in the same 16 bits, norms and softmax too, or only
the sums of a tensor core in the place of float32 ones, or is float32. Each is looked at with the
head in float32 on both sides as well.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from policysearch import load_study
from policysearch.objective.sampled import mismatches
from policysearch.policy.policy import Policy, uniform_layer, with_accumulator
from policysearch.policy.presets import preset

FORMATS = ("bfloat16", "float16")


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


def pairs(layers: tuple[str, ...]) -> Iterator[tuple[str, Policy, Policy]]:
    """Yield (what it is called, the trainer, the sampler)."""
    for said, sampler in SAMPLERS.items():
        for name in FORMATS:
            trainer = preset(f"torch.autocast.{name}", layers)
            pair = trainer, sampler(name, trainer)
            yield f"{name}, sampler: {said}", *pair
            wide = _with_wide_head(pair[0]), _with_wide_head(pair[1])
            yield f"{name}, sampler: {said}, head in float32", *wide


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sampled", description=__doc__)
    parser.add_argument("study", nargs="?", default="studies/gpt-sums.toml")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    options = parser.parse_args()
    task = load_study(options.study).task
    layers = task.build_model(task.load_dataset()).layer_names
    print(f"{options.study}: mean |sampled - trained| of log-probabilities, nats")
    for said, trainer, sampler in pairs(layers):
        runs = [list(mismatches(task, trainer, sampler, seed)) for seed in options.seeds]
        ends = " ".join(f"{run[-1].mean:.3g}" for run in runs)
        means = [np.mean([row.mean for row in at]) for at in zip(*runs, strict=True)]
        along = " ".join(
            f"{row.step}: {mean:.3g}" for row, mean in zip(runs[0], means, strict=True)
        )
        print(f"{said}: at the end {ends}; means at step {along}", flush=True)


if __name__ == "__main__":
    main()
