"""Functions of the user's own files, named in a study as "file.py:function"."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from policysearch.values import InputError, shown

T = TypeVar("T")
ENDING = ".py:"


def is_user_code(name: str) -> bool:
    """Return whether a name of a study says where the user's own function is."""
    return ENDING in name


def result_of(where: str, name: str, wanted: type) -> Any:
    """Call the function "file.py:function", which runs the file, and return what it gives.

    The file is looked for from the folder that the program runs in. Raises InputError, in one line
    that begins with `where`, for a file or function that is not there, one that fails, and for a
    result that is no `wanted`.
    """
    path, _, function = name.rpartition(":")
    call = function_of(where, path, function)
    result = _run(f"{where}: {name}", functools.partial(_seeded, call))
    if not isinstance(result, wanted):
        given = type(result).__name__
        raise InputError(f"{where}: {name} returned {given}; expected a {wanted.__name__}")
    return result


def function_of(where: str, path: str, function: str) -> Callable[[], Any]:
    """Return the function of the file at `path`."""
    member: Callable[[], Any] = _member(where, path, function, "function", callable)
    return member


def value_of(where: str, name: str, wanted: type[T]) -> T:
    """Return the value "file.py:name", a `wanted`, which runs the file; errors as of `called`."""
    path, _, own = name.rpartition(":")
    kind = wanted.__name__.lower()
    member: T = _member(where, path, own, kind, lambda value: isinstance(value, wanted))
    return member


def _member(where: str, path: str, name: str, kind: str, fits: Callable[[Any], bool]) -> Any:
    if not Path(path).is_file():
        raise InputError(f"{where}: {shown(path)}: no such file; expected a Python file")
    module = _run(f"{where}: {path}", functools.partial(_module, str(Path(path).resolve())))
    member = getattr(module, name, None)
    if not fits(member):
        names = [n for n, value in vars(module).items() if fits(value) and n[0] != "_"]
        raise InputError(f"{where}: {path}: no {kind} {name!r}; expected one of {', '.join(names)}")
    return member


@functools.lru_cache(maxsize=64)
def _module(path: str) -> ModuleType:
    """Return the module of a file, run once; it has a name, so that what it makes can be sent."""
    name = f"policysearch_user_code_{abs(hash(path)):x}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    text = Path(path).read_bytes()
    if b"torch" in text and importlib.util.find_spec("torch"):
        importlib.import_module("torch")  # So that it is seeded before the file draws from it.
    code = compile(text, path, "exec", dont_inherit=True)
    _seeded(functools.partial(exec, code, vars(module)))
    return module


def _seeded(call: Callable[[], T]) -> T:
    """Return what `call` gives; each process has the same of torch's own generator."""
    torch = sys.modules.get("torch")
    if torch is None:
        return call()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return call()


def _run(where: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    except (Exception, SystemExit) as error:  # Whatever the user's own code does is said so.
        reason = " ".join(str(error).split())
        raise InputError(
            f"{where}: {type(error).__name__}: {reason}; expected it to run"
        ) from error
