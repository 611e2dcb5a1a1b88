"""The known failures in `studies/failures/`: each is named, placed, repaired, and no page lies."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from benchmarks.failures.zoo import Failure, failure, names
from policysearch.diagnose.diagnosis import BUDGET, Diagnoser, Diagnosis
from policysearch.objective.score import score
from policysearch.report.diagnosis_page import diagnosis_page
from policysearch.report.lost import lost_lines
from policysearch.study.journal.trials import Trial

PAGE = Path(__file__).parents[1] / "docs" / "failures.md"


@cache
def diagnosed(name: str) -> tuple[Failure, Diagnosis]:
    case = failure(name)
    return case, Diagnoser(case.objective, (0,)).diagnose(case.policy)


@pytest.mark.parametrize("name", names())
def test_it_fails_and_is_named_placed_and_repaired(name: str) -> None:
    case, found = diagnosed(name)
    assert found.gap > found.matters > found.noise
    kind, place = case.is_right(found.cause.kind, found.cause.op, found.cause.layer)
    assert kind and place, found.cause
    assert found.verdict == "repaired" and found.trained <= BUDGET
    assert found.repair is not None and not found.repair.apart
    assert found.held[0] <= found.matters
    page = diagnosis_page(found, case.policy)
    assert re.search(rf"^cause: (\S+:\d+: )?{found.cause.kind}", page, re.M) and "repair: " in page


def test_the_first_change_that_is_trained_mostly_repairs() -> None:
    first = [name for name in names() if diagnosed(name)[1].trained == 1]
    assert len(first) >= 0.8 * len(names()), first


@pytest.mark.parametrize("name", names())
def test_no_page_says_that_a_failed_run_lost_nothing(name: str) -> None:
    case, found = diagnosed(name)
    objective = case.objective
    run = objective.measure(case.policy, 0)
    marked = score(run, objective.baseline(0), objective.price(case.policy))
    text = case.policy.to_json()
    trial = Trial(0, case.policy.digest, text, (), (marked,), run.divergence, seeds=(0,))
    lines = lost_lines(trial)
    assert run.lost or found.cause.kind == "rounding"
    assert not any(line.endswith(": none") for line in lines)
    if run.diverged:
        assert lines[0].startswith("first value not finite"), lines[0]


def test_what_first_overflows_is_what_float32_has_first_beyond() -> None:
    """Of the forward pass: nothing before it in the graph is beyond its format."""
    for name in ("attention_logits", "exponential", "mask", "residual_growth", "summed_loss"):
        _, found = diagnosed(name)
        *before, last = found.cause.chain
        assert last.lost and last.largest_out > last.limit
        assert all(not link.lost and link.largest_out <= link.limit for link in before), name


def test_mask_ops_in_float32_repair_with_the_arithmetic_listed_alone() -> None:
    case = failure("mask")
    ops = ("shift", "subtract", "scale", "multiply", "add", "softmax", "negate", "rsub")
    low = tuple(op for op in case.policy.low_precision_ops if op not in ops)
    promoted = tuple(op for op in case.policy.promote_ops if op not in ops)
    listed = tuple(op for op in ops if op not in (*low, *promoted, *case.policy.fp32_ops))
    known = {*case.policy.low_precision_ops, *case.policy.promote_ops}
    wide = (*case.policy.fp32_ops, *(op for op in listed if op in known))
    policy = replace(case.policy, low_precision_ops=low, promote_ops=promoted, fp32_ops=wide)
    assert {"broadcast_to", "reshape"} <= set(policy.low_precision_ops)
    for seed in (0, 1, 2):
        assert case.objective.measure(case.policy, seed).diverged
        off = case.objective.evaluate(policy, seed)
        assert not off.diverged and abs(off.loss_gap) < 1e-2


def test_every_case_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [name for name in names() if f"studies/failures/{name}.py" not in text] == []
