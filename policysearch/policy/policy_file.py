"""Policy files: JSON on disk, written whole or not at all, and the JSON Schema they fulfil."""

from __future__ import annotations

import dataclasses
import inspect
import json
import types
import typing
from pathlib import Path
from typing import Any

from policysearch.accumulators import ROWS as ACCUMULATORS
from policysearch.files import read_text, write_whole
from policysearch.formats import FORMATS
from policysearch.policy.policy import (
    CLIPPING,
    NO_FORMATS,
    VERSION,
    LayerPolicy,
    Layers,
    Policy,
    clipping_of,
    from_data,
)
from policysearch.values import InputError, choices, json_value


def write_policy(policy: Policy, path: Path, *, overwrite: bool = False) -> None:
    """Write the policy as JSON to `path`.

    Raises InputError where the file exists and `overwrite` is false, or cannot be written.
    """
    if path.exists() and not (overwrite or path.is_dir()):
        raise InputError(
            f"{path}: the file exists; expected a new name, or to be told to overwrite"
        )
    write_whole({path: policy.to_json().encode()})


def read_policy(path: Path) -> Policy:
    """Return the policy in the file `path`; InputError names the file and the place in it."""
    policy, clip_norm = read_clipped(path)
    if clip_norm is not None:
        raise InputError(
            f"{path}: {CLIPPING}: {clip_norm:g}; expected null, and clip_norm = {clip_norm:g} in "
            "the task: clipping is of the recipe"
        )
    return policy


def read_clipped(path: Path) -> tuple[Policy, float | None]:
    """Return the policy, and the norm that an older file clips gradients to, None for most.

    That is of the recipe now. InputError as of `read_policy`.
    """
    data = json_value(read_text(path, "a policy file in JSON"), str(path), "a policy")
    return from_data(data, str(path)), clipping_of(data, str(path))


DIALECT = "https://json-schema.org/draft/2020-12/schema"

FORMAT_FIELDS = (
    *("format", "compute", "output", "grad", "wgrad", "param"),
    *("optimizer_state", "second_moment", "all_reduce", "gradient_sum"),
)
"""Text fields that hold the name of a number format."""

_SCALARS = {str: "string", int: "integer", float: "number", bool: "boolean"}


def policy_schema() -> dict[str, Any]:
    """Return the schema (draft 2020-12) that every file of `Policy.to_json` fulfils.

    It is as strict as JSON Schema can be about keys, types and names. Reading a file checks more:
    ranges of numbers, rising steps, each op in one list only.
    """
    definitions: dict[str, Any] = {
        "Format": _format_schema(),
        "Accumulator": _accumulator_schema(),
    }
    schema = _object_schema(Policy, definitions)
    schema["properties"]["version"] = {"const": VERSION}
    return {
        "$schema": DIALECT,
        "$id": f"urn:policysearch:policy:{VERSION}",
        "title": "policysearch policy",
        **schema,
        "$defs": definitions,
    }


def schema_text() -> str:
    """Return `policy_schema` as JSON text, as it is exported beside a policy."""
    return json.dumps(policy_schema(), indent=2) + "\n"


def _format_schema() -> dict[str, Any]:
    custom = "^e[2-8]m([1-9]|1[0-9]|2[0-3])(fn)?$"
    return {
        "description": "A number format by name, or e<exponent bits>m<mantissa bits>[fn].",
        "anyOf": [{"enum": list(FORMATS)}, {"type": "string", "pattern": custom}],
    }


def _accumulator_schema() -> dict[str, Any]:
    chunked = "^chunked:[1-9][0-9]{0,8}:[^:]+(:[^:]+)?$"
    return {
        "description": "An accumulator by name, or chunked:<length>:<format>[:<rounding mode>].",
        "anyOf": [
            {"enum": list(ACCUMULATORS)},
            {"type": "string", "pattern": chunked},
        ],
    }


def _object_schema(kind: type, definitions: dict[str, Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = dataclasses.fields(kind)
    missing = dataclasses.MISSING
    required = [f.name for f in fields if f.default is missing and f.default_factory is missing]
    return {
        "description": " ".join(inspect.getdoc(kind).split()),  # type: ignore[union-attr]
        "type": "object",
        "properties": {f.name: _field_schema(f.name, hints[f.name], definitions) for f in fields},
        "required": required,
        "additionalProperties": False,
    }


def _field_schema(name: str, hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    kinds = {"accumulator": "Accumulator"} | dict.fromkeys(FORMAT_FIELDS, "Format")
    if name not in kinds or hint not in (str, str | None):
        return _type_schema(hint, definitions)
    named = {"$ref": f"#/$defs/{kinds[name]}"}
    others: list[dict[str, Any]] = [] if hint is str else [{"type": "null"}]
    others += [{"const": NO_FORMATS[name]}] if name in NO_FORMATS else []
    return {"anyOf": [named, *others]} if others else named


def _type_schema(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint == Layers:
        return {
            "type": "object",
            "additionalProperties": _type_schema(LayerPolicy, definitions),
        }
    if names := choices(hint):
        return {"enum": list(names)}
    if origin in (typing.Union, types.UnionType):
        options = [_type_schema(a, definitions) for a in arguments if a is not type(None)]
        return {"anyOf": [*options, {"type": "null"}]}
    if origin is tuple:
        return _tuple_schema(arguments, definitions)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if hint.__name__ not in definitions:
            definitions[hint.__name__] = _object_schema(hint, definitions)
        return {"$ref": f"#/$defs/{hint.__name__}"}
    return {"type": _SCALARS[hint]}


def _tuple_schema(arguments: tuple[Any, ...], definitions: dict[str, Any]) -> dict[str, Any]:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return {"type": "array", "items": _type_schema(arguments[0], definitions)}
    items = [_type_schema(argument, definitions) for argument in arguments]
    return {"type": "array", "prefixItems": items, "minItems": len(items), "items": False}
