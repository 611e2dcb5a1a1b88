"""Whether float32 has learned: nets at chance have no front, nets that learn have one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from policysearch.data.datasets import Dataset, load_dataset
from policysearch.report.one_trial import standing
from policysearch.report.plots import KNEE, VERDICT, VIEWS, figure
from policysearch.report.table import csv_text, front_table
from policysearch.study.journal.records import Records
from policysearch.study.opening import load_results
from policysearch.study.results.learning import Beside, Learned, most_by_chance
from policysearch.study.results.results import Results
from policysearch.study.specification import load_spec
from policysearch.study.stopping import NO_REFERENCE
from policysearch.study.study import run_study
from policysearch.train.constant import CHANCE as BY_CHANCE
from policysearch.train.constant import Constant, constant_of
from policysearch.values import InputError
from tests.studies import write_study

Array = NDArray[Any]
TRAIN, VALIDATION = 600, 300
SAID = "float32 has not learned here"
SHORT = (("trials = 6", "trials = 3"), ('["bfloat16", "mindspore.O0", "apex.O3"]', '["bfloat16"]'))
LONGER = (("steps = 6", "steps = 60"), ("tail_steps = 3", "tail_steps = 20"), ("[8]", "[24]"))


def pictures(seed: int, count: int = TRAIN + VALIDATION) -> Array:
    return np.random.default_rng(seed).normal(size=(count, 1, 4, 4)).astype(np.float32)


def dataset(inputs: Array, labels: Array, classes: int = 4) -> Dataset:
    return Dataset("made", (inputs,), labels, TRAIN, VALIDATION, classes)


def random_classes(seed: int, shares: tuple[float, ...] = (0.25, 0.25, 0.25, 0.25)) -> Dataset:
    x = pictures(seed)
    drawn = np.random.default_rng(seed + 100).choice(len(shares), len(x), p=shares)
    return dataset(x, drawn.astype(np.int64), len(shares))


def sorted_classes(seed: int) -> Dataset:
    """Which of four quarters of the picture is the brightest."""
    x = pictures(seed)
    quarters = x.reshape(len(x), 4, 4).sum(axis=2)
    return dataset(x, quarters.argmax(axis=1).astype(np.int64))


def numbers(seed: int, learnable: bool) -> Dataset:
    x = pictures(seed)
    source = x if learnable else pictures(seed + 100)
    y = source.reshape(len(x), 16) @ np.linspace(-1, 1, 32).reshape(16, 2) + 0.1
    return dataset(x, y.astype(np.float32), 2)


def rare(seed: int) -> Dataset:
    """Two classes, one of them a tenth, that follow from the picture: accuracy says little."""
    x = pictures(seed)
    score = x[:, 0, :2].sum(axis=(1, 2)) + 0.5 * x[:, 0, 3, 3]
    return dataset(x, (score > np.quantile(score, 0.9)).astype(np.int64), 2)


def shuffled_digits() -> Dataset:
    digits = load_dataset("digits")
    labels = np.random.default_rng(0).permutation(digits.labels)
    return replace(digits, labels=labels, inputs=tuple(x.copy() for x in digits.inputs))


def tokens(learnable: bool) -> Dataset:
    rng = np.random.default_rng(3)
    text = rng.integers(0, 8, size=(300, 17))
    if learnable:  # the next is the one before plus one
        text = (text[:, :1] + np.arange(17)) % 8
    text = text.astype(np.int64)
    return Dataset("text", (text[:, :-1].copy(),), text[:, 1:].copy(), 200, 100, 8)


@dataclass(frozen=True)
class Net:
    name: str
    data: Callable[[], Dataset]
    changes: tuple[tuple[str, str], ...] = field(default=())


NUMBERS = (('data = "digits"', 'data = "digits"\nloss = "mean_squared_error"'), ("0.1\n", "0.02\n"))
GPT = (
    ('"mlp"', '"gpt"'),
    ('"tanh"', '"gelu"'),
    ("widths = [24]\n", ""),
    ("0.1\n", "0.02\n"),
)
RELU = (('activation = "tanh"', 'activation = "relu"'),)
FAST = (("steps = 60", "steps = 400"),)
WIDE = (("[24]", "[128]"),)
CHANCE = (
    Net("random labels", lambda: random_classes(0)),
    Net("random labels, memorised", lambda: random_classes(1), (*FAST, *WIDE)),
    Net("random labels, relu", lambda: random_classes(2), RELU),
    Net("random labels, one class frequent", lambda: random_classes(3, (0.7, 0.2, 0.1))),
    Net("digits with shuffled labels", shuffled_digits),
    Net("random numbers", lambda: numbers(4, False), NUMBERS),
    Net("random numbers, memorised", lambda: numbers(5, False), (*NUMBERS, *FAST, *WIDE)),
    Net("a rate of zero", lambda: sorted_classes(6), (("rate = 0.1", "rate = 1e-9"),)),
    Net("a rate that diverges", lambda: sorted_classes(7), (*RELU, ("rate = 0.1", "rate = 1e5"))),
    Net("random text", lambda: tokens(False), GPT),
)
LEARNING = (
    Net("digits", lambda: load_dataset("digits")),
    Net("digits, relu", lambda: load_dataset("digits"), RELU),
    Net("digits, two layers", lambda: load_dataset("digits"), (("[24]", "[32, 16]"),)),
    Net("brightest quarter", lambda: sorted_classes(0)),
    Net("brightest quarter, relu", lambda: sorted_classes(1), RELU),
    Net("brightest quarter, adam", lambda: sorted_classes(2), (("rate = 0.1", "rate = 0.05"),)),
    Net("numbers", lambda: numbers(3, True), NUMBERS),
    Net("numbers, wide", lambda: numbers(4, True), (*NUMBERS, *WIDE)),
    Net("a rare class", lambda: rare(5)),
    Net("text that counts", lambda: tokens(True), GPT),
)


def shown(nets: tuple[Net, ...], also: tuple[str, ...]) -> list[Any]:
    """Return nets as parameters; those `also` are of a kind that another is of, and are slow."""
    assert {*also} < {net.name for net in nets}
    return [
        pytest.param(net, id=net.name, marks=[pytest.mark.slow] if net.name in also else [])
        for net in nets
    ]


ALSO_CHANCE = ("random labels, memorised", "random labels, relu", "random numbers")
ALSO_LEARNING = ("digits, two layers", "brightest quarter", "brightest quarter, relu", "numbers")


def studied(net: Net, folder: Path) -> Results:
    spec = load_spec(write_study(folder, *SHORT, *LONGER, *net.changes))
    return run_study(
        spec.with_values(data=net.data(), cost=spec.cost), folder / "x.journal", processes=0
    )


@pytest.mark.parametrize("net", shown(CHANCE, ALSO_CHANCE))
def test_a_net_at_chance_has_no_front_in_any_view(net: Net, tmp_path: Path) -> None:
    results = studied(net, tmp_path)
    assert results.front == ()
    assert results.verdict.kind == "not learned" and results.verdict.text.startswith(SAID)
    assert results.verdict.trial is None
    # No more is trained than was under way beside float32.
    assert results.stopped == NO_REFERENCE and len(results.trials) <= results.spec.study.workers
    table = front_table(results)
    assert table.startswith(f"verdict: {SAID}") and "0 on the front" in table
    assert SAID in csv_text(results) or results.float32_fault
    for trial in results.trials:
        if not trial.diverged:
            assert standing(results, trial).startswith("not ranked: ")
        assert results.training_verdict(trial).kind in ("not learned", "does not train")
    drawn = {found.get_label() for found in figure(results, VIEWS[0]).axes[0].collections}
    assert not drawn & {KNEE, VERDICT}
    with pytest.raises(InputError):
        results.knee()


@pytest.mark.parametrize("net", shown(LEARNING, ALSO_LEARNING))
def test_a_net_that_learns_has_a_front(net: Net, tmp_path: Path) -> None:
    results = studied(net, tmp_path)
    assert results.learned is not None and results.learned.checked
    assert results.front and not results.cannot_rank and results.stopped != NO_REFERENCE
    assert SAID not in front_table(results)
    assert results.verdict.kind in ("take", "keep", "at a cost")


def test_a_journal_without_the_constant_is_not_checked(tmp_path: Path) -> None:
    """As journals of before: nothing is guessed, and going on adds what is missing."""
    with mock.patch.object(Records, "add_constant"):
        older = studied(CHANCE[1], tmp_path)
    path = tmp_path / "x.journal"
    assert "policysearch:constant" not in path.read_text(encoding="utf-8")
    assert older.learned is not None and not older.learned.checked and older.front
    assert "that float32 beats a constant is not checked" in str(older.verdict)
    again = run_study(older.spec, path, processes=0)
    assert "policysearch:constant" in path.read_text(encoding="utf-8")
    assert again.front == () and again.verdict.kind == "not learned"
    assert load_results(older.spec, path) == again


def test_the_constant_is_what_scipy_and_numpy_say() -> None:
    data = random_classes(0, (0.7, 0.2, 0.1))
    found = constant_of(data, "softmax_cross_entropy")
    train, validation = data.train[1], data.validation[1]
    shares = np.bincount(train) / len(train)
    assert found is not None and found.validation_labels == VALIDATION
    assert found.train_loss == pytest.approx(stats.entropy(shares))
    crossed = stats.entropy(np.bincount(validation) / VALIDATION, shares)
    own = stats.entropy(np.bincount(validation))
    assert found.validation_loss == pytest.approx(crossed + own)
    assert found.accuracy == np.mean(validation == 0)
    of_numbers = numbers(0, True)
    found = constant_of(of_numbers, "mean_squared_error")
    train, validation = of_numbers.train[1], of_numbers.validation[1]
    assert found is not None and found.accuracy is None
    assert found.train_loss == pytest.approx(np.var(train, axis=0).mean(), rel=1e-5)
    against = np.mean((validation - train.mean(axis=0, dtype=np.float64)) ** 2)
    assert found.validation_loss == pytest.approx(against)
    # the median of three numbers is the least in absolute error, by the definition of either
    few = Dataset("few", (pictures(0, 4),), np.array([[0], [1], [9], [1]], np.float32), 3, 1, 1)
    found = constant_of(few, "l1")
    assert found is not None and found.train_loss == pytest.approx(3.0)
    assert constant_of(few, "kl_div") == Constant(None, None, None, 1)


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_guesses_seldom_pass_for_learning(seeds: int, share: float) -> None:
    """Labels that seeds guess alike, which is the hardest case, and each its own way."""
    rng, count, tries = np.random.default_rng(0), 200, 4000
    constant = Constant(None, None, share, count)
    for alike in (True, False):
        drawn = rng.binomial(count, share, size=(tries, 1 if alike else seeds)) / count
        every = np.broadcast_to(drawn, (tries, seeds))
        passed = sum(Beside(constant, tuple(row)).learned for row in every.tolist())
        assert passed <= stats.binom.ppf(0.999, tries, 1e-3)
    assert Beside(constant, (min(1.0, share + 0.25),) * seeds).learned


@pytest.mark.parametrize("count", [1, 7, 400, 59_999])
@pytest.mark.parametrize("share", [1e-3, 0.1, 0.5, 0.997, 1.0])
def test_so_many_guesses_as_chance_gives_are_no_learning(count: int, share: float) -> None:
    most = float(stats.binom.ppf(0.999, count, share))
    constant = Constant(None, None, share, count)
    assert not Beside(constant, (most / count,)).learned
    assert Beside(constant, ((most + 1) / count,)).learned


def test_seeds_that_disagree_have_not_learned() -> None:
    constant = Constant(None, None, 0.25, 400)
    assert Beside(constant, (0.5, 0.5, 0.5)).learned
    assert not Beside(constant, (0.9, 0.25, 0.25)).learned  # one seed of three
    assert Beside(constant, (0.25,) * 3, ((0.2, 0.01),) * 3).learned  # by its loss alone
    assert not Beside(constant, (0.25,) * 3, ((0.02, 0.01),) * 3).learned
    assert "no better than chance" in Learned(1.4, 1.3, Beside(constant, (0.25,) * 3)).fault
    assert "does not fall" in Learned(1.4, 1.4, Beside(constant, (0.5,) * 3)).fault


@pytest.mark.parametrize("count", [1, 2, 7, 100, 360, 12_800, 10**6])
def test_what_chance_gets_right_is_the_quantile_of_a_binomial_distribution(count: int) -> None:
    for share in (0.0, 1e-6, 0.001, 0.1, 1 / 3, 0.5, 0.77, 0.999, 1.0):
        assert most_by_chance(count, share) == stats.binom.ppf(1.0 - BY_CHANCE, count, share)
