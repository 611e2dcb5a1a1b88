"""Files of trainers, over every target: what is exported is read back as what runs there."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policysearch.cli import main
from policysearch.export.reading import DEFAULT_RULE, grouped, narrower
from policysearch.export.targets import Target, read_file, targets
from policysearch.nn.models import gpt, lenet5, mlp
from policysearch.policy.policy import LayerPolicy, Policy, from_json, to_data, uniform_layer
from policysearch.policy.policy_file import read_policy
from policysearch.policy.presets import PRESETS, preset
from policysearch.policy.product_words import with_words
from policysearch.report.asked_and_run import _lost
from policysearch.values import InputError
from tests.turns import case

MODELS = {"lenet5": lenet5(), "mlp": mlp((64, 32, 16)), "gpt": gpt((8,), 10, 16, (32, 32, 32), 2)}
over_targets = pytest.mark.parametrize("target", targets().values(), ids=targets())

LOOPS = {"optimizer_order", "optimizer_scalars", "parallel", "name"}
"""What the training loop decides: no file of a target says it, and each is a line of the losses."""


def as_said(policy: Policy) -> dict[str, object]:
    """Return the fields of a policy that a file can say, op lists without their order."""
    if {policy.stored(name) for name, _ in policy.layers} == {"float32"}:
        policy = replace(policy, master_weights=True)  # the same, said otherwise
    data = {k: v for k, v in to_data(policy).items() if k not in LOOPS}
    return {k: sorted(v) if k.endswith("_ops") else v for k, v in data.items()}


def there_and_back(target: Target, policy: Policy, model: str) -> None:
    net = MODELS[model]
    running = target.runs(policy, net)
    reading = target.read(target.export(policy, net), net, "file")
    assert as_said(reading.policy) == as_said(running)
    assert target.runs(running, net) == running
    assert [row.layer for row in reading.given] == list(net.layer_names)


@pytest.mark.parametrize(("place", "name"), [*enumerate(targets())], ids=targets())
def test_presets_come_back_as_they_run(place: int, name: str) -> None:
    """Every third, so that each comes back from the files of four targets or more."""
    for preset_name in [*PRESETS][place % 3 :: 3]:
        with case(preset_name):
            policy = preset(preset_name, MODELS["lenet5"].layer_names)
            there_and_back(targets()[name], policy, "lenet5")


FORMATS = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float4_e2m1fn")


@st.composite
def drawn(draw: st.DrawFn) -> tuple[str, Policy]:
    """A net, and a policy of it: a preset with the formats of some layers drawn."""
    model = draw(st.sampled_from([*MODELS]))
    names = MODELS[model].layer_names
    base = preset(draw(st.sampled_from([*PRESETS])), names)
    said = st.sampled_from(("same", "wgrad=bfloat16", "fprop=bfloat16", "dgrad=bfloat16"))
    dealt = {
        name: with_words(uniform_layer(draw(st.sampled_from(FORMATS))), draw(said))
        for name in names
    }
    return model, base.with_layers(dealt)


@over_targets
@settings(max_examples=12, deadline=None)
@given(data=drawn())
def test_a_random_policy_comes_back_as_it_runs(target: Target, data: tuple[str, Policy]) -> None:
    there_and_back(target, data[1], data[0])


@over_targets
@settings(max_examples=12, deadline=None)
@given(data=drawn())
def test_nothing_is_narrower_than_asked_in_silence(
    target: Target, data: tuple[str, Policy]
) -> None:
    model, policy = data
    said = "\n".join(target.losses(policy, MODELS[model]))
    for line in narrower(policy, target.runs(policy, MODELS[model])):
        assert line.partition(": ")[0] in said


def test_what_is_narrower_is_found() -> None:
    names = MODELS["mlp"].layer_names
    wide, low = preset("bfloat16", names), preset("float16", names)
    assert not [*narrower(wide, wide)]
    assert not [*narrower(low, replace(low, layers=tuple((n, LayerPolicy()) for n in names)))]
    first = next(iter(narrower(wide, low)))
    assert first.startswith(f"layer {names[0]}: compute is float16, narrower")
    assert any("narrower than the float16" in line for line in narrower(low, wide))


def test_lines_of_several_layers_become_one() -> None:
    lines = ["layer a: is x", "whole: y", "layer b: is x", "layer c: is z"]
    assert grouped(lines) == ["2 layers (a, b): is x", "whole: y", "layer c: is z"]


@pytest.mark.parametrize(
    ("where", "said"),
    [("x.yaml", "*.yaml may be one for --target megatron or te_debug"), ("x.py", ""), ("x", "")],
)
def test_a_file_of_other_targets_is_told_by_its_name(where: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        read_file("torch", "a: b\n", MODELS["mlp"], where)
    assert str(error.value).startswith(where) and str(error.value).endswith(said)
    assert ("--target" in str(error.value)) == bool(said)


@over_targets
def test_what_is_no_such_file_is_one_line(target: Target) -> None:
    for text in ("", "\x00", "[1, 2", "import os", "base = 1", "{}"):
        with case(repr(text)), contextlib.suppress(InputError):
            try:
                target.read(text, MODELS["mlp"], "some.file")
            except InputError as error:
                assert str(error).startswith("some.file") and "\n" not in str(error)
                raise


@over_targets
def test_targets_say_what_they_are(target: Target) -> None:
    about = target.ABOUT
    assert all((about.file, about.says, about.how))
    assert "20" in about.checked  # a version and a month


STUDY = "studies/mlp-digits.toml"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a policy has been exported to every target, by the command."""
    made = tmp_path_factory.mktemp("files")
    for name in targets():
        arguments = ["--study", STUDY, "--target", name, "--out", str(made)]
        assert main(["export", "preset:torch.autocast.float16", *arguments]) == 0
    return made


@pytest.mark.parametrize("name", targets())
def test_commands_export_inspect_and_import(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = folder / f"mlp-digits-{name}{targets()[name].SUFFIX}"
    command = [str(file), "--target", name, "--study", STUDY]
    assert main(["inspect", *command]) == 0
    page = capsys.readouterr().out
    assert "modeled on H100" in page and all(x in page for x in ("fc1", "fc2", "gets"))
    assert main(["import", *command, "--out", str(tmp_path / "p.json")]) == 0
    assert f"wrote {tmp_path / 'p.json'}" in capsys.readouterr().out
    policy = read_policy(tmp_path / "p.json")
    assert policy.layer("fc1").compute in ("float16", "bfloat16")
    assert main(["import", *command]) == 0
    assert from_json(capsys.readouterr().out) == policy


def test_the_targets_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["targets"]) == 0
    page = capsys.readouterr().out
    assert all(f"\n{name} " in page for name in targets())


def test_asked_and_run_stand_side_by_side(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["--study", STUDY, "--out", str(tmp_path)]
    assert main(["export", "preset:te.mxfp8", *command]) == 0
    page = capsys.readouterr().out
    assert "as torch runs it" in page and "not trained" in page
    assert "narrower" not in page  # bfloat16 in the place of 8 bits
    assert "torch does otherwise: " in page and "layers (" in page
    assert "lost: torch runs no layer of this net in " in page
    assert main(["export", "preset:te.mxfp8", *command, "--strict"]) == 2
    assert main(["export", "preset:torch.autocast.bfloat16", *command]) == 0
    assert "lost: " not in capsys.readouterr().out


def test_a_format_is_lost_only_where_no_layer_has_it_left() -> None:
    asked = preset("float16", ("fc1", "fc2")).with_layers({"fc1": uniform_layer("float8_e5m2")})
    half = asked.with_layers({"fc2": uniform_layer("float32")})
    wide = asked.with_layers({"fc1": uniform_layer("bfloat16")})
    assert _lost(asked, wide, "torch") == [
        "torch runs no layer of this net in float8_e5m2; all are in bfloat16, float16"
    ]
    assert _lost(asked, half, "torch") == [
        "torch runs no layer of this net in float16; all are in float8_e5m2, float32"
    ]
    turned = asked.with_layers({"fc1": asked.layer("fc2"), "fc2": asked.layer("fc1")})
    assert not _lost(asked, asked, "torch") and not _lost(asked, turned, "torch")
    assert not _lost(half, asked, "torch")  # float32 is wider than what is in its place


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["preset:float16"], "preset:float16: a policy without --study; expected the study"),
        (["preset:float16", "--study", STUDY, "--pick", "knee"], "--pick: knee beside a policy"),
        (["preset:float16", "--study", STUDY, "--fastest"], "--fastest: given beside a policy"),
    ],
)
def test_a_mistake_is_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_an_edited_torch_file_is_read_as_it_is() -> None:
    target, net = targets()["torch"], MODELS["mlp"]
    text = target.export(preset("torch.autocast.float16", net.layer_names), net)
    changed = text.replace("growth_interval=2000", "growth_interval=100")
    changed = changed.replace("'fc1': ('float16',", "'fc9': ('float16',", 1)
    assert changed != text
    reading = target.read(changed, net, "file")
    assert reading.policy.loss_scale.growth_interval == 100
    assert {row.layer: row.rule for row in reading.given}["fc1"] == DEFAULT_RULE
    assert reading.unused == ("fc9: never matches: no layer of the model",)
    bare = text.replace("kind = 'dynamic'", "kind = 'none'")
    assert "underflow" in target.read(bare, net, "file").traps[0]
    assert not target.read(text, net, "file").traps


def test_json_is_written_whole(folder: Path) -> None:
    assert json.loads((folder / "mlp-digits-policy.json").read_text())["layers"]
