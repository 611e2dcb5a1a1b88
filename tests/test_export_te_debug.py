"""The YAML of nvdlfw_inspect, by its own config manager: which layers and products it changes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from policysearch.export import te_debug
from policysearch.nn.models import gpt
from policysearch.policy.policy import uniform_layer
from policysearch.policy.presets import preset
from policysearch.policy.product_words import ROLES, with_words
from policysearch.values import InputError

MODEL = gpt((8,), 32, 32, (64,) * 11, 2)
LINEARS = [name for name, kind in MODEL.layer_types.items() if kind == "Linear"]


def wide_there(text: str, path: Path) -> dict[str, set[str]]:
    """Return the wide products of each linear, as the config manager of the tool has them."""
    manager: Any = pytest.importorskip("nvdlfw_inspect.config_manager")
    registry = type("Registry", (), {"features": {*te_debug.FEATURES}})
    path.write_text(text)
    manager.get_logger = lambda: type("Log", (), {"log_message": lambda *_, **__: None})()
    manager.ConfigManager.reset()
    manager.ConfigManager._load_config(str(path), {"transformer_engine": registry})
    found = {}
    for name in LINEARS:
        said = manager.ConfigManager.get_config_for_layer(name).get("transformer_engine", {})
        whole = te_debug.LAYER[0] in said
        found[name] = {*ROLES} if whole else {*said.get(te_debug.GEMM[0], {}).get("gemms", ())}
    manager.ConfigManager.reset()
    return found


@pytest.mark.parametrize("base", ["te.current", "te.mxfp8", "te.nvfp4"])
def test_products_that_stay_wide_are_those_that_the_tool_finds(base: str, tmp_path: Path) -> None:
    for seed in range(10):
        rng, policy = random.Random(seed), preset(base, MODEL.layer_names)
        low, expected = policy.layer(LINEARS[0]), {}
        for name in LINEARS:
            wide = [role for role in ROLES if rng.random() < 0.3]
            words = " ".join(f"{role}=bfloat16" for role in wide) or "same"
            row = uniform_layer("bfloat16") if len(wide) == 3 else with_words(low, words)
            policy, expected[name] = policy.with_layers({name: row}), {*wide}
        found = wide_there(te_debug.export(policy, MODEL), tmp_path / "debug.yaml")
        assert found == expected
        lost = {line.split()[1].rstrip(":") for line in te_debug.losses(policy, MODEL)}
        assert lost.isdisjoint(LINEARS)


def test_a_policy_without_anything_wide_has_a_section_that_takes_nothing(tmp_path: Path) -> None:
    text = te_debug.export(preset("te.current", MODEL.layer_names), MODEL)
    assert not any(wide_there(text, tmp_path / "debug.yaml").values())


def section(layers: str, feature: str = "DisableQuantizationLayer: {enabled: true}") -> str:
    return f"a:\n  enabled: true\n  layers: {layers}\n  transformer_engine:\n    {feature}\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (section("{exact_layer_names: [head]}"), "exact_layer_names: fails at the first layer"),
        (section("{layer_numbers: 1}"), "layer_numbers: a number; expected a list"),
        (section("{layer_numbers: [1], layer_types: [fc]}"), "expected names with one number"),
        (section("{layer_name_regex_pattern: '(fc'}"), "missing .*expected a regular expr"),
        (section("{layer_name_regex_pattern: [fc]}"), "expected a regular expression"),
        (section("{typo: 1}"), "layers; expected one of layer_name_regex_pattern"),
        (section("{layer_types: [fc]}", "DisableFp8Gemm: {}"), "feature: 'DisableFp8Gemm'"),
        (section("{layer_types: [fc1]}") + section("{layer_types: [fc]}").replace("a:", "b:", 1),
         "block1.fc1: in a and b; expected one section"),
        ("a: 1", "a: no section; expected enabled, layers and features"),
        ("# recipe: Delayed()\n" + section("{layer_types: [fc]}"), "recipe: 'Delayed'"),
    ],
)  # fmt: skip
def test_what_fails_there_is_one_line(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        te_debug.read(text, MODEL, "file")
