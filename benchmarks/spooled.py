"""Spools a loader of 2 GB and trains from the file, and prints the peak of resident memory.

    python -m benchmarks.spooled

One process draws the batches and writes them, another maps the file and trains a pass over it.
torch and the package alone take the memory of "imports".
"""

from __future__ import annotations

import multiprocessing
import resource
import tempfile
from pathlib import Path
from typing import Any

BATCH, WIDTH = 256, 4096


def batch() -> Any:
    """Return a batch of 4 MiB."""
    import torch

    x = torch.randn(BATCH, WIDTH)
    return x, x[:, :4].argmax(1)


def part(name: str, steps: int, file: Path, peaks: Any) -> None:
    import torch

    import policysearch
    from policysearch.policy.presets import preset
    from policysearch.train.training import train

    if name != "imports":
        net = torch.nn.Sequential(torch.nn.Linear(WIDTH, 16), torch.nn.Linear(16, 4))
        loss = torch.nn.CrossEntropyLoss()
        script = policysearch.from_loader(net, batch, loss=loss, steps=steps, spool=file)
        if name == "train":  # the spool is there: nothing is drawn but the first step
            policy = preset("float32", script.model.layer_names)
            train(script.task, policy, 0, dataset=script.data, model=script.model)
    peaks.put(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)


def main() -> None:
    steps = round(2e9 / (BATCH * WIDTH * 4))
    fresh = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        for name in ("imports", "spool", "train"):
            file, peaks = Path(folder) / "x.spool", fresh.SimpleQueue()
            process = fresh.Process(target=part, args=(name, steps, file, peaks))
            process.start()
            process.join()
            assert process.exitcode == 0
            size = file.stat().st_size / 1e9 if file.exists() else 0.0
            print(f"{name:8} {peaks.get():.2f} GiB at most, beside a file of {size:.2f} GB")


if __name__ == "__main__":
    main()
