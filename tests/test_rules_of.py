"""From a policy to the shortest rules that give it, and back: exactly the same policy."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policysearch.cli import main
from policysearch.nn.model import Model
from policysearch.nn.models import lenet5, resnet, transformer
from policysearch.policy.policy import LayerPolicy, Phase, Policy, from_json, uniform_layer
from policysearch.policy.presets import PRESETS, preset
from policysearch.rewrite.format_rules import LayerMatch
from policysearch.rewrite.rules_of import MOST_CARRIED
from policysearch.space.model_space import make_space
from policysearch.space.rules_file import read_rules, rules_file_of
from policysearch.space.section import SpaceSection
from policysearch.values import InputError
from tests.policy_strategies import layer_policies, policies

NETS: dict[str, Model] = {
    "lenet5": lenet5(),
    "resnet": resnet((3, 8, 8), 4, (4, 8)),
    "transformer": transformer((4, 8), 3, 8, (16, 16), 2),
}


def there_and_back(policy: Policy, model: Model, folder: Path) -> tuple[Policy, int]:
    """Write the rules to a file, apply it, and return the policy and how many rules it took."""
    path = folder / "rules.toml"
    said = rules_file_of(policy, model)
    path.write_text(said.text(), encoding="utf-8")
    return read_rules(path).policy(model), len([rule for rule in said.rules if not rule.run])


@pytest.mark.parametrize(("name", "net"), [*zip(PRESETS, itertools.cycle(NETS))])
def test_every_preset_comes_back_from_no_rules_at_all(name: str, net: str, tmp_path: Path) -> None:
    policy = preset(name, NETS[net].layer_names)
    assert there_and_back(policy, NETS[net], tmp_path) == (policy, 0)


@st.composite
def policies_of(draw: st.DrawFn, model: Model) -> Policy:
    """Any policy of the model: a few different layers, dealt at random, and any settings."""
    any_layer = layer_policies() | st.sampled_from(["float16", "bfloat16"]).map(uniform_layer)
    rows = draw(st.lists(any_layer, min_size=1, max_size=4))
    names = model.layer_names
    dealt = tuple((name, draw(st.sampled_from(rows))) for name in names)
    base = draw(policies() | st.sampled_from([*PRESETS]).map(lambda n: preset(n, ())))
    phases = (Phase(7, ((names[0], rows[0]),)),) if draw(st.booleans()) else ()
    return replace(base, layers=dealt, phases=phases)


@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_random_policies_come_back_from_few_rules(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    model = NETS[data.draw(st.sampled_from([*NETS]))]
    policy = data.draw(policies_of(model))
    made, count = there_and_back(policy, model, tmp_path_factory.mktemp("rules"))
    assert made == policy
    assert made.digest == policy.digest
    # a rule that says a whole layer makes one kind of layer, so no list is shorter; up to four
    # rules may say blocks and leaves, which carry to a deeper net
    assert count <= max(MOST_CARRIED, len({layer for _, layer in policy.layers}))


def test_policies_of_a_search_come_back() -> None:
    section = SpaceSection(
        ("float16", "bfloat16"),
        base="torch.autocast.float16",
        ops=("relu", "softmax"),
        master_weights=(True, False),
        accumulators=("chunked:32:float16",),
    )
    space = make_space(section, NETS["transformer"])
    names = [group.name for group in space.groups]
    params = {f"format.{name}": "bfloat16" if "norm" in name else "float16" for name in names}
    policy = space.policy({**params, "master_weights": False, "op.softmax": "fp32"})
    said = rules_file_of(policy, NETS["transformer"])
    assert said.policy(NETS["transformer"]) == policy
    assert len([rule for rule in said.rules if not rule.run]) <= 2


@pytest.mark.parametrize(
    ("net", "wide", "match"),
    [
        ("lenet5", ("conv1", "fc3"), LayerMatch(position="ends")),
        ("lenet5", ("fc3",), LayerMatch(position="last")),
        ("lenet5", ("conv1", "conv2"), LayerMatch(layer_type=("Conv2d",))),
        ("lenet5", ("conv2", "pool1"), LayerMatch(layer="pool1|conv2")),
        (
            "transformer",
            ("block1.norm1", "block1.norm2", "block2.norm1", "block2.norm2", "norm"),
            LayerMatch(layer_type=("LayerNorm",)),
        ),
        (
            "transformer",
            ("block2.norm1", "block2.norm2"),
            LayerMatch(leaf=("norm1", "norm2"), blocks="last 1"),
        ),
        (
            "resnet",
            tuple(n for n in NETS["resnet"].layer_names if n.startswith("layer2.0.")),
            LayerMatch(blocks="first 1", stack="layer2"),
        ),
    ],
)
def test_exceptions_are_said_by_position_type_block_or_name(
    net: str, wide: tuple[str, ...], match: LayerMatch
) -> None:
    model = NETS[net]
    low = preset("mindspore.O3", model.layer_names)
    policy = low.with_layers(dict.fromkeys(wide, LayerPolicy()))
    said = rules_file_of(policy, model)
    assert said.base == "mindspore.O3"
    assert [(rule.match, rule.formats) for rule in said.rules] == [(match, ("float32",))]
    assert said.policy(model) == policy


def test_an_exception_of_an_exception_comes_behind_it() -> None:
    model = NETS["lenet5"]
    low = preset("mindspore.O3", model.layer_names)
    wide = dict.fromkeys(("fc1", "fc2", "fc3"), uniform_layer("bfloat16"))
    policy = low.with_layers({**wide, "fc1": LayerPolicy()})
    said = rules_file_of(policy, model)
    assert [(rule.match, rule.formats) for rule in said.rules] == [
        (LayerMatch(layer_type=("Linear",)), ("bfloat16",)),
        (LayerMatch(layer="fc1"), ("float32",)),
    ]
    assert said.policy(model) == policy


def test_the_commands_print_rules_and_apply_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = preset("bfloat16", lenet5().layer_names).with_layers(
        {"conv1": uniform_layer("float16"), "fc3": uniform_layer("float16")}, "mixed"
    )
    (tmp_path / "p.json").write_text(policy.to_json(), encoding="utf-8")
    assert main(["rules", str(tmp_path / "p.json"), "--model", "lenet5"]) == 0
    rules = tmp_path / "rules.toml"
    rules.write_text(capsys.readouterr().out, encoding="utf-8")
    assert main(["apply", str(rules), "--model", "lenet5"]) == 0
    assert from_json(capsys.readouterr().out) == policy
    out = tmp_path / "resnet.json"
    assert main(["apply", str(rules), "--model", "resnet", "--out", str(out)]) == 0
    other = from_json(out.read_text(encoding="utf-8"))
    low = {name for name, layer in other.layers if layer.compute == "float16"}
    assert low == {"conv1", "fc"}
    assert main(["apply", str(rules), "--model", "resnet", "--out", str(out)]) == 2
    assert "the file exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("base = 'float33'", "base: 'float33'; did you mean 'float32'? expected one of "),
        ("basis = 'float32'", "key: 'basis'; expected one of base, policy, rules"),
        ("base = 'float32'\n[policy]\nbiass = 'fused'", "policy: unknown key 'biass'"),
        ("base = 'float32'\n[policy.layers]", "policy: expected a table without layers"),
        ("base = 'float32'\n[[rules]]\nformats = ['x']", "rules[0].formats: "),
        ("base = [", "expected TOML"),
        ("[[rules]]\nformats = ['float16']", "missing key 'base'; expected the preset that rules"),
        (
            "base = 'float32'\n[[rules]]\nmatch = {layer = 'q'}\nformats = ['float16']",
            "rules: rule '1': match layer 'q'",
        ),
    ],
)
def test_a_mistake_in_a_rules_file_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(text, encoding="utf-8")
    assert main(["apply", str(path), "--model", "lenet5"]) == 2
    told = capsys.readouterr().err.strip().splitlines()
    assert len(told) == 1
    assert said in told[0]


def test_a_policy_of_another_model_has_no_rules_here() -> None:
    with pytest.raises(InputError, match="layers: 'tokens'; expected one of conv1"):
        rules_file_of(preset("float32", NETS["transformer"].layer_names), lenet5())
