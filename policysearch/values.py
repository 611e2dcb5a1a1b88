"""Frozen dataclasses to and from plain data, with errors that name the place."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import math
import re
import types
import typing
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


class InputError(ValueError):
    """A mistake in what the user gave: one line, `where: what was given; what is valid`."""

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows of it: the line that says all."""
        return [f"InputError: {self}"]


def without_own_frames(function: Callable[P, T]) -> Callable[P, T]:
    """Return the function, of whose InputError a traceback shows the caller's frames alone.

    Of the package's one is left, the one that raises it again.
    """

    @functools.wraps(function)
    def told(*given: P.args, **named: P.kwargs) -> T:
        try:
            return function(*given, **named)
        except InputError as error:
            raise error.with_traceback(None) from None

    return told


LONGEST_REPR = 290

IN_NOTEBOOKS: dict[str, Callable[[Any], str]] = {}
"""What a notebook shows of a value, as HTML by the name of its class; rooms above fill it in."""


class Shown:
    """A value that a notebook shows as more than its `repr`."""

    def _repr_html_(self) -> str | None:
        view = IN_NOTEBOOKS.get(type(self).__name__)
        return view(self) if view else None


def brief(said: str) -> str:
    """Return a `repr` of at most LONGEST_REPR letters, its middle left out where it is longer."""
    if len(said) <= LONGEST_REPR:
        return said
    half = LONGEST_REPR // 2 - 2
    return f"{said[:half]} ... {said[-half:]}"


@dataclasses.dataclass(frozen=True)
class RowName:
    """Annotates a text that names a row of a registry; `names` gives them when they are asked."""

    names: Callable[[], Iterable[str]]


def choices(hint: Any) -> tuple[str, ...]:
    """Return the values that a Literal or the name of a row can have; () for any other type."""
    if typing.get_origin(hint) is typing.Literal:
        return typing.get_args(hint)
    row = next((x for x in getattr(hint, "__metadata__", ()) if isinstance(x, RowName)), None)
    return tuple(row.names()) if row else ()


USER_FAULTS = (Exception, SystemExit)
"""What code of the user's own may end in, `sys.exit` too; whatever it is, a line says it."""

UNPRINTABLE = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Categories of Unicode that act on a terminal in the place of being seen."""


def printable(text: str, kept: str = "") -> str:
    """Return `text` with every UNPRINTABLE character but those `kept` as its escape.

    All text on its way to a reader goes through it: a terminal, a page, a comment of a file.
    """
    if text.isprintable():
        return text
    return "".join(
        each.encode("unicode_escape").decode()
        if each not in kept and unicodedata.category(each) in UNPRINTABLE
        else each
        for each in text
    )


NO_LAYER = "(the net itself)"
"""What every page calls the layer of the name '': what the net's own forward computes."""

SHOWN = 100
"""So many characters of what was given are shown."""

LISTED = 16
"""So many valid names are listed where one of all was probably meant."""


def shown(given: object) -> str:
    """Return `given` as a message shows it: on one line, and not all of it where it is long."""
    try:
        text = repr(given)
    except (ValueError, RecursionError):  # An integer of thousands of digits, or a deep nest.
        text = f"a {type(given).__name__} too long to show"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def one_of(where: str, given: object, valid: Iterable[str]) -> str:
    """Return `given` if it is one of `valid`; raise InputError naming both otherwise."""
    names = list(valid)
    if not isinstance(given, str) or given not in names:
        raise InputError(f"{where}: {shown(given)}{valid_names(names, near_miss(given, names))}")
    return given


def valid_names(names: Sequence[str], hint: str) -> str:
    """Return the end of a message on a wrong name: valid ones, then the `hint` at one.

    The hint comes first where there are more than LISTED names, of which the others are cut.
    """
    listed = [name or "''" for name in names]
    if not hint or len(names) <= LISTED:
        return f"; expected one of {', '.join(listed)}{hint}"
    more = len(names) - LISTED
    return f"{hint} expected one of {', '.join(listed[:LISTED])} and {more} more"


_WHOLE = {
    "fp4": "float4",
    "fp8": "float8",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp32": "float32",
    "half": "float16",
    "amp": "autocast.float16",
}
_SHORT = re.compile("|".join(_WHOLE))


def near_miss(given: object, valid: Iterable[str]) -> str:
    """Return the end of a message that names the likeliest of `valid`; "" where none is near.

    Several where the given one is a name with its variant left out, as "A100" of "A100-PCIE-40GB".
    """
    if not isinstance(given, str) or not 0 < len(given) <= SHOWN:
        return ""
    names = {name.lower(): name for name in valid}
    whole = _SHORT.sub(lambda word: _WHOLE[word[0]], given.lower())
    parts = f"{given.lower()}-", f"{given.lower()}.", f"{whole}_"
    variants = [name for low, name in names.items() if low.startswith(parts)]
    if variants and not {given.lower(), whole} & names.keys():
        return f"; did you mean {' or '.join(map(repr, variants))}?"
    matches = difflib.get_close_matches(whole, names, n=1)
    return f"; did you mean {names[matches[0]]!r}?" if matches else ""


def number(where: str, given: object, lowest: float = -math.inf, highest: float = math.inf) -> None:
    """Raise InputError unless `given` is a finite number within [lowest, highest]."""
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not _is_finite(given):
        raise InputError(f"{where}: {shown(given)}; expected a finite number")
    if not lowest <= given <= highest:
        raise InputError(
            f"{where}: {shown(given)}; expected a number from {lowest:g} to {highest:g}"
        )


def _is_finite(given: int | float) -> bool:
    return isinstance(given, int) or math.isfinite(given)


_SCALARS = frozenset({str, int, float, bool, type(None)})


def to_plain(value: object) -> Any:
    """Return `value` as dicts, lists and scalars; a dataclass becomes a dict of all its fields.

    A tuple of (name, value) pairs declared as such stays a list of pairs; see `Named`.
    """
    kind = type(value)
    if kind in _SCALARS:  # Nearly all values are: policies of hundreds of layers are written so.
        return value
    if dataclasses.is_dataclass(kind):
        return {name: to_plain(getattr(value, name)) for name in _fields(kind)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    return value


def from_plain(kind: type[T], data: object, where: str) -> T:
    """Return the dataclass `kind` read from the dict `data`, checking every key and type.

    Keys may be left out where the field has a default. Raises InputError naming the place.
    """
    given = values_of(kind, data, where)
    fields = _fields(kind)  # type: ignore[arg-type]
    for name, field in fields.items():
        no_default = field.default is field.default_factory is dataclasses.MISSING
        if name not in given and no_default:
            raise InputError(f"{where}: missing key {name!r}; expected one of {', '.join(fields)}")
    try:
        return kind(**given)
    except InputError as error:
        raise InputError(f"{where}.{error}") from None


def values_of(kind: type[Any], data: object, where: str) -> dict[str, Any]:
    """Return the values in the dict `data` by the fields of `kind`, each of its field's type.

    What they are together is not looked at, and none need be there. InputError names the place.
    """
    if not isinstance(data, Mapping):
        raise InputError(f"{where}: {shown(data)}; expected a table of keys")
    fields, hints = _fields(kind), _hints(kind)  # type: ignore[arg-type]
    for key in data:
        if key not in fields:
            raise InputError(
                f"{where}: unknown key {shown(key)}; expected one of {', '.join(fields)}"
                f"{near_miss(key, fields)}"
            )
    return {
        name: _read(hints[name], data[name], f"{where}.{name}") for name in fields if name in data
    }


@functools.cache
def _fields(kind: Any) -> dict[str, dataclasses.Field[Any]]:
    return {field.name: field for field in dataclasses.fields(kind)}


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def _read(hint: Any, data: Any, where: str) -> Any:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        options = [option for option in typing.get_args(hint) if option is not type(None)]
        if data is None and len(options) < len(typing.get_args(hint)):
            return None
        return _read(options[0], data, where)
    if names := choices(hint):
        return one_of(where, data, names)
    if origin in (dict, Mapping):
        if not isinstance(data, dict):
            raise InputError(f"{where}: {shown(data)}; expected a table of keys")
        each = typing.get_args(hint)[1]
        return {key: _read(each, item, f"{where}.{key}") for key, item in data.items()}
    if hint is Any:
        return data
    if origin is tuple:
        return _read_tuple(typing.get_args(hint), data, where)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if isinstance(data, hint):
            return data
        return from_plain(hint, data, where)
    if hint is float and isinstance(data, int) and not isinstance(data, bool):
        data = _as_float(data, where)
    if not isinstance(data, hint) or (isinstance(data, bool) and hint is not bool):
        raise InputError(f"{where}: {shown(data)}; expected {hint.__name__}")
    if isinstance(data, float) and not math.isfinite(data):
        raise InputError(f"{where}: {shown(data)}; expected a finite number")
    return one_line(where, data) if isinstance(data, str) else data


def _as_float(data: int, where: str) -> float:
    try:
        return float(data)
    except OverflowError:
        raise InputError(f"{where}: {shown(data)}; expected a finite number") from None


def one_line(where: str, text: str) -> str:
    """Return `text` if a terminal shows no more of it than its letters: what files say is printed.

    InputError for half characters, controls, ends of lines, and marks that turn the direction of
    writing.
    """
    if printable(text) != text:
        raise InputError(
            f"{where}: {shown(text)}; expected text of one line, without control characters"
        )
    return text


def _read_tuple(kinds: tuple[Any, ...], data: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(data, list | tuple):
        raise InputError(f"{where}: {shown(data)}; expected a list")
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return tuple(_read(kinds[0], item, f"{where}[{i}]") for i, item in enumerate(data))
    if len(data) != len(kinds):
        raise InputError(f"{where}: {len(data)} items; expected {len(kinds)}")
    return tuple(
        _read(k, item, f"{where}[{i}]") for i, (k, item) in enumerate(zip(kinds, data, strict=True))
    )


def names_once(where: str, names: Iterable[str]) -> None:
    """Raise InputError, beginning with `where`, for a name that is there twice."""
    names, earlier = list(names), set[str]()
    if len(set(names)) == len(names):
        return
    for name in names:
        if name in earlier:
            raise InputError(f"{where}: {shown(name)} is given twice; expected each name once")
        earlier.add(name)


def json_value(text: str, where: str, what: str) -> object:
    """Return what the JSON `text` says; InputError where it is no JSON or gives a key twice.

    `what` is what was expected there: "a policy".
    """
    try:
        return json.loads(text, object_pairs_hook=_unique_keys)
    except ValueError as error:  # Also an integer of thousands of digits.
        raise InputError(f"{where}: not {what}: {error}; expected JSON") from None
    except RecursionError:
        raise InputError(f"{where}: not {what}: nested too deep; expected JSON") from None


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names_once("keys", (key for key, _ in pairs))
    return dict(pairs)
