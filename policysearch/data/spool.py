"""Batches of a loader, drawn once and kept in a file that every process maps to read.

A file is the rows of all examples, one record each, and after them what is known of them, as JSON
with its length and a mark. It is written under no name and gets its own when it is whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from policysearch.data.datasets import Dataset
from policysearch.files import make_folder, reason
from policysearch.values import InputError

Array = NDArray[Any]

MARK = b"PSSPOOL1"
ENDING_BYTES = 16
"""The length of what is known, and the mark."""

BLOCK_BYTES = 2**24
"""So much of a file is read at once where all of it is."""

LARGEST_LABEL_BYTES = 2**26
"""Labels of so many bytes are kept in memory, side by side."""

LARGEST_BYTES = 2**33
"""Of a spool, unless its maker says otherwise."""


@dataclass(frozen=True)
class Known:
    """What a file says of its rows.

    `fields` are the (dtype, shape of one example) of every array, the labels last, and `ranges`
    their least and largest values. `batch` rows are a batch and `group` batches belong to one step.
    `train` and `validation` count rows. `digest` is SHA-256 of the rows, `asked` of what they were
    drawn with.
    """

    fields: tuple[tuple[str, tuple[int, ...]], ...]
    ranges: tuple[tuple[float, float], ...]
    batch: int
    group: int
    train: int
    validation: int
    classes: int
    digest: str
    asked: str

    @property
    def record(self) -> np.dtype[Any]:
        """The dtype of a row."""
        named = [(f"f{i}", dtype, shape) for i, (dtype, shape) in enumerate(self.fields)]
        return np.dtype(named, align=True)


class SpooledDataset(Dataset):
    """A data set whose batches are those of a spool, in the order that they were drawn in.

    With seed 0 a training takes them as they are; other seeds take the steps in another order, and
    so does every further pass over them. A process that is sent it maps the same file.
    """

    _path: str
    _known: Known
    _mapped: Any

    @staticmethod
    def at(path: Path, name: str, known: Known) -> SpooledDataset:
        """Return the data set in the file at `path`; InputError where that is not what is known."""
        dataset = SpooledDataset.__new__(SpooledDataset)
        dataset.__setstate__({"name": name, "_path": str(path.resolve()), "_known": known})
        return dataset

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        known = read_known(Path(self._path))
        if known != self._known:
            raise InputError(f"{self._path}: {_of(known)}; expected the spool {_of(self._known)}")
        rows = np.memmap(self._path, known.record, "r", shape=(known.train + known.validation,))
        self.__dict__["_mapped"] = rows._mmap  # type: ignore[attr-defined]
        *inputs, labels = (np.asarray(rows[name]) for name in known.record.names or ())
        labels = self._together(labels) if labels.nbytes <= LARGEST_LABEL_BYTES else labels
        self.__dict__.update(
            inputs=tuple(inputs), labels=labels, train_count=known.train, classes=known.classes
        )
        self.__dict__.update(validation_count=known.validation, mean=0.0, std=1.0)

    def _together(self, labels: Array) -> Array:
        """Return a copy of the labels: they are read often, and each lies on a page of its own."""
        count = max(1, BLOCK_BYTES // self._known.record.itemsize)
        copied = np.empty(labels.shape, labels.dtype)
        for first in range(0, len(labels), count):
            copied[first : first + count] = labels[first : first + count]
            self.release()
        return copied

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("name", "_path", "_known")}

    @property
    def loader_batch(self) -> int:
        """The examples of a batch of the loader."""
        return self._known.batch

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 in hex of the rows and how they are split."""
        known = self._known
        head = known.fields, known.batch, known.group, known.train, known.classes, known.digest
        return hashlib.sha256(repr(head).encode()).hexdigest()

    def extremes(self, place: int) -> tuple[float, float]:
        return self._known.ranges[place]

    def batch(self, indices: Array) -> tuple[tuple[Array, ...], Array]:
        """Return copies of these training examples; nothing of the file stays in memory."""
        inputs, labels = super().batch(indices)
        self.release()
        return inputs, labels

    def release(self) -> None:
        """Give the pages that were read back to the system, which may have them still."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._mapped.madvise(mmap.MADV_DONTNEED)

    def order(self, batch_size: int, count: int, seed: int) -> NDArray[np.int64]:
        """Return the examples of `count` batches, [count, batch_size], with this training seed.

        InputError for a batch size that is not the loader's.
        """
        known = self._known
        if batch_size != known.batch:
            raise InputError(f"batch_size: {batch_size}; expected {known.batch}, as of the loader")
        steps = known.train // (known.batch * known.group)
        passes: list[NDArray[np.int64]] = []
        left = count
        while left > 0:
            rng = np.random.default_rng([seed, 1, len(passes)])
            taken = np.arange(steps) if not seed and not passes else rng.permutation(steps)
            passes.append(taken)
            left -= steps * known.group
        first = np.concatenate(passes)[:, None] * known.group + np.arange(known.group)
        rows = first.reshape(-1, 1)[:count] * known.batch + np.arange(known.batch)
        return rows.astype(np.int64)


def read_known(path: Path) -> Known:
    """Return what the file at `path` says of its rows; InputError where it is no whole spool."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - ENDING_BYTES))
            ending = file.read()
            length = int.from_bytes(ending[:8], "little")
            if ending[8:] != MARK or length > size - ENDING_BYTES:
                raise InputError(f"{path}: no mark at its end; expected a whole spool of batches")
            file.seek(size - ENDING_BYTES - length)
            plain = json.loads(file.read(length))
    except OSError as error:
        raise InputError(f"{path}: {reason(error)}; expected a spool of batches") from None
    fields = tuple((dtype, tuple(shape)) for dtype, shape in plain.pop("fields"))
    known = Known(fields, tuple(map(tuple, plain.pop("ranges"))), **plain)
    if size - ENDING_BYTES - length != known.record.itemsize * (known.train + known.validation):
        raise InputError(f"{path}: {size} bytes; expected those of its rows")
    return known


def reusable(path: Path, asked: str) -> Known | None:
    """Return what is known of the spool at `path`, where it is whole and was drawn with `asked`.

    Its rows are read and their digest compared.
    """
    with contextlib.suppress(InputError):
        known = read_known(path)
        if known.asked == asked and _digest_of(path, known) == known.digest:
            return known
    return None


def _digest_of(path: Path, known: Known) -> str:
    left, digest = known.record.itemsize * (known.train + known.validation), hashlib.sha256()
    with path.open("rb") as file:
        while left > 0 and (block := file.read(min(left, BLOCK_BYTES))):
            digest.update(block)
            left -= len(block)
    return digest.hexdigest()


def _of(known: Known) -> str:
    return f"{known.digest[:12]} of {known.train} examples"


class Spool:
    """A file being written: batches are added, and it gets its name when it is whole.

    `limit` is the most bytes that it may have.
    """

    def __init__(self, path: Path, limit: int = LARGEST_BYTES) -> None:
        self._path, self._limit, self._bytes = path, limit, 0
        self._digest = hashlib.sha256()
        self._record: np.dtype[Any] | None = None
        self._fields: list[tuple[str, tuple[int, ...]]] = []
        self._ranges: list[tuple[float, float]] = []
        self.rows = 0

    def add(self, file: IO[bytes], arrays: Sequence[Array]) -> None:
        """Write the rows of a batch; InputError where there is no room for them."""
        if self._record is None:
            self._fields = [(array.dtype.str, array.shape[1:]) for array in arrays]
            self._record = Known(tuple(self._fields), (), 1, 1, 1, 0, 1, "", "").record
            self._ranges = [(np.inf, -np.inf)] * len(arrays)
        rows = np.zeros(len(arrays[0]), self._record)
        for place, array in enumerate(arrays):
            rows[f"f{place}"] = array
            low, high = self._ranges[place]
            self._ranges[place] = min(low, float(array.min())), max(high, float(array.max()))
        content = rows.tobytes()
        self._bytes += len(content)
        if self._bytes > self._limit:
            raise InputError(
                f"spool {self._path}: more than {self._limit / 2**30:.3g} GiB; expected fewer steps"
                " or a larger spool_bytes"
            )
        self._digest.update(content)
        file.write(content)
        self.rows += len(rows)

    def end(self, file: IO[bytes], counts: Mapping[str, int], asked: str) -> Known:
        """Write what is known after the rows and return it."""
        fields, ranges = tuple(self._fields), tuple(self._ranges)
        classes = 1 + max(0, int(ranges[-1][1])) if fields[-1][0] == np.dtype(np.int64).str else 1
        said = {"digest": self._digest.hexdigest(), "asked": asked, "classes": classes}
        known = Known(fields, ranges, **counts, **said)  # type: ignore[arg-type]
        text = json.dumps({name: getattr(known, name) for name in known.__dataclass_fields__})
        content = text.encode()
        file.write(content + len(content).to_bytes(8, "little") + MARK)
        return known


@contextlib.contextmanager
def nameless(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file that is called `path` when the block ends, and is gone where it does not.

    Where the system has files without names a killed process leaves nothing.
    """
    make_folder(path.parent)
    beside = path.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        unnamed = _unnamed_file(path.parent)
        with unnamed or beside.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if unnamed:
                _name(file, beside)
        os.replace(beside, path)
    except OSError as error:
        raise InputError(f"{path}: {reason(error)}; expected a place to write to") from None
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)


def _unnamed_file(folder: Path) -> IO[bytes] | None:
    if not hasattr(os, "O_TMPFILE"):
        return None
    with contextlib.suppress(OSError):
        return os.fdopen(os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o666), "w+b")
    return None


def _name(file: IO[bytes], path: Path) -> None:
    """Give a file that has none a name; the folder has os.link follow the link in it."""
    folder = os.open("/proc/self/fd", os.O_RDONLY)
    try:
        os.link(str(file.fileno()), path, src_dir_fd=folder, follow_symlinks=True)
    finally:
        os.close(folder)
