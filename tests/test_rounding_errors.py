"""What each layer's rounding does by itself: against finite changes of the loss, and ml_dtypes."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import policysearch
from benchmarks.search.predicted import scored
from benchmarks.search.tables import load
from policysearch.cli import main
from policysearch.objective import rounding_errors as module
from policysearch.objective.objective import Objective
from policysearch.objective.rounding_errors import rounding_errors
from policysearch.policy.policy import Policy, uniform_layer
from policysearch.report.one_trial import trial_page
from policysearch.report.table import front_table
from policysearch.space.encoding import Encoding
from policysearch.study.probes import probe_cost, probe_steps, probed_policies, probes
from policysearch.study.questions import untrained
from policysearch.study.questions.untrained import expectation, expected
from policysearch.study.specification import load_spec, objective_of, space_of
from policysearch.train.paired_run import Moment, PairedRun, along
from policysearch.train.trainer import Trainer
from policysearch.values import InputError
from tests.studies import write_study
from tests.test_goals import GAIN, WIDE

SEARCH = Path(__file__).parents[1] / "benchmarks" / "search"


def objective_named(name: str) -> Objective:
    spec = load_spec(SEARCH / f"{name}.toml")
    return objective_of(replace(spec, task=replace(spec.task, steps=8, tail_steps=2)))


@pytest.fixture(scope="module")
def objective() -> Objective:
    return objective_named("tanh-mlp-masters")


def met(objective: Objective, step: int) -> Moment:
    trainer = Trainer(objective.model, objective.task, objective.float32, 0)
    return list(islice(along(trainer, objective.dataset), step + 1))[step]


def low_in(objective: Objective, layers: set[str], format: str, **changes: object) -> Policy:
    each = tuple(
        (name, uniform_layer(format) if name in layers else layer)
        for name, layer in objective.float32.layers
    )
    return replace(objective.float32, layers=each, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["tanh-mlp-masters", "gpt-sums-groups"])
def test_gradient_times_error_is_how_the_loss_changes(name: str) -> None:
    """A layer low by itself: the whole pass is off by what its own roundings do to first order."""
    objective = objective_named(name)
    task, net, moment = objective.task, objective.model, met(objective, 3)
    exact = module._Exact(objective, 0, moment)
    float32 = PairedRun(task, net, objective.float32, 0).at(moment)[0]
    seen = 0
    for layer in net.layer_names:
        policy = low_in(objective, {layer}, "bfloat16")
        change = PairedRun(task, net, policy, 0).at(moment)[0] - float32
        errors = exact.forced(policy).errors
        first = sum(
            float(np.sum(exact.gradients[n] * errors[n])) for n in errors if n in exact.gradients
        )
        if abs(change) > 2e-5:
            assert first == pytest.approx(change, rel=0.15, abs=1e-5)
            seen += 1
    assert seen >= 2


def test_a_layer_is_probed_alone_though_all_are_low(objective: Objective) -> None:
    names = {name for name in objective.model.layer_names if name.startswith("fc")}
    policies = [low_in(objective, names, "bfloat16"), low_in(objective, {"fc2"}, "bfloat16")]
    every, one = rounding_errors(objective, policies, 0, [0, 4])
    assert every["fc2"].loss == pytest.approx(one["fc2"].loss, rel=1e-6)
    assert one["fc2"].loss > 0.0 == one["fc1"].loss < every["fc1"].loss
    assert every["fc2"].lost == 0.0  # with masters no update is lost


def test_lost_is_what_storing_takes_of_updates(objective: Objective) -> None:
    before, after = (met(objective, step).params["fc2.weight"] for step in (3, 4))
    layers = tuple(
        (name, uniform_layer("bfloat16", param="bfloat16") if name == "fc2" else layer)
        for name, layer in objective.float32.layers
    )
    policy = replace(objective.float32, layers=layers, master_weights=False)
    (found,) = rounding_errors(objective, [policy], 0, [3])
    stored = before.astype(ml_dtypes.bfloat16).astype(np.float32)
    bias = [met(objective, step).params["fc2.bias"] for step in (3, 4)]
    pairs = ((stored, after - before), (bias[0].astype(ml_dtypes.bfloat16), bias[1] - bias[0]))
    lost = whole = 0.0
    for kept, move in pairs:
        wide = kept.astype(np.float32)
        moved = (wide + move).astype(ml_dtypes.bfloat16).astype(np.float32) - wide
        lost, whole = lost + float(np.sum((moved - move) ** 2)), whole + float(np.sum(move**2))
    assert 0.05 < lost / whole < 1.0
    assert found["fc2"].lost == pytest.approx(lost / whole, rel=1e-5)
    assert found["fc1"].lost == 0.0


def test_every_decision_of_a_layer_has_a_probe(objective: Objective) -> None:
    spec = load_spec(SEARCH / "tanh-mlp-masters.toml")
    space = space_of(spec, objective.model)
    encoding = Encoding(space)
    found = probes(objective, space, encoding, 0)
    options = [encoding.decisions.places[place][at] for place, at in encoding.decisions.counted()]
    assert found.shape == (len(options), 2) and np.isfinite(found[:, 0]).all()
    stored = np.array([option.storage_epsilon > 0.0 for option in options])
    assert np.array_equal(np.isfinite(found[:, 1]), stored)
    coarse = np.array([option.operand_epsilon >= 2.0**-5 for option in options])
    assert np.median(found[coarse, 0]) > np.median(found[~coarse, 0]) + 2.0
    steps = probe_steps(160)
    assert probe_cost(space, 160) == (82 + len(probed_policies(space)) * len(steps)) / 160


def test_what_is_expected_before_any_training_ranks_what_was_trained() -> None:
    """Of every policy of two recorded tables with masters, beside the prior without probes."""
    for name in ("tanh-mlp-masters", "mlp-digits-0.1.0"):
        table = load(name)
        assert table.errors is not None
        rho, held = scored(table, 0, table.errors[0])
        without, _ = scored(table, 0, None)
        assert rho > 0.85 > without + 0.1
        assert held > 0.7


def test_propose_probe_says_what_is_expected_fastest_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = load_spec(SEARCH / "gpt-sums-masters.toml")
    spec = replace(spec, task=replace(spec.task, steps=8, tail_steps=2))
    found = expected(spec, space_of(spec), 3)
    assert len(found) == len({each.policy.digest for each in found}) == 3
    assert [each.time for each in found] == sorted(each.time for each in found)
    assert all(each.low < each.gap < each.high for each in found)
    assert found[0].gap > found[-1].gap  # here what is faster is coarser
    monkeypatch.setattr(untrained, "expected", lambda *_: found)
    lines = list(expectation(spec))
    assert all(line.startswith("# ") for line in lines) and "]: " in lines[-1]


def test_a_study_that_probes_asks_from_its_probes() -> None:
    """The key reaches the sampler: once, when the first policy beyond the ladder is asked for."""
    spec = load_spec(SEARCH / "tanh-mlp-masters.toml")
    probed = replace(spec, study=replace(spec.study, probe=True))
    plans = [s.study.plan(s.objectives.names, s.task.steps, s.wanted) for s in (spec, probed)]
    assert [plan.probed_seed for plan in plans] == [None, spec.study.seeds[0]]
    with pytest.raises(InputError, match="probe: true with sampler 'tpe'"):
        replace(spec.study, probe=True, sampler="tpe")


@pytest.mark.usefixtures("one_process")
def test_what_was_expected_stands_beside_what_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of what a probing search asked for itself, and of nothing where nothing was expected."""
    steps = "steps = 6\ntail_steps = 3", "steps = 40\ntail_steps = 9"
    path = write_study(tmp_path, GAIN, *WIDE, steps, ("trials = 6", "trials = 7\nprobe = true"))
    spec, storage = load_spec(path), tmp_path / "journal"
    results = policysearch.run_study(spec, storage, processes=1)
    own = [trial for trial in results.trials if trial.expected]
    assert own and not any(trial.presets for trial in own)
    again = policysearch.load_results(spec, storage)
    assert [t.expected for t in again.trials] == [t.expected for t in results.trials]
    least = results.resolution_gap
    held = sum(
        low <= max(least, t.loss_gap) and t.loss_gap <= max(least, high)
        for t in own
        for _, low, high in [t.expected or ()]
    )
    line = f"\nthe search foresaw {held} of {len(own)} gaps, within the ranges it gave them before"
    assert main(["show", str(path), "--storage", str(storage)]) == 0
    assert (line in capsys.readouterr().out) == (len(own) >= 5)
    several = replace(results, trials=(*results.trials, *own * 4))
    line = f"\nthe search foresaw {5 * held} of {5 * len(own)} gaps, within"
    assert line in front_table(several)
    assert f"(about {4 * len(own)} should lie there)" in front_table(several)
    assert "\nbefore it was trained " in trial_page(results, own[-1].number)
    other = next(trial for trial in results.trials if not trial.expected)
    assert "before it was trained" not in trial_page(results, other.number)
    none = tuple(replace(trial, expected=None) for trial in results.trials)
    assert "the search foresaw" not in front_table(replace(results, trials=none))
