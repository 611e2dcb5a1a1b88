"""Studies of random keys and values: a refusal comes before a training and before a journal."""

from __future__ import annotations

import dataclasses
import random
import shutil
import tomllib
import types
import typing
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.faults.changes import toml_text
from benchmarks.faults.common import ran, trained_here
from policysearch.space.parallel import ParallelSection
from policysearch.space.section import SpaceSection
from policysearch.study.cost_section import CostSection
from policysearch.study.sections import GoalSection, ObjectivesSection, StudySection
from policysearch.train.tasks import Task
from policysearch.values import choices
from tests.studies import TINY

TABLES = (
    ("study", StudySection),
    *(("task", Task),) * 2,
    *(("cost", CostSection),) * 2,
    *(("space", SpaceSection),) * 3,
    ("objectives", ObjectivesSection),
    ("parallel", ParallelSection),
    ("goal", GoalSection),
)
UNDRAWN = ("trials", "hours", "fast", "seeds", "name", "data_folder", "sampler", "workers")
"""Keys that say how much is run, or where, and not what."""


def drawn_study(rng: random.Random) -> str:
    """Return the TOML of a tiny study with one to four keys of any table drawn anew."""
    tables: dict[str, Any] = tomllib.loads(TINY)
    for _ in range(rng.randint(1, 4)):
        name, kind = rng.choice(TABLES)
        key = rng.choice(dataclasses.fields(kind)).name
        hint = typing.get_type_hints(kind, include_extras=True)[key]
        if key in UNDRAWN:
            continue
        tables.setdefault(name, {})[key] = drawn_value(hint, rng)
    return toml_text(tables)


def drawn_value(hint: Any, rng: random.Random) -> Any:
    """Return a value for a key of this type: one that it has, one near it, or another type's."""
    names = choices(hint)
    if names and rng.random() < 0.9:
        name = rng.choice(names)
        return name if rng.random() < 0.8 else name[:-1]
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return drawn_value(typing.get_args(hint)[0], rng)
    if typing.get_origin(hint) is tuple and rng.random() < 0.9:
        return [drawn_value(typing.get_args(hint)[0], rng) for _ in range(rng.randint(0, 3))]
    if dataclasses.is_dataclass(hint):
        fields = rng.sample(dataclasses.fields(hint), k=1)
        hints = typing.get_type_hints(hint, include_extras=True)
        return {field.name: drawn_value(hints[field.name], rng) for field in fields}
    by_type: dict[Any, tuple[Any, ...]] = {
        int: (0, 1, 2, 3, 7, 32, 64, -1, 2**33),
        float: (0.0, 0.1, 0.5, 1.0, 2.0, 1e-4, -1.0, 1e300),
        bool: (True, False),
        str: ("float16", "bfloat16", "Linear", "dense1", "tanh", "fixed", "", "net.py:model"),
    }
    kind = hint if hint in by_type and rng.random() < 0.9 else rng.choice(tuple(by_type))
    return rng.choice(by_type[kind])


def studies(
    folder: Path, count: int, seed: int, said: Callable[[str], None] = print
) -> Counter[str]:
    """Run `count` drawn studies, training replaced; return how they ended.

    A refusal is one line, and comes before there is a journal or a training.
    """
    rng, ends = random.Random(seed), Counter[str]()
    for number in range(count):
        text, out = drawn_study(rng), folder / str(number)
        out.mkdir()
        (out / "study.toml").write_text(text, encoding="utf-8")
        few = ["--trials", "3"] if "trials = " in text else []
        with trained_here() as trained:
            found = ran(["run", "study.toml", "--no-confirm", *few], out)
        end = "ran" if found.end == "taken" else found.end
        if end != "ran" and trained:
            end = f"{end} after a training"
        if end != "ran" and list(out.rglob("*.journal*")):
            end = f"{end}, a journal behind it"
        if end not in ("ran", "refused"):
            said(f"study {number}: {end}: {(found.raised or found.err).strip()[-300:]}\n{text}")
        ends[end] += 1
        shutil.rmtree(out)
    return ends
