"""Replays trainings recorded from torch and MindSpore: losses, scales, skips, activations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from policysearch.emulator.compile import compile_graph
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import Policy
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.train.run import Run
from policysearch.train.step import trace_forward
from tests.recorded_lenet5 import Setup, recorded, recorded_setup

FIXED = LossScale("fixed", 1024.0, skip_on_overflow=False)
MINDSPORE_FIXED = replace(FIXED, rule="mindspore.FixedLossScaleManager")
GRAD_SCALER = LossScale("dynamic", 2.0**16, growth_interval=50, rule="torch.GradScaler")

RUNS: Mapping[str, tuple[str, LossScale]] = {
    "torch_fp32": ("float32", LossScale()),
    "torch_pol_all_bf16": ("bfloat16", LossScale()),
    "torch_pol_all_fp16": ("float16", FIXED),
    "torch_amp_fp16_gs16": ("torch.autocast.float16", GRAD_SCALER),
    "ms_G_O2_fixed1024": ("mindspore.O2", MINDSPORE_FIXED),
    "ms_G_O3": ("mindspore.O3", LossScale()),
}
SCALED = "torch_amp_fp16_gs16"
SIXTEEN_BIT = ("torch_pol_all_bf16", "torch_pol_all_fp16", "torch_amp_fp16_gs16")


def policy_of(setup: Setup, run: str) -> Policy:
    return setup.policy(*RUNS[run])


@pytest.fixture(scope="module")
def setup() -> Setup:
    return recorded_setup()


@pytest.fixture(scope="module")
def scaled(setup: Setup) -> Run:
    """The run with GradScaler, to its end."""
    return setup.replay(policy_of(setup, SCALED), 200)


@pytest.mark.parametrize("run", RUNS)
def test_losses(setup: Setup, run: str, request: pytest.FixtureRequest) -> None:
    if run == SCALED:
        given = request.getfixturevalue("scaled")
    else:
        given = setup.replay(policy_of(setup, run), 50)
    difference = np.abs(given.losses[:50] - recorded(run)["loss"])
    assert difference[:10].max() <= 1e-5
    assert difference.max() <= 1e-3
    np.testing.assert_array_equal(given.scales[:50], recorded(run)["scale"][:50])


def test_grad_scaler_sequence(scaled: Run) -> None:
    """The run with GradScaler skips and rescales at the same steps, 200 of 200."""
    expected = recorded(SCALED)
    assert expected["skipped"].sum() == 2
    np.testing.assert_array_equal(scaled.skipped, expected["skipped"])
    np.testing.assert_array_equal(scaled.scales, expected["scale"])


@pytest.mark.parametrize("run", SIXTEEN_BIT)
def test_activations_of_step_0(setup: Setup, run: str) -> None:
    """At least 98 % of the outputs of every layer have the recorded bits."""
    model = setup.task.build_model(setup.dataset)
    graph = apply_policy(trace_forward(model, setup.task.batch_size), policy_of(setup, run))
    sums = tuple((node.layer, node.id) for node in graph.nodes if node.op.name == "bias")
    executable = compile_graph(replace(graph, outputs=sums))
    for name, value in setup.initial.items():
        executable.arrays[name][...] = value
    executable.arrays["images"][...] = setup.dataset.images[setup.batches[0]]
    executable.forward_backward()
    bits = {k.removeprefix("bits/"): v for k, v in recorded(run).items() if k.startswith("bits/")}
    assert set(bits) == {"conv1", "conv2", "fc1", "fc2", "fc3"} == {layer for layer, _ in sums}
    for layer, expected in bits.items():
        given = np.array(executable.value(layer)[: len(expected)], order="C")
        wide = (
            (expected.astype(np.uint32) << 16).view(np.float32)
            if "bf16" in run
            else expected.view(np.float16).astype(np.float32)
        )
        share = float((given.view(np.uint32) == wide.view(np.uint32)).mean())
        print(f"{run} {layer}: {share:.4f}")
        assert share >= 0.98, layer
