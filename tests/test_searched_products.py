"""Products, recipes per layer and healing as decisions of a space, and in the words of rules."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policysearch.formats import format_named
from policysearch.nn.models import mlp
from policysearch.policy.policy import LayerPolicy, Policy, from_json, uniform_layer
from policysearch.policy.presets import PRESETS, layer_named, layer_presets, preset
from policysearch.policy.product_words import ROLES, parsed, product_in, with_words, words_of
from policysearch.policy.products import Operand, Product, Products
from policysearch.policy.scaling import Scaling
from policysearch.rewrite.format_rules import FormatRule
from policysearch.space.encoding import Encoding
from policysearch.space.model_space import make_space
from policysearch.space.rules_file import rules_file_of
from policysearch.space.section import SpaceSection
from policysearch.space.space import Space
from policysearch.study.cost_section import CostSection
from policysearch.values import InputError
from tests.scaled_steps import step_of

MODEL = mlp((64, 32, 32, 10), activation="tanh")
SECTION = SpaceSection(
    formats=("float32", "bfloat16", "float8_e4m3fn", "te.mxfp8", "te.nvfp4"),
    products=(
        "same",
        "wgrad=bfloat16",
        "fprop=bfloat16",
        "dgrad=float8_e5m2 wgrad=float8_e4m3fn",
        "dgrad=bfloat16 wgrad=bfloat16 backward=forward",
    ),
    base="torch.autocast.bfloat16",
    scalings=("current",),
    phase_points=(0.5,),
    phase_formats=("same", "fprop=bfloat16", "dgrad=bfloat16 wgrad=bfloat16"),
)


@pytest.fixture(scope="module")
def space() -> Space:
    return make_space(SECTION, MODEL, steps=100)


def params_of(space: Space, seed: int) -> dict[str, Any]:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    return space.suggest(study.ask())


def formats_of(layer: LayerPolicy, role: str) -> tuple[str, ...]:
    return tuple(operand.format for operand in layer.product(role).operands)


@pytest.mark.parametrize(
    ("words", "fprop", "dgrad", "wgrad"),
    [
        ("same", "e4m3 e4m3", "e5m2 e4m3", "e5m2 e4m3"),
        ("wgrad=bfloat16", "e4m3 e4m3", "e5m2 e4m3", "bf16 bf16"),
        ("fprop=bfloat16", "bf16 bf16", "e5m2 e4m3", "e5m2 e4m3"),
        ("dgrad=float8_e4m3fn", "e4m3 e4m3", "e4m3 e4m3", "e5m2 e4m3"),
        ("fprop=float8_e5m2", "e5m2 e5m2", "e5m2 e4m3", "e5m2 e4m3"),
    ],
)
def test_words_say_what_products_read(words: str, fprop: str, dgrad: str, wgrad: str) -> None:
    layer = with_words(uniform_layer("float8_e4m3fn"), words)
    short = {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2", "bfloat16": "bf16"}
    for role, expected in zip(ROLES, (fprop, dgrad, wgrad), strict=True):
        assert [short[name] for name in formats_of(layer, role)] == expected.split(), role
    assert words_of(layer) == words


def test_words_that_say_nothing_make_the_same_layer() -> None:
    low, wide = uniform_layer("float8_e4m3fn"), uniform_layer("float32")
    assert with_words(low, "dgrad=float8_e5m2") == low
    assert with_words(wide, "wgrad=bfloat16") == wide
    # a forward product in 16 bits has no narrow copy that gradient products could read
    assert with_words(uniform_layer("bfloat16"), "backward=forward") == uniform_layer("bfloat16")
    assert with_words(low, "fprop=bfloat16 wgrad=bfloat16 backward=forward").backward == "tensor"


@pytest.mark.parametrize("words", ["", "wgrad", "fprop=e4", "up=bfloat16", "backward=low"])
def test_other_words_are_refused(words: str) -> None:
    with pytest.raises(InputError):
        parsed(words)
    with pytest.raises(InputError, match=re.escape("products: ")):
        replace(SECTION, products=("same", words))


def test_the_space_offers_what_the_issue_asks_for(space: Space) -> None:
    """wgrad wide, dgrad in e5m2, forward wide with 8-bit backward, a recipe for each layer."""
    choices = space.choices()
    assert {name.partition(".")[0] for name in choices} == {"format", "products", "phase"}
    params = {"format.fc1": "float8_e4m3fn", "format.fc2": "te.mxfp8", "format.fc3": "te.nvfp4"}
    params |= {"products.fc1": "wgrad=bfloat16", "products.fc2": "fprop=bfloat16"}
    policy = space.policy(params)
    assert formats_of(policy.layer("fc1"), "wgrad") == ("bfloat16", "bfloat16")
    assert formats_of(policy.layer("fc2"), "fprop") == ("bfloat16", "bfloat16")
    assert formats_of(policy.layer("fc2"), "wgrad") == ("float8_e4m3fn", "float8_e4m3fn")
    recipes = [policy.scaling_of(name) for name in ("fc1", "fc2", "fc3")]
    assert recipes == [Scaling("current"), *(PRESETS[n].scaling for n in ("te.mxfp8", "te.nvfp4"))]
    graph = step_of(MODEL, policy)
    read = {
        (node.layer, node.role): {graph.nodes[i].format for i in node.inputs[:2]}
        for node in graph.nodes
        if node.op.kind == "gemm"
    }
    assert read["fc1", "wgrad"] == {"bfloat16"} and read["fc1", "fprop"] == {"float8_e4m3fn"}
    assert read["fc2", "fprop"] == {"bfloat16"} and read["fc3", "fprop"] == {"float4_e2m1fn"}
    assert from_json(policy.to_json()) == policy


def test_decisions_are_read_back_and_rows_follow_policies(space: Space) -> None:
    encoding, rows = Encoding(space), dict[tuple[int, ...], str]()
    sampled = [params_of(space, seed) for seed in range(60)]
    for params in sampled:
        policy = space.policy(params)
        assert space.policy(space.project(policy)).digest == policy.digest, params
        row = encoding.row(params)
        assert rows.setdefault(row, policy.digest) == policy.digest
    assert len(set(rows.values())) == len(rows) > 40


def test_a_recipe_of_every_layer_is_the_policys(space: Space) -> None:
    whole = space.policy({f"format.fc{i}": "te.mxfp8" for i in (1, 2, 3)})
    assert whole.scaling == PRESETS["te.mxfp8"].scaling
    assert {layer.scaling for _, layer in whole.layers} == {None}
    wide = space.policy({f"format.fc{i}": "bfloat16" for i in (1, 2, 3)})
    assert wide.scaling == Scaling()
    # two recipes of layers, and none that a layer takes from the policy
    params = {"format.fc1": "te.mxfp8", "format.fc2": "te.nvfp4", "format.fc3": "bfloat16"}
    assert space.policy(params).scaling == Scaling()


def test_healing_widens_the_products_that_it_names(space: Space) -> None:
    low = {f"format.fc{i}": "te.nvfp4" for i in (1, 2, 3)}
    forward = space.policy({**low, "phase.0.5": "fprop=bfloat16"})
    backward = space.policy({**low, "phase.0.5": "dgrad=bfloat16 wgrad=bfloat16"})
    for policy, wide in ((forward, {"fprop"}), (backward, {"dgrad", "wgrad"})):
        assert [phase.first_step for phase in policy.phases] == [50]
        late = policy.at_step(50).layer("fc2")
        assert {r for r in ROLES if formats_of(late, r) == ("bfloat16", "bfloat16")} == wide
        assert {formats_of(policy.at_step(49).layer("fc2"), role) for role in ROLES} == {
            ("float4_e2m1fn", "float4_e2m1fn")
        }
    assert forward.digest != backward.digest
    assert "fprop=bfloat16@50" in forward.name


def a_product(role: str) -> st.SearchStrategy[Product | None]:
    names = st.sampled_from(["bfloat16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"])
    source = st.just("tensor") if role == "fprop" else st.sampled_from(["tensor", "forward"])
    scaling = st.sampled_from([None, Scaling("mx"), Scaling("nvfp4", hadamard=True)])
    first = st.builds(Operand, names, scaling=scaling)
    return st.none() | st.builds(Product, first, st.builds(Operand, names, source, scaling))


@settings(max_examples=25)
@given(
    products=st.builds(Products, *(a_product(role) for role in ROLES)),
    scaling=st.sampled_from([None, Scaling("blocks", weights="squares")]),
    base=st.sampled_from(layer_presets()),
)
def test_rules_say_products_and_recipes(
    products: Products, scaling: Scaling | None, base: str, tmp_path_factory: Any
) -> None:
    from policysearch.space.rules_file import read_rules

    policy = preset(base, MODEL.layer_names)
    changed = replace(uniform_layer("float8_e4m3fn"), products=products, scaling=scaling)
    policy = replace(policy.with_layers({"fc2": changed}), name="mine")
    path = tmp_path_factory.mktemp("rules") / "rules.toml"
    path.write_text(rules_file_of(policy, MODEL).text(), encoding="utf-8")
    assert read_rules(path).policy(MODEL) == policy


def test_a_rule_may_name_a_preset() -> None:
    rule = FormatRule(formats=("te.nvfp4",))
    policy: Policy = make_space(replace(SECTION, phase_points=()), MODEL, (rule,)).policy({})
    assert policy.layer("fc1").compute == "float4_e2m1fn"
    assert policy.scaling == PRESETS["te.nvfp4"].scaling
    with pytest.raises(InputError, match="or a preset of narrow operands: float8,"):
        FormatRule(formats=("te.nvfp5",))


@pytest.mark.parametrize(
    ("device", "has", "has_not"),
    [
        ("A100-SXM4-80GB", (), ("float8", "te.mxfp8")),
        ("H100-SXM5", ("te.current", "te.float8_block", "torchao.rowwise"), ("te.mxfp8",)),
        (
            "B200-SXM",
            ("te.mxfp8", "te.nvfp4", "torchao.rowwise_with_gw_hp"),
            ("te.nvfp4_1d_weight",),
        ),
    ],
)
def test_a_ladder_has_what_the_device_multiplies(
    device: str, has: tuple[str, ...], has_not: tuple[str, ...]
) -> None:
    recipes = CostSection(device, "torch.compile").recipes
    assert {*has} <= {*recipes} and not {*has_not} & {*recipes}
    section = replace(SECTION, ladder=("device",), phase_points=(), phase_formats=("same",))
    made = replace(make_space(section, MODEL), recipes=recipes).ladder()
    known = {name for _, names in made.values() for name in names}
    assert known == {"float32", *recipes}


def test_layers_are_as_in_the_preset_they_name() -> None:
    for name in layer_presets():
        row, layer = PRESETS[name], layer_named(name, param="bfloat16")
        assert layer == replace(row.layer, scaling=row.scaling, param="bfloat16")
        assert any(format_named(f).bits < 16 for f in layer.operand_formats)
    assert product_in("dgrad", "float8_e5m2").second.format == "float8_e4m3fn"
