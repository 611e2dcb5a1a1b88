"""All that is known of one policy: counts by layer, where the time goes, memory, and verdicts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import policysearch
from policysearch.cost.price import MODEL_RESOLUTION
from policysearch.objective.score import Measurement
from policysearch.policy.policy import Policy
from policysearch.policy.presets import preset
from policysearch.report.one_trial import number_of, standing, trial_page, tried_page
from policysearch.study.results.results import Results
from policysearch.study.specification import load_spec
from policysearch.study.study import run_study
from policysearch.values import NO_LAYER, InputError
from tests.studies import WITHOUT_TF32, measured, replaced_training, write_study


def stand(policy: Policy, seed: int) -> Measurement:
    if policy.name == "apex.O3":
        return Measurement(None, 0.1, 4, 2, (("fc1", 300 + seed), ("fc2", 4)), (("fc2", 50),))
    if policy.name == "bfloat16":
        return replace(measured(policy, seed), overflows=(("fc1", 7),), underflows=(("fc2", 11),))
    if not policy.master_weights:
        raise RuntimeError("no room")
    return measured(policy, seed)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("one")
    spec = load_spec(write_study(folder, WITHOUT_TF32, ("trials = 6", "trials = 12")))
    with replaced_training(stand):
        return run_study(spec, folder / "x.journal", processes=0)


def lines_of(page: str, first: str) -> list[list[str]]:
    return [line.split() for line in page.splitlines() if line.startswith(first)]


def test_counts_are_summed_over_the_seeds_by_layer(results: Results) -> None:
    page = trial_page(results, 1)
    assert lines_of(page, "fc1")[0][-3:-1] == ["14", "0"]
    assert lines_of(page, "fc2")[0][-3:-1] == ["0", "22"]
    assert [line[-2:] for line in lines_of(page, "0 ")] == [["7", "11"]]


def test_time_is_by_layer_format_and_cast_and_memory_says_whether_it_fits(
    results: Results,
) -> None:
    cost = results.trial(1).cost
    page = trial_page(results, 1)
    for layer, share in cost.layer_shares:
        assert lines_of(page, layer or NO_LAYER)[-1][-1] == f"{share:.1%}"
    for name, share in cost.format_shares:
        assert f"{name} {share:.1%}" in page
    assert f"casts {cost.cast_share:.1%}" in page
    assert f"optimizer {cost.optimizer_share:.1%}" in page
    assert f"{cost.low_precision_share:.1%} of the FLOPs" in page
    bound = "launches by the host" if cost.host_bound else "the kernels"
    assert f"set by {bound}" in page and "fits on MI300X (192 GiB)" in page
    assert f"peak {cost.peak_bytes / 2**20:.4g} MiB" in page and "reserved" in page
    assert "not confirmed" in page and "loss scale: none" in page
    assert cost.summary in page


def test_a_diverged_policy_says_where_and_which_layer(results: Results) -> None:
    page = trial_page(results, 2)
    assert "diverged in step 4, most overflows in fc1 (seed 0)" in page
    assert "2 of 6" in page
    lost = results.trial(2)
    quiet = replace(lost, scores=tuple(replace(s, overflows=()) for s in lost.scores))
    elsewhere = replace(results, trials=tuple(quiet if t is lost else t for t in results.trials))
    for shown, said in ((results, "304"), (elsewhere, "-")):  # no overflow of a cast, and none is 0
        (row,) = [x.split() for x in trial_page(shown, 2).splitlines() if x.startswith("0  ")]
        assert (row[1], row[-2]) == ("diverged", said)
    assert lines_of(page, "fc1")[0][-3] == "601"
    assert "not on the front: diverged" in page


def test_a_failed_policy_says_why(results: Results) -> None:
    failed = results.failed[0]
    for page in (
        trial_page(results, failed.number),
        tried_page(results, failed.number, new=False),
    ):
        assert page.startswith("verdict: does not train: it failed\n") and "no room" in page
        assert f"\ntrial {failed.number}: " in page


def test_every_trial_has_a_page(results: Results) -> None:
    for trial in results.trials:
        page = trial_page(results, trial.number)
        assert page.startswith(f"verdict: {results.training_verdict(trial)}\n")
        assert page.split("\n\n")[1].startswith(f"trial {trial.number}: {trial.name}")
        assert "on the front" in page
        assert tried_page(results, trial.number, new=True)


def test_what_is_not_on_the_front_names_the_member_that_beats_it(results: Results) -> None:
    wide = replace(results, noise_gap=1e-5)
    beaten = [t for t in wide.trials if not t.diverged and t not in wide.front]
    assert beaten
    for trial in beaten:
        better = wide.beaten_by(trial)
        words = standing(wide, trial)
        assert better and set(better) <= set(wide.front)
        assert any(f"that can be told than trial {member.number} " in words for member in better)
        for member in better:
            gap, speed, memory = wide.point(member)
            other_gap, other_speed, other_memory = wide.point(trial)
            assert gap <= other_gap and speed <= other_speed / (1 + MODEL_RESOLUTION["speedup"])
            assert memory <= other_memory * (1 + MODEL_RESOLUTION["memory_ratio"])
    assert all(wide.beaten_by(trial) == () for trial in wide.front)
    assert standing(wide, wide.knee()) == "on the front, its knee"


def test_a_policy_that_nothing_was_compared_with_is_not_praised(results: Results) -> None:
    first = results.trials[1]
    alone = replace(results, trials=(first,))
    assert alone.front == (first,) and "front" in standing(results, first)
    assert standing(alone, first).startswith("the only policy so far: `policysearch run")
    assert tried_page(alone, first.number, new=True).endswith("trains others to compare with")


def test_the_mean_gap_has_its_interval_and_one_seed_has_none(results: Results) -> None:
    assert "at 95 % over seeds" in trial_page(results, 1)
    trials = tuple(
        replace(trial, scores=trial.scores[:1], seeds=trial.seeds[:1]) for trial in results.trials
    )
    study = replace(results.spec.study, seeds=(0,))
    one = replace(results, trials=trials, spec=replace(results.spec, study=study))
    assert "one seed, so no interval" in trial_page(one, 1)


def test_a_policy_is_found_by_what_it_is(results: Results) -> None:
    layers = results.spec.task.build_model(results.spec.task.load_dataset()).layer_names
    policy = preset("bfloat16", layers)
    assert number_of(results, policy, "b.json") == 1
    backwards = replace(policy, low_precision_ops=policy.low_precision_ops[::-1])
    assert backwards.digest != policy.digest and number_of(results, backwards, "b.json") == 1
    moved = replace(policy, low_precision_ops=policy.low_precision_ops[1:])
    with pytest.raises(InputError, match=r"policy p\.json: no trial of tiny; expected"):
        number_of(results, moved, "p.json")


@pytest.mark.usefixtures("one_process")
def test_show_takes_a_trial_or_a_policy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from policysearch.cli import main

    monkeypatch.chdir(tmp_path)
    study = str(write_study(tmp_path, WITHOUT_TF32))
    assert main(["run", study, "--processes", "1"]) == 0
    assert main(["export", study, "--trial", "1"]) == 0
    capsys.readouterr()
    pages = []
    for what in (["--trial", "1"], ["--policy", "results/tiny-policy.json"]):
        assert main(["show", study, *what]) == 0
        pages.append(capsys.readouterr().out)
    assert pages[0] == pages[1] and "bfloat16" in pages[0]
    assert main(["show", study, "--trial", "99"]) == 2
    assert "trial: 99; expected one of 0, 1" in capsys.readouterr().err


def test_what_the_nets_own_forward_computes_has_one_name() -> None:
    package = Path(policysearch.__file__).parent
    others = ("(no layer)", "(the module)", NO_LAYER)
    found = [
        f"{path.name}: {name}"
        for path in sorted(package.rglob("*.py"))
        for name in others
        if name in path.read_text(encoding="utf-8")
    ]
    assert found == [f"values.py: {NO_LAYER}"]
