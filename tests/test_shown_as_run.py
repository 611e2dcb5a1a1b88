"""`profile` and `explain` show a policy of a study as its target runs it: as it is priced there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from policysearch.cli import main
from policysearch.commands.shared import policy_for, policy_from
from policysearch.objective.objective import Objective
from policysearch.policy.policy import Policy
from policysearch.report.causes import Changes
from policysearch.space.target import as_run
from policysearch.study.opening import load_results
from policysearch.study.questions.by_hand import try_policy
from policysearch.study.specification import StudySpec, load_spec, objective_of
from tests.studies import write_study

CHANGES = (
    ('name = "tiny"', 'name = "tiny"\ntarget = "torch"'),
    ("widths = [8]", "widths = [512, 512]"),
)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_study(tmp_path_factory.mktemp("shown"), *CHANGES)


@pytest.fixture(scope="module")
def spec(study: Path) -> StudySpec:
    return load_spec(study)


@pytest.fixture(scope="module")
def objective(spec: StudySpec) -> Objective:
    return objective_of(spec)


def test_profile_gives_the_speed_that_the_study_gives(
    study: Path, spec: StudySpec, objective: Objective, capsys: pytest.CaptureFixture[str]
) -> None:
    """torchao has no MXFP8 here: the layers run in bfloat16, as `try` trains and prices them."""
    assert main(["profile", "preset:te.mxfp8", "--study", str(study)]) == 0
    printed = capsys.readouterr()
    asked = objective.price(policy_from("preset:te.mxfp8", objective.model)).speedup
    run = objective.price(policy_for("preset:te.mxfp8", spec)).speedup
    assert f"{asked:.2f}" != f"{run:.2f}"
    assert f"torch.compile: {run:.2f}x float32 speed" in printed.out
    assert re.search("^as torch, the study's target, runs it, .* it runs in bfloat16", printed.err)
    assert main(["explain", "preset:te.mxfp8", "--study", str(study)]) == 0
    assert capsys.readouterr().out.rstrip().endswith("formats: bfloat16, float32")


@pytest.mark.usefixtures("one_process")
def test_try_says_that_it_trains_another_policy(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = ["--study", str(study), "--storage", str(tmp_path / "s.journal")]
    assert main(["try", "preset:te.mxfp8", *places, "--processes", "1"]) == 0
    said = capsys.readouterr()
    assert "not as given: layer fc1: torch does not compute it in" in said.err
    assert "te.mxfp8, as torch runs it (by hand)" in said.out
    # The policy that is trained may be given too: it is that trial, under its own name.
    spec, path = load_spec(study), tmp_path / "s.journal"
    policy = load_results(spec, path).trials[-1].policy
    assert policy.name == "te.mxfp8, as torch runs it"
    assert try_policy(spec, path, policy, processes=0)[1:] == (0, False)


def test_what_the_target_runs_as_it_is_brings_no_note(
    study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "preset:torch.autocast.bfloat16", "--study", str(study)]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("name", "narrower"),
    [("bfloat16", ["fc1", "fc2"]), ("apex.O3", [])],
)
def test_a_change_is_priced_as_the_target_runs_it(
    name: str, narrower: list[str], objective: Objective
) -> None:
    """float8 needs scaled operands and masters, and fc3 has ten results: no multiple of 16."""

    def runs(policy: Policy) -> Policy:
        return as_run(policy, objective.model, "torch")

    changes = Changes(objective, runs(policy_from(f"preset:{name}", objective.model)), runs)
    found = {row.layer: row.narrower for row in changes.layers()}
    assert [layer for layer, change in found.items() if change is not None] == narrower
    before = objective.price(changes.policy).speedup
    for layer, change in found.items():
        if change is not None:
            assert change.policy.scaling.recipe == "current"
            assert change.policy.layer(layer).compute == "float8_e4m3fn"
            assert change.policy == runs(change.policy)
            after = objective.price(change.policy).speedup
            assert change.speedup == pytest.approx(after / before, rel=1e-9)
