"""Compares trainings with torch: `python -m benchmarks.against_torch --cases 12 --seed 0`.

Each case draws a net, an activation, an optimizer, a schedule, a format for every layer and a seed.
The largest gap of the losses up to steps 1, 10 and 50 stands beside torch's own noise: how far its
losses move under another float32 arithmetic of the same right (`TorchNet`) and, with `--threads 2`
on two free cores, under another number of threads. What matters is marked: a gap above 1e-5 and
above three times that noise.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from benchmarks.torch_nets import ACTIVATIONS, TorchNet
from benchmarks.torch_training import train_in_torch
from policysearch.data.datasets import batches, load_dataset
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import Policy, uniform_layer
from policysearch.policy.presets import preset
from policysearch.train.feeding import initial_parameters
from policysearch.train.schedule import Schedule
from policysearch.train.tasks import Task
from policysearch.train.training import train

STEPS = (1, 10, 50)
FORMATS = ("float32", "float16", "bfloat16")
NETS: tuple[dict[str, Any], ...] = (
    {"model": "mlp", "widths": (24, 24, 24), "data": "digits"},
    {"model": "lenet5", "data": "digits32"},
    {"model": "transformer", "widths": (16, 32), "data": "digits"},
)
OPTIMIZERS: tuple[dict[str, Any], ...] = (
    {"optimizer": "sgd", "learning_rate": 0.02},
    {"optimizer": "momentum", "learning_rate": 0.01, "nesterov": True, "weight_decay": 1e-3},
    {"optimizer": "momentum", "learning_rate": 0.01, "dampening": 0.2},
    {"optimizer": "adam", "learning_rate": 1e-3},
    {"optimizer": "adamw", "learning_rate": 1e-3, "weight_decay_for": "matrices"},
)
SCHEDULES = (
    Schedule(),
    Schedule("step", period_steps=15, factor=0.5),
    Schedule("cosine", warmup_steps=5),
)
SCALES = (LossScale(), LossScale("fixed", 1024.0), LossScale("dynamic", 2.0**12, growth_interval=9))
BASES = ("torch.autocast.float16", "float16", "apex.O2")


def drawn_task(rng: np.random.Generator) -> Task:
    """Return a task of STEPS[-1] steps."""
    net, optimizer = NETS[rng.integers(len(NETS))], OPTIMIZERS[rng.integers(len(OPTIMIZERS))]
    decay = {"weight_decay": 0.01} if optimizer["optimizer"] == "adamw" else {}
    return Task(
        activation=str(rng.choice(list(ACTIVATIONS))),
        schedule=SCHEDULES[rng.integers(len(SCHEDULES))],
        steps=STEPS[-1],
        tail_steps=5,
        **{**net, **optimizer, **decay},
    )


def drawn_policy(rng: np.random.Generator, names: Sequence[str]) -> Policy:
    """Return a policy that gives every layer one of FORMATS."""
    rows = rng.choice(FORMATS, len(names))
    layers = {name: uniform_layer(str(row)) for name, row in zip(names, rows, strict=True)}
    base = preset(str(rng.choice(BASES)), names)
    return replace(base.with_layers(layers), loss_scale=SCALES[rng.integers(len(SCALES))])


def compared(
    task: Task, policy: Policy, seed: int, jitters: int, threads: int
) -> tuple[list[float], list[float], bool]:
    """Return our gaps and torch's noise at STEPS, and whether scales and skips are the same."""
    dataset = load_dataset(task.data_name)
    model = task.build_model(dataset)
    initial = initial_parameters(model, seed)
    order = batches(dataset, task.batch_size, task.steps, np.random.default_rng(seed))
    ours = train(task, policy, seed, dataset=dataset, initial=initial, batch_indices=order)
    runs = []
    for jitter in (None, *range(jitters)):
        runs.append(train_in_torch(TorchNet(model, policy, initial, jitter), task, dataset, order))
    if threads > 1:
        torch.set_num_threads(threads)
        runs.append(train_in_torch(TorchNet(model, policy, initial), task, dataset, order))
        torch.set_num_threads(1)
    theirs, count = runs[0], len(ours.losses)
    alike = np.array_equal(ours.scales, theirs.scales[:count])
    alike = alike and np.array_equal(ours.skipped, theirs.skipped[:count])
    gaps = np.abs(ours.losses - theirs.losses[:count])
    noise = np.max([np.abs(run.losses - theirs.losses) for run in runs[1:]], axis=0)
    return (
        [float(gaps[:step].max()) for step in STEPS],
        [float(noise[:step].max()) for step in STEPS],
        bool(alike and count == len(theirs.losses)),
    )


def main() -> None:
    """Print one line per case, and how many are marked."""
    options = argparse.ArgumentParser(prog="benchmarks.against_torch")
    options.add_argument("--cases", type=int, default=12)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--jitters", type=int, default=4, help="draws of torch's noise")
    options.add_argument("--threads", type=int, default=1, help="threads of one more draw")
    given = options.parse_args()
    torch.set_num_threads(1)
    heads = "".join(f"  gap to {step:>2}  noise" for step in STEPS)
    print(f"{'case':<52}{heads}  scales")
    marked = 0
    for case in range(given.cases):
        rng = np.random.default_rng([given.seed, case])
        task = drawn_task(rng)
        policy = drawn_policy(rng, task.build_model(load_dataset(task.data_name)).layer_names)
        gaps, noise, alike = compared(task, policy, case, given.jitters, given.threads)
        pairs = list(zip(gaps, noise, strict=True))
        wrong = not alike or any(gap > max(1e-5, 3 * own) for gap, own in pairs)
        marked += wrong
        parts = (task.model_name, task.activation, task.optimizer, task.schedule.kind, policy.name)
        numbers = "".join(f"  {gap:9.1e}  {own:5.0e}" for gap, own in pairs)
        print(f"{case:>3} {' '.join(parts):<48}{numbers}  {alike!s:<5}{' <--' if wrong else ''}")
    print(f"{marked} of {given.cases} cases marked")


if __name__ == "__main__":
    main()
