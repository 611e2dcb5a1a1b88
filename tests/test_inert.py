"""A study says which of its decisions did nothing, from trainings that are equal to the bit."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from policysearch.cli import main
from policysearch.objective.score import Measurement
from policysearch.policy.policy import Policy
from policysearch.study.journal.trials import Trial
from policysearch.study.results.idle import idle_decisions
from policysearch.study.specification import StudySpec, load_spec, space_of
from policysearch.study.study import run_study
from tests.studies import measured, replaced_training, write_study

CHANGES = (
    ('formats = ["float32", "bfloat16", "float8_e4m3fn"]', 'formats = ["float32", "float16"]'),
    ('loss_scales = ["none", "fixed", "dynamic"]',
     'loss_scales = ["fixed", "dynamic"]\nlog2_scale = [3, 3]'),
    ("growth_intervals = [10, 100]\n", ""),
    ("trials = 6", "trials = 40"),
)  # fmt: skip


def without_scale(policy: Policy, seed: int) -> Measurement:
    """Return a training that the loss scale does not change, and all else does."""
    return measured(replace(policy, loss_scale=type(policy.loss_scale)()), seed)


@pytest.fixture
def spec(tmp_path: Path) -> StudySpec:
    return load_spec(write_study(tmp_path, *CHANGES))


def test_a_decision_whose_every_pair_is_alike_is_named(spec: StudySpec, tmp_path: Path) -> None:
    with replaced_training(without_scale):
        results = run_study(spec, tmp_path / "a.journal", processes=0)
    (found,) = idle_decisions(results, space_of(spec))
    assert (found.decision, found.alike) == ("loss_scale", found.pairs) and found.pairs > 4
    assert found.line.startswith(f"loss_scale does nothing here: all {found.pairs} pairs")
    # one seed that differs, of one policy of a pair, is enough to say nothing
    digest = next(t.digest for t in results.trials if t.policy.loss_scale.kind == "dynamic")

    def but_one(policy: Policy, seed: int) -> Measurement:
        run = without_scale(policy, seed)
        odd = (policy.digest, seed) == (digest, 1)
        return replace(run, tail_loss=(run.tail_loss or 0.0) + 1e-9 * odd)

    with replaced_training(but_one):
        again = run_study(spec, tmp_path / "b.journal", processes=0)
    assert idle_decisions(again, space_of(spec)) == ()


def test_two_pairs_are_enough_and_one_is_not(spec: StudySpec, tmp_path: Path) -> None:
    with replaced_training(without_scale):
        results = run_study(spec, tmp_path / "a.journal", processes=0)
    alike: dict[float, list[Trial]] = defaultdict(list)
    for trial in results.trials:
        alike[trial.scores[0].loss_gap].append(trial)
    first, second = [pair for pair in alike.values() if len(pair) == 2][:2]

    def found(*trials: Trial) -> list[int]:
        kept = replace(results, trials=trials)
        return [each.pairs for each in idle_decisions(kept, space_of(spec))]

    assert (found(*first), found(*first, *second)) == ([], [2])
    # seeds that one of a pair was not trained with say nothing
    short = replace(first[0], scores=first[0].scores[:1], seeds=first[0].seeds[:1])
    assert found(short, first[1], *second) == [2]
    # nor do runs that diverged alike
    broken = [replace(t, scores=tuple(replace(s, diverged=True) for s in t.scores)) for t in second]
    assert found(*first, *broken) == []


@pytest.mark.usefixtures("one_process")
def test_run_says_so_at_its_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = write_study(tmp_path, *CHANGES)
    with replaced_training(without_scale):
        given = ["--storage", str(tmp_path / "c.journal"), "--out", str(tmp_path)]
        assert main(["run", str(study), "--processes", "1", *given]) == 0
    assert "\n\nloss_scale does nothing here" in capsys.readouterr().out
