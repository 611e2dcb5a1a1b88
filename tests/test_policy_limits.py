"""The ranges of a policy's numbers, end to end, and what a policy is when nothing is said."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import (
    LayerPolicy,
    Phase,
    Policy,
    from_data,
    from_json,
    to_data,
    uniform_layer,
    with_accumulator,
)
from policysearch.policy.presets import preset
from policysearch.policy.scaling import Scaling
from policysearch.train.tasks import Task
from policysearch.values import InputError

POLICY = preset("float32", ("fc1",))

# float32 holds the scale and its inverse as normal numbers; growth and backoff are factors that
# grow and shrink; counts fit an int32 and its successor.
RANGES: tuple[tuple[str, type, float, float], ...] = (
    ("init_scale", LossScale, 2.0**-126, 2.0**126),
    ("growth_factor", LossScale, 1.0, 65536.0),
    ("backoff_factor", LossScale, 1 / 65536, 1.0),
    ("growth_interval", LossScale, 1, 2147483648),
    ("min_scale", LossScale, 2.0**-126, 2.0**127),
    ("max_scale", LossScale, 2.0**-126, 2.0**127),
    ("margin", Scaling, 0, 64),
    ("history", Scaling, 1, 65536),
    ("clip_norm", Task, 1e-30, 1e30),
    ("clip_value", Task, 1e-30, 1e30),
)


def made(owner: type, name: str, value: Any) -> Any:
    return dataclasses.replace(POLICY if owner is Policy else owner(), **{name: value})


def beyond(value: float, toward: float) -> float:
    if isinstance(value, int):
        return value + (1 if toward > 0 else -1)
    return math.nextafter(value, toward)


@pytest.mark.parametrize(("name", "owner", "low", "high"), RANGES, ids=[r[0] for r in RANGES])
def test_a_number_may_be_anything_in_its_range_and_nothing_beyond(
    name: str, owner: type, low: float, high: float
) -> None:
    for value in (low, high):
        assert getattr(made(owner, name, value), name) == value
    for value in (beyond(low, -math.inf), beyond(high, math.inf), math.nan):
        with pytest.raises(InputError, match=rf"^{name}: "):
            made(owner, name, value)


@pytest.mark.parametrize(
    ("pair", "where"),
    [
        ((-1, 2.0), "schedule step"),
        ((2**31 + 1, 2.0), "schedule step"),
        ((0, 0.0), "schedule scale"),
        ((0, 2.0**127), "schedule scale"),
    ],
)
def test_the_pairs_of_a_schedule_have_ranges_too(pair: tuple[int, float], where: str) -> None:
    with pytest.raises(InputError, match=rf"^{where}: "):
        LossScale("schedule", schedule=(pair,))
    ends = ((0, 2.0**-126), (2**31, 2.0**126))
    assert LossScale("schedule", schedule=ends).schedule == ends


@pytest.mark.parametrize("kind", ["none", "fixed", "dynamic"])
def test_a_schedule_belongs_to_its_kind(kind: Any) -> None:
    assert LossScale(kind).schedule == ()
    with pytest.raises(InputError, match=r"^schedule: steps \[0\]"):
        LossScale(kind, schedule=((0, 1.0),))
    for steps in ((), ((5, 1.0), (4, 1.0)), ((5, 1.0), (5, 2.0))):
        with pytest.raises(InputError, match="expected rising first steps"):
            LossScale("schedule", schedule=steps)


def test_phases_rise_from_step_one_and_name_layers_of_the_policy() -> None:
    def phased(*firsts: int, layer: str = "fc1") -> Policy:
        phases = tuple(Phase(first, ((layer, LayerPolicy()),)) for first in firsts)
        return dataclasses.replace(POLICY, phases=phases)

    assert len(phased(1, 2).phases) == 2
    for firsts in ((0,), (2, 1), (3, 3), (-1, 2)):
        with pytest.raises(InputError, match=r"^phases: first steps"):
            phased(*firsts)
    with pytest.raises(InputError, match=r"^phases\[1\]\.layers: 'fc9'"):
        phases = (*phased(1).phases, *[Phase(4, (("fc9", LayerPolicy()),))])
        dataclasses.replace(POLICY, phases=phases)


FIELDS = ("compute", "output", "grad", "wgrad", "param", "accumulator")


@pytest.mark.parametrize("name", FIELDS)
def test_a_layer_says_which_of_its_formats_is_unknown(name: str) -> None:
    with pytest.raises(InputError, match=rf"^{name}: unknown"):
        given: dict[str, Any] = {name: "half"}
        LayerPolicy(**given)


@pytest.mark.parametrize("name", ["optimizer_state", "all_reduce"])
def test_a_policy_says_which_of_its_formats_is_unknown(name: str) -> None:
    with pytest.raises(InputError, match=rf"^{name}: unknown"):
        made(Policy, name, "half")


def test_unless_told_otherwise_everything_is_float32_and_nothing_is_scaled() -> None:
    assert {getattr(LayerPolicy(), name) for name in FIELDS} == {"float32"}
    assert LayerPolicy() == uniform_layer("float32") == uniform_layer(name="float32")
    data = {key: to_data(POLICY)[key] for key in ("name", "layers")}
    lists = {key: to_data(POLICY)[key] for key in ("low_precision_ops", "fp32_ops", "promote_ops")}
    bare = from_data({**data, **lists})
    assert bare.digest == POLICY.digest
    assert bare.loss_scale == LossScale() and bare.loss_scale.kind == "none"
    assert bare.loss_scale.skip_on_overflow and bare.loss_scale.init_scale == 1.0


@pytest.mark.torch
def test_the_defaults_of_a_loss_scale_are_those_of_grad_scaler() -> None:
    torch = pytest.importorskip("torch")
    theirs = torch.amp.GradScaler("cpu").state_dict()
    ours = LossScale()
    for name in ("growth_factor", "backoff_factor", "growth_interval"):
        assert getattr(ours, name) == theirs[name]


def test_the_place_of_a_mistake_begins_with_what_was_read() -> None:
    for text, place in (
        ("", "policy: not a policy"),
        ("[]", "policy: "),
        ("{}", "policy: missing"),
    ):
        with pytest.raises(InputError, match=rf"^{place}"):
            from_json(text)
    with pytest.raises(InputError, match=r"^policy: \[\]; expected an object"):
        from_data([])


def test_an_accumulator_is_for_layers_below_float32() -> None:
    low = preset("float16", ("fc1", "fc2")).with_layers({"fc2": LayerPolicy()})
    changed = with_accumulator(low, "float16")
    assert {name: layer.accumulator for name, layer in changed.layers} == {
        "fc1": "float16",
        "fc2": "float32",
    }
    assert with_accumulator(changed, "float32") == low


def test_the_last_phase_that_began_is_in_force() -> None:
    low, lower = uniform_layer("bfloat16"), uniform_layer("float16")
    policy = preset("float32", ("fc1", "fc2"))
    phases = (Phase(2, (("fc1", low),)), Phase(4, (("fc2", lower),)))
    policy = dataclasses.replace(policy, phases=phases)
    found = [dict(policy.at_step(step).layers) for step in range(6)]
    assert [layers["fc1"] for layers in found] == [LayerPolicy()] * 2 + [low] * 2 + [
        LayerPolicy()
    ] * 2
    assert [layers["fc2"] for layers in found] == [LayerPolicy()] * 4 + [lower] * 2
    assert all(policy.at_step(step).phases == () for step in range(6))
