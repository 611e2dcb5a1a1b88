"""The JSON Schema: current, valid, and as strict as the reader about keys, types and names."""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Iterator

import jsonschema
import pytest
from hypothesis import given

from policysearch.policy.policy import LayerPolicy, Policy, from_data, to_data
from policysearch.policy.policy_file import FORMAT_FIELDS, policy_schema
from policysearch.policy.presets import PRESETS, preset
from policysearch.values import InputError
from tests.policy_strategies import policies

VALIDATOR = jsonschema.Draft202012Validator(policy_schema())
FREE_TEXT = {"name", "accumulator"}


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(policy_schema())


@pytest.mark.parametrize("name", PRESETS)
def test_presets_fulfil_it(name: str) -> None:
    VALIDATOR.validate(json.loads(preset(name, ("conv1", "fc1")).to_json()))


@given(policies())
def test_every_policy_fulfils_it(policy: Policy) -> None:
    VALIDATOR.validate(json.loads(policy.to_json()))


def text_fields(kind: type) -> Iterator[str]:
    for field in dataclasses.fields(kind):
        hint = typing.get_type_hints(kind, include_extras=True)[field.name]
        if hint in (str, str | None):
            yield field.name
        for part in (hint, *typing.get_args(hint)):
            if isinstance(part, type) and dataclasses.is_dataclass(part):
                yield from text_fields(part)


def test_every_text_field_is_a_format_or_known_free_text() -> None:
    found = {*text_fields(Policy), *text_fields(LayerPolicy)}
    assert found == {*FORMAT_FIELDS, *FREE_TEXT}


SPOILT = [
    ("precision", 1),
    ("name", 1),
    ("layers", []),
    ("layers", {"fc1": {"compute": "fp16"}}),
    ("layers", {"fc1": {"depth": 1}}),
    ("layers", {"fc1": {"accumulator": "int8"}}),
    ("low_precision_ops", "matmul"),
    ("low_precision_ops", [1]),
    ("bias", "both"),
    ("master_weights", "yes"),
    ("optimizer_state", "half"),
    ("version", 3),
    ("phases", [{"first_step": "one", "layers": {}}]),
    ("phases", [{"first_step": 1}]),
    ("loss_scale", {"kind": "auto"}),
    ("loss_scale", {"kind": "schedule", "schedule": [[0, 1.0, 2]]}),
    ("loss_scale", {"min_scale": "none"}),
    ("scaling", {"recipe": "mx8"}),
    ("rounding", {"fprop": {"mode": "up"}}),
]


@pytest.mark.parametrize(("key", "value"), SPOILT)
def test_schema_and_reader_refuse_alike(key: str, value: object) -> None:
    data = {**to_data(preset("float32", ("fc1",))), key: value}
    assert not VALIDATOR.is_valid(data)
    with pytest.raises(InputError):
        from_data(data)


def test_schema_and_reader_take_files_with_defaults_left_out() -> None:
    data: dict[str, object] = {"name": "short", "layers": {"fc1": {"compute": "e5m7"}}}
    data |= {"low_precision_ops": [], "fp32_ops": [], "promote_ops": []}
    VALIDATOR.validate(data)
    assert from_data(data).layer("fc1").compute == "e5m7"


@pytest.mark.parametrize("key", ["name", "layers", "low_precision_ops", "fp32_ops", "promote_ops"])
def test_schema_and_reader_miss_the_same_keys(key: str) -> None:
    data = {k: v for k, v in to_data(preset("float32", ("fc1",))).items() if k != key}
    assert not VALIDATOR.is_valid(data)
    with pytest.raises(InputError, match=f"missing key '{key}'"):
        from_data(data)
