"""The search space: complete policies, projection of presets, canonical policies, errors."""

from __future__ import annotations

import re
from dataclasses import replace

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policysearch.nn.models import lenet5
from policysearch.policy.policy import from_json
from policysearch.policy.presets import PRESETS, preset
from policysearch.search.hypervolume import dominates, knee, non_dominated
from policysearch.space.decided.base import Group
from policysearch.space.equivalence import scale_acts
from policysearch.space.model_space import make_space
from policysearch.space.section import SpaceSection
from policysearch.space.space import Space
from policysearch.values import InputError

SECTION = SpaceSection(
    formats=("float32", "bfloat16", "float16", "float8_e4m3fn"),
    ops=("tanh",),
    master_weights=(True, False),
    optimizer_states=("float32", "bfloat16"),
    loss_scales=("none", "fixed", "dynamic"),
    growth_intervals=(100, 2000),
    accumulators=("float32", "chunked:32:float16"),
    scalings=("none", "current"),
)
MODEL = lenet5("tanh")


def sampled(space: Space, count: int) -> list[dict[str, object]]:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    return [space.suggest(study.ask()) for _ in range(count)]


def test_every_sample_is_a_complete_policy_that_says_what_was_decided() -> None:
    space = make_space(SECTION, MODEL)
    for params in sampled(space, 40):
        policy = space.policy(params)
        policy.check_layers(MODEL.layer_names)
        assert from_json(policy.to_json()) == policy
        for group in ("conv1", "conv2", "fc1", "fc2", "fc3"):
            assert policy.layer(group).compute == params[f"format.{group}"]
        assert policy.layer("pool1") == policy.layer("tanh1") == policy.layer("conv1")
        assert ("tanh" in policy.fp32_ops) == (params["op.tanh"] == "fp32")
        assert policy.master_weights == params["master_weights"]
        assert policy.optimizer_state == params["optimizer_state"]
        acts = scale_acts(replace(policy, loss_scale=space.loss_scale(params)))
        assert policy.loss_scale.kind == (params["loss_scale"] if acts else "none")
        narrow = any(layer.compute == "float8_e4m3fn" for _, layer in policy.layers)
        assert policy.scaling.recipe == (params["scaling"] if narrow else "none")
        for _, layer in policy.layers:
            low = layer.compute != "float32"
            assert layer.accumulator == (params["accumulator"] if low else "float32")
        if policy.loss_scale.kind != "none":
            assert policy.loss_scale.init_scale == 2.0 ** int(str(params["log2_scale"]))
        if policy.master_weights:
            assert {layer.param for _, layer in policy.layers} == {"float32"}


def test_projection_of_a_sampled_policy_gives_its_decisions_back() -> None:
    space = make_space(SECTION, MODEL)
    for params in sampled(space, 40):
        policy = space.policy(params)
        assert space.policy(space.project(policy)).digest == policy.digest


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_projects_onto_valid_decisions(name: str) -> None:
    space = make_space(SECTION, MODEL)
    params = space.project(preset(name, MODEL.layer_names))
    choices = space.choices()
    assert params.keys() == choices.keys()
    assert all(value in choices[key] for key, value in params.items())


def test_a_decision_that_is_not_used_makes_no_new_policy() -> None:
    space = make_space(SECTION, MODEL)
    params = sampled(space, 1)[0] | {"loss_scale": "none"}
    other = params | {"log2_scale": 9, "growth_interval": 100}
    assert space.policy(params).digest == space.policy(other).digest


def test_groups_share_a_format_and_choices_of_one_are_not_asked() -> None:
    section = replace(
        SpaceSection(("float16", "float32")),
        groups=(Group("first", ("fc1", "fc2")), Group("head", ("fc3",))),
    )
    with pytest.raises(InputError, match="no group has conv1, conv2; expected every layer"):
        make_space(section, MODEL)
    full = replace(section, groups=(*section.groups, Group("convs", ("conv1", "conv2"))))
    space = make_space(full, MODEL)
    assert set(space.choices()) == {"format.first", "format.head", "format.convs"}
    policy = space.policy({"format.first": "float16", "format.head": "float32"})
    assert policy.layer("fc1") == policy.layer("fc2") != policy.layer("fc3")


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ((Group("a", ("conv9",)),), "conv9"),
        ((Group("a", ()),), "is empty"),
        ((Group("a", ("conv1",)), Group("b", ("conv1",))), "two groups"),
    ],
)
def test_bad_groups_are_named(groups: tuple[Group, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_space(replace(SECTION, groups=groups), MODEL)


coordinate = st.integers(0, 4).map(float)
points = st.lists(st.tuples(coordinate, coordinate, coordinate), min_size=1, max_size=24)


@given(points)
def test_the_front_is_what_brute_force_finds(given_points: list[tuple[float, ...]]) -> None:
    front = {given_points[i] for i in non_dominated(given_points)}
    brute = {
        p
        for p in given_points
        if not any(
            all(a <= b for a, b in zip(q, p, strict=True))
            and any(a < b for a, b in zip(q, p, strict=True))
            for q in given_points
        )
    }
    assert front == brute
    assert len(front) == len(non_dominated(given_points))


@given(points)
def test_the_knee_of_a_front_is_its_member_nearest_to_the_ideal(
    given_points: list[tuple[float, ...]],
) -> None:
    front = [given_points[i] for i in non_dominated(given_points)]
    chosen = front[knee(front)]
    lows = [min(p[i] for p in front) for i in range(3)]
    spans = [max(p[i] for p in front) - lows[i] for i in range(3)]

    def distance(p: tuple[float, ...]) -> float:
        return sum(((p[i] - lows[i]) / (spans[i] or 1.0)) ** 2 for i in range(3))

    assert all(distance(chosen) <= distance(p) + 1e-12 for p in front)
    assert not any(dominates(p, chosen) for p in given_points)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (
            SpaceSection(("float32", "e5m7"), accumulators=("tensor_core.h100",)),
            "space.accumulators: e5m7: tensor_core.h100: operand 'e5m7'; expected one of",
        ),
        (
            SpaceSection(("float8_e4m3fn",), accumulators=("float32", "tensor_core.v100")),
            "tensor_core.v100: operand 'float8_e4m3fn'; expected one of float16",
        ),
    ],
)
def test_an_accumulator_without_a_format_is_refused_before_training(
    section: SpaceSection, message: str
) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        make_space(section, MODEL)


def test_the_ladder_sums_in_the_accumulator_that_is_offered_first() -> None:
    swapped = replace(SECTION, accumulators=SECTION.accumulators[::-1])
    for section in (SECTION, swapped):
        policy = make_space(section, MODEL).preset("apex.O3")
        assert {layer.accumulator for _, layer in policy.layers} == {section.accumulators[0]}


def test_a_name_says_the_recipe_where_there_are_several() -> None:
    for scalings in (("none", "current"), ("current", "none"), ("current",)):
        space = make_space(replace(SECTION, scalings=scalings), MODEL)
        params = {f"format.{group.name}": "float8_e4m3fn" for group in space.groups}
        words = space.policy(params | {"scaling": "current"}).name.split()
        assert ("current" in words) == (len(scalings) > 1)


def test_block_scales_do_not_go_with_exact_tensor_cores() -> None:
    with pytest.raises(InputError, match="which takes no block scales"):
        SpaceSection(("float8_e4m3fn",), accumulators=("tensor_core.h100",), scalings=("mx",))
