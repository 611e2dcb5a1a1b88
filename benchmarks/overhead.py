"""What a study costs beside training: CPU time per trial as the study grows, and of `show`.

    python -m benchmarks.overhead --trials 2000 --sampler random tpe nsga2

Training is replaced by a constant, so all that is left is the coordinator: asking, pricing,
recording. A flat row means that a long study is no slower per trial than a short one. Exits with
1 where the last block costs more than 1.5 times the second, or more than 50 CPU ms per trial.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from policysearch.objective.objective import Objective
from policysearch.objective.score import Measurement
from policysearch.search.results import Results
from policysearch.search.spec import load_spec
from policysearch.search.study import run_study

BLOCK = 100
MOST_GROWTH = 1.5
MOST_CPU_MS = 50.0
CONSTANT = Measurement(0.5, 0.9, None, 0, (), ())
STUDY = """
[study]
name = "overhead"
trials = {trials}
sampler = "{sampler}"
seeds = [0]

[task]
model = "mlp"
activation = "tanh"
widths = [256, 256, 256]
data = "digits"
batch_size = 64
steps = 150
tail_steps = 50

[cost]
device = "H100-SXM5"
stack = "torch.compile"
batch_size = 65536
batch_size_reason = "that of mlp-digits"

[space]
formats = ["float32", "bfloat16", "float16", "float8_e4m3fn"]
base = "torch.autocast.bfloat16"
master_weights = [true, false]
loss_scales = ["none", "fixed", "dynamic"]
"""


def cpu_ms_per_trial(study: Path, storage: Path) -> list[float]:
    """Return the CPU milliseconds per trial of every block of BLOCK trials."""
    marks: list[tuple[float, float]] = []

    def progress(trained: float, _: Callable[[], Results]) -> None:
        marks.append((trained, time.process_time()))

    with mock.patch.object(Objective, "measure", lambda *_: CONSTANT):
        run_study(load_spec(study), storage, processes=0, progress=progress)
    ends = [
        at
        for block in range(int(marks[-1][0]) // BLOCK + 1)
        for at in [next(at for trained, at in marks if trained >= block * BLOCK)]
    ]
    return [(b - a) * 1e3 / BLOCK for a, b in itertools.pairwise(ends)]


def report(sampler: str, trials: int) -> bool:
    """Print one sampler's row; return whether it is flat and cheap enough."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        study, storage = folder / "overhead.toml", folder / "overhead.journal"
        study.write_text(STUDY.format(trials=trials, sampler=sampler), encoding="utf-8")
        blocks = cpu_ms_per_trial(study, storage)
        start = time.perf_counter()
        show = [sys.executable, "-m", "policysearch", "show", str(study)]
        subprocess.run([*show, "--storage", str(storage)], check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - start
    growth = blocks[-1] / blocks[1]
    print(f"{sampler}: CPU ms per trial {' '.join(f'{ms:.1f}' for ms in blocks)}")
    print(f"  last block / second {growth:.2f}, most {max(blocks):.1f} ms, show {seconds:.2f} s")
    return growth <= MOST_GROWTH and max(blocks) <= MOST_CPU_MS


def main() -> int:
    """Print every sampler's row; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--sampler", nargs="+", default=["random", "tpe", "nsga2"])
    options = parser.parse_args()
    return 0 if all([report(name, options.trials) for name in options.sampler]) else 1


if __name__ == "__main__":
    sys.exit(main())
