"""Looks at policies in a narrower net: what is trained, and what a study file may not ask for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.narrow import Sample, row
from policysearch.objective.score import Measurement
from policysearch.policy.policy import from_json
from policysearch.policy.presets import preset
from policysearch.report.table import front_table
from policysearch.search.acquisition import Yardstick
from policysearch.study.journal.records import RunKey
from policysearch.study.specification import load_spec, objective_of
from policysearch.study.study import run_study
from policysearch.study.workers.executors import Job
from policysearch.values import InputError
from tests.looks import CHANGES, Told, is_look, records_at
from tests.studies import write_study

NARROW = ("short_runs = true", "narrow = 0.5")


class Stuck(Told):
    """The narrower net learns nothing."""

    def measured(self, job: Job) -> Measurement:
        run = super().measured(job)
        curve = tuple((n, 2.2) for n, _ in run.curve)
        return run if job.width == 1.0 else replace(run, tail_loss=2.2, curve=curve)


def test_a_narrower_net_that_does_not_learn_is_not_looked_at(tmp_path: Path) -> None:
    spec = load_spec(write_study(tmp_path, *CHANGES, NARROW, ("trials = 18", "trials = 1")))
    told = Stuck()
    results = run_study(spec, tmp_path / "j", executor=told)
    assert not told.looks and sum(map(is_look, told.jobs)) == 1
    assert "narrow runs: none, for float32 has learned too little" in front_table(results)


def test_narrow_runs_train_the_narrower_net_and_are_no_results(tmp_path: Path) -> None:
    spec = load_spec(write_study(tmp_path, *CHANGES, NARROW, ("trials = 18", "trials = 8")))
    results = run_study(spec, tmp_path / "j", processes=0)
    assert results.fidelity is not None and results.fidelity.width == 0.5
    records, wide = records_at(tmp_path / "j"), objective_of(spec)
    alone = replace(spec.study, narrow=None)
    narrow = objective_of(replace(spec, study=alone, task=replace(spec.task, widths=(4, 4))))
    texts = {asked.digest: asked.text for asked in records.low_fidelity.values()}
    texts[wide.float32.digest] = wide.float32.to_json()
    looked = {key: run for key, run in records.runs.items() if key.width < 1.0}
    assert len(looked) == len(texts) > 5 and {key.width for key in looked} == {0.5}
    for key, run in list(looked.items())[:5]:
        policy = from_json(texts[key.digest], "stored")
        assert run == narrow.measure(policy, key.seed) != wide.measure(policy, key.seed)
    for trial in results.trials:
        for seed, score in zip(spec.study.seeds, trial.scores, strict=True):
            run = records.runs[RunKey(trial.digest, seed)]
            assert isinstance(run, Measurement) and run.resumed_at == 0
            assert run.validation_accuracy == score.validation_accuracy
            assert run == wide.measure(trial.policy, seed)


def test_the_benchmark_says_what_looks_are_worth() -> None:
    rng = np.random.default_rng(0)
    names = [f"fc{n}" for n in range(12)]
    policies = tuple(preset("bfloat16", names[: n + 1]) for n in range(12))
    costs = np.column_stack([1.0 - 0.05 * np.arange(12), 1.0 - 0.03 * rng.permutation(12)])
    of = Sample(policies, costs, Yardstick(1.1, 1.2))
    truth = 1e-3 * rng.permutation(np.arange(1.0, 13.0)).reshape(1, 12)
    good, bad = ({0.5: looks, 1.0: looks} for looks in (2.0 * truth, 0.02 - truth))
    assert row("", of, (1.0, 1.0), good, 1.0, truth)[3:7] == ["1.00", "1.00", "1.00", "1 of 1"]
    assert row("", of, (1.0, 1.0), bad, 1.0, truth)[3:7] == ["-1.00", "-1.00", "-1.00", "0 of 1"]
    shares = [float(str(row("", of, (1.0, 1.0), looks, 1.0, truth)[-1])) for looks in (good, bad)]
    assert shares[0] >= 0.99 > shares[1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            'sampler = "tpe"\nshort_runs = true',
            "short_runs: true with sampler 'tpe'; expected 'gain'",
        ),
        ('sampler = "tpe"\nnarrow = 0.5', "narrow: 0.5 with sampler 'tpe'; expected 'gain'"),
        ('sampler = "gain"\nnarrow = 1.5', "narrow: 1.5; expected a number from 0.01 to 0.99"),
        ('sampler = "gain"\nnarrow = 0.9', "study.narrow: 0.9 of the widths .8. of model 'mlp'"),
        (
            'sampler = "gain"\nnarrow = 0.5\nshort_runs = true',
            "short_runs and narrow: both; expected one of them or neither",
        ),
    ],
)
def test_looks_that_cannot_be_are_input_errors(change: str, said: str, tmp_path: Path) -> None:
    path = write_study(tmp_path, ('sampler = "random"', change))
    with pytest.raises(InputError, match=said):
        load_spec(path)
