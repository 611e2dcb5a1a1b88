"""What a page answers first: the pick, what speaks against it, and how to apply it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policysearch.policy.policy import Policy
from policysearch.report.against import picked
from policysearch.report.page.frame import page
from policysearch.study.journal.records import compact
from policysearch.study.results.results import Results
from tests.made_up import diverged, results_of
from tests.test_page import FAULT, plain_of


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


def test_an_answer_says_where_speed_is_that_of_another_batch(results: Results) -> None:
    spec, said = results.spec, "it was trained at batch 32: small kernels"
    assert said in plain_of(page(results), "answer")
    cost = replace(spec.cost, batch_size=spec.task.batch_size, batch_size_reason="")
    alike = replace(results, spec=replace(spec, cost=cost))
    assert "was trained at batch" not in plain_of(page(alike), "answer")


def test_the_lines_for_the_script_round_updates_where_the_policy_does(results: Results) -> None:
    assert "apply_policy" in page(results) and "store_updates" not in page(results)
    drawn = [replace(t, text=compact(with_updates(t.policy))) for t in results.trials]
    assert "policy.store_updates(optimizer)" in page(replace(results, trials=tuple(drawn)))


def with_updates(policy: Policy) -> Policy:
    """Return the policy with parameters in bfloat16, updated by chance."""
    stored = tuple((name, replace(row, param="bfloat16")) for name, row in policy.layers)
    rounding = replace(policy.rounding, update=replace(policy.rounding.update, mode="stochastic"))
    return replace(policy, master_weights=False, layers=stored, rounding=rounding)
