"""Norms that a model writes out in ops of its own: torch's values, and a net an op list repairs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.op_lists import in_float32, lists, low_policy
from policysearch.emulator.compile import compile_graph
from policysearch.graph import FloatArray
from policysearch.nn.chain import Chain
from policysearch.nn.layers import Squared
from policysearch.nn.model import Model
from policysearch.nn.norms import RMSNorm
from policysearch.objective.objective import Objective
from policysearch.policy.policy import Policy
from policysearch.policy.presets import preset
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.study.specification import load_spec, objective_of
from policysearch.train.step import trace_forward
from policysearch.values import InputError

STUDY = Path(__file__).parents[1] / "studies" / "decisions" / "ops-digits.toml"
WIDTH = 16
SEED = 1
REPAIRING = ("pow", "mean")


def repaired(policy: Policy) -> Policy:
    """Return the policy with the square and the mean of it in float32."""
    return in_float32(policy, REPAIRING)


def tokens() -> FloatArray:
    """Rows of standard deviations 0.3 to 180: squares from 256 on are more than float16 holds."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((64, WIDTH)) * np.geomspace(0.3, 180.0, 64)[:, np.newaxis]
    return rows.astype(np.float16).astype(np.float32)


def result(model: Model, policy: Policy, x: FloatArray) -> FloatArray:
    step = compile_graph(apply_policy(trace_forward(model, len(x)), policy))
    step.arrays["images"][...] = x
    step.forward_backward()
    return np.array(step.value("logits"))


@pytest.mark.parametrize("policy", ["float32", "mindspore.O3", "repaired"])
def test_a_norm_written_out_gives_what_numpy_gives(policy: str) -> None:
    """The oracle is numpy's own float16, whose mean sums in float32."""
    found, lost = normal(policy)
    x = tokens().astype(np.float32 if policy == "float32" else np.float16)
    with np.errstate(over="ignore"):
        square = (x.astype(np.float32) if policy == "repaired" else x) ** 2
        average = square.mean(axis=-1, keepdims=True).astype(x.dtype)
    expected = x * (1 / np.sqrt((average + x.dtype.type(1e-6)).astype(np.float32))).astype(x.dtype)
    np.testing.assert_allclose(found, expected, rtol=1e-6 if policy == "float32" else 2**-9)
    assert 2 <= lost <= 20 if policy == "mindspore.O3" else lost == 0


@pytest.mark.torch
@pytest.mark.parametrize("policy", ["float32", "mindspore.O3", "repaired"])
def test_a_norm_written_out_gives_what_torch_gives(policy: str) -> None:
    torch = pytest.importorskip("torch")
    found, _ = normal(policy)
    expected = of_torch(torch, torch.from_numpy(tokens()), policy)
    np.testing.assert_allclose(found, expected, rtol=1e-6 if policy == "float32" else 2**-10)


def normal(policy: str) -> tuple[FloatArray, int]:
    """Return the tokens behind the norm, and how many of them are zeros."""
    model = Chain("norm", (RMSNorm("norm", WIDTH),), (WIDTH,), WIDTH)
    low = preset("mindspore.O3" if policy == "repaired" else policy, model.layer_names)
    found = result(model, repaired(low) if policy == "repaired" else low, tokens())
    return found, int((found == 0.0).all(axis=1).sum())


def of_torch(torch: Any, x: Any, policy: str) -> FloatArray:
    """Return the norm of a tensor of that dtype, as `x.float()` in front of it repairs it."""
    if policy == "float32":
        return np.asarray(torch.nn.functional.rms_norm(x, (WIDTH,), eps=1e-6))
    x = x.half()
    summed = x.float() if policy == "repaired" else x
    average = summed.pow(2).mean(-1, keepdim=True).half()
    return np.asarray((x * torch.rsqrt(average + 1e-6)).float())


def test_an_activation_is_squared() -> None:
    model = Chain("squared", (Squared("squared", "relu"),), (WIDTH,), WIDTH)
    found = result(model, preset("float32", model.layer_names), tokens())
    np.testing.assert_array_equal(found, np.maximum(tokens(), 0.0) ** 2)


def test_a_norm_of_another_width_is_refused() -> None:
    with pytest.raises(InputError, match=r"layer norm: input of shape \[16\]; expected \[8\]"):
        Chain("norm", (RMSNorm("norm", 8),), (WIDTH,), WIDTH).parameters()


@pytest.fixture(scope="module")
def objective() -> Objective:
    return objective_of(load_spec(STUDY))


def test_two_ops_in_float32_repair_the_net_of_the_study(objective: Objective) -> None:
    """At a quarter of its batch, where the residual stream outgrows float16's squares sooner."""
    task = replace(objective.task, batch_size=8).with_steps(400)
    shorter = Objective(task, "V100-SXM2", "torch.eager")
    low = preset("mindspore.O3", objective.model.layer_names)
    lost, kept = (shorter.measure(policy, SEED) for policy in (low, repaired(low)))
    assert dict(lost.overflows)["norm"] > 500 and not dict(kept.overflows)
    assert lost.tail_loss is not None and kept.tail_loss is not None
    assert lost.tail_loss > 1.0 and kept.tail_loss < 0.3
    assert lost.validation_accuracy is not None and kept.validation_accuracy is not None
    assert lost.validation_accuracy < 0.5 < 0.9 < kept.validation_accuracy


def test_ops_are_tried_alone_and_together(objective: Objective) -> None:
    low = low_policy(objective, "bfloat16", 600, dynamic=True)
    assert {low.layer(name).compute for name in objective.model.layer_names} == {"bfloat16"}
    assert low.loss_scale.growth_interval == 60
    found = dict(lists(low, REPAIRING))
    assert list(found) == ["nothing", "pow", "mean", "pow, mean"]
    moved = [set(policy.fp32_ops) - set(low.fp32_ops) for policy in found.values()]
    assert moved == [set(), {"pow"}, {"mean"}, {"pow", "mean"}]
    assert all(not set(each.fp32_ops) & set(each.low_precision_ops) for each in found.values())
    with pytest.raises(InputError, match="--ops: 'softmax_cross_entropy'"):
        in_float32(low, ("softmax_cross_entropy",))


def test_the_repair_takes_little_beside_the_list_of_autocast(objective: Objective) -> None:
    low = preset("mindspore.O3", objective.model.layer_names)
    usual = preset("torch.autocast.float16", objective.model.layer_names)
    times = [1.0 / objective.price(each).speedup for each in (low, repaired(low), usual)]
    assert 1.0 < times[1] / times[0] < 1.1 < times[2] / times[0]
