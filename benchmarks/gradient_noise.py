"""Prints, per study, gradients beside their rounding noise, and whether a long run stopped gaining.

    python -m benchmarks.gradient_noise studies/mlp-digits.toml studies/lenet5-digits.toml

Chmiel et al. ("FP4 All the Way", arXiv 2505.19115, 2025): training in a low format becomes less
effective once the norm of the gradient is below the square root of 3 times that of its rounding
noise. The policies keep float32 masters; their products run in float4, float6 and float8, unscaled
or scaled, their gradients rounded to nearest or by chance. All noise: the gradient minus that of
float32 at the same parameters on the same batch. Backward noise: minus that of the same forward
pass with gradients in float32. Ratios are of norms over all parameters ("layer": backward, of the
layer where it is least), root mean squares over four probed steps: the last of the study's own run,
and the last before the middle of a run `--factor` times as long. `gain`: what the logarithm of the
loss fell by from there to the end, as a share of what float32's did; a run that gained less than
half of that has stopped. Seed 0.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from policysearch.data.datasets import Dataset, batches
from policysearch.formats import Rounding
from policysearch.nn.model import Model
from policysearch.objective.score import curve_of
from policysearch.policy.policy import Policy, uniform_layer
from policysearch.policy.presets import preset
from policysearch.policy.scaling import Recipe
from policysearch.study.specification import StudySpec, load_spec
from policysearch.train.feeding import initial_parameters
from policysearch.train.paired_run import Moment, PairedRun, ratio
from policysearch.train.tasks import Task
from policysearch.train.trainer import PROBE_INTERVAL, Trainer
from policysearch.values import InputError

FORMATS = ("float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn", "float8_e4m3fn", "float8_e5m2")
RECIPES: tuple[Recipe, ...] = ("none", "current", "mx")
LIMIT = math.sqrt(3.0)
LATE = 4
STOPPED = 0.5
NOISES = ("all", "backward", "layer")
END = ("loss", "gap/loss", "gain")


def policies(model: Model, formats: Sequence[str]) -> Iterator[Policy]:
    """Yield float8's preset with every format, recipe and way to round gradients."""
    base = preset("float8", model.layer_names)
    chance = replace(base.rounding, dgrad=Rounding("stochastic"), wgrad=Rounding("stochastic"))
    for name in formats:
        narrowest: tuple[Recipe, ...] = ("nvfp4",) if name.startswith("float4") else ()
        layers = tuple((layer, uniform_layer(name)) for layer, _ in base.layers)
        for recipe in (*RECIPES, *narrowest):
            made = replace(base, layers=layers, scaling=replace(base.scaling, recipe=recipe))
            yield replace(made, name=f"{name} {recipe} nearest")
            yield replace(made, name=f"{name} {recipe} by chance", rounding=chance)


@dataclass(frozen=True)
class Seen:
    """A run: its losses, and per probed step the ratios to all noise, to backward, and by layer."""

    losses: NDArray[np.float64]
    ratios: tuple[tuple[float, ...], ...]

    def before(self, step: int) -> tuple[float, ...]:
        """Return the ratios by the last probes before a step; of the layers, the least."""
        probes = math.ceil(step / PROBE_INTERVAL)
        last = np.array(self.ratios[max(0, probes - LATE) : probes])
        every, back, *layers = np.sqrt(np.mean(last**2, axis=0)).tolist()
        return every, back, min(layers)


def train(task: Task, policy: Policy, data: Dataset, model: Model) -> Seen:
    """Train `task` with seed 0, probing as a trainer does."""
    trainer = Trainer(model, task, policy, 0)
    trainer.load(initial_parameters(model, 0))
    layers = tuple(
        (name, replace(row, grad="float32", wgrad="float32")) for name, row in policy.layers
    )
    plain = preset("float32", model.layer_names)
    others = (policy, plain, replace(policy, layers=layers))
    steps = [PairedRun(task, model, other, 0) for other in others]
    losses, ratios = [], []
    drawn = batches(data, task.batch_size, task.steps, np.random.default_rng([0, 1]))
    for index, chosen in enumerate(drawn):
        batch = [x[chosen] for x in data.train[0]], data.train[1][chosen]
        if index % PROBE_INTERVAL == 0 and policy.name != plain.name:
            moment = Moment(index, trainer.params(), *batch)
            low, exact, forward = (step.at(moment)[1] for step in steps)
            row = [ratio(exact, low, exact), ratio(forward, low, forward)]
            for name in model.layer_names:
                parts = [
                    {k: g[k] for k in g if k.startswith(f"grad:{name}.")} for g in (forward, low)
                ]
                row += [ratio(parts[0], parts[1], parts[0])] * bool(parts[0])
            ratios.append(tuple(row))
        losses.append(trainer.step(*batch)[0])
    return Seen(np.array(losses), tuple(ratios))


def report(spec: StudySpec, factor: int, formats: Sequence[str]) -> None:
    """Print a line per policy, then how often each ratio said what became of the run."""
    data = spec.task.load_dataset()
    model = spec.task.build_model(data)
    long = spec.task.with_steps(factor * spec.task.steps)
    base = half_and_end(long, train(long, preset("float32", model.layer_names), data, model))
    print(f"{spec.study.name}: {spec.task.steps} steps, then {long.steps}; float32's loss {base}")
    titles = (*NOISES, *NOISES, *END)
    print(f"  {'':<34}{'short run':>30}{'middle of long':>30}")
    print(f"  {'':<34}" + "".join(f"{title:>10}" for title in titles))
    said: list[tuple[tuple[float, ...], bool]] = []
    for policy in policies(model, formats):
        short, run = train(spec.task, policy, data, model), train(long, policy, data, model)
        half, end = half_and_end(long, run)
        gain = math.log(half / end) / math.log(base[0] / base[1])
        stopped = not gain >= STOPPED
        ratios = *short.before(spec.task.steps), *run.before(long.steps // 2)
        said.append((ratios, stopped))
        print(
            f"  {policy.name:<34}{''.join(f'{ratio:10.2f}' for ratio in ratios)}"
            f"{end:10.3g}{end / base[1] - 1.0:10.1%}{gain:10.2f}{'  STOPPED' * stopped}",
            flush=True,
        )
    for column, name in enumerate(NOISES * 2):
        marked = [stopped for ratios, stopped in said if ratios[column] < LIMIT]
        print(
            f"  {'short run' if column < len(NOISES) else 'middle'}, {name}: below sqrt(3) in "
            f"{len(marked)} runs, {sum(marked)} of them stopped; of the other "
            f"{len(said) - len(marked)}, {sum(s for _, s in said) - sum(marked)} did"
        )


def half_and_end(task: Task, seen: Seen) -> tuple[float, float]:
    """Return the loss at the middle and the end of the run, in nats."""
    points = dict(curve_of(seen.losses, task.steps, task.tail_steps))
    return points.get(math.ceil(task.steps / 2), math.nan), points.get(task.steps, math.nan)


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("studies", nargs="+", type=Path, metavar="STUDY.toml")
    parser.add_argument("--factor", type=int, default=10)
    parser.add_argument("--formats", nargs="+", default=FORMATS, metavar="FORMAT")
    options = parser.parse_args()
    try:
        with threadpool_limits(1):
            for path in options.studies:
                report(load_spec(path), options.factor, options.formats)
    except InputError as error:
        print(f"gradient_noise: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
