"""What made the results of a study: its file, its data, the code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from policysearch.search.spec import StudySpec
from policysearch.values import InputError

# What only shows or exports results: a change there leaves them as they are.
_AFTERWARDS = (
    *("report", "export", "verify", "importers"),
    *("policy/schema.py", "policy/policy_file.py"),
)
_ADVICE = "(name another file with --storage to start afresh)"
_SUFFIXES = (".py", ".c", ".json")


def code_fingerprint() -> str:
    """Return the SHA-256 in hex of the package's files that results depend on."""
    digest = hashlib.sha256()
    for name, file in sorted(_files(files("policysearch"), "")):
        content = file.read_bytes().replace(b"\r\n", b"\n")
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def _files(folder: Traversable, prefix: str) -> list[tuple[str, Traversable]]:
    found = []
    for item in folder.iterdir():
        name = f"{prefix}{item.name}"
        if name in _AFTERWARDS:
            continue
        if item.is_dir():
            found += _files(item, f"{name}/")
        elif item.is_file() and item.name.endswith(_SUFFIXES) and (prefix or _is_kept(name)):
            found.append((name, item))
    return found


def _is_kept(name: str) -> bool:
    return name not in ("__init__.py", "__main__.py", "api.py", "cli.py")


def identity_of(spec: StudySpec, data_fingerprint: str) -> dict[str, Any]:
    """Return what a study's results belong to, as plain data."""
    return {
        "study": _plain(spec),
        "study_sha256": spec.digest,
        "data": data_fingerprint,
        "code": code_fingerprint(),
    }


def check_identity(recorded: Mapping[str, Any], now: Mapping[str, Any], where: str) -> None:
    """Raise InputError, naming the part that differs, unless results may be added to.

    `where` names the storage.
    """
    _check_keys(recorded, now["study"], where)
    for part in ("data", "code"):
        if recorded.get(part) != now[part]:
            raise InputError(
                f"storage {where}: {part} differs: {now[part][:12]}; expected "
                f"{str(recorded.get(part))[:12]}, which made its results {_ADVICE}"
            )


def check_study_file(recorded: Mapping[str, Any], spec: StudySpec, where: str) -> None:
    """Raise InputError, naming the key, unless the results are those of the study file."""
    _check_keys(recorded, _plain(spec), where)


def _check_keys(recorded: Mapping[str, Any], new: dict[str, Any], where: str) -> None:
    old = recorded.get("study", {})
    for key in (*new, *(old.keys() - new.keys())):
        if old.get(key) != new.get(key):
            raise InputError(
                f"storage {where}: study file differs: {key}: {new.get(key)!r}; expected "
                f"{old.get(key)!r}, which made its results {_ADVICE}"
            )


def _plain(spec: StudySpec) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(spec.identity()))
    return plain
