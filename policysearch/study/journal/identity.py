"""What the training results of a study depend on: its task, its data, the code, the libraries."""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib.metadata
import json
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info

from policysearch.files import write_whole
from policysearch.rounding.rounder import is_on_torch
from policysearch.train.tasks import Task
from policysearch.values import InputError

# What chooses, prices, shows or exports policies: a trained run stays what it is.
_AFTERWARDS = (
    "commands",
    "cost",
    "search",
    "space",
    "study",
    "report",
    "export",
    "verify",
    "diagnose",
)
_AT_THE_TOP = ("__init__.py", "__main__.py", "api.py", "cli.py")
_SUFFIXES = (".py", ".c", ".h", ".json")
_PARTS = ("code", "libraries")

PACKAGES = ("policysearch", "numpy", "optuna", "torch")
"""Versions of these are recorded, as far as they are installed."""

_C_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|//[^\n]*|/\*.*?\*/|\s+|\w+|.', re.S)


def code_fingerprints(left_out: tuple[str, ...] = _AFTERWARDS) -> dict[str, str]:
    """Return a digest per file of the package that results depend on, by its path.

    Comments, docstrings and formatting do not count, neither in Python nor in C.
    """
    known, digests = _known(), {}
    before = len(known)
    for name, file in sorted(_files(files("policysearch"), "", left_out)):
        digests[name] = _fingerprint(name.rpartition(".")[2], file.read_bytes(), known)
    if len(known) > before and not sys.dont_write_bytecode:
        _keep(known)
    return digests


def _fingerprint(kind: str, content: bytes, known: dict[str, str]) -> str:
    """Return the digest of what a file means, worked out unless its content is `known`."""
    key = hashlib.sha256(kind.encode() + b"\0" + content).hexdigest()
    if key not in known:
        # Line ends as Python reads them.
        text = content.decode().replace("\r\n", "\n").replace("\r", "\n")
        known[key] = hashlib.sha256(_meaning(kind, text).encode()).hexdigest()[:16]
    return known[key]


# To read what all files mean takes a second and more, in every command. So what each meant is kept
# by its content, beside this module as Python keeps what it compiles; only this very code made it.
MOST_KEPT = 4096


@functools.cache
def _known() -> dict[str, str]:
    """Return what was kept of files, to be added to; nothing where that cannot be read."""
    with contextlib.suppress(OSError, ValueError, NotImplementedError):
        kept = json.loads(_kept_at().read_bytes())
        if isinstance(kept, dict) and kept.pop("by", None) == _own() and len(kept) < MOST_KEPT:
            return {str(key): str(digest) for key, digest in kept.items()}
    return {}


def _keep(known: Mapping[str, str]) -> None:
    """Keep it for other processes, where there is room for it."""
    with contextlib.suppress(InputError, OSError, NotImplementedError):
        write_whole({_kept_at(): json.dumps({"by": _own(), **known}).encode()})


def _kept_at() -> Path:
    return Path(cache_from_source(__file__)).with_suffix(".digests")


def _own() -> str:
    return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()


def _files(
    folder: Traversable, prefix: str, left_out: tuple[str, ...]
) -> Iterator[tuple[str, Traversable]]:
    for item in folder.iterdir():
        name = f"{prefix}{item.name}"
        if item.is_dir() and name not in left_out:
            yield from _files(item, f"{name}/", left_out)
        elif item.is_file() and name.endswith(_SUFFIXES) and name not in _AT_THE_TOP:
            yield name, item


def _meaning(kind: str, text: str) -> str:
    if kind == "py":
        return _shape(ast.parse(text))
    if kind == "json":
        return json.dumps(json.loads(text), sort_keys=True)
    return _c_meaning(text.replace("\r\n", "\n").replace("\\\n", " "))


def _c_meaning(text: str) -> str:
    """Return the tokens, one blank between; only a preprocessor line ends with its line."""
    said = []
    for line in _without_comments(text).splitlines():
        tokens = " ".join(match[0] for match in _C_TOKEN.finditer(line) if not match[0].isspace())
        said.append(f"\n{tokens}\n" if tokens.startswith("#") else f"{tokens} " * bool(tokens))
    return "".join(said)


def _shape(node: Any) -> str:
    """Return what a syntax tree says, without text that stands alone (docstrings).

    It is the `repr` of a tuple (name, [(field, value), ...]) for each node. Empty fields are left
    out, so that versions of Python that add some agree.
    """
    if isinstance(node, list):
        return f"[{', '.join([_shape(item) for item in node if not _is_text(item)])}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    named = [(name, _shape(getattr(node, name, None))) for name in node._fields]
    fields = [f"({name!r}, {said})" for name, said in named if said not in ("None", "[]")]
    return f"({type(node).__name__!r}, [{', '.join(fields)}])"


def _is_text(node: Any) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _without_comments(text: str) -> str:
    tokens = (match[0] for match in _C_TOKEN.finditer(text))
    return "".join(" " if token.startswith(("//", "/*")) else token for token in tokens)


def libraries() -> dict[str, str]:
    """Return versions of what computes beside the package: numpy, its BLAS and its SIMD paths."""
    every = [row for row in threadpool_info() if row.get("user_api") == "blas"]
    ours = [row for row in every if "numpy" in str(row.get("filepath"))] or every
    named = {
        " ".join(str(row.get(key)) for key in ("internal_api", "version", "architecture"))
        for row in ours
    }
    config: Any = np.show_config(mode="dicts")
    simd = config.get("SIMD Extensions", {}).get("found", [])
    return {"numpy": np.__version__, "blas": ", ".join(sorted(named)), "simd": " ".join(simd)}


def maker() -> dict[str, str]:
    """Return the versions and the machine that add to a journal from now on, by name."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def executor_of(fast: str | None) -> str:
    """Return the name of what trains, where its bits are not those of the emulator; "" else."""
    if not is_on_torch(fast) or fast is None:
        return ""
    return f"torch {importlib.metadata.version('torch')} on {fast.partition(':')[2][:4] or 'cpu'}"


def identity_of(
    task: Task,
    model_fingerprint: str,
    data_fingerprint: str,
    float32_digest: str,
    executor: str = "",
) -> dict[str, Any]:
    """Return what trained runs belong to, as plain data; `executor` as of `executor_of`."""
    return {
        "task": task.to_plain(),
        "model": model_fingerprint,
        "data": data_fingerprint,
        "float32": float32_digest,
        "code": code_fingerprints(),
        "libraries": libraries(),
        **({"executor": executor} if executor else {}),
    }


def check_identity(
    recorded: Mapping[str, Any], now: Mapping[str, Any], where: str, accept: bool = False
) -> None:
    """Raise InputError, naming what differs, unless runs may be added to those in `where`.

    `accept` lets other code and libraries pass; another task or other data never do, because
    their losses are not comparable.
    """
    check_task(recorded, now["task"], where)
    for key in ("model", "data"):
        check_part(key, recorded, now[key], f"storage {where}")
    _check_executor(recorded.get("executor", ""), now.get("executor", ""), where)
    changed = differences(recorded, now)
    if changed and not accept:
        raise InputError(
            f"storage {where}: {'; '.join(changed)}; expected what made its results (name another "
            "file with --storage, or mix both with `run --accept-changes`, which is recorded)"
        )


def _check_executor(recorded: str, now: str, where: str) -> None:
    """Raise InputError unless what trains is what has trained: sums of others are no neighbours."""
    if recorded != now:
        raise InputError(
            f"storage {where}: trained by {now or 'the emulator'}; expected "
            f"{recorded or 'the emulator'}, which made its results "
            "(name another file with --storage to start afresh)"
        )


def check_part(key: str, recorded: Mapping[str, Any], now: str, where: str) -> None:
    """Raise InputError unless the fingerprint of the model, or of the data, is as `recorded`."""
    if recorded.get(key, "") != now:
        raise InputError(
            f"{where}: {key} differs: {now[:12] or 'built in'}; expected "
            f"{recorded.get(key, '')[:12] or 'built in'}, which made its results "
            "(name another file with --storage to start afresh)"
        )


def differences(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return one phrase per part of code or libraries that differs, naming files and versions."""
    phrases = []
    for part in _PARTS:
        old, new = recorded.get(part, {}), now[part]
        names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
        if part == "code" and names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            phrases.append(f"code differs: {', '.join(names[:3])}{more}")
        elif names:
            said = [f"{name} {new.get(name)} (was {old.get(name)})" for name in names]
            phrases.append(f"libraries differ: {', '.join(said)}")
    return phrases


def check_task(recorded: Mapping[str, Any], task: Mapping[str, Any], where: str) -> None:
    """Raise InputError, naming the key, unless the recorded runs are of `task`."""
    old = recorded.get("task", {})
    for key in (*task, *(old.keys() - task.keys())):
        if old.get(key) != task.get(key):
            raise InputError(
                f"storage {where}: study file differs: task.{key}: {task.get(key)!r}; expected "
                f"{old.get(key)!r}, which made its results "
                "(name another file with --storage to start afresh)"
            )
