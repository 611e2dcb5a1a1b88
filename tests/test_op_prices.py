"""Every op of the catalogue has a price, forward and backward, on every software stack."""

from __future__ import annotations

import numpy as np
import pytest

from policysearch.cost.devices import DEVICES
from policysearch.cost.price import step_price
from policysearch.cost.stacks import STACKS
from policysearch.graph import Op
from policysearch.ops.builder import Builder, backward
from policysearch.ops.catalogue import FORWARD_OPS, OPS
from policysearch.ops.elementwise import add
from policysearch.ops.source import LOSS_SCALE, data, parameter
from policysearch.policy.presets import preset
from policysearch.rewrite.policy_pass import apply_policy
from tests.turns import case


@pytest.mark.parametrize("stack", STACKS)
def test_an_op_and_its_gradients_have_a_price(stack: str) -> None:
    for name in FORWARD_OPS:
        with case(name):
            assert_priced(OPS[name], stack)


def test_a_value_in_the_format_of_another_costs_a_cast_where_they_differ() -> None:
    """torch's `x.to(y.dtype)` returns x itself where the two are alike."""
    for preset_name, costs in (("float32", False), ("torch.autocast.float16", True)):
        b = Builder()
        fed = [
            b.emit(parameter, attrs={"shape": (4, 4)}, role="input", name=f"x{i}", layer="layer")
            for i in range(3)
        ]
        with b.scope(layer="layer"):
            product = b.emit(OPS["matmul"], fed[0], fed[1])
            alone, with_like = b.graph({"y": product}), b.emit(OPS["like"], product, fed[2])
        both = b.graph({"y": product, "z": with_like})
        policy, device = preset(preset_name, ("layer",)), DEVICES["H100-SXM5"]
        seconds = [
            step_price(apply_policy(graph, policy), device, STACKS["torch.eager"]).time.step_seconds
            for graph in (alone, both)
        ]
        assert seconds[0] > 0 and (seconds[1] > seconds[0]) is costs


def assert_priced(op: Op, stack: str) -> None:
    assert op.example is not None
    example, b = op.example(np.random.default_rng(0)), Builder()
    rules = op.gradients[: len(example.inputs)]
    fed = [
        b.emit(
            data if rule is None else parameter,
            attrs={"shape": array.shape},
            role="input",
            name=f"x{i}",
            layer="layer",
        )
        for i, (array, rule) in enumerate(zip(example.inputs, rules, strict=True))
    ]
    with b.scope(layer="layer"):
        made = b.emit(op, *fed, attrs=example.attrs)
    seed = b.emit(data, attrs={"shape": b.shape(made)}, role="input", name=LOSS_SCALE)
    grads = backward(b, made, seed, [i for i, rule in zip(fed, rules, strict=True) if rule], add)
    graph = b.graph({"y": made} | {f"g{i}": grad for i, grad in grads.items()})
    running = apply_policy(graph, preset("torch.autocast.float16", ("layer",)))
    price = step_price(running, DEVICES["H100-SXM5"], STACKS[stack])
    moves = all(n.op.kind in ("move", "source") for n in running.nodes)
    assert (price.time.step_seconds > 0) or moves
    assert price.memory.peak_bytes > 0
