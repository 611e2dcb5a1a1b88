"""The shapes of what journal records hold: a checksum proves bytes, not that they can be read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import optuna

from policysearch.values import InputError, number, printable, shown


def text(value: Any, where: str) -> str:
    """Return `value`; InputError unless it is text that a terminal shows as it is."""
    if not isinstance(value, str) or printable(value) != value:
        raise InputError(f"{where}: {shown(value)}; expected text without control characters")
    return value


def texts(value: Any, where: str) -> list[str]:
    """Return `value`; InputError unless it is a list of texts."""
    if not isinstance(value, list):
        raise InputError(f"{where}: {shown(value)}; expected a list of texts")
    return [text(each, where) for each in value]


def table(value: Any, where: str) -> dict[str, Any]:
    """Return `value`; InputError unless it is a table of keys."""
    if not isinstance(value, dict):
        raise InputError(f"{where}: {shown(value)}; expected a table of keys")
    return value


def text_table(value: Any, where: str) -> dict[str, str]:
    """Return `value`; InputError unless it is a table of texts."""
    return {key: text(each, f"{where}.{key}") for key, each in table(value, where).items()}


def count(value: Any, where: str, lowest: int = -1) -> int:
    """Return `value`; InputError unless it is a whole number of at least `lowest`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < lowest:
        raise InputError(f"{where}: {shown(value)}; expected a whole number from {lowest}")
    return value


def truth(value: Any, where: str) -> bool:
    """Return `value`; InputError unless it is true or false."""
    if not isinstance(value, bool):
        raise InputError(f"{where}: {shown(value)}; expected true or false")
    return value


def policy_text(value: Any, where: str) -> str:
    """Return `value`; InputError unless it is JSON with what is read of a policy unparsed."""
    plain = table(json.loads(text(value, where)), where)
    text(plain.get("name"), f"{where}.name")
    for name in table(plain.get("layers"), f"{where}.layers"):
        text(name, f"{where}.layers")
    count(table(plain.get("parallel", {}), where).get("devices", 1), f"{where}.devices", 1)
    return str(value)


def identity(value: Any, where: str) -> dict[str, Any]:
    """Return `value`; InputError unless it says what runs belong to (journals of before: less)."""
    plain = table(value, where)
    table(plain.get("task", {}), f"{where}.task")
    text(plain.get("float32"), f"{where}.float32")
    for key in ("model", "data"):
        text(plain.get(key, ""), f"{where}.{key}")
    for key in ("code", "libraries"):
        text_table(plain.get(key, {}), f"{where}.{key}")
    return plain


def check_metrics(study: optuna.Study, known: Iterable[str], where: str) -> None:
    """Raise InputError unless the study's metrics are of `known`, one for each direction."""
    names: Any = study.metric_names
    valid = set(known)
    if (
        not isinstance(names, list)
        or len(names) != len(study.directions)
        or not all(isinstance(name, str) and name in valid for name in names)
        or len(set(names)) != len(names)
    ):
        raise InputError(
            f"{where}: metrics {shown(names)}; expected one of {', '.join(sorted(valid))} for each "
            f"of {len(study.directions)} directions"
        )


def asked(value: Any, where: str) -> Mapping[str, Any]:
    """Return `value` as the arguments of an `Asked`; InputError where one has another shape."""
    plain = table(value, where)
    return {
        "text": policy_text(plain.get("text"), f"{where}.text"),
        "presets": tuple(texts(plain.get("presets"), f"{where}.presets")),
        "params": table(plain.get("params"), f"{where}.params"),
        "place": count(plain.get("place", -1), f"{where}.place"),
        "told": count(plain.get("told", 0), f"{where}.told", 0),
        "start": truth(plain.get("start", False), f"{where}.start"),
        "expected": expected(plain.get("expected"), f"{where}.expected"),
    }


def expected(value: Any, where: str) -> tuple[float, ...] | None:
    """Return a gap and its interval, None where it is not recorded; else InputError."""
    if value is None:
        return None
    if not isinstance(value, list | tuple) or len(value) != 3:
        raise InputError(f"{where}: {shown(value)}; expected three numbers")
    for each in value:
        number(where, each, 0.0)
    return tuple(map(float, value))
