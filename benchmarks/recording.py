"""What recording takes of a training: values lost, updates that vanish, where failures begin.

    python -m benchmarks.recording [--batches 16 64] [--rounds 9]

Trains each net twice, step beside step: with records, which look at one of 20 steps whole, and
without them, which takes the steps alone. The figures are CPU milliseconds of a step, the mean over
20 of the lower quartile of each in `--rounds` rounds: what else runs on a machine is in neither.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

import numpy as np
from threadpoolctl import threadpool_limits

from policysearch.policy.loss_scale import LossScale
from policysearch.policy.presets import preset
from policysearch.train.feeding import batch_order, initial_parameters
from policysearch.train.tasks import Task
from policysearch.train.trainer import PROBE_INTERVAL, Trainer

NETS = {
    "mlp 256-256": Task(model="mlp", widths=(256, 256), data="digits32", optimizer="adam"),
    "lenet5": Task(model="lenet5", data="digits32"),
    "transformer": Task(model="transformer", data="digits", optimizer="adam"),
    "resnet": Task(model="resnet", widths=(8, 16), data="digits", activation="gelu"),
    "gpt": Task(
        model="gpt",
        widths=(32, 128, 128),
        activation="gelu",
        data="sums",
        loss="token_cross_entropy",
        optimizer="adamw",
    ),
}
POLICIES = ("float32", "bfloat16", "float16", "float8", "skips")
"""Presets, and float16 with a loss scale that never arrives: every step is skipped."""


def seconds(task: Task, policy: str, rounds: int) -> tuple[float, float]:
    """Return the CPU seconds of a step without records and with them."""
    data = task.load_dataset()
    model = task.build_model(data)
    named = preset("float16" if policy == "skips" else policy, model.layer_names)
    if policy == "skips":
        named = replace(named, loss_scale=LossScale("dynamic", 2.0**120))
    trainers = [Trainer(model, task, named, 0, records=records) for records in (False, True)]
    for trainer in trainers:
        trainer.load(initial_parameters(model, 0))
    batches = [([x[i] for x in data.train[0]], data.train[1][i]) for i in _batches(task)]
    times = np.zeros((rounds + 1, len(batches), len(trainers)))
    for turn in range(rounds + 1):
        for step, batch in enumerate(batches):
            for which in (0, 1) if (turn + step) % 2 else (1, 0):
                started = time.process_time()
                trainers[which].step(*batch)
                times[turn, step, which] = time.process_time() - started
    without, recorded = np.quantile(times[1:], 0.25, axis=0).mean(axis=0)
    return float(without), float(recorded)


def _batches(task: Task) -> list[np.ndarray]:
    order = batch_order(task, task.load_dataset(), 0)
    return [examples for examples, _ in zip(order, range(PROBE_INTERVAL), strict=False)]


def main() -> None:
    """Print a table of all nets, batches and formats."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    print(f"{'net':14}{'batch':>6}  {'policy':10}{'off_ms':>8}{'on_ms':>8}{'more':>7}")
    for name, task in NETS.items():
        for batch in options.batches:
            for policy in POLICIES:
                fields = {**vars(task), "batch_size": batch, "steps": 1000}
                with threadpool_limits(1):
                    off, on = seconds(Task(**fields), policy, options.rounds)
                more = f"{on / off - 1.0:7.1%}"
                print(f"{name:14}{batch:6}  {policy:10}{1e3 * off:8.2f}{1e3 * on:8.2f}{more}")


if __name__ == "__main__":
    main()
