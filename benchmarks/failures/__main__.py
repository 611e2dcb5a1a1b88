"""Diagnoses every known failure, failures planted by a seed, healthy policies and chaotic recipes.

    python -m benchmarks.failures [--seed N] [--planted N] [CASE ...]

Needs torch. Prints a line per case and the shares that are right.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np

from benchmarks.failures.zoo import DEVICE, STACK, failure, names
from policysearch.diagnose.diagnosis import Diagnoser, Diagnosis
from policysearch.objective.objective import Objective
from policysearch.policy.policy import LayerPolicy, Policy
from policysearch.policy.presets import PRESETS, preset
from policysearch.train.tasks import Task

SEEDS = (0, 1, 2)

HEALTHY = Task(
    model="mlp",
    widths=(32, 32),
    data="digits",
    activation="tanh",
    optimizer="adam",
    learning_rate=3e-3,
    batch_size=32,
    steps=60,
    tail_steps=10,
)
CHAOTIC = replace(HEALTHY, optimizer="momentum", activation="relu", widths=(64, 64, 64))
UNSOUND = ("apex.O3", "mindspore.O2", "megatron.fp16")
"""Presets that fail here: Adam's state in float16, and scales that skip the first of 60 steps.

From 2^32 megatron.fp16 skips 15 of them, and ends 0.31 nats off where 0.085 matters.
"""

RATES = (0.5, 0.7, 1.0, 1.5, 2.0)
"""Learning rates with momentum at which chance decides where a run ends."""

Plant = tuple[str, str, Callable[[LayerPolicy], LayerPolicy], tuple[str, ...], dict[str, object]]

PLANTS: tuple[Plant, ...] = (
    (
        "results saturate",
        "overflow",
        lambda old: replace(old, output="float4_e2m1fn"),
        ("fprop", "dgrad"),
        {},
    ),
    ("results overflow", "overflow", lambda old: replace(old, output="e2m3"), ("fprop",), {}),
    (
        "gradients vanish",
        "underflow",
        lambda old: replace(old, wgrad="e2m3", grad="e2m3"),
        ("dgrad", "wgrad"),
        {},
    ),
    (
        "weight gradients vanish",
        "underflow",
        lambda old: replace(old, wgrad="e2m3"),
        ("wgrad",),
        {},
    ),
    ("operands are coarse", "rounding", lambda old: replace(old, compute="e8m1"), ("fprop",), {}),
    (
        "updates are lost",
        "swamped updates",
        lambda old: replace(old, param="e8m3"),
        ("update",),
        {"master_weights": False},
    ),
)
"""Ways to break one layer: name, kind of cause, the layer's formats, roles, and what else."""


def planted(seed: int, count: int) -> Iterator[tuple[str, str, str, tuple[str, ...], Policy]]:
    """Yield (name, kind, layer, roles, policy) of float32 nets with one layer broken."""
    rng = np.random.default_rng(seed)
    layers = [name for name in preset_layers() if name.startswith("fc")]
    plain = preset("float32", preset_layers())
    for _ in range(count):
        name, kind, broken, roles, fields = PLANTS[rng.integers(len(PLANTS))]
        layer = layers[rng.integers(len(layers))]
        policy = plain.with_layers({layer: broken(plain.layer(layer))})
        # with every op in the low list a layer has its own formats; float32 ones lose nothing
        low = (*policy.low_precision_ops, *(o for o in ("matmul", "bias") if o in policy.fp32_ops))
        wide = tuple(op for op in policy.fp32_ops if op not in low)
        policy = replace(policy, low_precision_ops=low, fp32_ops=wide, **fields)  # type: ignore[arg-type]
        yield f"{name} in {layer}", kind, layer, roles, policy


def preset_layers() -> tuple[str, ...]:
    """Return the layers of the healthy net."""
    return HEALTHY.build_model(HEALTHY.load_dataset()).layer_names


def line(name: str, found: Diagnosis, right: tuple[bool, bool] | None = None) -> str:
    """Return a diagnosis as a line."""
    cause, repair = found.cause, found.repair.what if found.repair else "-"
    marks = "" if right is None else " kind " + "-+"[right[0]] + " place " + "-+"[right[1]]
    return (
        f"{name:34} {found.verdict:12}{marks} | {cause.kind}, {cause.op} of {cause.layer or '-'} "
        f"({cause.role}, step {cause.step}) | {repair} | trained {found.trained}"
    )


def zoo(chosen: Iterable[str]) -> None:
    """Diagnose the known failures and print what is right of them."""
    kinds = places = first = repaired = total = 0
    for name in chosen:
        case = failure(name)
        found = Diagnoser(case.objective, SEEDS).diagnose(case.policy)
        right = case.is_right(found.cause.kind, found.cause.op, found.cause.layer)
        print(line(name, found, right), flush=True)
        total += 1
        kinds, places = kinds + right[0], places + right[1]
        repaired += found.verdict == "repaired"
        first += found.verdict == "repaired" and found.trained == 1
    print(
        f"zoo: kind {kinds}, place {places}, repaired on {len(SEEDS)} seeds {repaired}, "
        f"by the first trained {first}, of {total}"
    )


def plants(seed: int, count: int) -> None:
    """Diagnose planted failures; those that do not fail are said and not counted."""
    diagnoser = Diagnoser(Objective(HEALTHY, DEVICE, STACK), (0,))
    kinds = places = failed = 0
    for name, kind, layer, roles, policy in planted(seed, count):
        found = diagnoser.diagnose(policy)
        right = found.cause.kind == kind, found.cause.layer == layer and found.cause.role in roles
        print(line(name, found, right), flush=True)
        if found.verdict != "none":
            failed, kinds, places = failed + 1, kinds + right[0], places + right[1]
    print(f"planted (seed {seed}): kind {kinds}, layer and direction {places}, of {failed} failing")


def sound(count: int = 20) -> None:
    """Count how many healthy policies are left alone, and chaotic recipes left undecided."""
    diagnoser = Diagnoser(Objective(HEALTHY, DEVICE, STACK), (0,))
    chosen = [name for name in PRESETS if name not in UNSOUND][:count]
    verdicts = [diagnoser.diagnose(preset(name, preset_layers())).verdict for name in chosen]
    wrong = [f"{n}: {v}" for n, v in zip(chosen, verdicts, strict=True) if v != "none"]
    print(f"healthy: none on {verdicts.count('none')} of {len(chosen)}", *wrong, sep="; ")
    undecided = []
    for rate in RATES:
        objective = Objective(replace(CHAOTIC, learning_rate=rate), DEVICE, STACK)
        policy = preset("bfloat16", objective.model.layer_names)
        undecided.append(Diagnoser(objective, (0,)).diagnose(policy).verdict)
    print(f"chaotic: undecided on {undecided.count('undecided')} of {len(RATES)}", undecided)


def main() -> None:
    """Run what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--planted", type=int, default=20)
    options = parser.parse_args()
    zoo(options.cases or names())
    if not options.cases:
        plants(options.seed, options.planted)
        sound()


if __name__ == "__main__":
    main()
