"""Whether a small net's study holds in a large one: said where it does, and nowhere else."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.carry import BASE, FAMILIES, Family, Held, fault
from policysearch import api
from policysearch.cli import main
from policysearch.nn.models import gpt
from policysearch.policy.policy import uniform_layer
from policysearch.policy.presets import preset
from policysearch.report.carried_page import carried_page
from policysearch.space.rules_file import blocks_between, rules_file_of
from policysearch.study.journal.trials import Trial
from policysearch.study.questions.carry import (
    FEWEST,
    LEAST,
    OWN,
    SURE,
    Agreement,
    Carried,
    Moved,
    agreement,
    carry,
    comparison,
    contenders,
    sample,
)
from policysearch.study.results.results import Results
from policysearch.study.specification import StudySpec, objective_of
from policysearch.values import InputError

SHORT = (("steps = 150", "steps = 60"), ("tail_steps = 50", "tail_steps = 20"))
GAPS = np.array([1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2])


def _seeds(gaps: Any, noise: float, seed: int = 0) -> list[list[float]]:
    """Return the gaps of three seeds, each off by `noise` of itself."""
    rng = np.random.default_rng(seed)
    table = np.array(gaps)[:, None] * (1.0 + noise * rng.standard_normal((len(gaps), 3)))
    return [[float(gap) for gap in row] for row in table]


def test_nets_that_rank_alike_carry_and_a_turned_order_does_not() -> None:
    small = _seeds(GAPS, 0.1)
    alike = agreement(small, _seeds(3.0 * GAPS, 0.1, 1))
    assert alike.kind == "carries" and alike.correlation == 1.0 and alike.low >= LEAST
    turned = agreement(small, _seeds(GAPS[::-1], 0.1, 1))
    assert turned.kind == "does not carry" and turned.high < SURE and not turned.noise
    assert "rank correlation -1.00 (-1.00 to -1.00 over the seeds) of 6" in str(turned)


def test_a_net_that_does_not_agree_with_itself_says_nothing_of_another() -> None:
    noise = np.random.default_rng(3).standard_normal((6, 3))
    for tables in ((_seeds(GAPS, 0.1), noise), (noise, _seeds(GAPS, 0.1))):
        found = agreement(*tables)
        own = found.large if tables[1] is noise else found.small
        assert own is not None and own < OWN
        assert found.kind == "cannot tell" and "own seeds rank them at" in found.noise


def test_one_seed_or_few_policies_cannot_tell() -> None:
    single = [[float(gap)] for gap in GAPS]
    assert agreement(single, single).kind == "cannot tell"
    assert "one seed" in agreement(single, single).noise
    few = _seeds(GAPS[: FEWEST - 1], 0.1)
    assert agreement(few, few).kind == "cannot tell"


def test_a_correlation_that_seeds_take_below_and_above_cannot_tell() -> None:
    between = Agreement(6, 0.7, 0.3, 0.9, 0.9, 0.9)
    assert between.kind == "cannot tell"
    assert replace(between, correlation=0.9).kind == "cannot tell"
    assert replace(between, correlation=0.9, low=0.6).kind == "carries"
    assert replace(between, high=0.75).kind == "does not carry"


def _pair(name: str, *changes: tuple[str, str]) -> tuple[StudySpec, StudySpec]:
    family = Family((*FAMILIES[name].changes, *changes))
    return family.small(), family.large()


@pytest.fixture(scope="module")
def tanh(tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, StudySpec, Path]:
    """A study of the small net, and the large one's file."""
    folder = tmp_path_factory.mktemp("carry")
    small, large = _pair("tanh", *SHORT, ("trials = 20", "trials = 12"))
    results = api.run_study(small, folder / "small.journal", processes=0, progress=False)
    return results, large, folder


def test_a_tanh_net_carries_and_no_gap_is_told_of_what_was_not_trained(
    tanh: tuple[Results, StudySpec, Path],
) -> None:
    results, large, folder = tanh
    said: list[str] = []
    journal = folder / "large.journal"
    found = carry(results, large, journal, policies=5, processes=0, say=said.append)
    assert found.kind == "carries", found.verdict
    assert said[0].startswith("trains 5 policies and float32 there: 21 runs of 60 steps")
    assert len(found.trained) == 5 < len(found.moved)
    page = carried_page(found)
    assert page.startswith("verdict: carries: rank correlation ")
    best = re.search(r"\nconfirmed there: (.*), (.*)x modeled, gap (.*) nats, at most (.*)\n", page)
    assert best and float(best[3]) <= float(best[4])
    fast = [e.cost.speedup for e in found.trained if e.cost and e.trial.label == best[1]]
    assert f"{fast[0]:.2f}" == best[2] and "confirmed" not in carried_page(
        replace(found, of_all=None)
    )
    untrained = [each for each in found.moved if each.there is None]
    assert page.count("not trained") == len(untrained) > 0
    for each in found.moved:
        assert each.policy is not None and each.cost is not None and not each.why
        assert each.policy.layers == each.trial.policy.layers  # layers are called alike here
    again = carry(results, large, journal, policies=5, processes=0)
    assert again.verdict == found.verdict


def test_a_noisy_net_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    small, large = _pair("noisy", ("trials = 20", "trials = 4"))
    results = api.run_study(small, tmp_path / "small.journal", processes=0, progress=False)
    found = carry(results, large, tmp_path / "large.journal", processes=0)
    assert found.kind == "cannot tell" and "cannot rank policies" in found.verdict
    assert not (tmp_path / "large.journal").exists()
    assert carried_page(found).startswith("verdict: cannot tell: of the small net, ")


def test_what_differs_is_named(tanh: tuple[Results, StudySpec, Path]) -> None:
    """A large net that has the gaps of the small one the other way round."""
    results, _, _ = tanh
    trials = sorted((t for t in results.trials if not t.diverged), key=lambda t: t.loss_gap)[-6:]
    turned = zip(trials, reversed(trials), strict=True)
    moved = tuple(Moved(trial, trial.policy, trial.cost, there=other) for trial, other in turned)
    of_all = agreement(
        *([[s.loss_gap for s in t.scores] for t in each] for each in (trials, trials[::-1]))
    )
    found = Carried(results, results, moved, of_all)
    assert found.kind == "does not carry"
    assert f"is number 1 of {len(moved)} in the small net" in found.verdict
    assert "and 6 in the large" in found.verdict or ", 6 in the large" in found.verdict


def test_a_policy_of_other_layers_says_why_it_does_not_reach(
    tanh: tuple[Results, StudySpec, Path],
) -> None:
    results, large, folder = tanh
    other = replace(large, task=replace(large.task, widths=()), cost=replace(large.cost, net=None))
    found = carry(results, other, folder / "shallow.journal", policies=4, processes=0)
    lost = [each for each in found.moved if each.why]
    assert lost and all(each.policy is None and each.there is None for each in lost)
    assert "is no policy of the large net: " in carried_page(found)


def test_ends_are_taken_from_two_blocks_to_twelve_and_said() -> None:
    two, twelve = (gpt((8,), 10, 16, (32,) * n, 2) for n in (2, 12))
    last = {n: uniform_layer("bfloat16") for n in two.layer_names if n.startswith("block2.")}
    file = rules_file_of(preset("float32", two.layer_names).with_layers(last, "last"), two)
    low = [name for name, of in file.policy(twelve).layers if of.compute == "bfloat16"]
    assert low and all(name.startswith("block12.") for name in low)
    assert any("ends are taken" in note for note in file.notes)


@pytest.mark.parametrize(
    ("block", "middle"), [("block1", "block 2"), ("block2", "block 1"), ("block1.fc", "block 2")]
)
def test_a_page_says_what_became_of_the_blocks_between(
    tanh: tuple[Results, StudySpec, Path], block: str, middle: str
) -> None:
    """Of two blocks and of twelve; rules that name the first one as well as those of the last."""
    two, twelve = (gpt((8,), 10, 16, (32,) * n, 2) for n in (2, 12))
    low = {n: uniform_layer("bfloat16") for n in two.layer_names if n.startswith(block)}
    policy = preset("float32", two.layer_names).with_layers(low, "mixed")
    there = rules_file_of(policy, two).policy(twelve)
    between = [dict(there.layers)[f"block{n}.fc1"] for n in range(2, 12)]
    of_small = dict(policy.layers)[f"{middle.replace(' ', '')}.fc1"]
    assert between == [of_small] * 10 != [dict(policy.layers)[f"{block[:6]}.fc1"]] * 10
    notes = blocks_between(policy, there)
    trial = tanh[0].trials[0]
    page = carried_page(Carried(tanh[0], None, (Moved(trial, there, notes=notes),)))
    assert "block: 2 blocks here, 12 there: first and last taken for first and last" in page
    assert f"between, by the rules alone, 10 like its {middle} here ({trial.label})" in page
    assert not blocks_between(policy, policy)
    assert not blocks_between(*(preset("bfloat16", net.layer_names) for net in (two, twelve)))


def test_a_study_of_two_blocks_says_on_twelve_what_is_between(tmp_path: Path) -> None:
    short = ("steps = 80", "steps = 30"), ("tail_steps = 25", "tail_steps = 10")
    stack = FAMILIES["stack"]
    family = replace(stack, changes=(*stack.changes, *short, ("trials = 20", "trials = 3")))
    small, large = family.small(), family.large()
    names = objective_of(small).model.layer_names
    low = {n: uniform_layer("float8_e4m3fn") for n in names if n.startswith("block1.fc")}
    api.run_study(small, tmp_path / "small.journal", processes=0, progress=False)
    mixed = preset("torch.autocast.bfloat16", names).with_layers(low, "mixed")
    results, number, _ = api.try_policy(mixed, small, tmp_path / "small.journal", processes=0)
    found = carry(results, large, tmp_path / "large.journal", policies=0, processes=0)
    (each,) = [moved for moved in found.moved if moved.trial.number == number]
    assert each.policy and len(each.notes) == 1 and each.notes[0] in carried_page(found)
    assert "10 like its block 2 here" in each.notes[0]
    fc1 = {n.split(".")[0]: v.compute for n, v in each.policy.layers if n.endswith("fc1")}
    assert fc1 == {f"block{n}": "float8_e4m3fn" if n == 1 else "bfloat16" for n in range(1, 13)}


def test_an_end_that_rules_do_not_keep_is_said() -> None:
    three, twelve = (gpt((8,), 10, 16, (32,) * n, 2) for n in (3, 12))
    policies = [preset("float32", net.layer_names) for net in (three, twelve)]
    low = uniform_layer("bfloat16")
    turned = [
        policy.with_layers({n: low for n, _ in policy.layers if n.startswith(ends)}, "ends")
        for policy, ends in zip(policies, (("block1.", "block3."), ("block1.",)), strict=True)
    ]
    (note,) = blocks_between(*turned)
    assert note.startswith("block: 3 blocks here, 12 there: first taken for first; between, ")


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("model: 'resnet'; expected 'mlp'", {"model": "resnet", "widths": (8, 16)}),
        ("data: 'digits32'; expected 'digits'", {"data": "digits32"}),
        (
            "loss: 'mean_squared_error'; expected 'softmax_cross_entropy'",
            {"loss": "mean_squared_error"},
        ),
    ],
)
def test_another_net_data_or_loss_is_one_line_before_anything_is_trained(
    tanh: tuple[Results, StudySpec, Path], key: str, changes: dict[str, Any]
) -> None:
    results, large, folder = tanh
    other = replace(large, task=replace(large.task, **changes), cost=replace(large.cost, net=None))
    with pytest.raises(InputError) as raised:
        carry(results, other, folder / "other.journal", processes=0)
    assert str(raised.value) == f"to: task.{key}, as the small net's"
    assert not (folder / "other.journal").exists()


def _with_gaps(trial: Trial, gaps: list[float]) -> Trial:
    pairs = zip(trial.scores, gaps, strict=True)
    return replace(trial, scores=tuple(replace(score, loss_gap=gap) for score, gap in pairs))


def test_an_order_that_seeds_leave_open_is_none(tanh: tuple[Results, StudySpec, Path]) -> None:
    """Of gaps below what counts the order is turned; the others are the same in both nets."""
    results = tanh[0]
    base, none, spread = results.trials[0], np.zeros(3), np.array([-2e-3, 0.0, 2e-3])
    low, cost = np.linspace(-4e-4, 4e-4, 5), [0.01, 0.02, 0.04, 0.08, 0.16]
    tables = [
        [*([float(x) for x in gap + none] for gap in order), *(list(gap + spread) for gap in cost)]
        for order in (low, low[::-1])
    ]
    small, large = ([_with_gaps(base, gaps) for gaps in table] for table in tables)
    moved = [Moved(a, a.policy, a.cost, there=b) for a, b in zip(small, large, strict=True)]
    found = comparison(results, results, tuple(moved))
    half = (
        2e-3 / 3**0.5 / 2.0
    )  # the median standard error, of five with none and five with twice it
    assert found.counts_from == pytest.approx((half, half)) and half > results.matters_gap
    assert found.of_all and found.of_all.correlation == pytest.approx(1.0)
    assert found.kind == "carries" and agreement(*tables).kind != "carries"
    page = carried_page(found)
    assert "Gaps up to 5.8e-04 in the small net, 5.8e-04 in the large, count as one." in page


def _contended(results: Results, *given: tuple[float, float, float]) -> tuple[Results, list[Moved]]:
    """Return a study of policies with these speedups, memories and gaps, each off by 2e-3."""
    base, moved = replace(results.trials[0], presets=()), []
    for number, (speedup, memory, gap) in enumerate(given):
        cost = replace(base.cost, speedup=speedup, memory_ratio=memory)
        trial = replace(_with_gaps(base, [gap - 2e-3, gap, gap + 2e-3]), number=number)
        moved.append(Moved(trial, trial.policy, cost))
    return replace(results, trials=tuple(each.trial for each in moved)), moved


FAST, NEAR, FAR = (2.0, 0.5, 1.0e-2), (1.5, 0.6, 1.1e-2), (1.5, 0.6, 5e-2)


@pytest.mark.parametrize(
    ("given", "left_out"),
    [
        ((FAST, NEAR), []),  # 1e-3 apart, which a standard error of 1.6e-3 does not tell
        ((FAST, FAR), [1]),
        ((FAST, (1.5, 0.4, 5e-2)), []),  # in less memory
        ((FAST, (2.5, 0.6, 5e-2)), []),  # in less time
        (((2.5, 0.4, -3e-2), FAST, FAR), [2]),  # better than float32: may be 3e-2 worse
        (((2.5, 0.4, -1e-3), FAST, FAR), [1, 2]),
    ],
)
def test_only_what_is_beaten_by_more_than_seeds_leave_open_is_left_out(
    tanh: tuple[Results, StudySpec, Path],
    given: tuple[tuple[float, float, float], ...],
    left_out: list[int],
) -> None:
    small, moved = _contended(tanh[0], *given)
    kept = contenders(small, moved, 0)
    assert [e.trial.number for e in moved if e not in kept] == left_out
    assert set(map(id, contenders(small, moved, len(moved)))) == set(map(id, moved))
    page = carried_page(Carried(small, None, tuple(kept)))
    said = f"{len(kept)} of the small study's {len(moved)} are listed; each of the others is beaten"
    assert (said in page) == bool(left_out)


def test_contenders_are_told_by_the_prices_of_the_large_net(
    tanh: tuple[Results, StudySpec, Path],
) -> None:
    small, moved = _contended(tanh[0], FAST, FAR)
    assert contenders(small, moved, 0) == moved[:1]
    dear = replace(moved[0], cost=replace(moved[0].trial.cost, speedup=1.0))
    assert contenders(small, [dear, moved[1]], 0) == [dear, moved[1]]
    unpriced = replace(moved[0], policy=None, cost=None)
    assert contenders(small, [unpriced, moved[1]], 0) == [unpriced, moved[1]]


def test_what_one_would_take_is_trained_whatever_the_spread(
    tanh: tuple[Results, StudySpec, Path],
) -> None:
    speeds, gaps = (1.5, 3.0, 2.0, 4.0, 5.0, 6.0), (1e-5, 2e-5, 3e-5, 1e-2, 2e-2, 3e-2)
    rows = [(s, 0.5, gap) for s, gap in zip(speeds, gaps, strict=True)]
    moved = _contended(tanh[0], *rows)[1]
    assert [e.trial.number for e in sample(moved, 3, 1e-4)] == [1, 0, 5]
    assert [e.trial.number for e in sample(moved, 2, 1e-6)] == [0, 5]  # none is as close
    assert sample(moved, 0, 1e-4) == []


def test_few_contenders_are_filled_up_from_what_lies_behind(
    tanh: tuple[Results, StudySpec, Path],
) -> None:
    results, large, folder = tanh
    sound = [t for t in results.trials if not t.diverged and "float32" not in t.presets]
    found = carry(results, large, folder / "all.journal", policies=len(sound), processes=0)
    assert len(found.trained) == len(found.moved) == len(sound)
    few, moved = _contended(results, FAST, FAR, (1.4, 0.7, 4e-2))
    assert [each.trial.number for each in contenders(few, moved, 2)] == [0, 2]


def test_the_command_prints_it_and_mistakes_are_said(
    tanh: tuple[Results, StudySpec, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    _, _, folder = tanh
    text = BASE
    for before, after in (*SHORT, ("trials = 20", "trials = 12")):
        text = text.replace(before, after)
    small = text.replace("[128, 128, 128]", "[32, 32, 32]")
    for name, body in (("small.toml", small), ("large.toml", text)):
        (folder / name).write_text(body)
    words = ["carry", str(folder / "small.toml"), "--storage", str(folder / "small.journal")]
    words += ["--to", str(folder / "large.toml"), "--to-storage", str(folder / "large.journal")]
    assert main([*words, "--policies", "5"]) == 0
    assert capsys.readouterr().out.startswith("verdict: carries: rank correlation ")
    assert main([*words, "--policies", "2"]) == 2
    assert "policies: 2; expected" in capsys.readouterr().err
    none = api.load_study(folder / "small.toml")
    with pytest.raises(InputError):
        api.carry_study(none, none, folder / "nothing.journal")


def test_the_table_says_what_of_its_bar_is_missed() -> None:
    """Six fronts of four, three that carry, a GPT and a tanh MLP among them, each at .95."""
    full, small = Held(4, share=0.96, own=1.0), Held(3)
    names = ("tanh", "gpt", "gelu", "deep", "layers", "transformer", "adamw", "noisy", "taper")
    kinds = dict.fromkeys(names, "cannot tell") | dict.fromkeys(names[:3], "carries")
    shares = dict.fromkeys(names, full) | {"adamw": small, "noisy": small, "taper": small}
    assert fault(kinds, shares) == ""
    assert fault(kinds, {**shares, "deep": small}) == "5 families with a front of four"
    assert fault({**kinds, "gelu": "cannot tell"}, shares) == "2 of them carry"
    assert fault({**kinds, "gpt": "does not carry", "deep": "carries"}, shares) == "no GPT carries"
    turned = {**kinds, "tanh": "cannot tell", "layers": "carries"}
    assert fault(turned, shares) == "no tanh MLP carries"
    assert fault({**kinds, "noisy": "carries"}, shares) == "told to carry: noisy"
    low = {**shares, "gelu": Held(5, share=0.75, own=0.8)}
    assert fault(kinds, low) == "told to carry and below 0.95: gelu"
    assert fault(kinds, {**shares, "gelu": Held(5, share=0.75, own=0.78)}) == ""
    assert fault({**kinds, "taper": "carries"}, {**shares, "taper": small}) == ""
