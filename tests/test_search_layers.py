"""What methods train of a net whose policies are too many to list, and how rivals are counted."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.search.deep import METHODS, Deep, Grown, Trainings, draws_of, shares, spec_of
from benchmarks.search.guesses import GUESSING, guessed_by, policy_of
from benchmarks.search.layered import Trained
from benchmarks.search.tables import FOLDER, load
from benchmarks.search.unseen import against_floor, against_rival, counted
from policysearch.study.specification import spec_from_text

TRIALS = 4
FORMATS = ("float8_e4m3fn", "bfloat16", "tfloat32")
STUDY = """
[study]
name = "small"

[task]
model = "mlp"
widths = [8, 8]
data = "digits"
batch_size = 16
steps = 8
tail_steps = 3

[cost]
device = "H100-SXM5"
stack = "torch.compile"
batch_size = 65536
batch_size_reason = "at 16 no format pays"

[space]
formats = ["float32", "tfloat32", "bfloat16", "float8_e4m3fn"]
base = "torch.autocast.bfloat16"
scalings = ["current"]
"""


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Deep:
    return Deep(spec_from_text(STUDY, "small"), tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def trained(deep: Deep) -> dict[str, list[Trained]]:
    names = [name for name in METHODS if name != "own"]  # as the one with probes, and half the time
    return {n: [deep.trained(n, 1, d, TRIALS) for d in draws_of(n)] for n in names}


def test_every_method_trains_policies_of_its_own_and_pays_for_probes(
    deep: Deep, trained: dict[str, list[Trained]]
) -> None:
    for name, each in trained.items():
        for found in each:
            assert 2 <= len(found.gaps) <= TRIALS + 1 and found.gaps[0] == 0.0, name
            reads = name == "own+probes" or name in GUESSING
            assert found.charged == (deep.charge if reads else 0.0)
    assert {len(each) for each in trained.values()} == {1, 2} and deep.charge > 0.5


def test_what_is_kept_is_not_trained_again(
    deep: Deep, trained: dict[str, list[Trained]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = deep.trainings.path
    monkeypatch.setattr(deep, "trainings", Trainings(deep.layered, path))
    monkeypatch.setattr(deep.layered.objective, "measure", None)
    for name in ("loss-error", "divergences-anew", "one-at-a-time"):
        found = deep.trained(name, 1, 0, TRIALS)
        np.testing.assert_array_equal(found.gaps, trained[name][0].gaps)
    monkeypatch.setattr(deep, "trainings", Trainings(deep.layered, path.with_name("none.csv")))
    with pytest.raises(TypeError):
        deep.trained("one-at-a-time", 1, 0, TRIALS)


def test_a_share_is_of_all_that_was_trained_and_probes_come_first(
    deep: Deep, trained: dict[str, list[Trained]]
) -> None:
    found = shares(deep, trained, (0, 1, 2, TRIALS, 99))
    for each in found.values():
        assert (np.diff(each, axis=1) >= 0.0).all() and each.max() <= 1.0
    assert max(each.max() for each in found.values()) > 0.5
    costs = np.array([[1.0, 1.0], [0.5, 0.5], [0.25, 0.5]])
    free = Trained(np.zeros(3), costs, np.zeros(3))
    charged = Trained(np.zeros(3), costs, np.zeros(3), 0.65)
    assert [len(free.paid(n).gaps) for n in (0, 1, 2, 9)] == [1, 2, 3, 3]
    assert [len(charged.paid(n).costs) for n in (0, 1, 2, 3)] == [1, 1, 2, 3]


def test_places_are_numbered_as_they_are_asked_for(deep: Deep) -> None:
    places = Grown(deep.layered, deep.trainings, 1)
    rows = [[0, 0, 0], [3, 2, 1], [0, 0, 0]]
    assert [places.find(row) for row in rows] == [0, 1, 0]
    assert places.options(1) == [3, 2, 1] and places.options(places.cheapest())[0] > 0
    params = dict(zip(deep.layered.lookup.names, FORMATS, strict=True))
    assert deep.layered.encoding.row(params)[:3] == (3, 2, 1)
    exact, _ = deep.layered.costs(policy_of(deep.layered, [3, 2, 1]))
    assert places.time(1) == pytest.approx(exact, rel=0.03)


def test_what_is_decided_anew_is_in_force_from_each_third_on(deep: Deep) -> None:
    guess = dict(deep.guess(1))
    half, rng = len(guess["loss"]) // 2, np.random.default_rng(0)
    guess["loss_at"] = np.exp(3 * rng.standard_normal((3, 2 * half + len(guess["loss"]) % 2)))
    policies = list(guessed_by(deep.layered, "divergences-anew", guess))
    changing = [p for p in policies if len({p.layers, *(each.layers for each in p.phases)}) > 1]
    assert changing and {tuple(e.first_step for e in p.phases) for p in policies} == {(2, 5)}


@pytest.mark.slow
def test_the_net_is_of_torch_and_what_is_kept_of_it_is_what_training_gives() -> None:
    pytest.importorskip("torch")
    deep = Deep(spec_of())
    assert len(deep.layered.space.groups) == 42
    policy, seed = policy_of(deep.layered, [3] * 42), 0
    objective = deep.layered.objective
    run = objective.measure(policy, seed).tail_loss
    base = objective.baseline(seed).tail_loss
    kept = deep.trainings.known[policy.digest[:16], seed]
    assert run is not None and base is not None
    assert (FOLDER / "deep.csv").exists() and run - base == pytest.approx(kept, rel=1e-2, abs=1e-5)


def test_ratios_are_of_each_seed_to_the_floor_and_of_medians_to_rivals() -> None:
    least, ours = [np.full((3, 2), 2.0)], [np.array([[4.0, 2.0], [6.0, 2.0], [2.0, 20.0]])]
    assert against_floor(ours, least)[0].tolist() == [2.0, 1.0]
    assert against_rival([np.array([[6.0, 3.0]])], ours).tolist() == [[1.5, 1.5]]
    table = load("mlp-stochastic")
    assert (counted(table, "own", 30) >= counted(table, "floor")).all()
