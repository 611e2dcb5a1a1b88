"""What a page answers first: the pick, what speaks against it, and how to apply it."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape

import pytest

from policysearch.cost.price import MODEL_RESOLUTION
from policysearch.policy.policy import Policy, uniform_layer
from policysearch.policy.presets import preset
from policysearch.report.against import picked
from policysearch.report.page.frame import page
from policysearch.report.page.running import _reason
from policysearch.report.page.sight import Sight
from policysearch.report.runs_in import RunsIn
from policysearch.study.journal.records import compact
from policysearch.study.results.results import Results
from tests.made_up import diverged, results_of, trial_of
from tests.test_page import FAULT, LAYERS, plain_of


@pytest.fixture(scope="module")
def results() -> Results:
    return results_of()


def test_an_answer_without_a_pick_says_what_to_do_now(results: Results) -> None:
    assert "What to do now" not in page(results)
    unranked = plain_of(page(replace(results, float32_fault=FAULT), "a.toml"), "answer")
    assert "keep what you run, bfloat16: trial 1 is modeled at 1.27× the speed" in unranked
    assert "policysearch run a.toml" in unranked
    lost = tuple(diverged(t) if "bfloat16" in t.presets else t for t in results.trials)
    gone = replace(results, float32_fault=FAULT, trials=lost)
    assert "does not train here: diverged in step 3" in plain_of(page(gone), "answer")


def test_what_is_run_today_is_not_to_be_applied(results: Results) -> None:
    assert "Apply it" in page(results) and "Nothing to apply" not in page(results)
    kept = results_of(policies=2)
    pick = picked(kept)
    assert pick is not None and kept.spec.study.baseline in pick.presets
    assert "Nothing to apply" in page(kept) and "Apply it" not in page(kept)


def test_an_answer_has_the_numbers_of_the_pick(results: Results) -> None:
    pick = picked(results)
    assert pick is not None
    said = plain_of(page(results), "answer")
    assert f"{pick.cost.speedup:.2f}×" in said and "the speed of float32," in said
    confirmed = results.confirmation(pick)
    assert confirmed is not None and f"nats at {confirmed.steps} steps:" in said


def test_what_was_trained_longer_is_said_to_hold(results: Results) -> None:
    sight = Sight(results, "")
    held = [row for row in sight.rows if row.confirmed_steps and not row.fault]
    assert held and all(f"holds at {row.confirmed_steps} steps" in sight.state(row) for row in held)
    others = [row for row in sight.rows if not row.confirmed_steps]
    assert others and not any("holds at" in sight.state(row) for row in others)


def test_an_answer_says_where_speed_is_that_of_another_batch(results: Results) -> None:
    spec, said = results.spec, "it was trained at batch 32: small kernels"
    assert said in plain_of(page(results), "answer")
    cost = replace(spec.cost, batch_size=spec.task.batch_size, batch_size_reason="")
    alike = replace(results, spec=replace(spec, cost=cost))
    assert "was trained at batch" not in plain_of(page(alike), "answer")


def test_the_lines_for_the_script_round_updates_where_the_policy_does(results: Results) -> None:
    assert "apply_policy" in page(results) and "store_updates" not in page(results)
    drawn = [replace(t, text=compact(with_updates(t.policy))) for t in results.trials]
    assert "precision.store_updates(optimizer)" in page(replace(results, trials=tuple(drawn)))


def with_updates(policy: Policy) -> Policy:
    """Return the policy with parameters in bfloat16, updated by chance."""
    stored = tuple((name, replace(row, param="bfloat16")) for name, row in policy.layers)
    rounding = replace(policy.rounding, update=replace(policy.rounding.update, mode="stochastic"))
    return replace(policy, master_weights=False, layers=stored, rounding=rounding)


def test_layers_are_named_once_by_what_they_run_in_and_why_not_as_asked() -> None:
    found = results_of(layers=LAYERS)
    tried = preset("te.current", LAYERS)
    said = plain_of(page(_alone(found, tried)), "answer")
    assert "float8_e4m3fn in all products" in said
    assert (
        "float8_e4m3fn, gradients float8_e5m2 every product, that is those of fc1 and fc2" in said
    )
    assert "bfloat16 where nothing is multiplied: tanh1" in said
    why = "float8_e4m3fn is for what products read, and nothing is multiplied there"
    ran = "run in another format: flatten in float32; tanh1 in bfloat16"
    assert f"Asked in float8_e4m3fn by the policy, and {ran}. {why}." in said
    assert "Asked in" not in plain_of(page(found), "answer")
    # a norm whose statistics alone are kept in float32 is not said to be kept there
    norm = RunsIn(("bfloat16",), (), product=False, ops=("batch_norm", "batch_mean"))
    auto = preset("torch.autocast.bfloat16", LAYERS)
    assert _reason(auto, uniform_layer("float32"), norm).startswith("They take the widest format")
    kept = replace(norm, forward=("bfloat16", "float32"))
    assert _reason(auto, uniform_layer("float32"), kept).startswith("The policy keeps batch_mean")
    low = preset("apex.O3", LAYERS)
    said = plain_of(page(_alone(found, low)), "answer")
    assert "float16 in all products" in said
    assert "Weights of fc1 and fc2 are kept in float16, with no float32 copy" in said


def _alone(found: Results, policy: Policy) -> Results:
    """Return results of float32 and one policy that is picked before it."""
    mine = trial_of(9, policy)
    scores = tuple(replace(s, cost=replace(s.cost, step_seconds=1e-9)) for s in mine.scores)
    return replace(found, trials=(found.trials[0], replace(mine, scores=scores)), confirmed=())


def test_every_known_preset_is_told_of_tried_or_not(results: Results) -> None:
    failing = next(t for t in results.trials if results.fault(t))
    named = replace(failing, presets=("apex.O3",))
    trials = [named if t is failing else t for t in results.trials]
    said = plain_of(page(replace(results, trials=tuple(trials))), "presets")
    tried, _, missing = said.partition("Not tried here")
    assert re.search(rf"apex\.O3 trial {failing.number} ✕ : [\d.]+× the speed of float32", tried)
    assert f"but fails later: {results.fault(failing)}" in unescape(tried)
    for name in ("apex.O1", "apex.O2", "torch.autocast.float16", "te.current", "te.mxfp8"):
        assert name in missing and name not in tried
    assert "apex.O3" not in missing
    layers = tuple(name for name, _ in results.trials[0].policy.layers)
    policy = preset("te.current", layers)
    byhand = replace(trial_of(30, policy), digest=policy.digest)
    said = plain_of(page(replace(results, trials=(*results.trials, byhand))), "presets")
    assert "te.current trial 30 : " in said.partition("Not tried here")[0]


def test_what_is_beaten_says_by_whom(results: Results) -> None:
    sight = Sight(results, "")
    for row in sight.rows:
        state = sight.state(row)
        if state.startswith("beaten"):
            by = results.trial(int(state.split("beaten by trial ")[1].split()[0].strip(",")))
            mine = results.trial(row.trial)
            faster, larger = MODEL_RESOLUTION["speedup"], MODEL_RESOLUTION["memory_ratio"]
            assert by is not mine and by.cost.speedup * (1.0 + faster) > mine.cost.speedup
            assert by.cost.memory_ratio < mine.cost.memory_ratio * (1.0 + larger)
            assert results.ranked_gap(by) <= results.ranked_gap(mine)
            assert ("which fails later" in state) == bool(results.fault(by))
    assert any(sight.state(row).startswith("beaten by") for row in sight.rows)


def test_what_cannot_be_told_apart_is_not_beaten(results: Results) -> None:
    pick = picked(results)
    assert pick is not None
    twin = replace(pick, number=max(t.number for t in results.trials) + 1)
    sight = Sight(replace(results, trials=(*results.trials, twin)), "")
    assert sight.state(sight.row[twin.number]).startswith(f"as good as trial {pick.number}")
    cost = replace(twin.cost, speedup=0.7 * twin.cost.speedup)
    slower = replace(twin, scores=tuple(replace(score, cost=cost) for score in twin.scores))
    sight = Sight(replace(results, trials=(*results.trials, slower)), "")
    assert sight.state(sight.row[twin.number]).startswith(f"beaten by trial {pick.number}")
