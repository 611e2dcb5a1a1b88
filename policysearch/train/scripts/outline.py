"""The outline of a training script, read without running it: its nets, loaders, where it trains."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from policysearch.files import read_text, syntax_of
from policysearch.train.scripts.loop import Loop, calls, last_name, loop_of
from policysearch.values import InputError

MODULES = ("Module", "Sequential", "LightningModule", "PreTrainedModel")

READERS = ("from_loader", "from_trainer", "from_lightning")
"""Functions whose result is a script that was read."""

TRAINERS = "transformers"
"""The package whose Trainer is a script as it stands, those made of it too."""

Made = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Outline:
    """What a file makes, with arguments that have no default: "Net(width)".

    `nets` are classes of modules and functions that return one, `loaders` functions that return
    loaders of batches, `scripts` names of those that return a script as READERS do. `trains` is the
    line of the first step of a training, 0 where there is none, and `at_import` that of one that is
    taken when the file is imported. `loop` is the training and how it is read.
    """

    nets: tuple[str, ...]
    loaders: tuple[str, ...]
    scripts: tuple[str, ...]
    trains: int
    at_import: int
    loop: Loop | None

    @property
    def words(self) -> str:
        """Return how a script goes in, in one line."""
        parts = {"nets": self.nets, "loaders": self.loaders}
        made = [f"{what}: {', '.join(names)}" for what, names in parts.items() if names]
        found = f" ({'; '.join(made)})" if made else ""
        return f"{self.loop.words if self.loop else ''}{found}"


def outline_of(path: Path) -> Outline | None:
    """Return the outline of a Python file; None where it cannot be parsed."""
    try:
        tree = syntax_of(read_text(path, "a Python file"), str(path), "a Python file")
    except InputError:
        return None
    made = [node for node in tree.body if isinstance(node, Made)]
    nets = _heirs(made, MODULES)
    built = [n.name for n in made if isinstance(n, ast.FunctionDef) and _returns(n, nets)]
    trainers = _trainers(tree, made)
    scripts = _scripts(made, (*READERS, *trainers))
    held = _holders(tree, (*trainers, *scripts))
    trained = sorted((c for c in calls(tree) if _trains(c, held)), key=lambda call: call.lineno)
    return Outline(
        tuple(_call_text(node) for node in made if node.name in (*nets, *built)),
        tuple(_call_text(node) for node in made if _returns(node, ("DataLoader",))),
        tuple(scripts),
        trained[0].lineno if trained else 0,
        next(_at_import(tree.body, made, held), 0),
        loop_of(tree, trained[0]) if trained else None,
    )


def _heirs(made: Sequence[Made], classes: Sequence[str]) -> list[str]:
    """Return the classes that inherit of some, of one another too."""
    heirs: list[str] = []
    for node in made:
        if isinstance(node, ast.ClassDef):
            bases = [ast.unparse(base).rpartition(".")[2] for base in node.bases]
            if any(base in heirs or base in classes for base in bases):
                heirs.append(node.name)
    return heirs


def _trainers(tree: ast.Module, made: Sequence[Made]) -> tuple[str, ...]:
    """Return the classes of Trainers that a file imports from TRAINERS, and those it makes."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    rows = [row for n in imports if (n.module or "").split(".")[0] == TRAINERS for row in n.names]
    names = [row.asname or row.name for row in rows if row.name.endswith("Trainer")]
    if any(isinstance(n, ast.Import) and n.names[0].name == TRAINERS for n in ast.walk(tree)):
        names.append("Trainer")
    return (*names, *_heirs(made, names))


def _scripts(made: Sequence[Made], readers: Sequence[str]) -> list[str]:
    """Return the functions without arguments that give a script, what others make of one too."""
    giving: list[str] = []
    for _ in made:
        giving = [node.name for node in made if _returns(node, (*readers, *giving))]
    return [node.name for node in made if node.name in giving and _call_text(node).endswith("()")]


def _returns(made: Made, names: Sequence[str]) -> bool:
    """Return whether a function gives what one of these names makes."""
    if isinstance(made, ast.ClassDef):
        return False
    nodes, holding = [*ast.walk(made)], _holders(made, names)
    returned = [node.value for node in nodes if isinstance(node, ast.Return) and node.value]
    given = [e for value in returned for e in (*getattr(value, "elts", ()), value)]
    return any(
        _makes(value, names) or (isinstance(value, ast.Name) and value.id in holding)
        for value in given
    )


def _holders(tree: ast.AST, names: Sequence[str]) -> set[str]:
    """Return the variables that hold what one of these names makes."""
    nodes = [n for n in ast.walk(tree) if isinstance(n, ast.Assign) and _makes(n.value, names)]
    return {to.id for node in nodes for to in node.targets if isinstance(to, ast.Name)}


def _makes(value: ast.expr, names: Sequence[str]) -> bool:
    return any(last_name(call) in names for call in calls(value))


def _call_text(made: Made) -> str:
    """Return a name with the arguments that have no default."""
    function: ast.AST | None = made
    if isinstance(made, ast.ClassDef):
        inside = [n for n in made.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
        function = inside[0] if inside else None
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        return f"{made.name}()"
    given = function.args
    plain = [*given.posonlyargs, *given.args]
    needed = plain[: len(plain) - len(given.defaults)]
    needed += [a for a, value in zip(given.kwonlyargs, given.kw_defaults, strict=True) if not value]
    names = [argument.arg for argument in needed if argument.arg != "self"]
    return f"{made.name}({', '.join(names)})"


def _trains(call: ast.Call, trainers: Collection[str]) -> bool:
    if not isinstance(call.func, ast.Attribute):
        return False
    of, name = ast.unparse(call.func.value), call.func.attr
    return name == "backward" or (
        name in ("train", "fit") and ("trainer" in of.lower() or of in trainers)
    )


def _at_import(
    body: Sequence[ast.stmt], made: Sequence[Made], trainers: Collection[str]
) -> Iterator[int]:
    """Yield the lines of what trains when a file is imported, by itself or in its functions."""
    training = {node.name for node in made if any(_trains(c, trainers) for c in calls(node))}
    for _ in made:  # what calls one of these trains too
        training |= {n.name for n in made if training.intersection(map(_name, calls(n)))}
    for statement in body:
        if not isinstance(statement, Made) and not _is_main(statement):
            for call in calls(statement):
                if _trains(call, trainers) or _name(call) in training:
                    yield call.lineno


def _name(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _is_main(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test)
