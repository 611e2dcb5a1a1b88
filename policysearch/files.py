"""Files: written whole or not at all, read, and the studies that come with the package."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import os
import secrets
import warnings
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from policysearch.values import InputError, near_miss

RESULTS_FOLDER = Path("results")
"""Where journals, plots and exported files go unless told otherwise."""

SHIPPED = "studies:"
"""Begins the name of a study that comes with the package."""


def write_whole(files: Mapping[Path, bytes]) -> tuple[Path, ...]:
    """Write the contents to their paths, replacing what is there; return the paths.

    Everything is written under exclusive, unpredictable names beside the targets before the first
    target changes. Raises InputError, with no target changed, where that cannot be done.
    """
    written: dict[Path, Path] = {}
    target = next(iter(files), Path())
    try:
        for target, content in files.items():
            if target.is_dir():
                raise InputError(f"{target}: a folder; expected the name of a file")
            temporary = target.with_name(f".{secrets.token_hex(8)}.tmp")
            written[target] = temporary
            _write_new(temporary, content)
        for target, temporary in written.items():
            os.replace(temporary, target)
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{target}: {reason(error)}; expected a writable place") from None
    finally:
        for temporary in written.values():
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
    return tuple(written)


def _write_new(path: Path, content: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    with os.fdopen(os.open(path, flags, 0o666), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def make_folder(folder: Path) -> None:
    """Make `folder` if it is missing; InputError where that cannot be done."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise InputError(f"{folder}: {reason(error)}; expected a folder that can be made") from None


def write_files(files: Mapping[str, bytes], folder: Path) -> tuple[Path, ...]:
    """Write files by name into `folder`, made if missing: all of them or none."""
    make_folder(folder)
    return write_whole({folder / name: content for name, content in files.items()})


LONGEST_MIB = 16


def read_text(path: Path, what: str, longest_mib: int = LONGEST_MIB) -> str:
    """Return the UTF-8 text of `path`; InputError, saying that `what` is expected, otherwise.

    More than `longest_mib` MiB are refused, and never read: no study or policy file is that long,
    and a device or pipe may have no end.
    """
    longest = longest_mib << 20
    try:
        with path.open("rb") as file:
            content = file.read(longest + 1)
        if len(content) > longest:
            no_end = f"no end in {longest_mib} MiB"
            size = f"{path.stat().st_size} bytes" if path.is_file() else no_end
            raise InputError(f"{path}: {size}; expected {what} of {longest_mib} MiB or less")
        return content.decode().replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text; expected {what}") from None
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: {reason(error)}; expected {what}") from None


def reason(error: Exception) -> str:
    """Return why a file operation failed, in the system's words."""
    return getattr(error, "strerror", None) or str(error)


def study_path(path: Path) -> Path:
    """Return the file of a study: a shipped one where the name begins with "studies:"."""
    name = str(path)
    return shipped_study(name.removeprefix(SHIPPED)) if name.startswith(SHIPPED) else path


def shipped_study(name: str) -> Path:
    """Return the file of the shipped study called `name`; InputError where there is none."""
    there = _shipped_studies()
    if name not in there:
        known = ", ".join(there) or "none: they are not installed"
        raise InputError(
            f"{SHIPPED}{name}: no such study; expected {known}{near_miss(name, there)}"
        )
    return there[name]


def shipped_names() -> tuple[str, ...]:
    """Return the names of the studies that come with the package."""
    return tuple(_shipped_studies())


def _shipped_studies() -> dict[str, Path]:
    """Return the shipped study files by name: of the repository, or of the installed package."""
    return {path.stem: path for path in _shipped_files(".toml")}


def shipped_digests() -> set[str]:
    """Return the SHA-256 in hex of the Python files that come with the shipped studies."""
    return {hashlib.sha256(path.read_bytes()).hexdigest() for path in _shipped_files(".py")}


def _shipped_files(suffix: str) -> list[Path]:
    # A wheel puts them where pyproject.toml says, beside the package; a clone has them at its top.
    clone = Path(__file__).parents[1] / "studies"
    if clone.is_dir():
        return sorted(clone.rglob(f"*{suffix}"))
    recorded = [file for file in metadata.files("policysearch") or () if "studies" in file.parts]
    return sorted(Path(str(file.locate())) for file in recorded if file.suffix == suffix)


def syntax_of(text: str, where: str, what: str) -> ast.Module:
    """Return the syntax of a Python file that is read and not run; InputError where it has none.

    `what` is what was expected there: "an exported file". What Python finds odd in it is not said.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise InputError(f"{where}: {error}; expected {what}") from None
    except (RecursionError, MemoryError):
        raise InputError(f"{where}: nested too deep; expected {what}") from None
