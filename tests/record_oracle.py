"""Records the trainings of `tests.recorded_runs` from torch: `python -m tests.record_oracle`.

`mixes.npz` holds, per case, `<case>/loss`, `<case>/scale` and `<case>/skipped` per step, and
`<case>/noise`: how far torch's own losses move under another float32 arithmetic of the same right
(`benchmarks.torch_nets`). Per model: `init/<model>/<parameter>`; for all: `batches` [steps, batch].
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from benchmarks.torch_nets import TorchNet
from benchmarks.torch_training import train_in_torch
from policysearch.data.datasets import batches, load_dataset
from policysearch.train.feeding import initial_parameters
from tests.recorded_runs import BATCH, CASES, FILE, STEPS

JITTERS = 32


def main() -> None:
    """Write the file and print one line per case."""
    torch.set_num_threads(1)
    order = batches(load_dataset("digits"), BATCH, STEPS, np.random.default_rng(0))
    arrays: dict[str, Any] = {"batches": order.astype(np.uint16)}
    for name, case in CASES.items():
        dataset = case.dataset(order)
        model, policy = case.task.build_model(dataset), case.policy(dataset)
        # of 16 bits, so that the file stays small
        initial = {
            key: value.astype(np.float16).astype(np.float32)
            for key, value in initial_parameters(model, 0).items()
        }
        arrays |= {f"init/{case.model}/{k}": v.astype(np.float16) for k, v in initial.items()}
        runs = [
            train_in_torch(TorchNet(model, policy, initial, jitter), case.task, dataset, order)
            for jitter in (None, *range(JITTERS))
        ]
        moved = [np.abs(run.losses - runs[0].losses) for run in runs[1:]]
        arrays[f"{name}/loss"], arrays[f"{name}/scale"] = runs[0].losses, runs[0].scales
        arrays[f"{name}/skipped"] = runs[0].skipped
        arrays[f"{name}/noise"] = np.maximum.accumulate(np.nan_to_num(np.max(moved, 0)))
        print(f"{name}: {runs[0].losses[0]:.4f} to {runs[0].losses[-1]:.4f}")
    with FILE.open("wb") as file:
        np.savez_compressed(file, **arrays)
    print(f"{FILE}: {FILE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
