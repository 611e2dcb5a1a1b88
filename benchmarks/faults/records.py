"""Journals: records of another shape, one bit turned over, cuts at any byte."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.faults.common import finished, places_in, ran, said_raw, trained_here
from policysearch.api import repair_study
from policysearch.study.journal.records import Records
from policysearch.study.journal.storage import read_checked, read_line, sealed
from policysearch.study.opening import load_results
from policysearch.study.specification import load_spec

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


def tracebacks(
    folder: Path, count: int, seed: int, said: Callable[[str], None] = print
) -> Counter[str]:
    """Run each command in turn on `count` mutations; return how they ended."""
    rng = random.Random(seed)
    study, lines = finished(folder)
    journal, ends = folder / "results" / "tiny.journal", Counter[str]()
    for number in range(count):
        command = COMMANDS[number % len(COMMANDS)]
        journal.write_bytes(b"".join(mutated(lines, rng)))
        name, *more = command.split()
        with trained_here():
            found = ran([name, str(study), *more], folder)
        end = "raw" if said_raw(folder.rglob("*"), found.out, found.err) else found.end
        if end not in ("taken", "refused"):
            said(f"{command}: mutation {number}: {end}: {found.raised or found.err[-300:]}")
        ends[f"{command}: {end}"] += 1
    return ends


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


def cuts(folder: Path, count: int, seed: int, said: Callable[[str], None] = print) -> Counter[str]:
    """Cut a finished journal at `count` drawn bytes, and run; return how they ended.

    "same": what a run makes of what is left has the trials of the whole, and each is trained once.
    """
    rng = random.Random(seed)
    study, lines = finished(folder)
    whole, journal = b"".join(lines), folder / "results" / "tiny.journal"
    spec, ends = load_spec(study), Counter[str]()
    journal.write_bytes(whole)
    trials = load_results(spec, journal).trials
    for number in range(count):
        place = rng.randrange(len(whole))
        journal.write_bytes(whole[:place])
        left = len(Records(read_checked(journal).lines).runs)
        with trained_here() as trained:
            found = ran(["run", str(study), "--processes", "1", "--no-confirm"], folder)
        end = found.end
        if end == "taken":
            results = load_results(spec, journal)
            twice = len(trained) != len(set(trained))
            runs = len(Records(read_checked(journal).lines).runs)
            kept = not twice and left + len(trained) >= runs
            end = "same" if results.trials == trials and kept else "another end"
        if end != "same":
            said(f"cut {number} at {place}: {end}: {found.raised or found.err[-300:]}")
        ends[end] += 1
    return ends
