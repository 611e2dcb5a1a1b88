"""Updates right behind their gradients, in one pass with the rounding: no bit changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from policysearch.emulator.compile import Step, compile_graph
from policysearch.emulator.plan import Plan, fused_update
from policysearch.formats import Rounding
from policysearch.graph import FloatArray, Graph
from policysearch.nn.chain import Chain
from policysearch.nn.models import lenet5, mlp, transformer
from policysearch.ops.source import INVERSE_SCALE, LEARNING_RATE, LOSS_SCALE, STEP_NUMBER, TARGETS
from policysearch.optimizers.optimizer import Optimizer
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import LayerPolicy, RoleRounding
from policysearch.policy.presets import preset
from policysearch.policy.scaling import Scaling
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.rounding.rounder import Fast
from policysearch.train.step import trace_step
from tests.rounding_oracle import FASTS
from tests.turns import turns

NET = mlp((300, 200, 40, 10))
WANTED = ("loss", "finite")


def _step(
    name: str, optimizer: Optimizer, mode: str = "nearest_even", scale: LossScale | None = None
) -> Graph:
    policy = preset("float8" if name == "float8_e4m3fn" else name, NET.layer_names)
    if name == "float8_e4m3fn":
        layer = LayerPolicy(name, name, name, name)
        policy = replace(policy, layers=tuple((each, layer) for each in NET.layer_names))
    each = Rounding(mode)  # type: ignore[arg-type]
    policy = replace(
        policy,
        scaling=Scaling(),
        loss_scale=scale or LossScale(),
        rounding=RoleRounding(each, each, each, each),
    )
    return apply_policy(trace_step(NET, "softmax_cross_entropy", optimizer, 8), policy)


def _fill(executable: Step, model: Chain, scale: float) -> None:
    for name, value in model.init(np.random.default_rng(2)).items():
        executable.arrays[name][...] = value
    for name, number in ((LEARNING_RATE, 0.1), (LOSS_SCALE, scale)):
        executable.arrays[name][...] = number
    executable.arrays[INVERSE_SCALE][...] = 1 / scale


def _trained(graph: Graph, fast: Fast, scale: float = 1.0) -> dict[str, FloatArray]:
    """Return parameters and state after three steps."""
    executable, rng = compile_graph(graph, seed=3, fast=fast), np.random.default_rng(1)
    _fill(executable, NET, scale)
    for step in range(1, 4):
        executable.arrays[STEP_NUMBER][...] = step
        executable.arrays["images"][...] = rng.standard_normal((8, 300))
        executable.arrays[TARGETS][...] = np.eye(10)[rng.integers(0, 10, 8)]
        executable.forward_backward()
        executable.apply_updates()
    names = [graph.nodes[old].name for old, _ in graph.updates]
    return {name: executable.arrays[name] for name in names}


@pytest.mark.parametrize("fast", FASTS)
@pytest.mark.parametrize(
    ("name", "optimizer", "mode"),
    turns(
        ["float32", "bfloat16", "float16", "float8", "float8_e4m3fn"],
        [
            Optimizer("momentum"),
            Optimizer("momentum", momentum=0.3, weight_decay=0.01),
            Optimizer("adam"),
            Optimizer("sgd"),
        ],
        ["nearest_even", "stochastic"],
    ),
    ids=lambda value: getattr(value, "kind", None),
)
def test_what_is_wanted_changes_no_bit(
    name: str, optimizer: Optimizer, mode: str, fast: Fast
) -> None:
    """With the gradients wanted nothing is fused: they are rounded where they lie."""
    graph = _step(name, optimizer, mode)
    every = _trained(graph, fast)
    for trained in (
        _trained(graph.wanting(*WANTED), fast),
        _trained(graph.wanting(), fast),
    ):
        for key, value in trained.items():
            assert np.array_equal(value.view(np.uint32), every[key].view(np.uint32)), key


@pytest.mark.parametrize("fast", FASTS)
def test_with_a_loss_scale_the_finite_check_comes_first(fast: Fast) -> None:
    graph = _step("float16", Optimizer("momentum"), scale=LossScale("fixed", 1024.0))
    every, trained = (_trained(g, fast, 1024.0) for g in (graph, graph.wanting(*WANTED)))
    for key, value in trained.items():
        assert np.array_equal(value.view(np.uint32), every[key].view(np.uint32)), key
    plan = Plan(graph.wanting(*WANTED))
    check = next(i for i, node in enumerate(plan.order) if node.op.name == "all_finite")
    updates = [i for i, node in enumerate(plan.order) if node.op.name == "sgd_step"]
    assert check < plan.split <= min(updates)


def test_a_gradient_is_spent_before_the_next_is_made() -> None:
    graph = _step("float16", Optimizer("momentum"))
    wanted, every = Plan(graph.wanting(*WANTED)), Plan(graph)
    made = ("matmul", "bias_grad", "sgd_step")
    kinds = [
        node.op.name
        for node in wanted.order
        if node.role in ("wgrad", "update") and node.op.name in made
    ]
    assert kinds[1::2] == ["sgd_step"] * 6
    assert sorted(kinds[::2]) == ["bias_grad"] * 3 + ["matmul"] * 3
    assert wanted.elements < every.elements


def test_what_is_fused() -> None:
    plan = Plan(_step("float16", Optimizer("momentum")).wanting(*WANTED))
    groups = dict(plan.groups)
    for i, gradient in enumerate(plan.order):
        if gradient.op.name == "matmul" and gradient.role == "wgrad":
            members = plan.order[i + 1 : groups[i + 1]]
            found = fused_update(plan, gradient, members)
            assert found is not None and found.rounded is gradient
            other = fused_update(plan, None, members)
            assert other is not None and other.rounded is None
            assert fused_update(plan, gradient, members[:-1]) is None


def test_a_gradient_that_is_wanted_or_drawn_is_rounded_where_it_lies() -> None:
    for graph in (
        _step("float16", Optimizer("momentum")).wanting("grad:fc1.weight"),
        _step("float16", Optimizer("momentum"), "stochastic").wanting(*WANTED),
    ):
        plan = Plan(graph)
        name = "fc1.weight"
        new = dict(plan.graph.updates)[plan.graph.source(name).id]
        step = plan.graph.nodes[new]
        velocity = plan.graph.nodes[step.inputs[1]]
        gradient = plan.graph.nodes[velocity.inputs[1]]
        while gradient.op.name == "cast":
            gradient = plan.graph.nodes[gradient.inputs[0]]
        found = fused_update(plan, gradient, [velocity, step])
        assert found is not None and found.rounded is None


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
@pytest.mark.parametrize(
    "model", [NET, lenet5(), transformer((1, 8, 8), 10, 8, (16,), 2)], ids=lambda m: m.name
)
def test_every_update_takes_the_place_of_the_old_value(model: Chain, optimizer: str) -> None:
    kind = Optimizer(optimizer)
    for name in ("float32", "float16"):
        step = trace_step(model, "softmax_cross_entropy", kind, 4)
        graph = apply_policy(step, preset(name, model.layer_names)).wanting(*WANTED)
        assert {new for _, new in graph.updates} <= Plan(graph).in_source.keys()
