"""The house of the package: which module may import which, and how large a piece may be."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

PACKAGE = "policysearch"
ROOT = Path(__file__).parents[1]

# Bottom to top. A room (a module, or a package folder with all it holds) may import rooms of lower
# rows, and of its own row where that makes no circle of rooms.
ROWS = (
    ("values", "formats", "accumulators", "layout", "files"),
    ("rounding", "graph"),
    ("ops", "products"),
    ("emulator", "nn", "policy", "optimizers"),
    ("importers", "rewrite", "data"),
    ("cost",),
    ("train",),
    ("objective", "export"),
    ("space",),
    ("search", "verify"),
    ("study",),
    ("report", "diagnose"),
    ("api", "commands", "cli", "__init__", "__main__"),
)
ROW = {room: number for number, rooms in enumerate(ROWS) for room in rooms}

SETUP = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTENSIONS = [row["name"] for row in SETUP["tool"]["setuptools"]["ext-modules"]]
COMPILED = {name: name.split(".")[1] for name in EXTENSIONS}
"""Extension modules, and the rooms they speed up."""

# Outside packages that one room alone may import.
KEPT_IN = {"optuna": "study"}

# Outside packages that a user may do without.
OPTIONAL = {"torch", "yaml", "safetensors", "mindspore", "sklearn", "distributed"}
OPTIONAL |= {"jax", "keras", "flax", "jmp"}

# What answers any question about a bit, together with any one file of `ops/`.
MEANING = ("formats.py", "graph.py", "rounding/reference.py", "emulator/reference.py")

LONGEST_FILE_LINES = 500
LONGEST_MEANING_LINES = 700
MOST_ROOMS = 29
LONGEST_FUNCTION_LINES = 40
DEEPEST_ROOM = 8
DEEPEST_HOUSE = 17
MOST_IMPORTS = 12
SMALL_FILE_LINES = 60
FEWEST_IMPORTERS = 3

# A private helper has a noun for a name. A participle alone says how a value came, not what it is.
PARTICIPLE = re.compile("_[a-z]+(ed|ing)")
NOUNS = {
    "_clipping",
    "_ending",
    "_meaning",
    "_nothing",
    "_reading",
    "_rounding",
    "_spelling",
    "_timing",
    "_tracing",
}

# Folders whose files are rows: found by their folder, one subject each however short.
REGISTRIES = (
    *("ops", "optimizers", "export", "commands", "emulator.kernels", "space.decided"),
    "report.page",
)
SMALL = (f"{PACKAGE}.__main__", f"{PACKAGE}.emulator.reference")
"""The entry of the program, and what a step means: small on purpose."""


@dataclass(frozen=True)
class Source:
    """What counts of a file: its imports, and (line, name, lines) of each function.

    Whole syntax trees of all files take long to walk, and more so to keep.
    """

    imports: tuple[ast.Import | ast.ImportFrom, ...]
    functions: tuple[tuple[int, str, int], ...]


def modules_of(root: Path) -> dict[str, Source]:
    """Return what counts of the modules of the package under `root`, by dotted name."""
    modules = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
        modules[".".join(parts)] = source_of(path.read_text(encoding="utf-8"))
    return modules


@cache
def source_of(text: str) -> Source:
    """Return what counts of a file with this text."""
    every = [*statements(ast.parse(text))]
    return Source(
        tuple(node for node in every if isinstance(node, ast.Import | ast.ImportFrom)),
        tuple(
            (node.lineno, node.name, (node.end_lineno or node.lineno) - node.lineno + 1)
            for node in every
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ),
    )


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield every statement below a node, and no expression: of these there are ten times more."""
    for field in ("body", "orelse", "handlers", "finalbody", "cases"):
        for child in getattr(node, field, ()):
            yield child
            yield from statements(child)


@cache
def imports_of(name: str, source: Source, root: Path) -> tuple[tuple[str, int], ...]:
    """Return every (dotted name, line) that the module imports, wherever in it that stands.

    `from a import b` is `a.b` there: whether `b` is a module is for the reader to find out.
    """
    return tuple(_imports(name, source, root))


def _imports(name: str, source: Source, root: Path) -> Iterator[tuple[str, int]]:
    package = name if (root / name.replace(".", "/")).is_dir() else name.rpartition(".")[0]
    for node in source.imports:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        else:
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            for alias in node.names:
                yield f"{base}.{alias.name}", node.lineno


def arrows_of(root: Path) -> Iterator[tuple[str, str, int]]:
    """Yield (importing module, imported module, line) for imports inside the package."""
    modules = modules_of(root)
    for name, source in modules.items():
        for target, line in imports_of(name, source, root):
            if target.split(".")[0] != PACKAGE:
                continue
            while "." in target and target not in modules and target not in COMPILED:
                target = target.rpartition(".")[0]
            yield name, target, line


def room_of(module: str) -> str:
    """Return the room a dotted module name lies in."""
    parts = module.split(".")
    return COMPILED.get(module) or (parts[1] if len(parts) > 1 else "__init__")


def import_faults(root: Path) -> list[str]:
    """Return one line per arrow that is not allowed, and per room without a row."""
    faults = []
    for room in sorted({room_of(name) for name in modules_of(root)} - set(ROW)):
        faults.append(f"{room}: has no row; give it one in ROWS")
    for source, target, line in arrows_of(root):
        above, below = room_of(source), room_of(target)
        if above in ROW and below in ROW and ROW[below] > ROW[above]:
            faults.append(f"{source}:{line}: arrow up to {target}")
    for name, found in modules_of(root).items():
        for target, line in imports_of(name, found, root):
            keeper = KEPT_IN.get(target.split(".")[0])
            if keeper is not None and room_of(name) != keeper:
                faults.append(f"{name}:{line}: imports {target}, which only {keeper} may")
    return faults


def cycle_faults(root: Path) -> list[str]:
    """Return one line per circle of modules, and of rooms, `__init__.py` files left out."""
    return [fault for graph in graphs_of(root) for fault in _cycles(graph)]


Arrows = dict[str, set[str]]
"""What imports what, by name."""


def graphs_of(root: Path) -> tuple[Arrows, Arrows]:
    """Return what every module imports of the package, and every room of other rooms."""
    modules: Arrows = {name: set() for name in modules_of(root)}
    rooms: Arrows = {room_of(name): set() for name in modules}
    for source, target, _ in arrows_of(root):
        if source != target and target in modules:
            modules[source].add(target)
        if room_of(source) != room_of(target) and room_of(target) in rooms:
            rooms[room_of(source)].add(room_of(target))
    return modules, rooms


def depth(graph: Arrows) -> int:
    """Return the number of names on the longest chain of imports; the graph has no circle."""
    floors: dict[str, int] = {}
    while len(floors) < len(graph):
        for name, targets in graph.items():
            if name not in floors and targets <= floors.keys():
                floors[name] = 1 + max((floors[target] for target in targets), default=0)
    return max(floors.values(), default=0)


def depth_faults(root: Path) -> list[str]:
    """Return one line per room, and for the house, that is too deep to be known."""
    modules, rooms = graphs_of(root)
    faults = [f"{len(rooms)} rooms: {depth(rooms)} floors"] if depth(rooms) > DEEPEST_HOUSE else []
    for room in rooms:
        inside = {name for name in modules if room_of(name) == room}
        floors = depth({name: modules[name] & inside for name in inside})
        if floors > DEEPEST_ROOM:
            faults.append(f"{room}: {floors} floors")
    return faults


def known_faults(root: Path) -> list[str]:
    """Return one line per file that knows too many others, or is too small for who knows it."""
    modules, _ = graphs_of(root)
    importers = {name: sum(name in others for others in modules.values()) for name in modules}
    faults = []
    for name in modules:
        path = root / name.replace(".", "/")
        lines = 0 if path.is_dir() else len(path.with_suffix(".py").read_text().splitlines())
        top = ROW.get(room_of(name)) == len(ROWS) - 1
        if len(modules[name]) > MOST_IMPORTS and not top:
            faults.append(f"{name}: imports {len(modules[name])} others")
        folder = name.removeprefix(f"{PACKAGE}.").rpartition(".")[0]
        small = 0 < lines < SMALL_FILE_LINES and folder not in REGISTRIES and name not in SMALL
        if small and importers[name] < FEWEST_IMPORTERS:
            faults.append(f"{name}: {lines} lines, imported by {importers[name]}")
    return faults


def _cycles(graph: Arrows) -> list[str]:
    while graph:
        leaves = [name for name, targets in graph.items() if not targets & graph.keys()]
        if not leaves:
            return [f"cycle among {', '.join(sorted(graph))}"]
        for name in leaves:
            del graph[name]
    return []


def size_faults(root: Path, folders: tuple[str, ...]) -> list[str]:
    """Return one line per file or function that is too long."""
    faults = []
    for path in sorted(path for folder in folders for path in (root / folder).rglob("*.py")):
        where, text = path.relative_to(root), path.read_text(encoding="utf-8")
        if len(text.splitlines()) > LONGEST_FILE_LINES:
            faults.append(f"{where}: {len(text.splitlines())} lines")
        for line, name, lines in source_of(text).functions:
            if lines > LONGEST_FUNCTION_LINES:
                faults.append(f"{where}:{line}: {name} has {lines} lines")
    return faults


def name_faults(root: Path) -> list[str]:
    """Return one line per private function of the package that a participle alone names."""
    return [
        f"{module}:{line}: {name}"
        for module, source in modules_of(root).items()
        for line, name, _ in source.functions
        if PARTICIPLE.fullmatch(name) and name not in NOUNS
    ]


def meaning_faults(root: Path) -> list[str]:
    """Return one line per file of `ops/` that is too long to be read with those of MEANING."""
    lines = {path: len(path.read_text().splitlines()) for path in (root / PACKAGE).rglob("*.py")}
    others = sum(lines[root / PACKAGE / name] for name in MEANING)
    return [
        f"{path.relative_to(root)}: {count + others} lines with {', '.join(MEANING)}"
        for path, count in sorted(lines.items())
        if path.parent.name == "ops" and count + others > LONGEST_MEANING_LINES
    ]


def docstring_faults(root: Path) -> list[str]:
    """Return one line per `__init__.py` below the top that is missing or not one docstring."""
    faults: list[str] = []
    for path in sorted((root / PACKAGE).rglob("*.py")):
        init = path.parent / "__init__.py"
        if path.parent == root / PACKAGE or str(init) in "".join(faults):
            continue
        body = ast.parse(init.read_text(encoding="utf-8")).body if init.is_file() else []
        text = body[0].value if len(body) == 1 and isinstance(body[0], ast.Expr) else None
        if not (isinstance(text, ast.Constant) and isinstance(text.value, str)):
            faults.append(f"{init}: not one docstring")
    return faults


def test_every_dependency_is_imported_and_every_import_declared() -> None:
    """What the package asks of its users."""
    declared = {text.split(">=")[0] for text in SETUP["project"]["dependencies"]}
    imported = {
        target.split(".")[0]
        for name, source in modules_of(ROOT).items()
        for target, _ in imports_of(name, source, ROOT)
    }
    assert imported - set(sys.stdlib_module_names) - OPTIONAL - {PACKAGE} == declared


def test_imports_point_down() -> None:
    assert not import_faults(ROOT)


def test_imports_have_no_cycle() -> None:
    assert not cycle_faults(ROOT)


def test_rooms_and_house_are_no_towers() -> None:
    assert not depth_faults(ROOT)


def test_files_know_few_others_and_none_is_a_fragment() -> None:
    assert not known_faults(ROOT)


def test_files_and_functions_are_short() -> None:
    assert not size_faults(ROOT, (PACKAGE, "tests", "benchmarks"))


def test_private_helpers_are_named_by_nouns() -> None:
    assert not name_faults(ROOT)


def test_what_a_bit_is_can_be_read_in_one_sitting() -> None:
    assert not meaning_faults(ROOT)


def test_rooms_are_few() -> None:
    rooms = {room_of(name) for name in modules_of(ROOT)} - {"__init__", "__main__"}
    assert "ops" in rooms and len(rooms) <= MOST_ROOMS


def test_init_files_are_one_docstring() -> None:
    assert not docstring_faults(ROOT)


def build(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / PACKAGE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


SOUND = {
    "__init__.py": "from policysearch.study.study import run",
    "values.py": "import numpy",
    "formats.py": "from policysearch import values\nfrom policysearch.values import InputError",
    "rounding/__init__.py": '"""Rounding."""',
    "rounding/rounder.py": "from .. import formats\nfrom policysearch.rounding import _rounding",
    "study/__init__.py": '"""Study."""',
    "study/study.py": "import optuna.trial\nfrom .storage import box\nfrom ..formats import f",
    "study/storage.py": "",
}


def test_a_sound_tree_has_no_faults(tmp_path: Path) -> None:
    build(tmp_path, SOUND)
    faults = [*import_faults(tmp_path), *cycle_faults(tmp_path), *docstring_faults(tmp_path)]
    assert not [*faults, *size_faults(tmp_path, (PACKAGE,))]


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("formats.py", "import policysearch.rounding.rounder", "formats:1: arrow up to"),
        ("formats.py", "from policysearch import rounding", "formats:1: arrow up to"),
        ("formats.py", "def f():\n    from .search.space import box", "formats:2: arrow up to"),
        ("values.py", "from policysearch import run", "values:1: arrow up to policysearch"),
        ("layout.py", "from .rounding.rounder import quantise", "layout:1: arrow up to"),
        ("layout.py", "from .rounding import _rounding", "layout:1: arrow up to"),
        ("values.py", "from . import formats", "cycle among"),
        ("formats.py", "import optuna", "formats:1: imports optuna, which only study may"),
        ("cellar.py", "", "cellar: has no row"),
        ("study/storage.py", "from .study import x", "cycle among"),
        ("study/storage.py", "from policysearch.study import study", "cycle among"),
        ("study/__init__.py", '"""Search."""\nfrom .study import x', "not one docstring"),
        ("study/__init__.py", "", "not one docstring"),
        ("cost/rows.py", "", "not one docstring"),
        ("values.py", "\n" * 501, "501 lines"),
        ("values.py", "def f():\n" + "    x = 1\n" * 40, "f has 41 lines"),
    ],
)
def test_a_sabotaged_tree_is_caught(tmp_path: Path, name: str, text: str, fault: str) -> None:
    build(tmp_path, SOUND | {name: text})
    faults = [*import_faults(tmp_path), *cycle_faults(tmp_path), *docstring_faults(tmp_path)]
    assert fault in "\n".join([*faults, *size_faults(tmp_path, (PACKAGE,))])


def test_a_helper_called_by_a_participle_is_caught(tmp_path: Path) -> None:
    helpers = ("_scaled", "_scaled_operand", "_meaning", "_leaving")
    text = "\n".join(f"def {name}(): ..." for name in helpers)
    build(tmp_path, SOUND | {"values.py": text})
    assert name_faults(tmp_path) == [
        f"{PACKAGE}.values:1: _scaled",
        f"{PACKAGE}.values:4: _leaving",
    ]


def test_an_op_too_long_to_be_read_with_the_rest_is_caught(tmp_path: Path) -> None:
    build(tmp_path, {name: "\n" * 150 for name in MEANING} | {"ops/short.py": "\n" * 100})
    assert not meaning_faults(tmp_path)
    build(tmp_path, {"ops/long.py": "\n" * 101})
    (fault,) = meaning_faults(tmp_path)
    assert fault.startswith(f"{PACKAGE}/ops/long.py: 701 lines")


def test_a_tower_is_caught(tmp_path: Path) -> None:
    rooms = {
        f"study/room{i}.py": f"from policysearch.study import room{i + 1}"
        for i in range(DEEPEST_ROOM - 1)
    }
    build(tmp_path, SOUND | rooms | {f"study/room{DEEPEST_ROOM - 1}.py": "x = 1"})
    assert not depth_faults(tmp_path)
    build(tmp_path, {f"study/room{DEEPEST_ROOM - 1}.py": "from .storage import box"})
    assert depth_faults(tmp_path) == [f"study: {DEEPEST_ROOM + 1} floors"]


def test_a_house_too_high_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "DEEPEST_HOUSE", 2)
    build(tmp_path, SOUND)
    assert depth_faults(tmp_path) == ["5 rooms: 4 floors"]


def test_a_file_that_knows_too_many_is_caught(tmp_path: Path) -> None:
    many = {f"study/part{i}.py": "\n" * SMALL_FILE_LINES for i in range(MOST_IMPORTS)}
    lines = "".join(f"from policysearch.study import part{i}\n" for i in range(MOST_IMPORTS))
    build(tmp_path, many | {"study/whole.py": lines + "\n" * SMALL_FILE_LINES})
    assert not known_faults(tmp_path)
    build(tmp_path, SOUND | {"study/whole.py": lines + "import policysearch.values\n" * 60})
    assert f"policysearch.study.whole: imports {MOST_IMPORTS + 1} others" in known_faults(tmp_path)


def test_a_fragment_is_caught_and_a_row_of_a_registry_is_none(tmp_path: Path) -> None:
    build(tmp_path, {"study/part.py": "x = 1\n", "ops/part.py": "x = 1\n"})
    assert known_faults(tmp_path) == ["policysearch.study.part: 1 lines, imported by 0"]
    readers = {f"study/reader{i}.py": "from .part import x\n" * 60 for i in range(3)}
    build(tmp_path, readers)
    assert not known_faults(tmp_path)
