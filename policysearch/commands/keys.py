"""`keys`: the reference of the study file, made from the dataclasses that read it."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from policysearch.commands.registry import Command
from policysearch.values import choices

HEAD = """# The study file

A study is one TOML file. These are all its tables and keys; a key without a default must be there,
and one that is not listed is an error that names the place. This page is made from the code by
`make docs`; `policysearch keys` prints it."""

SAME_ALLOWED = ("grad", "wgrad", "output", "param", "phase")
"""Whose formats may be that of the layer's products."""


@cache
def registries() -> Mapping[str, Iterable[str]]:
    """Return by key what the keys that name a row of a registry take."""
    from policysearch.accumulators import ROWS as ACCUMULATORS
    from policysearch.cost.devices import DEVICES
    from policysearch.cost.stacks import STACKS
    from policysearch.data.datasets import LOADERS
    from policysearch.formats import FORMATS
    from policysearch.nn.layers import ACTIVATIONS
    from policysearch.nn.models import MODELS
    from policysearch.ops.catalogue import FORWARD_OPS
    from policysearch.policy.presets import PRESETS
    from policysearch.rewrite.format_rules import LISTS
    from policysearch.space.decided.base import SAME
    from policysearch.study.optuna_samplers import SAMPLERS
    from policysearch.train.losses import LOSSES
    from policysearch.train.schedule import KINDS

    formats = (*FORMATS, "e<2-8>m<1-23>[fn]")
    return {
        "study.sampler": SAMPLERS,
        "task.model": MODELS,
        "task.activation": ACTIVATIONS,
        "task.data": LOADERS,
        "task.loss": LOSSES,
        "task.schedule.kind": KINDS,
        "cost.device": DEVICES,
        "cost.stack": STACKS,
        "space.formats": formats,
        **{f"space.{of}_formats": (SAME, *formats) for of in SAME_ALLOWED},
        "space.op_places": LISTS,
        "space.base": PRESETS,
        "space.ops": FORWARD_OPS,
        "space.optimizer_states": formats,
        "space.accumulators": (*ACCUMULATORS, "chunked:<length>:<format>[:<rounding mode>]"),
        "space.ladder": PRESETS,
        "parallel.all_reduce": formats,
        "rules.formats": formats,
        "rules.ops": FORWARD_OPS,
    }


def study_file_page() -> str:
    """Return the reference as Markdown: per table what its keys mean, their types and defaults."""
    blocks, described = [HEAD], dict(tables())
    names = {kind: table for table, kind in described.items()}
    for table, kind in _every_table():
        if table not in described:
            blocks += [f"## [{table}]", f"As [{names[kind]}]."]
            continue
        blocks += [f"## [{table}]", *meaning(kind), _keys(table, kind)]
        blocks += [_names(table, kind)] * bool(_names(table, kind))
    return "\n\n".join(blocks)


def tables() -> Iterator[tuple[str, type]]:
    """Yield the tables of a study file with the class that reads each, tables within last.

    Of those that are read by one class the first.
    """
    told = set[type]()
    for name, kind in _every_table():
        if kind not in told:
            told.add(kind)
            yield name, kind


def _every_table() -> Iterator[tuple[str, type]]:
    """Yield every table but those within tables that another one is like."""
    from policysearch.study.specification import StudySpec

    told: dict[type, str] = {}
    again: tuple[str, ...] = ()
    for section, hint in typing.get_type_hints(StudySpec).items():
        for name, kind in _tables(section, _table_in(hint) or hint):
            if name.startswith(again):
                continue
            if told.setdefault(kind, name) != name:
                again = (*again, f"{name}.")
            yield name, kind


def _tables(name: str, kind: type) -> Iterator[tuple[str, type]]:
    yield name, kind
    for key, hint in typing.get_type_hints(kind).items():
        within = _table_in(hint)
        if within is not None:
            yield from _tables(f"{name}.{key}", within)


def _table_in(hint: Any) -> type | None:
    """Return the dataclass that is `hint`, or that a list of it holds.

    Of several types it is the first that a file can hold.
    """
    inside = typing.get_args(hint)
    first = inside[:1] if isinstance(hint, types.UnionType) else inside
    for kind in (hint, *first):
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            return kind
    return None


def meaning(kind: type) -> list[str]:
    """Return the paragraphs that say what the keys of the class mean."""
    from policysearch.optimizers.optimizer import Optimizer
    from policysearch.train.tasks import Task

    bases = [base for base in kind.__mro__[:0:-1] if base.__doc__]
    above = [base for base in bases if dataclasses.is_dataclass(base)]
    docs = [inspect.getdoc(described) or "" for described in (kind, *above)]
    if kind is Task:  # What its keys of the optimizer mean stands there.
        docs.append((inspect.getdoc(Optimizer) or "").partition("\n\n")[2])
    return [paragraph for doc in docs for paragraph in doc.split("\n\n")]


def _keys(table: str, kind: type) -> str:
    hints = typing.get_type_hints(kind, include_extras=True)
    rows = [
        f"| `{field.name}` | {_type(hints[field.name])} | {_default(field)} |"
        for field in dataclasses.fields(kind)
    ]
    return "\n".join(["| key | type | default |", "|---|---|---|", *rows])


def _type(hint: Any) -> str:
    """Return the type as TOML has it, or the values there are."""
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if _table_in(hint) is not None:
        return "list of tables" if origin is tuple else "table"
    if names := choices(hint):
        return " or ".join(f'`"{name}"`' for name in names)
    if origin is tuple and inside[-1] is Ellipsis:
        return f"list of {_type(inside[0])}"
    if origin is tuple:
        return f"list of {len(inside)}: {', '.join(map(_type, inside))}"
    if inside:
        return _type(next(kind for kind in inside if kind is not type(None)))
    return {str: "string", int: "integer", float: "number", bool: "boolean"}[hint]


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING:
        return "must be there"
    if field.default is None:
        return "left out"
    if dataclasses.is_dataclass(field.default):
        return "as below"
    return f"`{_toml(field.default)}`"


def _toml(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def _names(table: str, kind: type) -> str:
    """Return what the keys take that name a row of a registry, one line each."""
    rows = {
        f.name: registries()[f"{table}.{f.name}"]
        for f in dataclasses.fields(kind)
        if f"{table}.{f.name}" in registries()
    }
    return "\n".join(
        f"- `{key}`: {', '.join(f'`{n}`' for n in names)}" for key, names in rows.items()
    )


def _keys_page(options: argparse.Namespace) -> None:
    print(study_file_page())


COMMANDS = (Command(460, "keys", "list the keys of a study file", _keys_page),)
