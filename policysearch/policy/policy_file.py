"""Policy files: JSON on disk, written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from policysearch.policy.policy import Policy, from_json
from policysearch.values import InputError


def write_policy(policy: Policy, path: Path, *, overwrite: bool = False) -> None:
    """Write the policy as JSON to `path`; InputError as `write_text`."""
    write_text(policy.to_json(), path, overwrite=overwrite)


def read_policy(path: Path) -> Policy:
    """Return the policy in the file `path`; InputError names the file and the place in it."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; expected a readable policy file") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text; expected a policy file in JSON") from None
    return from_json(text, str(path))


def write_text(text: str, path: Path, *, overwrite: bool = False) -> None:
    """Write `text` to `path` through a temporary file beside it, so no reader sees half of it.

    Raises InputError where the file exists and `overwrite` is false, or cannot be written.
    """
    if path.is_dir():
        raise InputError(f"{path}: a folder; expected the name of a file")
    if path.exists() and not overwrite:
        raise InputError(
            f"{path}: the file exists; expected a new name, or to be told to overwrite"
        )
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8", newline="\n")
        os.replace(temporary, path)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; expected a writable folder") from None
    finally:
        temporary.unlink(missing_ok=True)
