"""What is said of a policy before it is trained, and what must not be said."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

import policysearch
from policysearch.cli import main
from policysearch.diagnose.preflight import _scale, preflight
from policysearch.objective.objective import Objective
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.presets import PRESETS, preset
from policysearch.rewrite.policy_pass import apply_policy
from tests.studies import write_study
from tests.test_diagnose import STATE, TASK, low


@pytest.fixture(scope="module")
def objective() -> Objective:
    return Objective(TASK, "H100-SXM5", "torch.eager")


@pytest.mark.parametrize("name", [n for n in PRESETS if n not in ("apex.O3", "megatron.fp16")])
def test_nothing_is_said_of_presets_on_a_net_that_fits(name: str, objective: Objective) -> None:
    assert preflight(objective, preset(name, objective.model.layer_names), 0) == ()


def test_adams_epsilon_is_zero_where_it_is_kept_in_float16(objective: Objective) -> None:
    (line,) = preflight(objective, low(objective, master_weights=False, **STATE), 0)
    assert line == "adam_step: epsilon 1e-08 is zero in float16, kept so"
    assert preflight(objective, low(objective), 0) == ()
    larger = Objective(replace(TASK, epsilon=1e-4), "H100-SXM5", "torch.eager")
    assert preflight(larger, low(larger, master_weights=False, **STATE), 0) == ()


def test_a_loss_scale_is_measured_by_the_gradients_that_it_makes(objective: Objective) -> None:
    def said(scale: LossScale) -> tuple[str, ...]:
        return preflight(objective, low(objective, loss_scale=scale), 0)

    rule = "mindspore.FixedLossScaleManager"
    (line,) = said(LossScale("fixed", 2.0**22, rule=rule))
    assert line.startswith("loss scale 4.1943e+06: gradients of ") and "65504" in line
    run = objective.measure(low(objective, loss_scale=LossScale("fixed", 2.0**22, rule=rule)), 0)
    assert run.skips or run.diverged
    assert said(LossScale("fixed", 2.0**8)) == ()
    (line,) = said(LossScale("dynamic", 2.0**100))
    assert line.endswith("all 60 steps are skipped until it fits")
    assert said(LossScale("dynamic", 2.0**16)) == ()


@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mask", r"^mask.py:25: .*: a mask or constant of 1e\+09"),
        ("summed_loss", r"^summed_loss.py:24: .*: a loss of 9.06e\+04"),
        ("exponential", r"^exponential.py:22: .*: values of 1.47e\+06"),
        ("static_scale", r"loss scale 1.04858e\+06"),
        ("dynamic_scale", "all 60 steps are skipped"),
    ],
)
def test_known_failures_are_told_before_they_happen(name: str, words: str) -> None:
    pytest.importorskip("torch")
    from benchmarks.failures.zoo import failure

    case = failure(name, torch=True)
    (line,) = preflight(case.objective, case.policy, 0)
    assert re.search(words, line) and "65504" in line
    wide = preset("bfloat16", case.objective.model.layer_names)
    assert preflight(case.objective, wide, 0) == ()


@pytest.mark.torch
def test_an_epsilon_that_a_net_adds_is_told_where_it_is_zero() -> None:
    torch = pytest.importorskip("torch")
    import numpy as np

    from benchmarks.failures.drawn import Mixing, Rooted, digits, recipe

    rng, net = np.random.default_rng(0), Mixing()
    net.inlet = Rooted(net.inlet)
    objective = Objective(recipe(rng, digits(rng), net), "H100-SXM5", "torch.eager")
    said = preflight(objective, low(objective), 0)
    assert len(said) == 1 and "1e-09 that is added is zero in float16" in said[0]
    assert "drawn.py:" in said[0]
    assert preflight(objective, preset("bfloat16", objective.model.layer_names), 0) == ()
    assert torch.finfo(torch.float16).smallest_normal * 2**-10 > 2e-9  # half of it rounds to zero


def test_commands_say_it_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = write_study(tmp_path)
    spec = policysearch.load_study(study)
    policy = preset(
        "float16",
        policysearch.load_study(study).task.build_model(spec.task.load_dataset()).layer_names,
    )
    scale = LossScale("fixed", 2.0**24, rule="mindspore.FixedLossScaleManager")
    path = tmp_path / "loud.json"
    path.write_text(replace(policy, loss_scale=scale).to_json())
    (line,) = policysearch.preflight(replace(policy, loss_scale=scale), spec)
    assert main(["diagnose", str(path), "--study", str(study)]) == 0
    said = capsys.readouterr().err.splitlines()
    assert said[0] == f"before training: {line}"


def test_what_has_no_loss_scale_is_told_of_none(objective: Objective) -> None:
    """Gradients that overflow by themselves are no matter of a scale."""
    policy = low(objective)
    graph = apply_policy(objective.task.tracing(objective.model, 4).float32, policy)
    huge = {node.id: 1e9 for node in graph.nodes if node.role in ("dgrad", "wgrad")}
    scaled = replace(policy, loss_scale=LossScale("fixed", 1.0))
    assert policy.loss_scale.kind == "none" and len([*_scale(graph, huge, scaled, 60)]) == 1
    assert [*_scale(graph, huge, policy, 60)] == []
