"""Text that a terminal acts on, in every field of every file and in what a user's code says."""

from __future__ import annotations

import copy
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.faults.common import ATTACK, Ended, places_in, ran, said_raw
from benchmarks.faults.files import ended, kinds
from policysearch.train import user_code
from tests.studies import write_study
from tests.test_kept import NET, OWN

VIEWS = (
    *("run tiny.toml --processes 1 --no-confirm", "show tiny.toml", "show tiny.toml --trial 0"),
    *("show tiny.toml --csv", "show tiny.toml --json", "noise tiny.toml", "report tiny.toml"),
    *("plot tiny.toml --out front.svg", "export tiny.toml --pick knee", "repair tiny.toml"),
    *("estimate tiny.toml", "explain preset:bfloat16 --study tiny.toml"),
)
SAYS = tuple(f"raise {kind}({ATTACK!a})" for kind in ("ValueError", "KeyError", "SystemExit"))
"""What a function of the user's own does in the place of what it should."""


def attacked(tree: Any) -> Iterator[Any]:
    """Yield the tree with each of its texts, and each of its keys, in turn made ATTACK."""
    for number, (inside, key) in enumerate(places_in(tree)):
        if isinstance(inside[key], str):
            yield _changed(tree, number, lambda there, at: there.__setitem__(at, ATTACK))
        if isinstance(inside, dict):
            yield _changed(tree, number, lambda there, at: there.update({ATTACK: there.pop(at)}))


def _changed(tree: Any, number: int, change: Callable[[Any, Any], None]) -> Any:
    other = copy.deepcopy(tree)
    change(*list(places_in(other))[number])
    return other


def fields(
    folder: Path, count: int, seed: int, said: Callable[[str], None] = print
) -> Counter[str]:
    """Put ATTACK into each field in turn, of at most `count` of each kind; return how that ended.

    And into names of files, and what functions of the user's own raise and print.
    """
    place, ends = folder / "files", Counter[str]()
    place.mkdir()
    rows = [kind for kind in kinds(place) if kind.tree is not None]
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    for kind in rows:
        for _, tree in zip(range(count), attacked(kind.tree), strict=False):
            for command in kind.commands:
                found = ended(kind, command, kind.written(tree), place, before)
                _count(ends, kind.name, command, found, said)
    for kind in rows:
        if "/" not in kind.path and kind.name != "device":
            named = replace(kind, path=f"{ATTACK.replace(chr(10), '')}{kind.path}")
            for command in kind.commands:
                found = ended(named, command, kind.content, place, before)
                _count(ends, "name of a file", command, found, said)
    _own_code(folder / "own", ends, said)
    return ends


def _own_code(folder: Path, ends: Counter[str], said: Callable[[str], None]) -> None:
    """Have each function of a net's file say ATTACK, and look at all that comes of it."""
    for name in ("model", "data", "right"):
        for says in SAYS:
            folder.mkdir()
            head = f"def {name}("
            at = NET.index("\n", NET.index(head)) + 1
            (folder / "net.py").write_text(f"{NET[:at]}    {says}\n{NET[at:]}", encoding="utf-8")
            metric = ("tail_steps = 3", 'tail_steps = 3\nmetric = "net.py:right"')
            write_study(folder, *OWN, metric)
            user_code._module.cache_clear()
            for command in VIEWS:
                found = ran(command.split(), folder)
                if said_raw(folder.rglob("*"), found.out, found.err):
                    found = replace(found, end="raw")
                _count(ends, f"what {name} says", command, found, said)
            shutil.rmtree(folder)


def _count(
    ends: Counter[str], what: str, command: str, found: Ended, said: Callable[[str], None]
) -> None:
    if found.end not in ("taken", "refused"):
        at = next((t for t in (found.out, found.err) if "\x1b" in t or "INJECTED" in t), "")
        said(f"{what}: {command}: {found.end}: {found.raised or found.err[-400:]!r} {at[-300:]!r}")
    ends[f"{what}: {found.end}"] += 1
