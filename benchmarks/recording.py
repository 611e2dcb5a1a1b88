"""What recording takes of a training: values lost, updates that vanish, where failures begin.

    python -m benchmarks.recording [--batches 16 64] [--rounds 9]

Trains each net twice in turns of 20 steps, of which one is observed whole: with records and without
them, which takes the steps alone. The figures are CPU milliseconds of a step, lower quartiles.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from threadpoolctl import threadpool_limits

from policysearch.policy.presets import preset
from policysearch.train.feeding import batch_order, initial_parameters
from policysearch.train.tasks import Task
from policysearch.train.trainer import PROBE_INTERVAL, Trainer

NETS = {
    "mlp 256-256": Task(model="mlp", widths=(256, 256), data="digits32", optimizer="adam"),
    "lenet5": Task(model="lenet5", data="digits32"),
    "transformer": Task(model="transformer", data="digits", optimizer="adam"),
}
FORMATS = ("float32", "bfloat16", "float16")


def seconds(task: Task, policy: str, rounds: int) -> tuple[float, float]:
    """Return the CPU seconds of a step without records and with them."""
    data = task.load_dataset()
    model = task.build_model(data)
    names = preset(policy, model.layer_names)
    trainers = [Trainer(model, task, names, 0, records=records) for records in (False, True)]
    for trainer in trainers:
        trainer.load(initial_parameters(model, 0))
    batches = [([x[i] for x in data.train[0]], data.train[1][i]) for i in _batches(task)]
    turns = []
    for number in range(rounds + 1):
        turn = []
        for trainer in trainers if number % 2 else trainers[::-1]:
            started = time.process_time()
            for batch in batches:
                trainer.step(*batch)
            turn.append((time.process_time() - started) / PROBE_INTERVAL)
        turns.append(turn if number % 2 else turn[::-1])
    without, recorded = np.quantile(turns[1:], 0.25, axis=0)
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
    print(f"{'net':14}{'batch':>6}  {'format':10}{'off_ms':>8}{'on_ms':>8}{'more':>7}")
    for name, task in NETS.items():
        for batch in options.batches:
            for policy in FORMATS:
                fields = {**vars(task), "batch_size": batch, "steps": 1000}
                with threadpool_limits(1):
                    off, on = seconds(Task(**fields), policy, options.rounds)
                more = f"{on / off - 1.0:7.1%}"
                print(f"{name:14}{batch:6}  {policy:10}{1e3 * off:8.2f}{1e3 * on:8.2f}{more}")


if __name__ == "__main__":
    main()
