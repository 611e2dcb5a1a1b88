"""What a study costs beside training: CPU time per trial as the study grows, and of `show`.

    python -m benchmarks.overhead --trials 2000 --sampler random tpe nsga2
    python -m benchmarks.overhead --layers 100 --trials 24 --sampler

Training is replaced by a constant, so all that is left is the coordinator: asking, pricing,
recording. A flat row means that a long study is no slower per trial than a short one. Exits with
1 where the last block costs more than 1.5 times the second, or more than 50 CPU ms per trial.

With --layers, what it takes to ask for a policy of a dense net of so many layers where everything
is searched: formats of roles, storage, masters, optimizer state, an op list, scaling recipe, phases
and loss scale. Gaps are drawn at random. Exits with 1 where an ask takes a second of CPU or more;
the first, which also makes what is made once, is printed apart.
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

import numpy as np
import optuna

from benchmarks.timing import pin_one_thread
from policysearch.objective.objective import Objective
from policysearch.objective.score import Measurement
from policysearch.policy.policy import from_json
from policysearch.study.optuna_view import TrialView
from policysearch.study.proposer import Proposer
from policysearch.study.results.results import Results
from policysearch.study.specification import load_spec, objective_of, space_of, spec_from_text
from policysearch.study.study import run_study

BLOCK = 100
MOST_GROWTH = 1.5
MOST_CPU_MS = 50.0
CONSTANT = Measurement(0.5, 0.9, None, 0, (), ())
STUDY = """
[study]
name = "overhead"
trials = {trials}
least_gain = 0
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

LARGE = """
[study]
name = "large"

[task]
model = "mlp"
activation = "tanh"
widths = {widths}
data = "digits"
batch_size = 4096

[cost]
device = "H100-SXM5"
stack = "torch.compile"

[space]
formats = ["float32", "bfloat16", "float16", "float8_e4m3fn"]
grad_formats = ["same", "bfloat16", "float8_e4m3fn"]
wgrad_formats = ["same", "float32"]
output_formats = ["same", "bfloat16"]
param_formats = ["same", "bfloat16"]
master_weights = [true, false]
optimizer_states = ["float32", "bfloat16"]
ops = ["tanh"]
op_places = ["low", "fp32", "promote"]
loss_scales = ["none", "fixed", "dynamic"]
log2_scale = [7, 12]
growth_intervals = [10, 100]
scalings = ["current", "delayed"]
phase_points = [0.5]
phase_formats = ["same", "bfloat16", "float32"]
"""
MOST_ASK_SECONDS = 1.0


def ask_seconds(layers: int, asks: int) -> tuple[list[float], int]:
    """Return the CPU seconds of each ask of the searcher, and how much there is to decide."""
    spec = spec_from_text(LARGE.format(widths=[512] * (layers - 1)), "large")
    objective = objective_of(spec)
    space = space_of(spec, objective.model)
    plan = spec.study.plan(spec.objectives.names, spec.task.steps, spec.wanted)
    proposer, rng = Proposer(plan, objective, space), np.random.default_rng(0)
    shown: list[TrialView] = []
    known: set[str] = set()
    taken: list[float] = []
    while len(taken) < asks:
        start = time.process_time()
        found = proposer.propose(len(known), shown, [], known)
        seconds = time.process_time() - start
        assert found is not None
        asked, _ = found
        taken += [] if asked.digest in proposer.first else [seconds]
        known.add(asked.digest)
        cost = objective.price(from_json(asked.text))
        gap = 1e-3 * float(rng.exponential())
        shown.append(TrialView(asked.params, gap, cost.speedup, cost.memory_ratio))
    return taken, len(space.choices())


def report_large(layers: int, asks: int) -> bool:
    """Print what asks of a large space take; return whether each is quick enough."""
    (first, *taken), decisions = ask_seconds(layers, asks)
    print(f"{layers} layers, {decisions} decisions: CPU seconds per ask, over {len(taken)} asks")
    print(
        f"  median {np.median(taken):.2f}, most {max(taken):.2f}; the first {first:.2f}, with what"
    )
    print("  is made once: prices of the ladder and of policies drawn at random")
    return max(taken) < MOST_ASK_SECONDS


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
    parser.add_argument("--layers", type=int, help="of a net of which everything is searched")
    parser.add_argument("--sampler", nargs="*", default=["random", "tpe", "nsga2"])
    options = parser.parse_args()
    pin_one_thread()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    good = [report(name, options.trials) for name in options.sampler]
    good += [report_large(options.layers, options.trials)] if options.layers else []
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
