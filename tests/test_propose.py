"""Proposals from the float32 run: schedules against brute force, gradients against the graph."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from policysearch.cli import main
from policysearch.formats import format_named
from policysearch.objective.objective import Objective
from policysearch.policy.loss_scale import LossScale
from policysearch.space.decided.loss_scales import shares_of
from policysearch.study.questions.propose import (
    LIMIT,
    MARGIN,
    Ratio,
    largest_gradients,
    noise_ratio,
    schedule_for,
)
from policysearch.study.specification import load_spec, objective_of
from policysearch.train.tasks import Task
from policysearch.values import InputError
from tests.studies import write_study

STUDIES = Path(__file__).parents[1] / "studies"
TASK = Task(
    model="mlp",
    activation="tanh",
    widths=(16,),
    data="digits",
    batch_size=32,
    learning_rate=0.2,
    optimizer="sgd",
    steps=60,
    tail_steps=5,
)


@pytest.fixture(scope="module")
def objective() -> Objective:
    return Objective(TASK, "H100-SXM5", "torch.compile")


@pytest.fixture(scope="module")
def largest(objective: Objective) -> np.ndarray:
    return largest_gradients(objective)


def test_a_scale_above_what_the_largest_gradient_allows_overflows(
    objective: Objective, largest: np.ndarray
) -> None:
    """In the first step the low run has float32's parameters, and so its gradients."""
    names = objective.model.layer_names
    read = replace(
        objective.float32,
        layers=tuple((n, replace(objective.float32.layer(n), grad="e3m4")) for n in names),
    )
    top = math.floor(math.log2(format_named("e3m4").max / largest[0]))
    for power, skipped in ((top, 0), (top + 1, 1)):
        policy = replace(read, loss_scale=LossScale("fixed", 2.0**power))
        assert (0 in objective.measure(policy, 0).skips) == bool(skipped)
    assert len(largest) == TASK.steps and (largest > 0).all()


def test_a_schedule_keeps_every_gradient_below_overflow_and_no_lower() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        sinking = np.exp2(-12 * np.linspace(0, rng.uniform(), 300) + rng.uniform(-1, 1, 300))
        pairs = shares_of(schedule_for(sinking, "float8_e4m3fn"))
        powers = np.zeros(300)
        for share, power in pairs:
            powers[round(share * 300) :] = power
        saturating = schedule_for(sinking * 2.0**20, "float6_e3m2fn")
        (_, first), *_ = shares_of(saturating)
        assert (
            sinking[:15].max() * 2.0 ** (20 + first)
            <= 28.0
            < sinking[:15].max() * 2.0 ** (21 + first)
        )
        assert (sinking * 2.0 ** (powers + MARGIN) <= 448.0 * (1 + 1e-12)).all()
        width = 10
        for start in range(0, 300, width):
            near = sinking[max(0, start - 5) : start + 15].max()
            assert near * 2.0 ** (powers[start] + 1 + MARGIN) > 448.0


def test_a_run_without_gradients_has_a_schedule() -> None:
    assert schedule_for(np.zeros(10), "float16") == "0:0"
    assert schedule_for(np.full(10, 1e-30), "float16") == "0:30"


def test_gradients_sink_where_they_stay_below_the_root_of_three() -> None:
    steps = tuple(range(0, 200, 20))
    assert Ratio("x", steps, (9.0,) * 5 + (0.1,) * 5).sinks_at == 160  # four probes of 0.1
    assert Ratio("x", steps, (0.1,) * 9 + (99.0,)).sinks_at is None
    assert Ratio("x", steps, (0.1,) * 10).sinks_at == 0
    alone = Ratio("x", steps, (9.0,) * 5 + (0.1,) + (9.0,) * 4)  # one probe of four counts for half
    assert min(alone.means) == pytest.approx(math.sqrt((3 * 81.0 + 0.01) / 4))


def test_narrower_gradients_are_nearer_to_their_noise(objective: Objective) -> None:
    found = [noise_ratio(objective, name) for name in ("bfloat16", "float8_e5m2", "float4_e2m1fn")]
    assert [each.steps for each in found] == [(0, 20, 40)] * 3
    for wide, narrow in pairwise(found):
        assert all(a > b > 1.0 for a, b in zip(wide.ratios, narrow.ratios, strict=True))


def test_a_loss_scale_lifts_gradients_above_the_end_of_float16(objective: Objective) -> None:
    """Under it float16 rounds to three bits more than bfloat16, and what it loses is no noise."""
    lifted = noise_ratio(objective, "float16", loss_scale=2.0**10).ratios
    wide, lost = (noise_ratio(objective, name) for name in ("bfloat16", "float16"))
    assert all(4.0 < a / b < 16.0 for a, b in zip(lifted, wide.ratios, strict=True))
    sunk = noise_ratio(objective, "float16", loss_scale=2.0**-14).ratios
    assert all(a < b / 20 for a, b in zip(sunk, lost.ratios, strict=True))


@pytest.mark.slow
def test_the_shipped_schedule_is_the_one_that_is_proposed() -> None:
    spec = load_spec(STUDIES / "decisions" / "schedule-digits.toml")
    found = largest_gradients(objective_of(spec))
    (name,) = spec.space.grad_formats
    assert spec.space.scale_schedules == (schedule_for(found, name),)


def test_nothing_is_proposed_from_a_float32_run_that_diverges(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wild = ("learning_rate = 0.1", "learning_rate = 1e6"), ("steps = 6", "steps = 40")
    study = write_study(tmp_path, *wild, ("tail_steps = 3", "tail_steps = 6"))
    assert main(["propose", str(study)]) == 2
    printed = capsys.readouterr()
    assert not printed.out and printed.err.count("\n") == 1
    with pytest.raises(InputError, match=r"learning_rate: 1e[+]06, with which float32 itself"):
        largest_gradients(objective_of(load_spec(study)))


def test_the_command_prints_what_a_study_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = write_study(tmp_path)
    assert main(["propose", str(study)]) == 0
    text = capsys.readouterr().out
    assert "# Gradients in float8_e5m2" in text and "# Gradients in bfloat16" in text
    least = [float(said) for said in re.findall(r"([\d.]+) at least", text)]
    sinks = ["phase_points" in part for part in text.split("rounding noise in")[1:]]
    assert least and all(low < LIMIT for low, sunk in zip(least, sinks, strict=True) if sunk)
    (line, *_) = [x for x in text.splitlines() if x.startswith("scale_schedules = ")]
    scales = ('loss_scales = ["none", "fixed", "dynamic"]', f'loss_scales = ["schedule"]\n{line}')
    again = write_study(tmp_path, scales, name="again.toml")
    assert main(["propose", str(again)]) == 0


def test_a_study_without_low_gradients_has_nothing_to_propose(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = write_study(tmp_path, ('"float32", "bfloat16", "float8_e4m3fn"', '"float32"'))
    assert main(["propose", str(study)]) == 0
    assert "there is nothing to propose" in capsys.readouterr().out
