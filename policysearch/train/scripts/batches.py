"""Batches of a torch loader: drawn once under a seed, and spooled."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from policysearch.data.spool import LARGEST_BYTES, Spool, SpooledDataset, nameless, reusable
from policysearch.train.scripts.stepped import Layout, layout_of, tensors_of
from policysearch.values import USER_FAULTS, InputError, number, shown

Array = NDArray[Any]
Counted = Callable[[Sequence[Any]], Mapping[str, Any]]
"""Of the batches of a step, what each of them gets besides."""

VALIDATION_BATCHES, VALIDATION_SHARE = 8, 8
"""So many batches validate; of another loader one for so many trained on, if that is more."""


@dataclass(frozen=True)
class Drawing:
    """How batches are drawn: for so many `epochs`, or `steps` of `accumulation_steps` batches.

    `validation` is another loader; without one, validation has batches of the training loader that
    come after the last step. A script that ends each epoch with a step (`epoch_ends`) leaves the
    batches of an epoch that do not fill one out here. `counted` gives the batches of a step more
    values, `pads` fill what is shorter than the longest along axis 1, by name.
    """

    loader: Any
    steps: int | None = None
    epochs: float | None = None
    accumulation_steps: int = 1
    seed: int = 0
    validation: Any = None
    validation_batches: int | None = None
    epoch_ends: bool = False
    counted: Counted | None = None
    pads: Mapping[str, float] = field(default_factory=dict)
    length: int | None = None

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise InputError("steps and epochs: none or both; expected one of them")
        if self.steps is not None:
            number("steps", self.steps, 1, 2**31)
        if self.epochs is not None:
            number("epochs", self.epochs, 1e-9, 1e9)
            if _is_function(self.loader):
                raise InputError("epochs: of a function, which has no end; expected steps")
        number("accumulation_steps", self.accumulation_steps, 1, 2**16)
        if self.validation_batches is not None:
            number("validation_batches", self.validation_batches, 1, 2**16)

    def first(self) -> Any:
        """Return the first batch as it is kept; InputError where the loader yields none."""
        with seeded(self.seed):
            for batch in self._checked_batches(iter_of(self.loader), "loader"):
                return _with(batch, self.counted([batch]) if self.counted else {})
        raise InputError("loader: yields nothing; expected at least one batch")

    def training(self, left_out: dict[str, int]) -> Iterator[list[Any]]:
        """Yield the batches of every step; count those `left_out` by why."""
        count, size, taken = self.accumulation_steps, 0, 0
        waiting: list[Any] = []
        for epoch in itertools.count():
            if self.epochs is not None and epoch >= self.epochs:
                break
            drawn = 0
            for batch in self._epoch(epoch):
                drawn += 1
                size = size or rows_of(batch)
                if rows_of(batch) < size:
                    _count(left_out, f"of fewer than {size} examples")
                    continue
                waiting.append(batch)
                if len(waiting) == count:
                    yield waiting
                    waiting, taken = [], taken + 1
                if taken == self.steps:
                    return
            if not drawn:
                raise InputError(f"loader: yields nothing in epoch {epoch}; expected batches")
            if self.epoch_ends and waiting:
                _count(left_out, "at the end of an epoch, too few for a step", len(waiting))
                waiting = []
        if waiting:
            _count(left_out, "at the end, too few for a step", len(waiting))

    def _epoch(self, epoch: int) -> Iterator[Any]:
        if hasattr(self.loader, "set_epoch"):
            self.loader.set_epoch(epoch)
        yield from self._checked_batches(iter_of(self.loader), f"loader, epoch {epoch}")

    def validating(self, left_out: dict[str, int]) -> Iterator[Any]:
        """Yield the batches that validate; count those `left_out` by why."""
        size = 0
        own, most = self.validation is not None, self.validation_batches
        loader = self.validation if own else self.loader  # a loader may have no length, or 0
        if most is None:
            most = self._validates_at_most() if own else VALIDATION_BATCHES
        for batch in itertools.islice(self._checked_batches(iter_of(loader), "validation"), most):
            size = size or rows_of(batch)
            if rows_of(batch) == size:
                yield batch
            else:
                _count(left_out, f"of validation, of other than {size} examples")

    def _validates_at_most(self) -> int:
        """Return how many batches of another loader are kept: few beside those trained on."""
        drawn = (self.steps or 0) * self.accumulation_steps
        if self.epochs is not None:
            drawn = int(self.epochs * (_length(self.loader) or 0))
        return max(VALIDATION_BATCHES, drawn // VALIDATION_SHARE)

    def longest(self) -> int:
        """Return the largest extent along axis 1 of what `pads` may fill up."""
        with seeded(self.seed):
            drawn = itertools.chain.from_iterable(self.training({}))
            return max(map(self._length, itertools.chain(drawn, self.validating({}))))

    def _length(self, batch: Any) -> int:
        layout = layout_of(batch)
        named = zip(layout.leaves, tensors_of(batch, layout), strict=True)
        return max((int(t.shape[1]) for leaf, t in named if self.fills(leaf.name, t)), default=0)

    def fills(self, name: str, values: Any) -> bool:
        return name in self.pads and values.ndim > 1

    def _checked_batches(self, batches: Iterator[Any], where: str) -> Iterator[Any]:
        """Yield the batches; InputError where drawing one fails."""
        for index in itertools.count():
            try:
                batch = next(batches)
            except StopIteration:
                return
            except USER_FAULTS as error:
                name = type(error).__name__
                # what a worker process raised comes with its traceback, of which the end says why
                said = re.split(rf"\n[\w.]*\b{name}: ", str(error))[-1]
                raise InputError(
                    f"{where}, batch {index}: {name}: {shown(' '.join(said.split()))}; "
                    "expected a batch, drawn on a CPU"
                ) from error
            yield batch


def iter_of(loader: Any) -> Iterator[Any]:
    """Return an iterator of a loader's batches; InputError for what is no loader.

    A function gives a batch each time it is called, or what yields them.
    """
    if _is_function(loader):
        return _calls_of(loader)
    if isinstance(loader, torch.Tensor) or not hasattr(loader, "__iter__"):
        given = type(loader).__name__
        raise InputError(f"loader: {given}; expected a DataLoader or what yields batches")
    if hasattr(loader, "__next__"):
        given = type(loader).__name__
        raise InputError(
            f"loader: {given}, which yields once; expected what begins again, or a function"
        )
    try:
        return iter(loader)
    except Exception as error:
        raise InputError(
            f"loader: {type(error).__name__}: {error}; expected it to begin"
        ) from error


def _is_function(loader: Any) -> bool:
    return callable(loader) and not hasattr(loader, "__iter__")


def _calls_of(function: Callable[[], Any]) -> Iterator[Any]:
    given = function()
    if hasattr(given, "__next__"):
        yield from given
        return
    while True:
        yield given
        given = function()


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch, numpy and random while it is entered, and put their states back."""
    states = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])


def rows_of(batch: Any) -> int:
    """Return the number of examples of a batch: the extent of axis 0 of its first tensor."""
    layout = layout_of(batch)
    tensor = tensors_of(batch, layout)[0]
    return len(tensor) if tensor.ndim else 1


def _count(left_out: dict[str, int], why: str, count: int = 1) -> None:
    left_out[why] = left_out.get(why, 0) + count


class OtherLength(InputError):
    """A batch is longer or shorter than the first, in what may be filled up."""


class Spooling:
    """Writes what a Drawing gives as rows of arrays."""

    def __init__(self, drawing: Drawing, layout: Layout, labels: int | None) -> None:
        self._drawing, self._layout, self._labels = drawing, layout, labels
        self._shapes: list[tuple[int, ...]] = []
        self.left_out: dict[str, int] = {}

    def rows(self, batch: Any, where: str) -> list[Array]:
        """Return the arrays of a batch, inputs then labels; InputError where one does not fit."""
        try:
            tensors = tensors_of(batch, self._layout)
            arrays = [
                self._array(leaf.name, tensor)
                for leaf, tensor in zip(self._layout.leaves, tensors, strict=True)
            ]
            self._check(arrays)
        except InputError as error:
            raise type(error)(f"{where}: {error}") from None
        if self._labels is not None:
            arrays.append(arrays.pop(self._labels))
        else:
            arrays.append(np.zeros(len(arrays[0]), np.int64))
        return arrays

    def _array(self, name: str, tensor: Any) -> Array:
        tensor = tensor.detach().cpu()
        if not tensor.ndim:
            raise InputError(f"{name}: a number; expected a tensor with the batch along axis 0")
        if tensor.is_complex():
            raise InputError(f"{name}: {tensor.dtype}; expected real numbers")
        floats = tensor.is_floating_point()
        array: Array = tensor.to(torch.float32 if floats else torch.int64).numpy()
        pad, length = self._drawing.pads.get(name), self._drawing.length
        if pad is not None and length is not None and array.ndim > 1 and array.shape[1] < length:
            full = np.full((len(array), length, *array.shape[2:]), pad, array.dtype)
            full[:, : array.shape[1]] = array
            array = full
        if floats and not np.isfinite(array).all():
            raise InputError(f"{name}: NaN or infinity; expected finite numbers")
        return array

    def _check(self, arrays: Sequence[Array]) -> None:
        self._shapes = self._shapes or [array.shape for array in arrays]
        for leaf, array, shape in zip(self._layout.leaves, arrays, self._shapes, strict=True):
            if array.shape != shape:
                raise self._fault(leaf.name, array)(
                    f"{leaf.name}: shape {list(array.shape)} after {list(shape)}; expected one "
                    f"shape: have the collate function pad to a fixed length{self._pads(arrays)}"
                )
            if len(array) != shape[0] or len(array) != len(arrays[0]):
                raise InputError(f"{leaf.name}: {len(array)} examples; expected {len(arrays[0])}")

    def _pads(self, arrays: Sequence[Array]) -> str:
        """Return the `pads` that fill up whatever differs, "" where more than axis 1 does."""
        named = zip(self._layout.leaves, arrays, self._shapes, strict=True)
        other = [(leaf.name, a.shape, shape) for leaf, a, shape in named if a.shape != shape]
        if any(len(a) < 2 or (a[0], *a[2:]) != (b[0], *b[2:]) for _, a, b in other):
            return ""
        known = {name: str(pad) for name, pad in self._drawing.pads.items()}
        asked = known | {name: known.get(name, "...") for name, _, _ in other}
        said = ", ".join(f'"{name}": {pad}' for name, pad in asked.items())
        return f", or say pads={{{said}}}, each with the value of a place that is filled up"

    def _fault(self, name: str, array: Array) -> type[InputError]:
        drawing = self._drawing
        return OtherLength if drawing.length is None and drawing.fills(name, array) else InputError

    def write(self, path: Path, limit: int, asked: str) -> Any:
        """Draw everything into the file at `path` and return what is known of it."""
        drawing, spool = self._drawing, Spool(path, limit)
        with seeded(drawing.seed), nameless(path) as file:
            for step, batches in enumerate(drawing.training(self.left_out)):
                extra = drawing.counted(batches) if drawing.counted else {}
                for batch in batches:
                    spool.add(file, self.rows(_with(batch, extra), f"loader, step {step}"))
            train, size = spool.rows, self._shapes[0][0] if self._shapes else 0
            if not train:
                raise InputError("loader: too few batches for one step; expected more")
            for index, batch in enumerate(drawing.validating(self.left_out)):
                extra = drawing.counted([batch]) if drawing.counted else {}
                rows = self.rows_any(_with(batch, extra), f"validation, batch {index}")
                spool.add(file, rows)
            if spool.rows == train:
                raise InputError("validation: yields nothing; expected at least one batch")
            counts = {"batch": size, "group": drawing.accumulation_steps, "train": train}
            counts |= {"validation": spool.rows - train}
            return spool.end(file, counts, asked)

    def rows_any(self, batch: Any, where: str) -> list[Array]:
        """Return the arrays of a batch of another number of examples."""
        shapes, self._shapes = self._shapes, []
        try:
            arrays = self.rows(batch, where)
        finally:
            own, self._shapes = self._shapes, shapes
        for leaf, shape, first in zip(self._layout.leaves, own, shapes, strict=True):
            if shape[1:] != first[1:]:
                given = f"{leaf.name}: shape {list(shape)}"
                free = leaf.name in self._drawing.pads and self._drawing.length is None
                raise (OtherLength if free and len(shape) > 1 else InputError)(
                    f"{where}: {given}; expected [count, {str(list(first[1:]))[1:]}"
                )
        return arrays


def _with(batch: Any, extra: Mapping[str, Any]) -> Any:
    return {**batch, **extra} if extra else batch


@dataclass(frozen=True)
class Spooled:
    """A data set of a drawing's batches, those `left_out` by why, and how long sequences are."""

    data: SpooledDataset
    left_out: Mapping[str, int]
    length: int | None


def spooled(
    drawing: Drawing,
    layout: Layout,
    labels: int | None,
    name: str,
    path: Path,
    limit: int = LARGEST_BYTES,
) -> Spooled:
    """Return the data set of the spool at `path`, drawn anew unless it is of the same drawing.

    That is, with the same numbers, and the same first step. Where batches that may be filled up
    are not equally long and no length is said, it is that of the longest.
    """
    spooling = Spooling(drawing, layout, labels)
    try:
        asked = _drawing_digest(drawing, spooling)
        known = reusable(path, asked)
        if known is None:
            known = Spooling.write(spooling, path, limit, asked)
    except OtherLength:
        longest = replace(drawing, length=drawing.longest())
        return spooled(longest, layout, labels, name, path, limit)
    return Spooled(SpooledDataset.at(path, name, known), spooling.left_out, drawing.length)


def _drawing_digest(drawing: Drawing, spooling: Spooling) -> str:
    """Return SHA-256 in hex of what is drawn: all numbers, and the arrays of the first step."""
    numbers = (
        *(drawing.steps, drawing.epochs, drawing.accumulation_steps, drawing.seed),
        *(drawing.validation_batches, drawing.epoch_ends, sorted(drawing.pads.items())),
        *(drawing.length, drawing.validation is None, spooling._layout, spooling._labels),
        *(_length(drawing.loader), _length(drawing.validation)),
    )
    digest = hashlib.sha256(repr(numbers).encode())
    with seeded(drawing.seed):
        for batches in drawing.training({}):
            extra = drawing.counted(batches) if drawing.counted else {}
            for batch in batches:
                for array in spooling.rows(_with(batch, extra), "loader, step 0"):
                    digest.update(np.ascontiguousarray(array).tobytes())
            break
    return digest.hexdigest()


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:
        return None
