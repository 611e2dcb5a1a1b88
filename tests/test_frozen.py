"""Values are values: what is written once and shared does not change in place."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from dataclasses import is_dataclass
from typing import Any

import pytest

import policysearch
from policysearch.ops.builder import Builder
from tests.turns import case


def dataclasses_of_the_package() -> list[type]:
    found: dict[str, type] = {}
    for info in pkgutil.walk_packages(policysearch.__path__, "policysearch."):
        # A plan under way is no value, and what starts with an underscore runs or is in C.
        if info.name == "policysearch.emulator.plan" or "._" in info.name:
            continue
        try:
            module = importlib.import_module(info.name)
        except ModuleNotFoundError as missing:
            if missing.name not in ("torch", "jax", "mindspore"):
                raise
            continue  # What needs an optional group, or runs in another environment.
        for name, value in vars(module).items():
            if isinstance(value, type) and value.__module__ == info.name and is_dataclass(value):
                found[f"{info.name}.{name}"] = value
    return list(found.values())


EVERY = dataclasses_of_the_package()


def test_there_are_some_and_they_are_found() -> None:
    names = {owner.__name__ for owner in EVERY}
    assert names >= {"Policy", "LossScale", "ScaleState", "Measurement", "Results", "Line"}
    assert not is_dataclass(Builder)


def test_every_dataclass_is_frozen() -> None:
    for owner in EVERY:
        made: Any = object.__new__(owner)
        for field in dataclasses.fields(made):
            with case(owner.__name__), pytest.raises(dataclasses.FrozenInstanceError):
                setattr(made, field.name, None)
