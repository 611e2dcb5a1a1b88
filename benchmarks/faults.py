"""Journals whose records have valid checksums and another shape: every command says one line.

    python -m benchmarks.faults --count 5000

prints how many mutations each command took, refused in one line, and ended in a traceback.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from policysearch.cli import main
from policysearch.study.journal.storage import read_line, sealed
from policysearch.study.specification import load_spec
from policysearch.study.study import run_study
from tests.studies import replaced_training, write_study

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
        except Exception as error:
            end = "traceback"
            raised.append(f"{command}: mutation {number}: {type(error).__name__}: {error}")
            said(raised[-1])
        ends[command, end] += 1
    return ends, raised


def _main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--count", type=int, default=5000)
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        ends, raised = tracebacks(Path(folder), given.count, given.seed)
    for (command, end), count in sorted(ends.items()):
        print(f"{command:24} {end:20} {count}")
    raise SystemExit(bool(raised))


if __name__ == "__main__":
    _main()
