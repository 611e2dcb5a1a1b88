"""Each kind of decision of a space: what a policy of it says, and the mistakes that are refused."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import optuna
import pytest

from policysearch.formats import format_named
from policysearch.nn.models import lenet5
from policysearch.policy.policy import LayerPolicy, Policy, from_json, uniform_layer
from policysearch.policy.presets import preset
from policysearch.rewrite.format_rules import FormatRule, LayerMatch
from policysearch.space import decided
from policysearch.space.decided.base import Decided, Group, by_group, telling
from policysearch.space.encoding import Encoding
from policysearch.space.equivalence import has_short_range
from policysearch.space.model_space import make_space
from policysearch.space.section import DECIDED, SpaceSection
from policysearch.space.space import Space
from policysearch.study.specification import load_spec, space_of
from policysearch.values import InputError
from tests.studies import write_study

STUDIES = Path(__file__).parents[1] / "studies"
MODEL = lenet5("tanh")
STEPS = 200
SECTION = SpaceSection(
    formats=("float32", "float16", "float8_e4m3fn"),
    grad_formats=("same", "bfloat16", "float8_e4m3fn"),
    wgrad_formats=("same", "float32"),
    output_formats=("same", "bfloat16"),
    param_formats=("same", "float32", "bfloat16"),
    master_weights=(True, False),
    ops=("tanh", "softmax"),
    op_places=("low", "fp32", "promote"),
    loss_scales=("none", "fixed", "dynamic", "schedule"),
    log2_scale=(3, 5),
    growth_intervals=(10, 100),
    growth_factors=(2.0, 4.0),
    backoff_factors=(0.5, 0.25),
    scale_schedules=("0:10", "0:10 0.5:14"),
    scalings=("none",),
    phase_points=(0.5, 0.8),
    phase_formats=("same", "bfloat16", "float32"),
)


def sampled(space: Space, count: int) -> list[dict[str, Any]]:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=2))
    return [space.suggest(study.ask()) for _ in range(count)]


@pytest.fixture(scope="module")
def space() -> Space:
    return make_space(SECTION, MODEL, steps=STEPS)


def test_every_decision_says_its_part_of_the_policy(space: Space) -> None:
    assert "op.softmax" not in space.choices()  # the model has none
    for params in sampled(space, 60):
        policy = space.policy(params)
        assert from_json(policy.to_json()) == policy
        for name in ("conv1", "fc3"):
            layer, usual = policy.layer(name), uniform_layer(params[f"format.{name}"])
            for role in ("grad", "wgrad", "output"):
                given = params[f"{role}.{name}"]
                assert getattr(layer, role) == (getattr(usual, role) if given == "same" else given)
            if not params["master_weights"]:
                stored = {"same": "bfloat16" if usual.compute[:6] == "float8" else usual.compute}
                given = params[f"param.{name}"]
                assert layer.param == stored.get(given, given)
        scale = policy.loss_scale
        if scale.kind == "dynamic":
            assert scale.growth_interval == params["growth_interval"]
            assert scale.growth_factor == params["growth_factor"]
            assert scale.backoff_factor == params["backoff_factor"]
        if scale.kind == "schedule":
            late = ((100, 2.0**14),) if params["scale_schedule"] != "0:10" else ()
            assert scale.schedule == ((0, 2.0**10), *late)


def test_an_op_runs_where_it_is_placed(space: Space) -> None:
    lists = {"low": "low_precision_ops", "fp32": "fp32_ops", "promote": "promote_ops"}
    for place, name in lists.items():
        policy = space.policy({"format.conv1": "float16", "op.tanh": place})
        assert "tanh" in getattr(policy, name)
        assert space.project(policy)["op.tanh"] == place


def test_phases_widen_what_is_narrower_and_leave_the_rest(space: Space) -> None:
    given = {"format.conv1": "float32", "format.conv2": "float8_e4m3fn", "phase.0.5": "bfloat16"}
    two = space.policy(given | {"format.fc1": "float16"})
    assert [phase.first_step for phase in two.phases] == [100]
    after = two.at_step(100)
    assert after.layer("conv2") == replace(uniform_layer("bfloat16"), param="float32")
    assert after.layer("conv1") == two.layer("conv1") and after.layer("fc1").compute == "float16"
    three = space.policy(given | {"phase.0.8": "float32"})
    assert [phase.first_step for phase in three.phases] == [100, 160]
    assert {layer.compute for _, layer in three.at_step(160).layers} == {"float32"}
    whole = {f"format.{group.name}": "float32" for group in space.groups}
    assert space.policy(whole | {"phase.0.5": "bfloat16"}).phases == ()


def test_decisions_of_a_policy_are_read_back(space: Space) -> None:
    for params in sampled(space, 60):
        policy = space.policy(params)
        again = space.policy(space.project(policy))
        assert (again.digest, again.name) == (policy.digest, policy.name)


def test_rows_are_different_where_policies_are(space: Space) -> None:
    effective, rows = Encoding(space), {}
    decisions = effective.decisions
    for params in sampled(space, 200):
        row = effective.row(params)
        assert len(row) == len(decisions.places) + 1
        assert all(0 <= i < len(found) for i, found in zip(row, decisions.places, strict=False))
        assert 0 <= row[-1] < decisions.modifiers[0]
        rows[space.policy(params).digest] = row
    assert len(set(rows.values())) == len(rows) > 150


def test_roles_are_decisions_beside_the_format(space: Space) -> None:
    effective = Encoding(space)
    common = ("master_weights", "phase", "loss_scale", "log2_scale", "growth_interval")
    names = [n for n in space.choices() if n.partition(".")[0] not in common]
    place = names.index("grad.conv1")
    options = effective.decisions.places[place]
    found = {
        given: options[effective.row({"format.conv1": "float8_e4m3fn", "grad.conv1": given})[place]]
        for given in ("same", "bfloat16", "float8_e4m3fn")
    }
    assert {given: option.name for given, option in found.items()} == {
        "same": "grad=usual",
        "bfloat16": "grad/bfloat16",
        "float8_e4m3fn": "grad/float8_e4m3fn/none",
    }
    assert [found[given].operand_epsilon for given in found] == [0.0, 2.0**-7, 0.125]


@pytest.mark.parametrize(("compute", "short"), [("float8_e4m3fn", False), ("float16", True)])
def test_scales_of_tensors_stand_in_for_a_loss_scale_below_16_bits_alone(
    compute: str, short: bool
) -> None:
    policy = preset("te.current", ("fc1",))
    wide = LayerPolicy(compute)
    assert (wide.dgrad, wide.wgrad, wide.param) == ("float32",) * 3
    assert has_short_range(policy.with_layers({"fc1": wide})) == short


def test_formats_with_the_same_gradients_are_options_of_their_own_epsilon() -> None:
    formats = ("float32", "float16", "float8_e4m3fn", "float8_e5m2")
    assert {uniform_layer(name).grad for name in formats[2:]} == {"float8_e5m2"}
    effective = Encoding(make_space(SpaceSection(formats), MODEL))
    place = effective.places.index("format.conv1")
    found = [effective.row({"format.conv1": name})[place] for name in formats]
    options = [effective.decisions.places[place][i] for i in found]
    assert [option.name.partition("/")[0] for option in options] == list(formats)
    epsilons = [format_named(name).epsilon for name in formats[1:]]
    assert [option.operand_epsilon for option in options] == [0.0, *epsilons]
    assert all(("float32" in each.name.split("/")[1:]) for each in options[1:])


def test_the_interval_of_a_dynamic_scale_fits_the_run() -> None:
    section = replace(SpaceSection(("float16",)), loss_scales=("dynamic",))
    for steps, interval in ((None, 2000), (150, 15), (3, 1), (10**6, 2000)):
        policy = make_space(section, MODEL, steps=steps).policy({})
        assert policy.loss_scale.growth_interval == interval


@pytest.mark.parametrize(
    ("granularity", "names"),
    [
        ("layer", ["conv1", "conv2", "fc1", "fc2", "fc3"]),
        ("type", ["Conv2d", "Linear"]),
        ("kind", ["products"]),
        ("net", ["net"]),
    ],
)
def test_granularity_says_what_is_decided_together(granularity: Any, names: list[str]) -> None:
    space = make_space(SpaceSection(("float16", "float32"), granularity=granularity), MODEL)
    assert [group.name for group in space.groups] == names
    assert {layer for group in space.groups for layer in group.layers} == set(MODEL.layer_names)


def test_groups_may_be_of_what_fits_an_expression() -> None:
    groups = (
        Group("convs", match=LayerMatch(layer="conv.*")),
        Group("dense", match=LayerMatch(layer="fc.*")),
    )
    space = make_space(SpaceSection(("float16", "float32"), groups=groups), MODEL)
    policy = space.policy({"format.convs": "float16", "format.dense": "float32"})
    assert [policy.layer(n).compute for n in ("conv2", "fc2")] == ["float16", "float32"]


def test_a_layer_whose_formats_a_rule_says_is_not_decided() -> None:
    rule = FormatRule(name="head", match=LayerMatch(layer="fc3"), formats=("float32",))
    space = make_space(SECTION, MODEL, [rule], steps=STEPS)
    assert not [name for name in space.choices() if name.endswith(".fc3")]
    for params in sampled(space, 10):
        assert space.policy(params).layer("fc3").compute == "float32"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"wgrad_formats": ("float8_e5m2",)}, "wgrad_formats: 'float8_e5m2'; expected a format"),
        ({"grad_formats": ("e5",)}, "grad_formats: "),
        ({"output_formats": ()}, "output_formats: []; expected one or more different values"),
        ({"op_places": ("high",)}, "op_places: 'high'; expected one of low, fp32, promote"),
        ({"phase_points": (0.8, 0.5)}, "phase_points: [0.8, 0.5]; expected rising shares"),
        ({"phase_points": (1.0,)}, "phase_points: [1.0]; expected rising shares"),
        ({"phase_formats": ("float32",)}, "expected 'same' as the first"),
        ({"scale_schedules": ("10:0.5",)}, "scale_schedules: '10:0.5'; expected share:power"),
        ({"scale_schedules": ("0:10 0:12",)}, "expected share:power pairs"),
        ({"scale_schedules": ("0:40",)}, "powers from -24 to 30"),
        ({"scale_schedules": ()}, "expected schedules with the kind 'schedule' alone"),
        ({"growth_factors": (0.5,)}, "growth_factors: 0.5; expected a number from 1"),
        ({"granularity": "net", "groups": (Group("a", ("conv1",)),)}, "expected either"),
        ({"groups": (Group("a", ("conv1",)), Group("a", ("fc1",)))}, "'a' is given twice"),
    ],
)
def test_what_cannot_be_meant_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        replace(SECTION, **changes)


def test_shares_need_the_steps_of_the_run() -> None:
    with pytest.raises(InputError, match="the steps of the run are not known"):
        make_space(SECTION, MODEL).policy({"loss_scale": "schedule", "format.conv1": "float16"})


@pytest.mark.parametrize(
    "path", sorted((STUDIES / "decisions").glob("*.toml")), ids=lambda p: p.stem
)
def test_the_studies_of_decisions_offer_them(path: Path) -> None:
    spec = load_spec(path)
    kind = {"phases": "phase", "schedule": "scale_schedule", "roles": "grad", "ops": "op"}
    kind["storage"] = "update_rounding"
    wanted = kind[path.stem.partition("-")[0]]
    space = space_of(spec)
    offered = {name.partition(".")[0] for name, values in space.offered().items() if values}
    assert wanted in offered and spec.study.baseline is not None
    params = {name: values[-1] for name, values in space.choices().items()}
    assert space.policy(params).digest != space.policy({}).digest


@pytest.mark.parametrize("kind", DECIDED, ids=lambda kind: type(kind).__name__)
def test_a_kind_offers_what_it_reads(kind: Decided, space: Space) -> None:
    policy: Policy = space.policy({})
    read = kind.read(policy, space.section, space.setting)
    offered = kind.choices(space.section, space.setting)
    assert read.keys() >= {name for name, values in offered.items() if len(values) > 1}
    assert kind.keys is None or isinstance(space.section, kind.keys)


def test_every_kind_of_every_file_of_decisions_has_its_row_once() -> None:
    folder = Path(decided.__path__[0])
    files = {path.stem for path in folder.glob("*.py")} - {"__init__", "base"}
    modules = {name: import_module(f"{decided.__name__}.{name}") for name in files}
    kinds = [
        value
        for module in modules.values()
        for value in vars(module).values()
        if hasattr(value, "applied") and value.__module__ == module.__name__
    ]
    assert sorted(map(repr, kinds)) == sorted(repr(type(kind)) for kind in DECIDED)


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("aaaaaaaa", "a"),
        ("abbaaaaa", "a (b in g1, g2)"),
        ("abbbaaca", "a (b in g1 to g3; c in g6)"),
        ("babababa", "b (a in g1, g3, g5, g7)"),
        ("abababababa", "a (b in g1, g3, g5, g7 and 1 more)"),
        ("abababaaabbba", "a (b in g1, g3, g5, g9 to g11)"),
        ("abababababbbaaaa", "a (b in g1, g3, g5, g7 and 3 more)"),
    ],
)
def test_a_name_says_what_most_groups_have_and_where_it_differs(said: str, name: str) -> None:
    assert by_group(list(said), [Group(f"g{i}") for i in range(len(said))]) == name


def test_what_a_net_computes_outside_its_layers_has_a_name_too() -> None:
    groups = [Group(name) for name in ("embed", "", "head")]
    assert by_group(["fp32", "fp32", "bf16"], groups) == "fp32 (bf16 in head)"
    assert by_group(["bf16", "fp32", "bf16"], groups) == "bf16 (fp32 in the module itself)"


def test_the_policies_of_a_space_are_named_by_what_differs(tmp_path: Path) -> None:
    wide = ("widths = [8]", f"widths = {[8] * 11}")
    space = space_of(load_spec(write_study(tmp_path, wide)))
    usual = space.project(preset("bfloat16", space.layers))
    changed = {f"format.fc{i}": "float32" for i in (1, 3, 4, 5)} | {"master_weights": True}
    assert space.policy(usual | changed).name.startswith("bf16 (fp32 in fc1, fc3 to fc5)")


def test_a_group_is_told_by_its_products_where_a_norm_runs_wider() -> None:
    """As torchao runs FP8: a norm that leads its block has 16 bits, its linear 8."""
    formats = ("float32", "bfloat16", "float8_e4m3fn")
    space = make_space(SpaceSection(formats=formats, granularity="net"), lenet5())
    (key,) = (name for name in space.choices() if name.startswith("format."))
    first, *rest = (low := space.policy({key: "float8_e4m3fn"})).layers
    wide = replace(low, layers=((first[0], uniform_layer("bfloat16")), *rest))
    (group,) = space.groups
    assert group.layers[0] == first[0] != telling(wide, group)
    assert space.project(wide)[key] == "float8_e4m3fn"
