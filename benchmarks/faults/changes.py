"""Files with anything wrong: a tree changed as one who knows its grammar would, a text, bytes."""

from __future__ import annotations

import copy
import json
import random
import re
from typing import Any

from benchmarks.faults.common import ATTACK, places_in

HARSH: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 0.5, 7, 10**9, 50_000_000, 2**70, 1e300, -0.0, float("nan")),
    *("", "x", "\0", "é", "x" * 300, "../../../etc/passwd", ATTACK),
    *([], {}, [[]], {"x": 1}, [None], ["x"], [10**9], [50_000_000, 50_000_000]),
)
"""Values that no key expects, and some that stand for more than a machine has."""

TEXTS = (
    *("1" * 5000, "1" + "0" * 400, "-1e999", "nan", "[" * 3000, "[" * 400 + "]" * 400),
    *('"\\u0000"', '"\\ud800"', "true", "null", "{}", "[]", '""', "\x00", "\ud800", "é"),
)
"""What is written in the place of a value where the text is changed, not what it says."""


def changed_tree(tree: Any, rng: random.Random) -> Any:
    """Return the tree with one to three places changed, as one who knows its grammar would."""
    tree = copy.deepcopy(tree)
    for _ in range(rng.randint(1, 3)):
        places = list(places_in(tree))
        if not places:
            return tree
        inside, key = rng.choice(places)
        how = rng.randrange(8)
        if how == 0:
            del inside[key]
        elif how == 1 and isinstance(inside, dict):
            inside[rng.choice((f"{key}x", str(key)[:-1], "", "\x1b[31m"))] = inside.pop(key)
        elif how == 2:  # the value of another place
            where, other = rng.choice(places)
            if other in where if isinstance(where, dict) else other < len(where):
                inside[key] = copy.deepcopy(where[other])
        elif how == 3 and isinstance(inside, list):
            inside.insert(key, copy.deepcopy(inside[key]))
        elif how == 4 and isinstance(inside[key], bool | int | float):
            inside[key] = rng.choice((-inside[key], inside[key] * 2, inside[key] + 0.5, 0))
        elif how == 5 and isinstance(inside[key], str):
            text = inside[key]
            inside[key] = rng.choice((text[:-1], text.upper(), f"{text} ", f"{text}\x1b[31m\u202e"))
        else:
            inside[key] = copy.deepcopy(rng.choice(HARSH))
    return tree


def changed_text(text: str, rng: random.Random) -> str:
    """Return `text` with one to three things changed: a letter, a value, a span."""
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(text) + 1)
        end, how = min(len(text), place + rng.randrange(1, 30)), rng.randrange(6)
        if how == 0:
            text = text[:place] + chr(rng.randrange(1, 0x250)) + text[place + 1 :]
        elif how == 1:
            text = text[:place] + text[end:]
        elif how == 2:
            text = text[:place] + text[place:end] * rng.choice((2, 3, 50)) + text[end:]
        elif values := list(re.finditer(r'(?<=[=:] )[^,\n]+|"[a-z_]+"', text)):
            value = rng.choice(values)
            text = text[: value.start()] + rng.choice(TEXTS) + text[value.end() :]
    return text


def changed_bytes(content: bytes, rng: random.Random) -> bytes:
    """Return `content` cut, or with a byte changed, some left out or some more."""
    for _ in range(rng.randint(1, 4)):
        place, how = rng.randrange(max(1, len(content))), rng.randrange(4)
        if how == 0:
            content = content[:place]
        elif how == 1:
            content = content[:place] + bytes([rng.randrange(256)]) + content[place + 1 :]
        elif how == 2:
            content = content[:place] + content[place + rng.randrange(1, 60) :]
        else:
            content = content[:place] + rng.randbytes(rng.randrange(1, 20)) + content[place:]
    return content


def toml_text(tree: Any) -> str:
    """Return a tree as TOML, its tables as such; what TOML cannot say is written all the same."""
    if not isinstance(tree, dict):
        return _value(tree)
    plain = {key: value for key, value in tree.items() if not _is_table(value)}
    tables = {key: value for key, value in tree.items() if _is_table(value)}
    text = "".join(f"{_key(key)} = {_value(value)}\n" for key, value in plain.items())
    for key, table in tables.items():
        text += f"[{_key(key)}]\n"
        text += "".join(f"{_key(name)} = {_value(value)}\n" for name, value in table.items())
    return text


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) and bool(value)


def _key(key: Any) -> str:
    text = str(key)
    return text if re.fullmatch(r"[A-Za-z0-9_-]+", text) else json.dumps(text)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_key(key)} = {_value(each)}' for key, each in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    return json.dumps(value)
