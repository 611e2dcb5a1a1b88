"""Much at once: thousands of trials, a net of a thousand layers, ten studies side by side."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from benchmarks.faults.common import ran, trained_here
from policysearch.study.opening import load_results
from policysearch.study.specification import load_spec
from policysearch.study.study import run_study
from tests.studies import WITHOUT_TF32, replaced_training, write_study
from tests.test_kills import ROOT

VIEWS = (
    *("show tiny.toml", "show tiny.toml --csv", "show tiny.toml --trial 2", "noise tiny.toml"),
    *("report tiny.toml", "plot tiny.toml", "export tiny.toml --pick knee", "repair tiny.toml"),
)
LAYERS = 1000
SIDE_BY_SIDE = 10
ENDS_WITHIN_SECONDS = 3600


def loads(folder: Path, count: int, seed: int, said: Callable[[str], None] = print) -> Counter[str]:
    """Look at a study of `count` trials, and at one of LAYERS layers; run SIDE_BY_SIDE at once.

    Every command ends within what `ran` allows; each study ends as it would alone.
    """
    ends = Counter[str]()
    many, deep, beside = (folder / name for name in ("many", "deep", "beside"))
    for place in (many, deep, beside):
        place.mkdir()
    free = ("seeds = [0, 1]", "seeds = [0]"), ("trials = 6", f"trials = {count}")
    write_study(many, *free, WITHOUT_TF32)
    _looked_at(many, f"{count} trials", ends, said)
    net = ("widths = [8]", f"widths = {[8] * (LAYERS - 1)}"), ("trials = 6", "trials = 4")
    write_study(deep, *net)
    _looked_at(deep, f"{LAYERS} layers", ends, said)
    ends += _side_by_side(beside, said)
    return ends


def _looked_at(place: Path, what: str, ends: Counter[str], said: Callable[[str], None]) -> None:
    journal = place / "results" / "tiny.journal"
    journal.parent.mkdir()
    began = time.process_time()
    with replaced_training():
        run_study(load_spec(place / "tiny.toml"), journal, processes=0)
    said(f"{what}: a run without training takes {time.process_time() - began:.0f} s of CPU")
    for command in VIEWS:
        began = time.process_time()
        with trained_here():
            found = ran(command.split(), place)
        said(f"{what}: {command}: {time.process_time() - began:.1f} s of CPU")
        if found.end != "taken":
            said(f"{what}: {command}: {found.end}: {found.raised or found.err[-400:]}")
        ends[f"{what}, {command.split()[0]}: {found.end}"] += 1


def _side_by_side(place: Path, said: Callable[[str], None]) -> Counter[str]:
    """Run studies at once in one folder, all into its `results`; compare each with one alone."""
    names = [f"s{number}" for number in range(SIDE_BY_SIDE)]
    for name in names:
        write_study(place, ('name = "tiny"', f'name = "{name}"'), name=f"{name}.toml")
    alone = place / "alone.journal"
    whole = run_study(load_spec(place / "s0.toml"), alone, processes=0).trials
    processes = {
        name: subprocess.Popen(
            [sys.executable, "-m", "policysearch", "run", f"{name}.toml", "--processes", "1"],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            cwd=place,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for name in names
    }
    ends = Counter[str]()
    for name, process in processes.items():
        _, err = process.communicate(timeout=ENDS_WITHIN_SECONDS)
        trials = load_results(load_spec(place / f"{name}.toml"), place / f"results/{name}.journal")
        same = process.returncode == 0 and trials.trials == whole and b"Traceback" not in err
        if not same:
            said(f"{name}: exit {process.returncode}: {err.decode()[-400:]}")
        ends[f"side by side: {'same' if same else 'another end'}"] += 1
    return ends
