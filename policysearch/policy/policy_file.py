"""Policy files: JSON on disk, written whole or not at all."""

from __future__ import annotations

from pathlib import Path

from policysearch.files import read_text, write_whole
from policysearch.policy.policy import Policy, from_json
from policysearch.values import InputError


def write_policy(policy: Policy, path: Path, *, overwrite: bool = False) -> None:
    """Write the policy as JSON to `path`.

    Raises InputError where the file exists and `overwrite` is false, or cannot be written.
    """
    if path.exists() and not (overwrite or path.is_dir()):
        raise InputError(
            f"{path}: the file exists; expected a new name, or to be told to overwrite"
        )
    write_whole({path: policy.to_json().encode()})


def read_policy(path: Path) -> Policy:
    """Return the policy in the file `path`; InputError names the file and the place in it."""
    return from_json(read_text(path, "a policy file in JSON"), str(path))
