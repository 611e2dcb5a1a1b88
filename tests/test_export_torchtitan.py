"""Converters of torchtitan, by a copy of its filter: what they take, names that lie in others."""

from __future__ import annotations

import random
from typing import Any

import pytest

from policysearch.export import torchtitan
from policysearch.export.torchao import GW_HP
from policysearch.nn.models import gpt
from policysearch.policy.policy import Policy, uniform_layer
from policysearch.policy.presets import preset
from policysearch.values import InputError

MODEL = gpt((8,), 10, 32, (32,) * 11, 2)
LINEARS = [name for name, kind in MODEL.layer_types.items() if kind == "Linear"]


class Config:
    """What a run's config is given in the place of torchtitan's."""

    def __init__(self, **said: Any) -> None:
        self.said = said


def converted(text: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the recipe of each linear that the file's converters take, as `module_filter_fn`."""
    import sys
    import types

    made: Any = types.ModuleType("quantization")
    made.Float8LinearConverter = type("Float8LinearConverter", (), {"Config": Config})
    made.MXFP8LinearConverter = type("MXFP8LinearConverter", (), {"Config": Config})
    monkeypatch.setitem(sys.modules, "torchtitan.components.quantization", made)
    space: dict[str, Any] = {}
    exec(compile(text, "file.py", "exec"), space)
    found: dict[str, str] = {}
    for converter in space["converters"]():
        for name in LINEARS:
            sides = [side for spec in MODEL.parameters_of(name) for side in spec.shape]
            if "fqns" in converter.said:
                texts = converter.said["fqns"]
                taken = not texts or any(text in name for text in texts)
            else:
                skipped = any(text in name for text in converter.said["filter_fqns"])
                taken = not skipped and all(side % 16 == 0 for side in sides)
            if taken:
                found[name] = converter.said.get("recipe_name", "mxfp8")
    return found


def dealt(seed: int, base: str) -> Policy:
    """Each linear low or not, so that names of some lie in names of others (block1, block10)."""
    rng, made = random.Random(seed), preset(base, MODEL.layer_names)
    wide = [name for name in LINEARS if rng.random() < rng.choice((0.1, 0.5))]
    return made.with_layers(dict.fromkeys(wide, uniform_layer("bfloat16")))


@pytest.mark.parametrize("base", ["torchao.rowwise", f"torchao.{GW_HP}", "te.mxfp8"])
def test_converters_take_the_linears_that_run_so(
    base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(8):
        policy = dealt(seed, base)
        running = torchtitan.runs(policy, MODEL)
        low = {n for n in LINEARS if running.layer(n).compute == "float8_e4m3fn"}
        asked = {n for n in LINEARS if policy.layer(n).compute == "float8_e4m3fn"}
        found = converted(torchtitan.export(policy, MODEL), monkeypatch)
        assert {*found} == low and low <= asked
        assert len({*found.values()}) <= 1
        # the head has 10 outputs: no multiple of 16; "block1.fc1" lies in no other name
        assert asked - low <= {"head"}


def test_a_name_that_lies_in_another_leaves_that_wide_and_says_so() -> None:
    class Net:
        def __init__(self) -> None:
            self.layer_types = {"up": "Linear", "up_next": "Linear", "norm": "Norm"}
            self.layer_names = tuple(self.layer_types)

        def parameters_of(self, layer: str) -> list[Any]:
            spec = type("Spec", (), {"shape": (64, 64)})
            return [spec] if layer != "norm" else []

    net: Any = Net()
    base = preset("torchao.rowwise", net.layer_names)
    policy = base.with_layers({"up": uniform_layer("bfloat16")})
    assert torchtitan.runs(policy, net).layer("up_next") == uniform_layer("bfloat16")
    said = "layer up_next: torchtitan does not compute it in float8_e4m3fn ('up', the text that"
    assert any(line.startswith(said) for line in torchtitan.losses(policy, net))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model = 1\n[x", "expected Python or TOML"),
        ("[training]\nsteps = 1", r"no table \[model\]"),
        ("x = Float8LinearConverter.Config(recipe='rowwise')", "key: 'recipe'; expected one of"),
        ("x = Float8LinearConverter.Config(recipe_name='row')", "recipe_name: 'row'; expected"),
        ("import os", "no converters; expected Float8LinearConverter or"),
    ],
)
def test_mistakes_are_one_line(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        torchtitan.read(text, MODEL, "file")
