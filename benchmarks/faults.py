"""Damaged and hostile files, by parts: every command says one line, and loses nothing it has.

    python -m benchmarks.faults --count 5000                 # records of another shape
    python -m benchmarks.faults --part flips --count 1000    # one bit of a journal turned over
    python -m benchmarks.faults --part studies --count 2000  # studies of random keys and values

prints how the cases ended, and exits with 1 where one ended as it must not: in a traceback, in more
than one line, with text on the terminal or in a file that a terminal acts on, with a journal behind
a refusal, or with an identity that was lost.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import json
import random
import shutil
import tempfile
import tomllib
import types
import typing
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from policysearch.api import repair_study
from policysearch.cli import main
from policysearch.space.parallel import ParallelSection
from policysearch.space.section import SpaceSection
from policysearch.study.cost_section import CostSection
from policysearch.study.journal.records import Records
from policysearch.study.journal.storage import read_checked, read_line, sealed
from policysearch.study.sections import GoalSection, ObjectivesSection, StudySection
from policysearch.study.specification import load_spec
from policysearch.study.study import run_study
from policysearch.study.workers import executors
from policysearch.study.workers.executors import SerialExecutor
from policysearch.train.tasks import Task
from policysearch.values import choices
from tests.studies import TINY, replaced_training, write_study

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

COMMANDS = ("show", "show --csv", "run --processes 1", "repair", "export --pick verdict", "report")
ODD: tuple[Any, ...] = (
    *(None, True, -1, 0, 7, 2**70, 1.5, "", "x", "\x1b[31m\u202e", "{}", "[]"),
    *([], {}, [[]], {"x": 1}, ["x"]),
)
FOREIGN = (
    *({"op_code": 4, "study_id": 0}, {"op_code": 2, "study_id": 0}, {"op_code": 0}),
    *({"op_code": 3, "study_id": 0, "system_attr": 5}, {"op_code": 6, "trial_id": 0}),
    *({"op_code": 9, "trial_id": 0, "user_attr": {}}, {"op_code": 5, "trial_id": []}),
)


def places_in(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every (container, key) in `value`, however deep."""
    keys = value if isinstance(value, dict) else range(len(value))
    for key in list(keys):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from places_in(value[key])


def mutated(lines: list[bytes], rng: random.Random) -> list[bytes]:
    """Return the lines with one record of another shape, its checksum right; or a foreign line."""
    lines = list(lines)
    at = rng.randrange(len(lines))
    if rng.random() < 0.1:
        lines.insert(at, json.dumps(rng.choice(FOREIGN)).encode() + b"\n")
        return lines
    line = read_line(lines[at].rstrip(b"\n"))
    assert line is not None and line.place is not None
    record = {key: value for key, value in line.record.items() if key not in ("n", "crc")}
    top = [pair for pair in places_in(record) if pair[0] is record]
    near = [pair for pair in places_in(record) if len(str(pair[0])) < 4000]
    inside, key = rng.choice(rng.choice((top, near)))
    if isinstance(inside, dict) and rng.random() < 0.4:
        value = inside.pop(key)
        if rng.random() < 0.5:
            inside[rng.choice(("x", f"{key}:x", str(key)[:-4]))] = value
    else:
        inside[key] = rng.choice(ODD)
    if "op_code" in record:
        record = {"op_code": record.pop("op_code"), **record}
    lines[at] = sealed(record, line.place)
    return lines


RAW = ("\x1b", "\a", "\u202e")
"""What no output may hold: a terminal acts on it in the place of showing it."""


def said_raw(folder: Path, *streams: io.StringIO) -> bool:
    """Return whether a stream, or a page or exported file in `folder`, holds something RAW."""
    files = [path for end in ("html", "py", "csv", "svg") for path in folder.rglob(f"*.{end}")]
    texts = [stream.getvalue() for stream in streams]
    texts += [path.read_text(encoding="utf-8") for path in files]
    return any(raw in text for raw in RAW for text in texts)


def finished(folder: Path) -> tuple[Path, list[bytes]]:
    """Make a finished study in `folder`, its training replaced; return its file and journal."""
    study, journal = write_study(folder), folder / "results" / "tiny.journal"
    journal.parent.mkdir()
    with replaced_training():
        run_study(load_spec(study), journal, processes=0)
    return study, journal.read_bytes().splitlines(keepends=True)


def tracebacks(
    folder: Path, count: int, seed: int, said: Callable[[str], None] = print
) -> tuple[Counter[tuple[str, str]], list[str]]:
    """Run each command in turn on `count` mutations; return how each ended, and what was raised."""
    rng = random.Random(seed)
    study, lines = finished(folder)
    journal = folder / "results" / "tiny.journal"
    ends, raised = Counter[tuple[str, str]](), list[str]()
    for number in range(count):
        command = COMMANDS[number % len(COMMANDS)]
        journal.write_bytes(b"".join(mutated(lines, rng)))
        name, *more = command.split()
        streams = io.StringIO(), io.StringIO()
        try:
            with (
                contextlib.redirect_stdout(streams[0]),
                contextlib.redirect_stderr(streams[1]),
                replaced_training(),
                contextlib.chdir(folder),
            ):
                code = main([name, str(study), *more])
            end = {0: "taken", 2: "refused"}.get(code, f"exit {code}")
            if code == 2 and len(streams[1].getvalue().splitlines()) != 1:
                end = "more than one line"
            if said_raw(folder, *streams):
                end = "raw"
        except Exception as error:
            end = "traceback"
            raised.append(f"{command}: mutation {number}: {type(error).__name__}: {error}")
            said(raised[-1])
        ends[command, end] += 1
    return ends, raised


def flips(folder: Path, count: int, seed: int) -> Counter[str]:
    """Turn over one bit of a finished journal, `count` times; return what a repair made of it.

    "intact": all but the damaged record is kept, and what made the runs is known as before.
    """
    rng = random.Random(seed)
    study, lines = finished(folder)
    whole, journal = b"".join(lines), folder / "results" / "tiny.journal"
    before, spec = Records(read_checked(journal).lines), load_spec(study)
    ends = Counter[str]()
    for _ in range(count):
        place, bit = rng.randrange(len(whole)), 1 << rng.randrange(8)
        flipped = whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :]
        journal.write_bytes(flipped)
        done = repair_study(spec, journal)
        if done.copy is None:
            ends["not noticed"] += 1
            continue
        done.copy.unlink()
        after = Records(read_checked(journal).lines)
        same = after.identities[-1:] == before.identities[-1:]
        lost = len(lines) - done.kept
        ends["intact" if same and lost <= 1 else "identity lost" if not same else "more lost"] += 1
    return ends


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
    return "".join(f"[{name}]\n{_lines_of(table)}" for name, table in tables.items())


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


def _lines_of(table: dict[str, Any]) -> str:
    return "".join(f"{key} = {_toml(value)}\n" for key, value in table.items())


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} = {_toml(each)}' for key, each in value.items())}}}"
    return json.dumps(value)


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
        streams = io.StringIO(), io.StringIO()
        with (
            contextlib.redirect_stdout(streams[0]),
            contextlib.redirect_stderr(streams[1]),
            contextlib.chdir(out),
            replaced_training() as trained,
        ):
            end = _end_of_run(trained)
        if end == "refused" and len(streams[1].getvalue().splitlines()) != 1:
            end = "more than one line"
        if end not in ("ran", "refused"):
            said(f"study {number}: {end}: {streams[1].getvalue().strip()[-300:]}\n{text}")
        ends[end] += 1
        shutil.rmtree(out)
    return ends


def _end_of_run(trained: list[tuple[str, int, float]]) -> str:
    """Run the study of this folder and return how that ended."""
    one = mock.patch.object(executors, "ProcessExecutor", lambda made, _: SerialExecutor(made))
    name = [line for line in Path("study.toml").read_text().splitlines() if "trials = " in line]
    few = ["--trials", "3"] if name else []
    try:
        with one:
            code = main(["run", "study.toml", "--no-confirm", *few])
    except Exception as error:
        return f"traceback {type(error).__name__}: {error}"[:200]
    if code == 0:
        return "ran"
    if list(Path().rglob("*.journal*")) or trained:
        return "refused after a training" if trained else "journal behind a refusal"
    return "refused" if code == 2 else f"exit {code}"


SOUND = {"intact", "ran", "refused", "taken"}


def _main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--part", choices=("records", "flips", "studies"), default="records")
    options.add_argument("--count", type=int, default=5000)
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place, how = Path(folder), (given.count, given.seed)
        if given.part == "records":
            found, _ = tracebacks(place, *how)
            ends = Counter({f"{command:24} {end}": n for (command, end), n in found.items()})
        else:
            ends = (flips if given.part == "flips" else studies)(place, *how)
    for end, count in sorted(ends.items()):
        print(f"{end:46} {count}")
    raise SystemExit(any(end.rpartition("  ")[2].strip() not in SOUND for end in ends))


if __name__ == "__main__":
    _main()
