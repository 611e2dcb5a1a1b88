"""What one more decision would buy: single changes, priced, in the order of what they promise."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from policysearch.cli import main
from policysearch.objective.score import Measurement
from policysearch.policy.policy import Policy
from policysearch.study.questions.next_decision import next_decisions
from policysearch.study.specification import load_spec, objective_of, space_of
from policysearch.study.study import run_study
from tests.studies import WITHOUT_TF32, replaced_training, write_study

CHANGES = (
    WITHOUT_TF32,
    ("widths = [8]", "widths = [512]"),
    ('loss_scales = ["none", "fixed", "dynamic"]\ngrowth_intervals = [10, 100]\n', ""),
    ('["bfloat16", "mindspore.O0", "apex.O3"]', '["uniform"]'),
)


def in_8_bits(policy: Policy) -> bool:
    return policy.layer("fc1").compute == "float8_e4m3fn"


def in_float16(policy: Policy) -> bool:
    return policy.layer("fc1").compute == "float16"


def by_bits(
    policy: Policy, seed: int, gap: float = 1e-3, costly: Callable[[Policy], bool] = in_8_bits
) -> Measurement:
    """Return a training whose gap is that of costly policies, but for a little of fc2's."""
    narrow = gap * costly(policy)
    return Measurement(
        0.5 + narrow + 1e-6 * (policy.layer("fc2").compute != "float32"), 0.9, None, 0, (), ()
    )


@pytest.mark.usefixtures("one_process")
def test_single_changes_are_priced_and_ordered_by_what_they_promise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = write_study(tmp_path, *CHANGES)
    spec, storage = load_spec(study), tmp_path / "a.journal"
    with replaced_training(by_bits):
        results = run_study(spec, storage, processes=0)
    space, objective = space_of(spec), objective_of(spec)
    ours = [t for t in results.trials if space.policy(space.project(t.policy)).digest == t.digest]
    trial = next(t for t in ours if t.policy.layer("fc2").compute == "bfloat16")
    found = next_decisions(results, trial, space, objective)
    params, known = space.project(trial.policy), {t.digest for t in results.trials}
    assert len(found) > 3
    digests = set()
    for change in found:
        policy = space.policy(params | {change.decision: change.value})
        digests.add(policy.digest)
        priced = objective.price(policy)
        assert change.speed == pytest.approx(priced.speedup / trial.cost.speedup)
        assert change.memory == pytest.approx(priced.memory_ratio / trial.cost.memory_ratio)
    assert len(digests) == len(found) and not digests & known
    assert found[0].gain == max(change.gain for change in found) > 0.0
    assert main(["why", str(trial.number), "--study", str(study), "--storage", str(storage)]) == 0
    text = capsys.readouterr().out
    assert "what one more decision would buy" in text and found[0].decision in text


@pytest.mark.parametrize(
    ("ladder", "trials", "costly", "gaps", "change"),
    [
        (["uniform"], 6, in_8_bits, (1e-3, 1.0), ("format.fc1", "float8_e4m3fn")),
        # apex.O3 is none of the space, and as cheap: where it is good it leaves less to win
        (["apex.O3", "uniform"], 3, in_float16, (1.0, 0.0), ("master_weights", False)),
    ],
)
def test_a_change_promises_by_what_the_trials_measured(
    ladder: list[str],
    trials: int,
    costly: Callable[[Policy], bool],
    gaps: tuple[float, float],
    change: tuple[str, object],
    tmp_path: Path,
) -> None:
    few = ("trials = 6", f"trials = {trials}"), ('["uniform"]', json.dumps(ladder))
    spec = load_spec(write_study(tmp_path, *CHANGES, *few))
    gains = []
    for gap in gaps:
        with replaced_training(partial(by_bits, gap=gap, costly=costly)):
            results = run_study(spec, tmp_path / f"{gap}.journal", processes=0)
        trial = next(trial for trial in results.trials if trial.name == "bf16")
        found = next_decisions(results, trial, space_of(spec), objective_of(spec))
        gains.append({(each.decision, each.value): each.gain for each in found}[change])
    assert gains[0] > gains[1]


@pytest.mark.usefixtures("one_process")
def test_where_every_change_was_tried_the_page_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = ('formats = ["float32", "bfloat16", "float8_e4m3fn"]', 'formats = ["bfloat16"]')
    fixed = ("master_weights = [true, false]", "master_weights = [true]"), ('ops = ["tanh"]\n', "")
    study = write_study(tmp_path, *CHANGES, one, *fixed)
    with replaced_training(by_bits):
        results = run_study(load_spec(study), tmp_path / "a.journal", processes=0)
    number = next(trial.number for trial in results.trials if not trial.presets)
    assert not space_of(load_spec(study)).choices()
    places = ["--study", str(study), "--storage", str(tmp_path / "a.journal")]
    assert main(["why", str(number), *places]) == 0
    assert "every change of one decision was tried" in capsys.readouterr().out
