"""A data set that processes share: one copy of its arrays, which each of them maps to read."""

from __future__ import annotations

import dataclasses
import mmap
import os
import tempfile
import weakref
from multiprocessing import context, reduction
from typing import IO, Any

import numpy as np

from policysearch.data.datasets import Dataset
from policysearch.data.spool import SpooledDataset

LINE_BYTES = 64
"""Arrays begin on a cache line."""

ARRAYS = ("inputs", "labels")


class SharedDataset(Dataset):
    """A data set whose arrays lie in a file without a name, mapped read-only.

    A process that is started with it maps the same file. That is gone with the last process that
    has it, however each of them ends. Wherever else it is pickled to, its arrays are copied.
    """

    _file: int
    _places: tuple[tuple[str, tuple[int, ...], int], ...]

    def _map(self, file: int) -> None:
        """Take the arrays from the open `file`, and close it when they are gone."""
        weakref.finalize(self, os.close, file)
        mapped = mmap.mmap(file, 0, access=mmap.ACCESS_READ)
        *inputs, labels = (
            np.ndarray(shape, dtype, mapped, offset) for dtype, shape, offset in self._places
        )
        self.__dict__.update(inputs=tuple(inputs), labels=labels, _file=file)

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        file = state.pop("_file")
        if context.get_spawning_popen() is None:
            return state
        rest = {name: value for name, value in state.items() if name not in ARRAYS}
        return {**rest, "_file": reduction.DupFd(file)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        file = state.pop("_file", None)
        self.__dict__.update(state)
        if file is not None:
            self._map(file.detach())


def shared(dataset: Dataset) -> Dataset:
    """Return `dataset` with its arrays where processes that are started with it find them.

    Those of a spool are there. OSError where the system has no room, or no files without names.
    """
    if not hasattr(reduction, "DupFd"):
        raise OSError("files are not handed to a process that is started")
    if isinstance(dataset, SpooledDataset):
        return dataset
    places = []
    with _nameless() as file:
        for array in (*dataset.inputs, dataset.labels):
            offset = file.seek(-(-file.tell() // LINE_BYTES) * LINE_BYTES)
            places.append((array.dtype.str, array.shape, offset))
            file.write(np.ascontiguousarray(array).data)
        file.flush()
        handle = os.dup(file.fileno())
    result = SharedDataset.__new__(SharedDataset)
    fields = (field.name for field in dataclasses.fields(Dataset) if field.name not in ARRAYS)
    result.__dict__.update({name: getattr(dataset, name) for name in fields}, _places=tuple(places))
    result._map(handle)
    return result


def _nameless() -> IO[bytes]:
    """Return a new file without a name, in memory where the system has such."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("policysearch-data"), "w+b")
    return tempfile.TemporaryFile()
