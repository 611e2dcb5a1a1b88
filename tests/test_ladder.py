"""The ladder of a study: presets are all trained, uniform formats as far as they promise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from policysearch.objective.score import Measurement
from policysearch.policy.policy import Policy
from policysearch.report.table import front_table, search_lines
from policysearch.search.acquisition import yardstick
from policysearch.study.journal.records import Asked, Records
from policysearch.study.journal.storage import read_checked
from policysearch.study.opening import load_results
from policysearch.study.results.gain import gain_over_start, ladder_costs
from policysearch.study.results.results import Results
from policysearch.study.specification import StudySpec, load_spec, objective_of, space_of
from policysearch.study.study import run_study
from tests.made_up import results_of, trial_of
from tests.studies import WITHOUT_TF32, replaced_training, write_study

CHANGES = (
    WITHOUT_TF32,
    ("trials = 6", "trials = 14"),
    ('sampler = "random"', 'sampler = "gain"'),
    ("widths = [8]", "widths = [2048, 2048]"),
    ("batch_size = 4096", "batch_size = 65536"),
    ('ops = ["tanh"]\n', ""),
    ('loss_scales = ["none", "fixed", "dynamic"]\ngrowth_intervals = [10, 100]\n', ""),
    ('formats = ["float32", ', 'formats = ["float32", "float16", '),
    ('"bfloat16", "mindspore.O0", "apex.O3"]', '"uniform", "apex.O3"]'),
)


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> StudySpec:
    return load_spec(write_study(tmp_path_factory.mktemp("study"), *CHANGES))


def alike(policy: Policy, seed: int) -> Measurement:
    """Formats of 16 bits are alike, in price and in gap: one that is known makes the other idle."""
    costs = {"float32": 0.0, "float16": 1e-4, "bfloat16": 1e-4, "float8_e4m3fn": 2e-3}
    layers = enumerate(layer for _, layer in policy.layers)
    gap = sum(costs[layer.compute] * (1 + place) for place, layer in layers)
    gap *= 1.0 if policy.master_weights else 3.0
    return Measurement(0.5 + gap, 0.9, None, 0, (), ())


@pytest.fixture(scope="module")
def journal(spec: StudySpec, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("journal") / "tiny.journal"
    with replaced_training(alike):
        run_study(spec, path, processes=0)
    return path


def asked_in(path: Path) -> list[Asked]:
    records = Records(read_checked(path).lines)
    return sorted(records.searched, key=lambda asked: asked.place)


def ladder_of(spec: StudySpec) -> dict[str, Policy]:
    ladder = space_of(spec).ladder(spec.study.baseline)
    return {digest: policy for digest, (policy, _) in ladder.items()}


def test_presets_come_first_and_uniform_formats_as_far_as_they_promise(
    spec: StudySpec, journal: Path
) -> None:
    ladder, asked = ladder_of(spec), asked_in(journal)
    assert len(ladder) == 8 and len(asked) == spec.study.trials
    assert [each.presets for each in asked[:2]] == [("float32",), ("apex.O3",)]
    tried = {each.digest for each in asked}
    left = [policy for digest, policy in ladder.items() if digest not in tried]
    assert left and len(left) < len(ladder) - 2
    assert {each.digest for each in asked if each.start} == ladder.keys() & tried
    results = load_results(spec, journal)
    objective = objective_of(spec)
    assert results.left == tuple((p.name, objective.price(p)) for p in left)
    names = ", ".join(policy.name for policy in left)
    assert (
        f"uniform policies not trained, since others were expected to gain more: {names}"
        in front_table(results)
    )
    assert f"uniform policies not trained yet: {names}" in front_table(replace(results, stopped=""))


def test_what_was_added_is_measured_from_the_prices_of_the_whole_ladder(
    spec: StudySpec, journal: Path
) -> None:
    results, objective = load_results(spec, journal), objective_of(spec)
    ladder = [objective.price(p) for p in ladder_of(spec).values() if p != objective.float32]
    priced = [(1.0 / cost.speedup, cost.memory_ratio) for cost in ladder]
    measure = yardstick(np.array(priced))
    gaps = np.array([trial.loss_gap for trial in results.trials])
    costs = np.array([(1.0 / t.cost.speedup, t.cost.memory_ratio) for t in results.trials])
    start = [place for place, trial in enumerate(results.trials) if trial.start]
    added, volume = gain_over_start(results), measure.volume(gaps, costs)
    assert added is not None and added.volume == pytest.approx(volume)
    alone = measure.volume(gaps[start], costs[start])
    assert added.gain == pytest.approx(volume - alone) and volume > alone
    counted = sorted(map(tuple, ladder_costs(results).tolist()))
    np.testing.assert_allclose(counted, sorted(priced), rtol=1e-12)
    assert len(priced) > len(start) - 1


@pytest.mark.parametrize("change", ["ladder", "sampler"])
def test_all_of_it_is_trained_where_the_file_says_so_or_the_sampler_cannot_weigh(
    change: str, spec: StudySpec, tmp_path: Path
) -> None:
    if change == "ladder":
        spec = replace(spec, space=replace(spec.space, ladder=("uniform.all", "apex.O3")))
    else:
        spec = replace(spec, study=replace(spec.study, sampler="random"))
    with replaced_training(alike):
        results = run_study(spec, tmp_path / "j", processes=0)
    ladder = list(ladder_of(spec))
    assert [each.digest for each in asked_in(tmp_path / "j")[: len(ladder)]] == ladder
    assert results.left == () and "of the ladder" not in front_table(results)


def test_a_journal_in_which_more_of_the_ladder_was_asked_for_goes_on(
    spec: StudySpec, tmp_path: Path
) -> None:
    """What is recorded decides: an earlier version asked for all of it, in the file's order."""
    whole = replace(spec, space=replace(spec.space, ladder=("uniform.all", "apex.O3")))
    path = tmp_path / "j"

    def stop(done: float, _: Callable[[], Results]) -> None:
        if done >= 3:
            raise KeyboardInterrupt

    with replaced_training(alike) as first, pytest.raises(KeyboardInterrupt):
        run_study(whole, path, processes=0, progress=stop)
    before = asked_in(path)
    with replaced_training(alike) as then:
        results = run_study(spec, path, processes=0)
    assert set(first).isdisjoint(then)
    asked = asked_in(path)
    assert len(before) > 2
    assert [each.digest for each in asked[: len(before)]] == [each.digest for each in before]
    assert len(results.trials) == len(asked) == spec.study.trials
    assert results.left and {name for name, _ in results.left}.isdisjoint(
        trial.name for trial in results.trials
    )


def test_a_format_is_untried_only_where_no_policy_that_was_trained_has_it() -> None:
    results = results_of(2)  # float32 and bfloat16
    space = results.spec.space

    def untried(results: Results, *offered: str) -> list[str]:
        spec = replace(results.spec, space=replace(space, formats=offered))
        lines = search_lines(replace(results, spec=spec))
        return [line for line in lines if "in no policy that was trained" in line]

    both = ("float32", "bfloat16", "float16")
    assert untried(results, *both) == [
        "offered by the study, and in no policy that was trained: float16"
    ]
    assert not untried(results, "float32", "bfloat16")
    assert not untried(replace(results, trials=()), *both)
    low = replace(results, trials=results.trials[1:])
    assert not untried(low, "float32", "bfloat16")
    layers = dict(results.trials[1].policy.layers)
    for field in ("compute", "output", "grad", "wgrad"):
        changed = {
            name: replace(row, **{field: "float16"})  # type: ignore[arg-type]
            for name, row in layers.items()
        }
        only = trial_of(1, results.trials[1].policy.with_layers(changed))
        assert not untried(replace(results, trials=(only,)), "float32", "float16")
