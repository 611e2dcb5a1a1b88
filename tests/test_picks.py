"""Picks from a front by memory and by device, against brute force."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from policysearch import api
from policysearch.cli import main
from policysearch.commands.views import next_commands
from policysearch.cost.memory import NEEDED, process_bytes, visible_bytes
from policysearch.objective.objective import Objective
from policysearch.objective.score import Measurement
from policysearch.policy.policy import Policy
from policysearch.report.one_trial import standing
from policysearch.report.table import BEHIND, front_table
from policysearch.study.results.picks import fitting, smallest
from policysearch.study.results.results import Results
from policysearch.study.specification import load_spec
from policysearch.study.study import confirm_study, run_study
from policysearch.values import InputError
from tests.studies import replaced_training, write_study

CHANGES = (("trials = 6", "trials = 48"), ("widths = [8]", "widths = [512]"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a study and its finished journal are."""
    made = tmp_path_factory.mktemp("picks")
    with replaced_training():
        run_study(load_spec(write_study(made, *CHANGES)), made / "a.journal", processes=0)
    return made


@pytest.fixture(scope="module")
def results(folder: Path) -> Results:
    return api.load_results(load_spec(folder / "tiny.toml"), folder / "a.journal")


def test_the_smallest_has_least_memory_within_the_gap(results: Results) -> None:
    gaps = sorted(trial.loss_gap for trial in results.front)
    assert len(gaps) > 2
    for most in (gaps[1], gaps[-1], None):
        near = [t for t in results.front if most is None or t.loss_gap <= most]
        picked = smallest(results, most)
        assert picked in near
        assert picked.cost.memory_ratio == min(t.cost.memory_ratio for t in near)
    with pytest.raises(InputError, match=r"max-gap: -1\.0; expected at least"):
        smallest(results, -1.0)


def test_what_fits_is_the_fastest_there(results: Results) -> None:
    task = results.spec.task
    costs: dict[int, list[tuple[bool, float, int]]] = {}
    for batch in (4096, 3 * 2**20):
        there = Objective(task, "L4", "torch.compile", batch)
        priced = [(there.price(t.policy), t.number) for t in results.front]
        costs[batch] = [(cost.fits, cost.speedup, number) for cost, number in priced]
        fit = [each for each in costs[batch] if each[0]]
        assert fit and fitting(results, there).number in {
            number for _, speed, number in fit if speed == max(fit)[1]
        }
    assert all(fits for fits, _, _ in costs[4096]) and not all(
        fits for fits, _, _ in costs[3 * 2**20]
    )
    with pytest.raises(InputError, match=r"fits: L4 with 24 GiB at batch 67108864") as error:
        fitting(results, Objective(task, "L4", "torch.compile", 2**26))
    asked = float(str(error.value).partition("expected ")[2].split()[0])
    there = Objective(task, "L4", "torch.compile", 2**26)
    live = min(there.price(trial.policy).peak_bytes for trial in results.front)
    least = process_bytes(live, NEEDED.high)
    # a process has not all of a card
    assert asked * visible_bytes(1.0) >= 0.999 * least


def test_the_command_exports_them(
    results: Results, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study, storage = folder / "tiny.toml", folder / "a.journal"
    places = [str(study), "--storage", str(storage), "--out", str(tmp_path)]
    assert main(["export", *places, "--smallest"]) == 0
    assert f"trial {smallest(results).number} of study" in capsys.readouterr().out
    assert main(["export", *places, "--fits", "L4", "--batch", "4096"]) == 0
    assert main(["export", *places, "--fits", "L4", "--batch", "0"]) == 2
    assert "batch of the priced step: 0; expected a number from 1" in capsys.readouterr().err
    assert main(["export", *places, "--batch", "4096"]) == 2
    assert "--batch: 4096 without --fits" in capsys.readouterr().err
    assert main(["export", *places, "--trial", "0", "--batch", "4096"]) == 2
    assert "--batch: 4096 without --fits" in capsys.readouterr().err


def flattering(
    _: Objective,
    policy: Policy,
    seed: int,
    jitter: float = 0.0,
    steps: int | None = None,
    *_kept: object,
) -> Measurement:
    """Without masters a short run is as good as float32 and a long one is not."""
    loss, narrow = (0.05, 0.005)[bool(steps)], any(x.compute != "float32" for _, x in policy.layers)
    gap = (0.01 * bool(steps) if not policy.master_weights else 1e-5) * narrow
    return Measurement(loss + gap, 0.9, None, 0, (), (), first_loss=2.3)


def after(results: Results) -> str:
    return next_commands(
        results, argparse.Namespace(study="s.toml", storage=None, no_confirm=False)
    )


def test_what_stands_behind_a_front_that_fails_is_picked(tmp_path: Path) -> None:
    spec = load_spec(write_study(tmp_path, CHANGES[0], ("widths = [8]", "widths = [2048]")))
    with mock.patch.object(Objective, "measure", flattering):
        short = run_study(spec, tmp_path / "j", processes=0)
        results = confirm_study(spec, tmp_path / "j", every=True, processes=0)
    assert results.front and all(map(results.fault, results.front))
    picked = results.knee()
    assert picked not in results.front and not results.fault(picked)
    assert results.confirmation(picked) and results.fastest().cost.speedup > 1.0
    assert standing(results, picked).endswith("the knee of what does not fail")
    for pick in (results.fastest(), smallest(results), picked):
        assert pick.policy.master_weights and not results.fault(pick)
        below = front_table(results).partition(f"{BEHIND}\n")[2].split("\n\n")[0]
        assert f"\n{pick.number} " in f"\n{below}"
    assert BEHIND not in front_table(short)
    left = sum(trial.number != 0 for trial in short.front)
    assert f"\n      policysearch confirm s.toml  # {left} of the front not" in after(short)
    assert "confirm_share" not in after(short)  # which asks for none
    paid = replace(short.spec, study=replace(short.spec.study, confirm_share=0.5))
    said = f"{left} of the front not trained longer yet: confirm_share = 0.5 of the steps"
    assert said in after(replace(short, spec=paid))
    assert "confirm" not in after(results) and "export s.toml" in after(results)
    assert after(replace(short, trials=())) == "next: policysearch show s.toml --csv"
    with mock.patch.object(Objective, "measure", side_effect=AssertionError):
        assert confirm_study(spec, tmp_path / "j", every=True, processes=0) == results
