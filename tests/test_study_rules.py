"""Rules in a study file: read, resolved against the model, searched, and refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from policysearch.cli import main
from policysearch.nn.models import lenet5
from policysearch.policy.policy import LayerPolicy, uniform_layer
from policysearch.rewrite.format_rules import FormatRule, LayerMatch
from policysearch.space.model_space import make_space
from policysearch.space.rules import rules_from_data
from policysearch.space.section import SpaceSection
from policysearch.study.specification import load_spec
from policysearch.study.study import run_study
from policysearch.values import InputError
from tests.studies import write_study

RULES = """
[[rules]]
name = "ends"
match = { position = "ends" }
formats = ["bfloat16", "float32"]

[[rules]]
match = { op = ["tanh"] }
formats = ["float32"]
search = true
optional = true

[[rules]]
name = "grads"
match = { layer = "fc2" }
grad = "float32"
wgrad = "float32"
search = true

[objectives]
"""
SECTION = SpaceSection(("float16",), base="float32")
RULED = lenet5("tanh")


def _with_rules(folder: Path, rules: str) -> Path:
    path = write_study(folder)
    path.write_text(path.read_text(encoding="utf-8") + rules, encoding="utf-8")
    return path


def test_rules_are_read_and_searched_as_decisions(tmp_path: Path) -> None:
    spec = load_spec(_with_rules(tmp_path, RULES))
    assert [rule.name for rule in spec.rules] == ["ends", "", "grads"]
    assert spec.rules[0].match == LayerMatch(position="ends")
    space = make_space(SECTION, RULED, spec.rules)
    assert space.choices() == {
        "rule.ends": ("bfloat16", "float32"),
        "rule.2": ("float32", "off"),
        "rule.grads": ("on", "off"),
    }
    policy = space.policy({"rule.ends": "float32", "rule.2": "off", "rule.grads": "on"})
    assert policy.layer("conv1") == policy.layer("fc3") == LayerPolicy()
    assert policy.layer("tanh1") == uniform_layer("float16")
    assert policy.layer("fc2").grad == policy.layer("fc2").wgrad == "float32"
    assert policy.layer("fc2").compute == "float16"
    for params in (
        {"rule.ends": "float32", "rule.2": "off", "rule.grads": "on"},
        {"rule.ends": "bfloat16", "rule.2": "float32", "rule.grads": "off"},
    ):
        assert space.project(space.policy(params)) == params


def test_an_accumulator_of_a_rule_holds_and_narrow_rules_are_scaled() -> None:
    rules = (
        FormatRule("low", LayerMatch(layer="conv2"), formats=("float8_e4m3fn",)),
        FormatRule("sums", LayerMatch(layer="fc2"), accumulator="float16"),
    )
    section = SpaceSection(("float16",), accumulators=("chunked:32:float16",))
    policy = make_space(section, RULED, rules).policy({})
    assert policy.layer("fc2").accumulator == "float16"
    assert policy.layer("fc1").accumulator == "chunked:32:float16"
    assert policy.layer("conv2").compute == "float8_e4m3fn"
    assert policy.scaling.recipe == "delayed"


def test_a_study_with_rules_is_searched_and_resumed(tmp_path: Path) -> None:
    rules = """
[[rules]]
name = "wide"
match = { position = "last" }
formats = ["float32"]
search = true
"""
    spec = load_spec(_with_rules(tmp_path, rules))
    results = run_study(spec, tmp_path / "rules.journal", processes=0)
    found = {trial.policy.layer("fc2").compute for trial in results.trials}
    assert "float32" in found
    assert results == run_study(spec, tmp_path / "rules.journal", processes=0)


@pytest.mark.usefixtures("one_process")
def test_a_run_says_which_rule_wins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rules = """
[[rules]]
name = "all"
formats = ["bfloat16"]

[[rules]]
name = "last"
match = { position = "last" }
formats = ["float32"]
"""
    path = _with_rules(tmp_path, rules)
    assert main(["run", str(path), "--trials", "1", "--processes", "1"]) == 0
    assert "rule 'last' wins over rule 'all': fc2" in capsys.readouterr().err


FUNCTIONS = """
from policysearch.rewrite.format_rules import layer_rule
from policysearch.rewrite.patterns import chain, node
from policysearch.policy.policy import LayerPolicy

@layer_rule(chain(node("product", kind="gemm"), node(op="bias"), node("act", op="tanh")))
def before_tanh(match):
    return {match["product"].layer: "bfloat16", match["act"].layer: LayerPolicy()}

@layer_rule(chain(node("x", op="gelu")))
def nowhere(match):
    return "float16"

@layer_rule(chain(node("x", op="tanh")))
def broken(match):
    return match["y"]

@layer_rule(chain(node("x", op="tanh")))
def strange(match):
    return {"nobody": "float16"}

def plain(match):
    return "float16"
"""


def test_functions_of_a_file_say_formats(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(FUNCTIONS, encoding="utf-8")
    space = make_space(SECTION, RULED, (FormatRule(function=f"{path}:before_tanh"),))
    policy = space.policy({})
    wide = {name for name, layer in policy.layers if layer.compute == "bfloat16"}
    assert wide == {"conv1", "conv2", "fc1", "fc2"}
    assert policy.layer("tanh3") == LayerPolicy()
    assert policy.layer("fc3") == uniform_layer("float16")
    for function, said in (
        ("nowhere", "rule '1': .*nowhere matches nothing; expected a match"),
        ("broken", r"rule '1'.function: at node \[\d+\] tanh: InputError: match: 'y'"),
        ("strange", "rule '1'.function: 'nobody': 'float16'; expected a format or LayerPolicy"),
        ("plain", "rule '1'.function: function; expected a layer_rule"),
        ("missing", "no function 'missing'"),
    ):
        with pytest.raises(InputError, match=said):
            make_space(SECTION, RULED, (FormatRule(function=f"{path}:{function}"),))
    with pytest.raises(InputError, match=r"expected file\.py:function"):
        make_space(SECTION, RULED, (FormatRule(function="before_tanh"),))


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ("\n[[rules]]\nformats = ['float99']\n", "rules[0].formats: "),
        ("\n[[rules]]\nmatch = { layers = 'a' }\n", "rules[0].match: unknown key 'layers'"),
        ("\n[rules]\nformats = ['float16']\n", "rules: {'formats': ['float16']}; expected tables"),
        ("\n[[rules]]\nmatch = { layer = 'fc9' }\nformats = ['float16']\n", "rules: rule '1': "),
    ],
)
def test_a_mistake_in_a_rule_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rules: str, said: str
) -> None:
    path = _with_rules(tmp_path, rules)
    assert main(["run", str(path), "--storage", str(tmp_path / "x.journal")]) == 2
    told = capsys.readouterr().err.strip().splitlines()
    assert len(told) == 1
    assert said in told[0]


def test_rules_are_tables() -> None:
    assert rules_from_data({}, "x") == ()
    with pytest.raises(InputError, match=r"x: rules\[0\]: 3; expected a table"):
        rules_from_data({"rules": [3]}, "x")
