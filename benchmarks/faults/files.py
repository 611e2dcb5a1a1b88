"""Files of every kind with anything wrong: one line, exit code 2, no hang, nothing left behind."""

from __future__ import annotations

import gzip
import json
import random
import shutil
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.faults.changes import changed_bytes, changed_text, changed_tree, toml_text
from benchmarks.faults.common import Ended, finished, ran, said_raw, trained_here
from policysearch.export.targets import targets
from policysearch.nn.model import Model
from policysearch.objective.published.known import PATH as PUBLISHED
from policysearch.policy.presets import preset
from policysearch.space.rules_file import rules_file_of
from policysearch.study.specification import load_spec
from tests.studies import TINY, write_study
from tests.test_kept import NET, OWN

DEVICE = """
name = "mine"
arch = "own"
memory_gib = [8]
peaks = [["float32", {value = 1e12, source = "sheet", mark = "memory"}],
         ["bfloat16", {value = 4e12, source = "me"}]]
bandwidth = {value = 1e11, source = "guess", mark = "unsourced"}
multiprocessors = {value = 4, source = "me"}
alignment = [["float32", 4]]
timings.rows = [
  {op = "matmul.nt", format = "float32", extents = [1, 8, 8, 8], seconds = 2, cached_seconds = 1},
  {op = "add", format = "float32", extents = [64, 64], seconds = 3e-6, cached_seconds = 1e-6},
]
"""

LOG = [
    {
        "step": step,
        "scale": 1024.0,
        "norm": 3.0,
        "norm_at_step": 0.5,
        "clip": None,
        "norm_at_clip": 3.0,
        "exponents": [["fprop", "fc1", "linear", -3, [5, 9, 2], {"-200": 4}]],
    }
    for step in range(3)
]


KERNELS = """op,format,extents,seconds,cached_seconds
matmul.nt,float32,1x64x64x64,2e-5,1e-5
matmul.nt,bfloat16,1x64x64x64,1e-5,5e-6
add,float32,64x64,3e-6,1e-6
"""
SMALL = "ncf"
"""The network of the published rows that is priced the soonest."""
ALIASES = f"[devices]\n'my card' = 'V100-SXM2-16GB'\n[models]\n'my net' = '{SMALL}'\n"
OTHER_SHAPE = 0.7
"""Share of the files whose tree is changed, where there is one; the others are changed as text."""


@dataclass(frozen=True)
class Kind:
    """A kind of file: its path, what is in it, and the commands that read it.

    `tree` is the same parsed, which `written` makes bytes of; None where it is changed as text, or
    as bytes where it is no text.
    """

    name: str
    path: str
    content: bytes
    commands: tuple[str, ...]
    tree: Any = None
    written: Callable[[Any], bytes] = lambda tree: _json(tree)

    def changed(self, rng: random.Random) -> bytes:
        """Return another content, which is no more what it should be."""
        if self.tree is not None and rng.random() < OTHER_SHAPE:
            return self.written(changed_tree(self.tree, rng))
        try:
            text = self.content.decode()
        except UnicodeDecodeError:
            return changed_bytes(self.content, rng)
        return changed_text(text, rng).encode("utf-8", "surrogatepass")


def kinds(folder: Path) -> list[Kind]:
    """Return the kinds of files, after writing into `folder` what they stand beside."""
    return [*_of_studies(folder), *_of_devices(folder), *_of_targets(folder), *_kept(folder)]


def _of_studies(folder: Path) -> Iterator[Kind]:
    net = _net(folder)
    policy = preset("mindspore.O2", net.layer_names)
    text, rules = policy.to_json(), rules_file_of(policy, net).text()
    study = ("explain preset:bfloat16 --study FILE", "estimate FILE", "run FILE --no-confirm")
    trees = tomllib.loads(TINY), tomllib.loads(rules)
    yield Kind("study", "given.toml", TINY.encode(), study, trees[0], _toml)
    beside = ("explain FILE", "try FILE", "rules FILE", "export FILE", "profile FILE")
    on_tiny = tuple(f"{command} --study tiny.toml" for command in beside)
    yield Kind("policy", "given.json", text.encode(), on_tiny, json.loads(text))
    applied = ("apply FILE --study tiny.toml",)
    yield Kind("rules", "rules.toml", rules.encode(), applied, trees[1], _toml)
    yield Kind("log", "run.jsonl", _lines(LOG), ("diagnose --log FILE",), LOG, _lines)


def _of_devices(folder: Path) -> Iterator[Kind]:
    write_study(folder, ('device = "H100-SXM5"', 'device = "mine.toml"'), name="on-mine.toml")
    priced = ("estimate on-mine.toml", "profile preset:bfloat16 --study on-mine.toml")
    listed = ("hardware FILE", "profile preset:bfloat16 --device FILE")
    tree = tomllib.loads(DEVICE)
    yield Kind("device", "mine.toml", DEVICE.encode(), (*priced, *listed), tree, _toml)
    rows = json.loads(PUBLISHED.with_name("published_speedups.json").read_text(encoding="utf-8"))
    row = next(row for row in rows if row["model"] == SMALL)
    yield Kind("rows", "rows.json", _json([row]), ("validate-cost --rows FILE",), [row])
    aliased = ("validate-cost --aliases FILE --rows named.json",)
    named = row | {"hardware": "my card", "model": "my net"}
    (folder / "named.json").write_bytes(_json([named]))
    names = tomllib.loads(ALIASES)
    yield Kind("aliases", "names.toml", ALIASES.encode(), aliased, names, _toml)
    yield Kind("timings", "timed.csv", KERNELS.encode(), ("calibrate new.toml --csv FILE",))


def _net(folder: Path) -> Model:
    task = load_spec(write_study(folder)).task
    return task.build_model(task.load_dataset())


def _of_targets(folder: Path) -> Iterator[Kind]:
    net = _net(folder)
    for name, target in targets().items():
        text = target.export(preset("mindspore.O2", net.layer_names), net)
        try:
            tree = json.loads(text)
        except ValueError:
            tree = None
        read = (f"inspect FILE --target {name}", f"import FILE --target {name}")
        commands = tuple(f"{command} --study tiny.toml" for command in read)
        yield Kind(f"{name} file", f"exported{target.SUFFIX}", text.encode(), commands, tree)


def _kept(folder: Path) -> Iterator[Kind]:
    """The journal of a finished study, and the graph beside that of a net of the user's own."""
    _, lines = finished(folder)
    views = ("show", "show --csv", "noise", "report", "repair", "export", "run --no-confirm")
    journal = "results/tiny.journal"
    commands = tuple(f"{view} tiny.toml" for view in views)
    yield Kind("journal", journal, b"".join(lines), commands)
    (folder / "net.py").write_text(NET, encoding="utf-8")
    write_study(folder, *OWN, ('"tiny"', '"own"'), name="own.toml")
    with trained_here():
        assert ran(["run", "own.toml", "--no-confirm"], folder).end == "taken"
    graph = folder / "results" / "own.journal.graph"
    seal, _, text = gzip.decompress(graph.read_bytes()).partition(b"\n")
    shown = ("show own.toml", "report own.toml", "explain preset:bfloat16 --study own.toml")
    yield Kind(
        "graph",
        "results/own.journal.graph",
        graph.read_bytes(),
        shown,
        json.loads(text),
        partial(_packed, seal),
    )


def _json(tree: Any) -> bytes:
    return json.dumps(tree).encode()


def _toml(tree: Any) -> bytes:
    return toml_text(tree).encode("utf-8", "surrogatepass")


def _lines(tree: Any) -> bytes:
    lines = tree if isinstance(tree, list) else [tree]
    return b"".join(_json(line) + b"\n" for line in lines)


def _packed(seal: bytes, tree: Any) -> bytes:
    """Return a kept graph that was changed, with the seal that it had."""
    return gzip.compress(seal + b"\n" + _json(tree), mtime=0)


def fuzzed(
    folder: Path, count: int, seed: int, said: Callable[[str], None] = print
) -> Counter[str]:
    """Run a command on each of `count` files, the kinds in turn; return how they ended."""
    place, rng, ends = folder / "files", random.Random(seed), Counter[str]()
    place.mkdir()
    rows = kinds(place)
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    for kind in rows:
        for command in kind.commands:
            found = ended(kind, command, kind.content, place, before)
            assert found.end == "taken", f"{kind.name} as it should be: {command}: {found}"
    for number in range(count):
        kind = rows[number % len(rows)]
        content, command = kind.changed(rng), rng.choice(kind.commands)
        found = ended(kind, command, content, place, before)
        if found.end not in ("taken", "refused"):
            (folder / f"fault-{number}").write_bytes(content)
            said(f"{number}: {command}: {found.end}: {found.raised or found.err[-400:]}")
        ends[f"{kind.name}: {found.end}"] += 1
    return ends


def ended(
    kind: Kind, command: str, content: bytes, place: Path, before: dict[Path, bytes]
) -> Ended:
    """Run a command on such a file, and put the folder back as it was; return how that ended."""
    file = place / kind.path
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(content)
    with trained_here():
        found = ran(command.replace("FILE", kind.path).split(), place)
    new = [path for path in place.rglob("*") if path.is_file() and path not in before]
    left = [path for path in new if path != file]
    if said_raw(left, found.out, found.err):
        found = replace(found, end="raw")
    if found.end == "refused" and left:
        found = replace(found, end=f"left {left[0].relative_to(place)}")
    _restore(place, before, (*new, file))
    return found


def _restore(place: Path, before: dict[Path, bytes], new: Iterable[Path]) -> None:
    """Put the folder back as it was."""
    for path in new:
        path.unlink(missing_ok=True)
    for path, content in before.items():
        if not path.exists() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    for path in place.iterdir():
        if path.is_dir() and not any(path.rglob("*")):
            shutil.rmtree(path)
