"""A model of torch as a small file: what a step graph is traced from, without values."""

from __future__ import annotations

import gzip
import json
from typing import Any

from policysearch.importers.program import Call, Constant, Extent, Piece, Program, Ref
from policysearch.importers.torch_model import TorchModel
from policysearch.nn.model import Input, ParameterSpec
from policysearch.values import InputError

VERSION = 1

ROWS = {
    kind.__name__: kind for kind in (Call, Constant, Extent, Input, ParameterSpec, Piece, Program)
} | {"Ref": Ref}
"""What a record may hold beside numbers, names, truth values and None, by its mark."""

NOT_KEPT = ("line",)
"""Fields that are no part of what a program means."""


OS_BYTE = 9
"""Of a gzip header: the system that wrote it. Python wrote Unix until 3.12, then "unknown"."""


def record_of(model: TorchModel) -> bytes:
    """Return the model as gzipped JSON, the same bytes for equal models.

    Its training program, inputs and the names and shapes of its arrays are kept; values, another
    program of evaluation and the module are not: such a model is priced, never trained.
    """
    told = {
        "version": VERSION,
        "name": model.name,
        "loss": model.loss,
        "labels": model.labels,
        "inputs": _plain(model.inputs),
        "specs": _plain(model.specs),
        "kept": _plain(model.kept),
        "program": _plain(model.program),
    }
    text = json.dumps(told, separators=(",", ":"))
    packed = gzip.compress(text.encode(), 9, mtime=0)
    return packed[:OS_BYTE] + b"\x03" + packed[OS_BYTE + 1 :]


def model_of(record: bytes) -> TorchModel:
    """Return the model of a record; InputError for bytes that are none of this version."""
    try:
        told = json.loads(gzip.decompress(record))
    except (OSError, EOFError, ValueError) as error:
        raise InputError(f"record: {error}; expected gzipped JSON of a model") from error
    version = told.get("version") if isinstance(told, dict) else None
    if version != VERSION:
        raise InputError(f"record: version {version!r}; expected {VERSION}")
    rows = ("inputs", "specs", "kept", "program")
    return TorchModel(
        name=told["name"],
        loss=told["loss"],
        labels=told["labels"],
        initial={},
        **{name: _value(told[name]) for name in rows},
    )


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: a row as {its mark: its fields that are not the default}."""
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    mark = type(value).__name__
    if mark in ROWS:
        table = value.__dataclass_fields__
        return {
            "": mark,
            **{
                name: _plain(getattr(value, name))
                for name, row in table.items()
                if name not in NOT_KEPT and getattr(value, name) != row.default
            },
        }
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise InputError(f"record: {mark}; expected numbers, names and rows of a program")


def _value(told: Any) -> Any:
    """Return what `_plain` was given; sequences become tuples."""
    if isinstance(told, list):
        return tuple(_value(item) for item in told)
    if not isinstance(told, dict):
        return told
    mark = told.get("")
    if mark not in ROWS:
        raise InputError(f"record: {mark!r}; expected one of {', '.join(ROWS)}")
    return ROWS[mark](**{name: _value(item) for name, item in told.items() if name})
