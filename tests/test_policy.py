"""Policies as values: JSON and back, phases, manual layers, files, and mistakes in one line."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from policysearch.policy.loss_scale import LossScale
from policysearch.policy.parallel import Parallel
from policysearch.policy.policy import (
    LayerPolicy,
    Phase,
    Policy,
    from_data,
    from_json,
    to_data,
    uniform_layer,
)
from policysearch.policy.policy_file import read_policy, write_policy
from policysearch.policy.presets import preset
from policysearch.values import InputError
from tests.policy_strategies import policies

POLICY = preset("mindspore.O2", ("conv1", "fc1"))


@given(policies())
def test_json_gives_the_equal_value_back(policy: Policy) -> None:
    again = from_json(policy.to_json())
    assert again == policy and hash(again) == hash(policy) and again.digest == policy.digest


def test_the_digest_covers_everything_but_the_name() -> None:
    data = to_data(POLICY)
    assert from_data({**data, "name": "other"}).digest == POLICY.digest
    changed = from_data({**data, "master_weights": False})
    assert changed.digest != POLICY.digest


def test_fields_that_came_later_leave_older_policies_as_they_were() -> None:
    """A file without them is the same policy, and its digest is that of what it says."""
    before = replace(POLICY, casts="op", norm_inner="float32", parallel=Parallel())
    plain = to_data(replace(before, gradient_storage="computed"))
    later = {"casts", "norm_inner", "parallel", "gradient_storage"}
    later |= {"second_moment", "state_block", "compensation"}
    older = {k: v for k, v in plain.items() if k not in later}
    assert len(older) == len(plain) - len(later)
    older |= {"gradient_clip_norm": None, "version": 1}  # which they had
    named = older.pop("name")
    digest = hashlib.sha256(json.dumps(older, sort_keys=True).encode()).hexdigest()
    assert from_data({"name": named, **older}).digest == from_data(plain).digest == digest
    assert from_data({**plain, "casts": "layer"}).digest != digest


def test_left_out_keys_take_their_defaults() -> None:
    data = {key: to_data(POLICY)[key] for key in ("name", "layers")}
    lists = {key: to_data(POLICY)[key] for key in ("low_precision_ops", "fp32_ops", "promote_ops")}
    data["layers"] = {"fc1": {"compute": "float16"}}
    policy = from_data({**data, **lists})
    assert policy.layer("fc1") == LayerPolicy(compute="float16")
    assert policy.loss_scale == LossScale()


def change(*path: Any, value: Any) -> Callable[[dict[str, Any]], str]:
    """Return a function that gives the policy's JSON with the item at `path` replaced or added."""

    def apply(data: dict[str, Any]) -> str:
        place: Any = data
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        return json.dumps(data)

    return apply


def drop(key: str) -> Callable[[dict[str, Any]], str]:
    return lambda data: json.dumps({k: v for k, v in data.items() if k != key})


PHASE = {"first_step": 5, "layers": {"fc9": {}}}

MISTAKES: tuple[tuple[Callable[[dict[str, Any]], str], str], ...] = (
    (change("precision", value=1), "file: unknown key 'precision'; expected one of name, layers"),
    (change("loss_scale", "up", value=2), "file.loss_scale: unknown key 'up'; expected one of"),
    (drop("layers"), "file: missing key 'layers'"),
    (drop("promote_ops"), "file: missing key 'promote_ops'"),
    (change("layers", value=[]), "file.layers: []; expected an object keyed by layer name"),
    (change("layers", "fc1", value=1), "file.layers.fc1: 1; expected a table"),
    (
        change("layers", "fc1", "compute", value="fp16"),
        "file.layers.fc1.compute: unknown format 'fp16'; expected one of float32",
    ),
    (
        change("layers", "fc1", "accumulator", value="int8"),
        "file.layers.fc1.accumulator: unknown accumulator 'int8'; expected one of float32",
    ),
    (change("optimizer_state", value="half"), "file.optimizer_state: unknown format 'half'"),
    (change("all_reduce", value=16), "file.all_reduce: 16; expected str"),
    (change("bias", value="both"), "file.bias: 'both'; expected one of fused, rounded, fp32"),
    (change("master_weights", value=1), "file.master_weights: 1; expected bool"),
    (change("version", value=3), "file.version: 3; expected 2"),
    (change("version", value="1"), "file.version: '1'; expected int"),
    (
        change("loss_scale", "init_scale", value="big"),
        "file.loss_scale.init_scale: 'big'; expected float",
    ),
    (
        change("loss_scale", "init_scale", value=float("nan")),
        "file.loss_scale.init_scale: nan; expected a finite number",
    ),
    (change("loss_scale", "init_scale", value=0), "file.loss_scale.init_scale: 0.0; expected a"),
    (
        change("loss_scale", "rule", value="tf"),
        "file.loss_scale.rule: 'tf'; expected one of torch.GradScaler",
    ),
    (change("loss_scale", "schedule", value=[[1]]), "file.loss_scale.schedule[0]: 1 items; expect"),
    (change("loss_scale", "schedule", value=[[0, 2]]), "file.loss_scale.schedule: steps [0]"),
    (change("fp32_ops", value=["matmul"]), "file.op lists: 'matmul' is given twice"),
    (change("fp32_ops", value="matmul"), "file.fp32_ops: 'matmul'; expected a list"),
    (change("fp32_ops", value=[1]), "file.fp32_ops[0]: 1; expected str"),
    (change("phases", value=[PHASE]), "file.phases[0].layers: 'fc9'; expected one of conv1, fc1"),
    (change("phases", value=[{"first_step": 5}]), "file.phases[0]: missing key 'layers'"),
    (change("phases", value=[7]), "file.phases[0]: 7; expected a table"),
    (change("phases", value=7), "file.phases: 7; expected a list"),
    (change("scaling", "recipe", value="mx8"), "file.scaling.recipe: 'mx8'; expected one of none"),
    (change("rounding", "fprop", "mode", value="up"), "file.rounding.fprop.mode: 'up'; expected"),
    (lambda data: "[]", "file: []; expected an object"),
    (lambda data: "", "file: not a policy: Expecting value"),
    (lambda data: json.dumps(data)[:-20], "file: not a policy: "),
    (lambda data: '{"name": 1, "name": 2}', "file: not a policy: keys: 'name' is given twice"),
    (lambda data: "[" * 100000, "file: not a policy: nested too deep"),
)


@pytest.mark.parametrize(("spoil", "message"), MISTAKES, ids=[m for _, m in MISTAKES])
def test_a_mistake_is_one_line_with_place_given_and_valid(
    spoil: Callable[[dict[str, Any]], str], message: str
) -> None:
    with pytest.raises(InputError) as caught:
        from_json(spoil(to_data(POLICY)), "file")
    said = str(caught.value)
    assert said.startswith(message)
    assert "\n" not in said and "expected" in said


def test_layers_have_to_match_the_model() -> None:
    with pytest.raises(InputError, match=r"^layers: 'fc1'; expected one of conv1, fc2"):
        POLICY.check_layers(("conv1", "fc2"))
    with pytest.raises(InputError, match=r"no layer 'fc2'; it has conv1, fc1"):
        POLICY.check_layers(("conv1", "fc1", "fc2"))
    with pytest.raises(InputError, match=r"^layers: 'fc7'; expected one of conv1, fc1"):
        POLICY.with_layers({"fc7": LayerPolicy()})


def test_phases_take_over_at_their_first_step() -> None:
    late = Phase(10, (("fc1", LayerPolicy()),))
    later = Phase(20, (("conv1", LayerPolicy()),))
    data = {**to_data(POLICY), "phases": [to_data_phase(late), to_data_phase(later)]}
    policy = from_data(data)
    assert policy.at_step(9).layers == POLICY.layers
    assert policy.at_step(10).layer("fc1") == LayerPolicy()
    assert policy.at_step(10).layer("conv1") == POLICY.layer("conv1")
    assert policy.at_step(20).layer("fc1") == POLICY.layer("fc1")
    assert policy.at_step(20).layer("conv1") == LayerPolicy() and not policy.at_step(20).phases


def to_data_phase(phase: Phase) -> dict[str, Any]:
    layers = {name: {"compute": layer.compute} for name, layer in phase.layers}
    return {"first_step": phase.first_step, "layers": layers}


def test_narrow_formats_are_operands_only() -> None:
    layer = uniform_layer("float8_e4m3fn")
    assert (layer.compute, layer.grad) == ("float8_e4m3fn", "float8_e5m2")
    assert (layer.output, layer.wgrad, layer.dgrad) == ("bfloat16",) * 3
    assert uniform_layer("float16").dgrad == "float16"


def test_a_file_is_written_whole_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    write_policy(POLICY, path)
    assert read_policy(path) == POLICY
    assert [p.name for p in tmp_path.iterdir()] == ["policy.json"]


def test_a_file_is_overwritten_only_when_asked(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    path.write_text("mine")
    with pytest.raises(InputError, match=r"policy\.json: the file exists; expected"):
        write_policy(POLICY, path)
    assert path.read_text() == "mine"
    write_policy(POLICY, path, overwrite=True)
    assert read_policy(path) == POLICY


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "policy.json"
    path.write_text("mine")

    def fail(*args: object, **kwargs: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("policysearch.files.os.fsync", fail)
    with pytest.raises(InputError, match="No space left on device"):
        write_policy(POLICY, path, overwrite=True)
    assert path.read_text() == "mine" and len(list(tmp_path.iterdir())) == 1


def test_unreadable_and_unwritable_places_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.json: No such file or directory; expected"):
        read_policy(tmp_path / "none.json")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"binary\.json: not UTF-8 text"):
        read_policy(tmp_path / "binary.json")
    with pytest.raises(InputError, match=r"p\.json: No such file or directory; expected a writ"):
        write_policy(POLICY, tmp_path / "no" / "p.json")
    with pytest.raises(InputError, match=r"a folder; expected the name of a file"):
        write_policy(POLICY, tmp_path)
    (tmp_path / "half.json").write_text(POLICY.to_json()[:100])
    with pytest.raises(InputError, match=r"half\.json: not a policy: "):
        read_policy(tmp_path / "half.json")
