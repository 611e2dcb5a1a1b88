"""Which of the user's files commands may run: a study that names a Python file runs it.

Who looks at a study of somebody else should not run that person's code by it. So a file runs in a
command only when it is trusted: by `--trust`, remembered by the file's digest in the user's own
folder of state; because it comes with the package; because `init` was given it or wrote it, which
trusts its place, so that its author may change it; or where the environment says so, as scripts
on machines without a home need. In Python nothing is asked: who calls has the interpreter already.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from policysearch.commands.shared import say
from policysearch.files import shipped_digests
from policysearch.train.user_code import guarded
from policysearch.values import InputError

VARIABLE = "POLICYSEARCH_TRUST"
"""Set to 1, it trusts every file that a command names."""

STORE = "trusted"
DIGEST, PLACE = "digest", "place"


def state_folder() -> Path:
    """Return where what is remembered of trust lies: of the user, never of a repository."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or str(Path.home() / "AppData" / "Local")
    else:
        base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "policysearch"


@contextlib.contextmanager
def guard(trust: bool) -> Iterator[None]:
    """Let no file of the user's run in this context but trusted ones; with `trust` all it meets."""

    def check(path: Path) -> None:
        check_file(path, trust)

    with guarded(check):
        yield


def check_file(path: Path, trust: bool) -> None:
    """Raise InputError unless a file may run; with `trust` it may, and that is remembered."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if os.environ.get(VARIABLE) == "1":
        return
    known = _trusted_digests()
    if f"{DIGEST} {digest}" in known or f"{PLACE} {path.resolve()}" in known:
        return
    if digest in shipped_digests():
        return
    if not trust:
        raise InputError(
            f"{path}: this command runs the file, and it is not trusted yet; expected --trust, "
            f"once, when you have read it ({VARIABLE}=1 trusts all that a script names)"
        )
    _remember(f"{DIGEST} {digest}")
    say(f"policysearch: {path} is trusted as it is now, and remembered")


def trust_place(path: Path) -> None:
    """Remember that the file at `path` is the user's own, whatever becomes of it."""
    _remember(f"{PLACE} {path.resolve()}")


def trust_text(text: bytes) -> None:
    """Remember the digest of a file that a command wrote itself."""
    _remember(f"{DIGEST} {hashlib.sha256(text).hexdigest()}")


def _trusted_digests() -> set[str]:
    try:
        return set((state_folder() / STORE).read_text(encoding="utf-8").splitlines())
    except (OSError, ValueError, RuntimeError):
        return set()


def _remember(line: str) -> None:
    """Add a line to the store; where there is no place for it, trust ends with the command."""
    if line in _trusted_digests():
        return
    with contextlib.suppress(OSError, RuntimeError):
        state_folder().mkdir(parents=True, exist_ok=True)
        with (state_folder() / STORE).open("a", encoding="utf-8") as store:
            store.write(f"{line}\n")
