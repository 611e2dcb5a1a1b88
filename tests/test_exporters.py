"""Every export target: files that stand alone, and no part of a policy that is dropped unsaid."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from policysearch.export.reading import grouped
from policysearch.export.targets import Target, target_named, targets
from policysearch.formats import Rounding, format_named
from policysearch.nn.chain import Chain
from policysearch.nn.models import lenet5, mlp, transformer
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.normal_forms import in_full, normal
from policysearch.policy.parallel import Parallel
from policysearch.policy.policy import LayerPolicy, Phase, Policy, RoleRounding, uniform_layer
from policysearch.policy.presets import PRESETS, preset
from policysearch.policy.products import Operand, Product, Products
from policysearch.policy.scaling import Scaling
from policysearch.space.target import kept_wide
from policysearch.values import InputError
from tests.turns import case

MODEL = lenet5()
MODELS = (MODEL, mlp((64, 8, 10)), transformer((1, 8, 8), 10, 16, (24,), 2))
Pair = tuple[Policy, Policy]
over_targets = pytest.mark.parametrize("target", targets().values(), ids=targets())


def _moved(policy: Policy, op: str, to: str) -> Policy:
    """Return the policy with `op` in the list `to` instead of its own."""
    lists = ("low_precision_ops", "fp32_ops", "promote_ops")
    placed: dict[str, Any] = {n: tuple(o for o in getattr(policy, n) if o != op) for n in lists}
    return replace(policy, **{**placed, to: (*placed[to], op)})


def _with_layer(policy: Policy, **changes: Any) -> Policy:
    return policy.with_layers({"conv1": replace(policy.layer("conv1"), **changes)})


def _scaled(policy: Policy, **changes: Any) -> Policy:
    return replace(policy, loss_scale=replace(policy.loss_scale, **changes))


LOW = preset("bfloat16", MODEL.layer_names)
DYNAMIC = replace(LOW, loss_scale=LossScale("dynamic", 2.0**10))
FIXED = _scaled(DYNAMIC, kind="fixed")
SCHEDULE = _scaled(DYNAMIC, kind="schedule", schedule=((0, 2.0), (5, 4.0)))
BARE = replace(
    LOW.with_layers({n: uniform_layer("bfloat16", param="bfloat16") for n in MODEL.layer_names}),
    master_weights=False,
    optimizer_state="bfloat16",
    optimizer_order="eager",
)
STATE = replace(LOW, optimizer_state="float8_e4m3fn")
KAHAN = replace(BARE, optimizer_order="fused")
HIGH = _moved(LOW, "relu", "fp32_ops")
NARROW = preset("te.current", MODEL.layer_names)
SPLIT = _with_layer(NARROW, grad="bfloat16")
WIDE = Operand("float32")

# By field: two policies that differ there alone, and train differently for it (op lists by twos).
POLICY: dict[str, Pair] = {
    "name": (LOW, replace(LOW, name="another")),
    "layers": (LOW, LOW.with_layers({"conv1": uniform_layer("float16")})),
    "low_precision_ops": (LOW, _moved(LOW, "matmul", "promote_ops")),
    "fp32_ops": (LOW, HIGH),
    "promote_ops": (HIGH, _moved(HIGH, "relu", "promote_ops")),
    "bias": (LOW, replace(LOW, bias="rounded")),
    "casts": (LOW, replace(LOW, casts="layer")),
    "norm_inner": (LOW, replace(LOW, norm_inner="format")),
    "master_weights": tuple(
        replace(_with_layer(LOW, param="bfloat16"), master_weights=kept) for kept in (True, False)
    ),  # type: ignore[dict-item]
    "optimizer_state": (LOW, replace(LOW, optimizer_state="bfloat16")),
    "second_moment": (LOW, replace(LOW, second_moment="bfloat16")),
    "state_block": (STATE, replace(STATE, state_block=256)),
    "compensation": (KAHAN, replace(KAHAN, compensation="kahan")),
    "optimizer_order": (BARE, replace(BARE, optimizer_order="fused")),
    "optimizer_scalars": (BARE, replace(BARE, optimizer_scalars="storage")),
    "gradient_storage": (BARE, replace(BARE, gradient_storage="param")),
    "all_reduce": (LOW, replace(LOW, all_reduce="bfloat16")),
    "parallel": (LOW, replace(LOW, parallel=Parallel(devices=8, zero=2))),
    "loss_scale": (LOW, DYNAMIC),
    "scaling": (LOW, replace(LOW, scaling=Scaling("current"))),
    "rounding": (LOW, replace(LOW, rounding=RoleRounding(wgrad=Rounding("stochastic")))),
    "phases": (LOW, replace(LOW, phases=(Phase(3, (("fc1", LayerPolicy()),)),))),
}
LAYER: dict[str, Pair] = {
    "compute": (LOW, _with_layer(LOW, compute="float16")),
    "output": (LOW, _with_layer(LOW, output="float32")),
    "grad": (LOW, _with_layer(LOW, grad="float16")),
    "wgrad": (LOW, _with_layer(LOW, wgrad="float16")),
    "param": (LOW, _with_layer(LOW, param="float16")),
    "accumulator": (LOW, _with_layer(LOW, accumulator="chunked:32:float16")),
    "backward": (SPLIT, _with_layer(SPLIT, backward="forward")),
    "scaling": (NARROW, _with_layer(NARROW, scaling=Scaling("rowwise"))),
    "products": (LOW, _with_layer(LOW, products=Products(wgrad=Product(WIDE, WIDE)))),
    "gradient_sum": (LOW, _with_layer(LOW, gradient_sum="bfloat16")),
    "all_reduce": (LOW, _with_layer(LOW, all_reduce="bfloat16")),
}
LOSS_SCALE: dict[str, Pair] = {
    "kind": (DYNAMIC, FIXED),
    "init_scale": (FIXED, _scaled(FIXED, init_scale=2.0)),
    "growth_factor": (DYNAMIC, _scaled(DYNAMIC, growth_factor=4.0)),
    "backoff_factor": (DYNAMIC, _scaled(DYNAMIC, backoff_factor=0.25)),
    "growth_interval": (DYNAMIC, _scaled(DYNAMIC, growth_interval=7)),
    "min_scale": (DYNAMIC, _scaled(DYNAMIC, min_scale=2.0)),
    "max_scale": (DYNAMIC, _scaled(DYNAMIC, max_scale=2.0**15)),
    "skip_on_overflow": (FIXED, _scaled(FIXED, skip_on_overflow=False)),
    "schedule": (SCHEDULE, _scaled(SCHEDULE, schedule=((0, 2.0), (6, 4.0)))),
    "rule": (DYNAMIC, _scaled(DYNAMIC, rule="apex")),
}
PAIRS = {
    **{("Policy", field): pair for field, pair in POLICY.items()},
    **{("LayerPolicy", field): pair for field, pair in LAYER.items()},
    **{("LossScale", field): pair for field, pair in LOSS_SCALE.items()},
}


def _told(target: Target, policy: Policy) -> tuple[str, tuple[str, ...]]:
    """Return the file without the digest, which tells every policy apart, and the losses."""
    text = target.export(policy, MODEL)
    assert policy.digest in text
    return text.replace(policy.digest, ""), target.losses(policy, MODEL)


@pytest.mark.parametrize(
    ("kind", "pairs"),
    [(Policy, POLICY), (LayerPolicy, LAYER), (LossScale, LOSS_SCALE)],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_every_field_is_changed(kind: type, pairs: dict[str, Pair]) -> None:
    names = {field.name for field in dataclasses.fields(kind)} - {"version"}
    assert pairs.keys() == names
    for name, (before, after) in pairs.items():
        assert name == "name" or before.digest != after.digest


@over_targets
def test_no_field_is_dropped_unsaid(target: Target) -> None:
    """The file is another, or a line says that it is not."""
    told = cache(lambda policy: _told(target, policy))  # many pairs have one of their two in common
    for field, (before, after) in PAIRS.items():
        with case(*field):
            assert told(before) != told(after)


@over_targets
@pytest.mark.parametrize("field", ["margin", "top", "power_of_two"])
def test_a_scale_of_its_own_is_not_dropped_unsaid(target: Target, field: str) -> None:
    """Of tensors in float8, where they are scaled there at all."""
    net = mlp((64, 64, 32), activation="tanh")
    plain = preset("te.current", net.layer_names)
    changed: Any = {field: True if field == "power_of_two" else 4}
    asked = replace(plain, scaling=Scaling("current", **changed))
    there = normal(target.runs(asked, net))
    said = [operand.scaling for row in in_full(there, "fc1").values() for operand in row.operands]
    kept = all(row is None or row == asked.scaling for row in said)
    assert kept or target.losses(asked, net) != target.losses(plain, net)


@pytest.mark.parametrize(("first", "target"), [*enumerate(targets().values())], ids=targets())
def test_presets_are_exported_and_their_losses_are_lines(first: int, target: Target) -> None:
    """Every other preset, on nets in turn: a net has its own layers, not its own rules."""
    for place, name in [*enumerate(PRESETS)][first % 2 :: 2]:
        with case(name):
            assert_exported(target, place, name, MODELS[place // 2 % len(MODELS)])


def assert_exported(target: Target, place: int, name: str, model: Chain) -> None:
    policy = preset(name, model.layer_names)
    text, losses = target.export(policy, model), target.losses(policy, model)
    assert text.endswith("\n") and "import policysearch" not in text
    assert policy.digest in text and policy.name in text
    if target.SUFFIX == ".py":
        compile(text, "exported.py", "exec")
    assert len(set(losses)) == len(losses)
    assert all(line.strip() == line and "\n" not in line for line in losses)
    assert all(line in text for line in grouped(losses))
    if place < len(MODELS):
        assert text == target.export(policy, model)


@over_targets
def test_every_layer_is_named(target: Target) -> None:
    text = target.export(LOW, MODEL)
    for layer in MODEL.layer_names:
        assert layer in text or "all others multiply in the dtype of the run" in text


@pytest.mark.parametrize(
    "name", ["torch", "torchao", "torchtitan", "transformer_engine", "te_debug", "megatron"]
)
def test_layers_that_stay_wide_say_why(name: str) -> None:
    """Where it quantises linears: all that multiply, are asked in 8 bits and run wider."""
    model, target = lenet5(), target_named(name)
    asked = preset("te.current", model.layer_names)
    running, lines = target.runs(asked, model), target.losses(asked, model)
    held = {x for x in model.layer_names if model.parameters_of(x)}
    wide = {x for x in held if format_named(running.layer(x).compute).bits >= 16}
    assert {"conv1", "conv2"} <= wide
    said = [line for line in lines if " does not compute it in float8_e4m3fn (" in line]
    assert {line.split()[1].rstrip(":") for line in said} == wide and len(said) == len(wide)
    assert {*kept_wide(asked, model, name)} == {*said}


@over_targets
def test_a_name_from_a_file_stays_a_name(target: Target) -> None:
    """What a policy file calls its policy must not become code."""
    with pytest.raises(InputError, match="expected text of one line"):
        replace(LOW, name="x\nraise SystemExit\n#")
    text = target.export(replace(LOW, name='"""; raise SystemExit; """ # \\'), MODEL)
    if target.SUFFIX == ".py":
        compile(text, "exported.py", "exec")


@over_targets
def test_a_policy_of_another_net_is_a_mistake(target: Target) -> None:
    for call in (target.export, target.losses):
        with pytest.raises(InputError, match="layers: 'conv1'; expected one of fc1"):
            call(LOW, MODELS[1])
