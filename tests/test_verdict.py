"""The verdict of a study: each of its sentences, and that its opposite is not said."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import policysearch
from policysearch.cli import main
from policysearch.cost.price import PolicyCost, speedup_over
from policysearch.objective.objective import Objective
from policysearch.objective.score import Score
from policysearch.policy.presets import TF32, preset
from policysearch.report.page.frame import page
from policysearch.report.table import front_table
from policysearch.study.journal.records import compact
from policysearch.study.journal.trials import Confirmation, Trial
from policysearch.study.results.difference import difference
from policysearch.study.results.learning import Beside, Learned
from policysearch.study.results.picks import candidates
from policysearch.study.results.results import Results
from policysearch.study.specification import StudySpec, load_spec
from policysearch.train.constant import Constant
from policysearch.train.swamped import Swamped
from tests import made_up
from tests.studies import write_study

BASELINE = "torch.autocast.bfloat16"
DROP = 2.0
"""Nats that float32 learns here, so that 0.02 matter."""

Gaps = tuple[float, float, float]


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> StudySpec:
    """A study whose search has ended, of three seeds, with a baseline."""
    folder = tmp_path_factory.mktemp("study")
    changes = (("trials = 6", f'trials = 1\nbaseline = "{BASELINE}"'), ("[0, 1]", "[0, 1, 2]"))
    return load_spec(write_study(folder, *changes))


@pytest.fixture(scope="module")
def float32(spec: StudySpec) -> PolicyCost:
    objective = Objective(spec.task, spec.cost.device, spec.cost.stack)
    return objective.price(objective.float32)


def priced(float32: PolicyCost, speedup: float, memory: float = 1.0) -> PolicyCost:
    seconds = float32.step_seconds / speedup
    return replace(float32, speedup=speedup, step_seconds=seconds, memory_ratio=memory)


def trial_of(
    cost: PolicyCost, number: int, gaps: Gaps, presets: Sequence[str] = (), accuracy: float = 0.9
) -> Trial:
    scores = tuple(Score(gap, accuracy, False, (), (), 0, cost) for gap in gaps)
    policy = preset("bfloat16", (f"fc{number}",))
    known = tuple(presets)
    return Trial(
        number, policy.digest, compact(policy), known, scores, "", start=True, seeds=(0, 1, 2)
    )


def near(mean: float, spread: float = 1e-4) -> Gaps:
    return mean - spread, mean, mean + spread


def results_of(
    spec: StudySpec,
    float32: PolicyCost,
    rows: Sequence[tuple[float, float, Gaps]],
    baseline: tuple[float, float, Gaps] = (2.0, 0.6, near(1e-3)),
    labels: int = 10**6,
    accuracy: float = 0.9,
) -> Results:
    """float32, the baseline, and policies of (speedup, memory ratio, gaps), numbered from 2."""
    trials = [
        trial_of(float32, 0, (0.0, 0.0, 0.0), ("float32",)),
        trial_of(priced(float32, *baseline[:2]), 1, baseline[2], (BASELINE,)),
        *(
            trial_of(priced(float32, speed, memory), number, gaps, accuracy=accuracy)
            for number, (speed, memory, gaps) in enumerate(rows, 2)
        ),
    ]
    beside = Beside(Constant(2.3, 2.3, 0.1, labels), (0.9, 0.9, 0.9))
    learned = Learned(2.3, 2.3 - DROP, beside)
    return Results(spec, tuple(trials), 1e-7, learned=learned)


def test_what_is_faster_at_no_loss_that_matters_is_taken(
    spec: StudySpec, float32: PolicyCost
) -> None:
    found = results_of(spec, float32, [(2.66, 0.5, near(2e-3)), (4.0, 0.4, near(0.3))])
    verdict = found.verdict
    assert verdict.kind == "take" and verdict.trial == 2 and verdict.over == BASELINE
    assert verdict.speedup == pytest.approx(1.33)
    low, high = verdict.speedup_low, verdict.speedup_high
    assert low is not None and high is not None and low < 1.33 < high
    assert str(verdict) == (
        f"take trial 2, bfloat16 (1.33x your baseline {BASELINE}, modeled {low:.2f} to {high:.2f}, "
        "in 0.83 of its memory; "
        "loss and accuracy no worse, at 95 %; not trained longer yet)"
    )
    assert json.loads(json.dumps(verdict.as_dict()))["trial"] == 2
    digest = found.trials[2].digest
    longer = Confirmation(10 * spec.task.steps, (3,), 2e-3, None, 0.3, False)
    held = replace(found, confirmed=((digest, longer), (found.trials[1].digest, longer)))
    assert "holds at 10x the steps" in str(held.verdict)
    assert held.verdict.confirmed_steps == 10 * spec.task.steps


def test_where_the_baseline_is_best_it_is_kept(spec: StudySpec, float32: PolicyCost) -> None:
    rows = [(1.5, 0.7, near(1e-4)), (2.1, 0.58, near(1e-5)), (1.9, 0.9, near(0.0))]
    verdict = results_of(spec, float32, rows).verdict
    assert verdict.kind == "keep" and verdict.trial == 1
    assert str(verdict) == f"keep what you run, {BASELINE}: nothing tried is faster at no more loss"
    alone = results_of(spec, float32, []).verdict
    assert str(alone) == str(verdict)
    for speed, words in ((1.9, "about the same speed (0.95)"), (1.7, "0.85 of the speed")):
        smaller = results_of(spec, float32, [(speed, 0.3, near(1e-4))]).verdict
        assert smaller.kind == "keep"
        assert str(smaller).endswith(f"; trial 2, bfloat16 needs 0.50 of the memory, at {words}")


def test_what_is_faster_with_a_loss_that_matters_has_a_cost(
    spec: StudySpec, float32: PolicyCost
) -> None:
    verdict = results_of(spec, float32, [(4.0, 0.4, near(0.3)), (5.0, 0.4, near(0.6))]).verdict
    assert verdict.kind == "at a cost" and verdict.trial == 2
    assert str(verdict).startswith("faster only at a cost: trial 2, bfloat16 is 2.00x your base")
    assert "loss +3.0e-01" in str(verdict) and "14.9% of what float32 learns" in str(verdict)
    assert str(verdict).endswith(f"otherwise keep what you run, {BASELINE}")


def test_a_gap_below_what_matters_is_none(spec: StudySpec, float32: PolicyCost) -> None:
    """The same policy on both sides of the line, which a study may move."""
    for gap, kind in ((0.019, "take"), (0.022, "at a cost")):
        found = results_of(spec, float32, [(4.0, 0.4, near(gap))], (2.0, 0.6, near(0.0)))
        assert found.matters_gap == pytest.approx(0.02)
        assert found.verdict.kind == kind
        assert (found.ranked_gap(found.trials[2]) == found.matters_gap) == (kind == "take")
    wider = replace(spec, objectives=replace(spec.objectives, matters=0.05))
    assert replace(found, spec=wider).verdict.kind == "take"
    # never below what noise leaves to be told
    loud = replace(found, spec=replace(spec, objectives=replace(spec.objectives, matters=0.0)))
    assert loud.matters_gap == found.resolution_gap > 0.0


def test_gaps_that_do_not_matter_are_equal_in_the_front_and_the_pick(
    spec: StudySpec, float32: PolicyCost
) -> None:
    rows = [(3.0, 0.5, near(1e-2)), (2.4, 0.55, near(1e-3)), (1.5, 0.8, near(1e-4))]
    found = results_of(spec, float32, rows)
    assert [trial.number for trial in found.front] == [2]
    assert found.knee().number == found.fastest().number == 2
    mine = replace(spec, objectives=replace(spec.objectives, matters=0.0))
    assert {2, 3, 4} <= {trial.number for trial in replace(found, spec=mine).front}


def test_longer_runs_are_of_what_gaps_tell_apart_too(spec: StudySpec, float32: PolicyCost) -> None:
    """What is alone on the front of gaps that matter may fail; what would follow it is trained."""
    rows = [(3.0, 0.5, near(1e-2)), (2.4, 0.55, near(2e-4)), (1.0, 0.9, near(1e-2))]
    found = results_of(spec, float32, rows)
    assert [trial.number for trial in found.front] == [2]
    assert [trial.number for trial in candidates(found)][:2] == [2, 3]
    fails = Confirmation(10 * spec.task.steps, (3,), 0.9, None, 0.3, False)
    holds = replace(fails, loss_gap=2e-4)
    longer = zip((found.trials[2].digest, found.trials[3].digest), (fails, holds), strict=True)
    later = replace(found, confirmed=tuple(longer))
    assert later.verdict.trial == 3 and "holds at 10x" in str(later.verdict)


def test_what_fails_later_is_not_taken_where_nothing_else_is_there(
    spec: StudySpec, float32: PolicyCost
) -> None:
    found = results_of(spec, float32, [(3.0, 0.5, near(1e-4))])
    assert found.verdict.kind == "take"
    fails = Confirmation(10 * spec.task.steps, (3,), 0.9, None, 0.3, False)
    every = tuple((trial.digest, fails) for trial in found.trials[1:])
    later = replace(found, confirmed=every)
    assert later.verdict.kind == "keep" and later.verdict.over == "float32"
    assert f"your baseline {BASELINE} fails here: loss 300%" in str(later.verdict)
    assert later.training_verdict(found.trials[2]).kind == "trains, but"
    assert "it fails later: loss 300%" in str(later.training_verdict(found.trials[2]))
    vanish = Swamped(shares=((50, 0.9),), projected=0.9, layer="fc2", layer_share=0.9)
    scores = tuple(replace(score, swamped=vanish) for score in found.trials[2].scores)
    signs = replace(found, trials=(*found.trials[:2], replace(found.trials[2], scores=scores)))
    assert signs.trials[2].early_sign and signs.verdict.kind == "keep"


def test_too_few_validation_labels_cannot_tell(spec: StudySpec, float32: PolicyCost) -> None:
    row = [(3.0, 0.5, near(1e-4))]
    few = results_of(spec, float32, row, labels=200, accuracy=0.88).verdict
    assert few.kind == "take"
    assert "200 validation labels are too few to judge its accuracy: -0.020 +- 0.06" in str(few)
    assert "accuracy no worse" not in str(few)
    many = results_of(spec, float32, row, accuracy=0.88).verdict
    assert many.kind == "at a cost" and "accuracy -0.020" in str(many)
    assert "loss and accuracy no worse" in str(results_of(spec, float32, row).verdict)


def test_seeds_that_scatter_cannot_tell(spec: StudySpec, float32: PolicyCost) -> None:
    """They take nothing, and say with how many it is decided; what can be judged is taken."""
    loud = (3.0, 0.5, near(3e-3, 0.02))
    found = results_of(spec, float32, [loud])
    verdict = found.verdict
    assert (verdict.kind, verdict.trial) == ("undecided", 2) and "take" not in str(verdict)
    assert str(verdict).startswith("not decided yet: trial 2, bfloat16, is 1.50x your baseline")
    assert (few := "3 seeds are too few to judge its loss: +2.0e-03 +- 4.9e-02") in str(verdict)
    needed = difference(found.trials[2], found.trials[1], 0.02).seeds_needed
    ends = f"; study.seeds of {needed} seeds and `policysearch run` again decide; until then keep "
    assert 3 < needed <= 20 and f"{ends}what you run, {BASELINE}" in str(verdict)
    wide = results_of(spec, float32, [(3.0, 0.5, near(3e-3, 0.2))]).verdict
    assert wide.kind == "undecided" and "over 20 seeds would be needed: `policysea" in str(wide)
    both = results_of(spec, float32, [loud, (2.5, 0.3, near(1e-4))]).verdict
    assert (both.kind, both.trial) == ("take", 3)
    assert f"; trial 2, bfloat16, is 1.50x your baseline {BASELINE}" in str(both)
    assert str(both).endswith(f"but {few} nats; accuracy no worse, at 95 %")
    going = replace(found, spec=replace(spec, study=replace(spec.study, trials=10))).verdict
    assert str(going).startswith("not decided yet: 7 of 10 trials left; so far: trial 2, ")
    switch = with_switch(found, priced(float32, 3.5), near(1e-4, 0.02)).verdict
    assert switch.kind == "undecided" and not switch.switch
    one = found.training_verdict(found.trials[2])
    assert one.kind == "trains, but" and str(one).startswith("trains, but 3 seeds are too few")


def test_one_seed_has_no_interval(float32: PolicyCost) -> None:
    trial = trial_of(float32, 0, near(1e-3))
    alone = replace(trial, scores=trial.scores[:1], seeds=(0,))
    found = difference(alone, None, 0.02)
    assert found.reach is None and not found.worse and not found.loss_told
    assert "1 seed is too few to judge" in found.said and found.seeds_needed == 3


def test_a_study_that_goes_on_says_what_is_left(spec: StudySpec, float32: PolicyCost) -> None:
    found = results_of(spec, float32, [(3.0, 0.5, near(1e-4))])
    going = replace(found, spec=replace(spec, study=replace(spec.study, trials=10)))
    assert going.verdict.kind == "undecided" and going.verdict.trials_left == 7
    assert str(going.verdict).startswith(
        "not decided yet: 7 of 10 trials left; so far: take trial 2"
    )
    assert replace(going, stopped="expected gain below").verdict.kind == "take"
    assert replace(found, trials=(), learned=None).verdict.kind == "undecided"


def test_a_study_in_which_all_diverged_has_found_that_nothing_works(
    spec: StudySpec, float32: PolicyCost
) -> None:
    found = results_of(spec, float32, [(3.0, 0.5, near(1e-4)), (2.0, 0.7, near(1e-3))])
    lost = [replace(s, diverged=True) for s in found.trials[1].scores]
    trials = (found.trials[0], *(replace(t, scores=tuple(lost)) for t in found.trials[1:]))
    for each in (trials, trials[1:]):
        ended = replace(found, trials=each, stopped="nothing found after 3").verdict
        assert ended.kind == "nothing works" and str(ended).startswith("nothing works: of 3 tried")
    going = replace(found, spec=replace(spec, study=replace(spec.study, trials=10)), trials=trials)
    assert going.verdict.kind == "undecided" and "so far: nothing works" in str(going.verdict)
    one = replace(found, trials=(*trials[:-1], found.trials[-1]))
    assert one.verdict.kind != "nothing works"


def test_float32_and_seeds_may_not_allow_a_verdict(spec: StudySpec, float32: PolicyCost) -> None:
    found = results_of(spec, float32, [(3.0, 0.5, near(1e-4))])
    lost = replace(found, float32_fault="float32 itself diverged in step 3").verdict
    assert str(lost) == "float32 has not learned here: float32 itself diverged in step 3"
    loud = replace(found, noise_gap=0.5).verdict
    assert loud.kind == "cannot rank" and str(loud).startswith("the seeds cannot rank these: ")
    for none in (lost, loud):
        assert "take" not in str(none) and none.speedup is None


SAME = near(1e-5)


def with_switch(
    found: Results, cost: PolicyCost, gaps: Gaps = SAME, accuracy: float = 0.9
) -> Results:
    """The results with TF32 trained, on a device that has it."""
    switch = trial_of(cost, len(found.trials), gaps, (TF32,), accuracy)
    policy = preset(TF32, ("flatten", "fc1", "tanh1", "fc2"))
    switch = replace(switch, digest=policy.digest, text=compact(policy))
    float32 = found.trials[0].cost
    return replace(
        found,
        trials=(*found.trials, switch),
        references=(("float32", float32), (TF32, cost)),
    )


def test_tf32_that_was_not_trained_is_only_named(spec: StudySpec, float32: PolicyCost) -> None:
    found = results_of(spec, float32, [(3.0, 0.5, near(1e-4))])
    slow, fast = priced(float32, 1.2), priced(float32, 3.5)
    for cost, said in (
        (slow, "1.20x float32"),
        (fast, "3.50x float32, faster than that, at a gap"),
    ):
        told = replace(found, references=(("float32", float32), (TF32, cost))).verdict
        assert f"; TF32, one switch, is modeled at {said}" in str(told)
        assert told.trial == 2 and not told.switch
        assert told.tf32_speedup == pytest.approx(cost.speedup)
    assert "TF32" not in str(found.verdict)


def test_tf32_is_taken_where_nothing_is_told_to_be_faster(
    spec: StudySpec, float32: PolicyCost
) -> None:
    found = results_of(spec, float32, [(3.0, 0.5, near(1e-4))])
    fastest = with_switch(found, priced(float32, 3.5)).verdict
    assert str(fastest).startswith(f"take TF32, one switch (trial 3, {TF32}: 1.75x your baseline")
    line = 'torch.set_float32_matmul_precision("high")'
    assert fastest.trial == 3 and fastest.switch == line and fastest.passed_over is None
    assert str(fastest).endswith(f"is modeled at 0.29 of its speed; switch it on by {line}")
    lean = with_switch(found, replace(priced(float32, 3.5), memory_ratio=0.5)).verdict
    assert "needs 0.50 of the memory, at 0.86" in str(fastest) and " needs " not in str(lean)
    near_by = with_switch(found, priced(float32, 2.7)).verdict
    beyond = speedup_over(found.trials[2].cost, priced(float32, 2.7), TF32)
    assert beyond.low < 1.0 < beyond.value == pytest.approx(3.0 / 2.7)
    assert (near_by.kind, near_by.trial, near_by.passed_over) == ("take", 3, 2)
    assert near_by.speedup == pytest.approx(1.35)
    assert (
        "; trial 2, bfloat16, is not surely faster: "
        f"1.11x its speed, modeled {beyond.low:.2f} to {beyond.high:.2f}" in str(near_by)
    )
    assert "no worse, at 95 %; not trained longer yet)" in str(near_by)
    flax = replace(spec, study=replace(spec.study, target="flax"))
    told = with_switch(replace(found, spec=flax), priced(float32, 3.5)).verdict
    assert told.switch.startswith("jax.config.update(")


def test_tf32_that_is_slower_than_the_pick_is_not_taken(
    spec: StudySpec, float32: PolicyCost
) -> None:
    """Clearly slower, no faster than what is run, or of little gain beside the pick's."""
    found = results_of(spec, float32, [(3.0, 0.5, near(1e-4))])
    for speed in (1.2, 2.1, 2.4):
        verdict = with_switch(found, priced(float32, speed)).verdict
        assert verdict.trial == 2 and not verdict.switch
        assert f"TF32, one switch, is modeled at {speed:.2f}x float32" in str(verdict)
    # An interval that reaches 1 does not do where the switch does next to nothing itself.
    slow = results_of(spec, float32, [(2.3, 0.5, near(1e-4))])
    idle = priced(float32, 2.05)
    assert speedup_over(slow.trials[2].cost, idle, TF32).low < 1.0
    assert with_switch(slow, idle).verdict.trial == 2
    # Nothing faster than the baseline: that is kept.
    kept = with_switch(results_of(spec, float32, [(1.5, 0.5, near(1e-4))]), idle).verdict
    assert kept.kind == "keep" and kept.trial == 1 and not kept.switch
    said = "is modeled at 2.05x float32, faster than that, and loss and accuracy no worse"
    assert said in str(kept) and "worse:" not in str(kept)


def test_tf32_that_loses_is_not_taken(spec: StudySpec, float32: PolicyCost) -> None:
    found, fast = results_of(spec, float32, [(3.0, 0.5, near(1e-4))]), priced(float32, 3.5)
    worse = with_switch(found, fast, near(0.3)).verdict
    assert worse.trial == 2 and not worse.switch
    assert "is modeled at 3.50x float32, faster than that, but its loss is worse" in str(worse)
    inexact = with_switch(found, fast, accuracy=0.8).verdict
    assert inexact.trial == 2 and "accuracy -0.100" in str(inexact)
    later = with_switch(found, fast)
    fails = Confirmation(10 * spec.task.steps, (3,), 0.9, None, 0.3, False)
    later = replace(later, confirmed=((later.trials[3].digest, fails),))
    assert later.verdict.trial == 2 and "but it fails: loss 300%" in str(later.verdict)
    scores = tuple(replace(score, diverged=True) for score in later.trials[3].scores)
    lost = replace(later.trials[3], scores=scores, divergence="diverged in step 4")
    diverged = replace(later, trials=(*later.trials[:3], lost), confirmed=()).verdict
    assert diverged.trial == 2 and "but it fails: diverged in step 4" in str(diverged)


def test_a_device_without_tf32_has_no_switch(spec: StudySpec, float32: PolicyCost) -> None:
    found = with_switch(results_of(spec, float32, [(3.0, 0.5, near(1e-4))]), priced(float32, 2.9))
    assert found.verdict.switch
    none = replace(found, references=(("float32", float32),)).verdict
    assert none.trial == 2 and not none.switch and "one switch" not in str(none)


def test_tf32_is_taken_though_others_alone_were_trained_longer(
    spec: StudySpec, float32: PolicyCost
) -> None:
    """The front is then of what was; TF32 is trained longer before all else, and loses nothing."""
    found = with_switch(results_of(spec, float32, [(3.0, 0.5, near(1e-4))]), priced(float32, 2.9))
    assert found.verdict.switch and candidates(found)[0].number == 3
    holds = Confirmation(10 * spec.task.steps, (3,), 1e-4, None, 0.3, False)
    longer = replace(found, confirmed=((found.trials[2].digest, holds),))
    assert 3 not in {trial.number for trial in longer.sound_front()}
    assert longer.verdict.trial == 3 and longer.verdict.passed_over == 2
    both = replace(longer, confirmed=(*longer.confirmed, (found.trials[3].digest, holds)))
    assert both.verdict.trial == 3 and both.verdict.confirmed_steps == 10 * spec.task.steps
    # ... and where the rest costs, or is no faster, it is not said that nothing is.
    costs = results_of(spec, float32, [(3.0, 0.5, near(0.3))])
    assert costs.verdict.kind == "at a cost"
    assert with_switch(costs, priced(float32, 2.6)).verdict.switch
    quiet = with_switch(results_of(spec, float32, []), priced(float32, 2.6))
    base = ((quiet.trials[1].digest, holds),)
    assert replace(quiet, confirmed=base).verdict.switch


def test_one_policy_is_told_of_a_switch_that_does_as_well(
    spec: StudySpec, float32: PolicyCost
) -> None:
    found = results_of(spec, float32, [(3.0, 0.5, near(1e-4))])
    said = "TF32, one switch, loses nothing that matters: this is 1.03x its speed"
    fast = with_switch(found, priced(float32, 2.9))
    assert said in str(fast.training_verdict(fast.trials[2]))
    assert "one switch" not in str(fast.training_verdict(fast.trials[3]))
    for other in (
        with_switch(found, priced(float32, 1.5)),
        with_switch(found, priced(float32, 2.9), near(0.3)),
    ):
        assert "one switch" not in str(other.training_verdict(other.trials[2]))


def test_a_baseline_that_fails_is_not_kept(spec: StudySpec, float32: PolicyCost) -> None:
    found = results_of(spec, float32, [(1.5, 0.5, near(1e-4))])
    scores = tuple(replace(score, diverged=True) for score in found.trials[1].scores)
    lost = replace(found.trials[1], scores=scores, divergence="diverged in step 4")
    verdict = replace(found, trials=(found.trials[0], lost, found.trials[2])).verdict
    assert verdict.kind == "take" and verdict.over == "float32"
    assert str(verdict).endswith(f"; your baseline {BASELINE} fails here: diverged in step 4")


def test_one_policy_trains_or_does_not(spec: StudySpec, float32: PolicyCost) -> None:
    found = results_of(spec, float32, [(3.0, 0.5, near(1e-4)), (3.0, 0.5, near(0.3))])
    same, worse = (found.training_verdict(found.trials[number]) for number in (2, 3))
    assert same.kind == "trains"
    assert str(same).startswith("trains: loss and accuracy no worse, at 95 %; not trained")
    assert worse.kind == "trains, but"
    assert str(worse).startswith("trains, but its loss is worse: loss +3.0e-01")
    scores = tuple(replace(score, diverged=True) for score in found.trials[2].scores)
    lost = replace(found.trials[2], scores=scores, divergence="diverged in step 4, most in fc2")
    assert str(found.training_verdict(lost)) == "does not train: diverged in step 4, most in fc2"


def test_every_view_says_to_take_the_switch(
    spec: StudySpec,
    float32: PolicyCost,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = with_switch(results_of(spec, float32, [(3.0, 0.5, near(1e-4))]), priced(float32, 2.9))
    said = str(found.verdict)
    assert said.startswith("take TF32, one switch (trial 3, ")
    assert policysearch.pick(found, "verdict").number == 3
    assert {row.verdict for row in found.rows()} == {said}
    assert front_table(found).startswith(f"verdict: {said}\n")
    assert "\nwhat you run:\n1      bfloat16" in front_table(found)
    assert "the pick" not in front_table(found)  # nothing speaks against it
    shown = page(found, "tiny.toml")
    assert "Take TF32, one switch: trial 3" in shown and 'id="switch"' in shown
    assert "torch.set_float32_matmul_precision(&quot;high&quot;)" in shown
    monkeypatch.setattr(policysearch, "load_results", lambda *_: found)
    study = str(write_study(tmp_path))
    assert main(["export", study, "--out", str(tmp_path)]) == 0
    assert f"verdict of the study: {said}\n" in capsys.readouterr().out
    (written,) = tmp_path.glob("*-torch.py")
    assert "allow_tf32 = True" in written.read_text() and "take TF32" in written.read_text()
    assert main(["show", study, "--json"]) == 0
    read = json.loads(capsys.readouterr().out)["verdict"]
    assert (read["trial"], read["switch"]) == (3, found.verdict.switch)


@pytest.mark.usefixtures("one_process")
def test_every_view_of_a_study_begins_with_the_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = str(
        write_study(tmp_path, ("steps = 6", "steps = 60"), ("tail_steps = 3", "tail_steps = 9"))
    )
    assert main(["run", path]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("verdict: ")
    assert main(["show", path, "--json"]) == 0
    read = json.loads(capsys.readouterr().out)
    assert f"verdict: {read['verdict']['text']}" == first and read["study"] == "tiny"
    for command in (["show", path], ["confirm", path]):
        assert main(command) == 0
        assert capsys.readouterr().out.startswith("verdict: ")
    assert main(["try", "preset:apex.O2", "--study", path]) == 0
    assert capsys.readouterr().out.startswith("verdict: trains")
    assert main(["export", path, "--trial", "0"]) == 0
    assert "\nverdict of the study: " in capsys.readouterr().out


@pytest.mark.parametrize(
    "learned, why",
    [
        (None, "its records are older"),
        (Learned(2.0, 1.0), "its records are older"),
        (Learned(2.0, 1.0, unit="loss"), "a net's own loss has no constant to beat"),
    ],
)
def test_what_hides_whether_float32_learned_is_named(learned: Learned | None, why: str) -> None:
    verdict = replace(made_up.results_of(), learned=learned).verdict
    assert verdict.text.endswith(f"; that float32 beats a constant is not checked: {why}")
    assert not verdict.learning_checked
