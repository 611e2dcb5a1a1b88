"""Data sets as arrays, split and normalised the same way every time, and their batches.

The sums are English text that is made on the machine, the same on every one.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from policysearch.data.fashion_mnist import read_fashion_mnist
from policysearch.ops.loss import IGNORED
from policysearch.values import InputError, brief, one_of

TIME = 32
"""Characters of the text of sums that a model sees at once."""

WINDOWS = 2000
VALIDATION_WINDOWS = 400

SPLIT_SEED = 0

Array = NDArray[Any]
Part = tuple[tuple[Array, ...], Array]
"""Inputs, one array each, and labels."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Examples with labels: first the training part, then validation, then test.

    `inputs` are the arrays a model takes, in its order, float32 or int64 [count, ...]; a single
    one may be given as it is. `labels` are int64 [count, ...] from 0 to classes - 1 or IGNORED,
    or float32 [count, ...], values to be met, of which `classes` is left out. `train_count`
    examples train, the next `validation_count` measure a policy while searching, and the rest
    (`test_count`, none for the digits) are for a last check that no choice has looked at. `mean`
    and `std` are the constants, in pixels of 0 to 1, that took the training images to zero mean and
    unit variance. All arrays
    are made read-only. Raises InputError for shapes, types, counts or labels that do not fit, and
    for NaN or infinity.
    """

    name: str
    inputs: tuple[Array, ...]
    labels: Array
    train_count: int
    validation_count: int
    classes: int = 0
    mean: float = 0.0
    std: float = 1.0

    def __repr__(self) -> str:
        shapes = ", ".join(f"{array.dtype}{list(array.shape)}" for array in self.inputs)
        parts = f"{self.train_count} to train, {self.validation_count} to validate"
        return brief(f"Dataset({self.name!r}, {shapes}, {self.classes} classes, {parts})")

    def __post_init__(self) -> None:
        where = f"data set {self.name}"
        if not isinstance(self.inputs, tuple):
            object.__setattr__(self, "inputs", (self.inputs,))
        for index, array in enumerate(self.inputs):
            _check_input(f"{where}, inputs[{index}]", array, len(self.labels))
        _check_labels(where, self.labels, self.classes)
        for key in ("train_count", "validation_count"):
            given = getattr(self, key)
            if not isinstance(given, int) or given < 1:
                raise InputError(f"{where}, {key}: {given!r}; expected a positive integer")
        if self.test_count < 0:
            given = self.train_count + self.validation_count
            raise InputError(
                f"{where}, train_count + validation_count: {given}; "
                f"expected at most {len(self.labels)}, the number of examples"
            )
        for array in (*self.inputs, self.labels):
            array.setflags(write=False)

    @property
    def kind(self) -> Literal["classes", "numbers"]:
        """What the labels are."""
        return "classes" if self.labels.dtype == np.int64 else "numbers"

    @property
    def outputs(self) -> int:
        """How many outputs a net for it has: one for each class, or number of a label."""
        return self.classes or math.prod(self.labels.shape[1:])

    @property
    def images(self) -> Array:
        """The first input: float32 [count, channels, height, width] where that is images."""
        return self.inputs[0]

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Channels, height and width of one image."""
        shape: tuple[int, ...] = self.images.shape[1:]
        return shape

    @property
    def test_count(self) -> int:
        """How many examples belong neither to training nor to validation."""
        return len(self.labels) - self.train_count - self.validation_count

    @property
    def train(self) -> Part:
        """Inputs and labels of the training part, as views."""
        return self._part(0, self.train_count)

    @property
    def validation(self) -> Part:
        """Inputs and labels of the validation part, as views."""
        return self._part(self.train_count, self.train_count + self.validation_count)

    @property
    def test(self) -> Part:
        """Inputs and labels of the test part, as views; empty where there is none."""
        return self._part(self.train_count + self.validation_count, len(self.labels))

    def batch(self, indices: Array) -> Part:
        """Return copies of the examples of the training part with these indices."""
        inputs, labels = self.train
        return tuple(array[indices] for array in inputs), labels[indices]

    def extremes(self, place: int) -> tuple[float, float]:
        """Return the least and the largest value of an input, by its place."""
        array = self.inputs[place]
        return array.min(), array.max()

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 in hex of the split, the shapes, the inputs and the labels."""
        rows = [array.shape for array in self.inputs] + [self.labels.shape] * (self.labels.ndim > 1)
        head = (*rows, self.train_count, self.validation_count, self.classes)
        digest = hashlib.sha256(repr(head).encode())
        for array in (*self.inputs, self.labels):
            little_endian = array.astype(array.dtype.newbyteorder("<"), copy=False)
            digest.update(np.ascontiguousarray(little_endian).data)
        return digest.hexdigest()

    def _part(self, start: int, stop: int) -> Part:
        return tuple(array[start:stop] for array in self.inputs), self.labels[start:stop]


def check_finite(where: str, array: Array) -> None:
    """Raise InputError naming the first value of `array` that is NaN or infinite, if any."""
    finite = np.isfinite(array)
    if not finite.all():
        index = tuple(int(i) for i in np.argwhere(~finite)[0])
        raise InputError(f"{where}{list(index)}: {array[index]}; expected finite numbers")


def _check_array(where: str, given: object) -> None:
    if not isinstance(given, np.ndarray):
        raise InputError(f"{where}: a {type(given).__name__}; expected a numpy array")


def _check_input(where: str, array: Array, count: int) -> None:
    _check_array(where, array)
    if array.dtype not in (np.float32, np.int64) or array.shape[:1] != (count,) or not array.size:
        raise InputError(
            f"{where}: {array.dtype} {list(array.shape)}; "
            f"expected float32 or int64 [{count}, ...], one per label and none of them empty"
        )
    check_finite(where, array)


def _check_labels(where: str, labels: Array, classes: int) -> None:
    _check_array(f"{where}, labels", labels)
    if labels.dtype == np.float32:
        check_finite(f"{where}, labels", labels)
        return
    if labels.dtype != np.int64:
        given = f"{labels.dtype} {list(labels.shape)}"
        raise InputError(f"{where}, labels: {given}; expected int64 classes or float32 values")
    counted = labels[labels != IGNORED]
    if not counted.size or counted.min() < 0 or counted.max() >= classes:
        given = f"{counted.min()} to {counted.max()}" if counted.size else "none that counts"
        raise InputError(f"{where}, labels: {given}; expected 0 to {classes - 1}")


def load_dataset(name: str, folder: Path | None = None, pad: int | None = None) -> Dataset:
    """Return the data set called `name`; the same arrays on every machine.

    Names: `digits` (1 x 8 x 8), `digits32` (the same, each pixel repeated 4 x 4 to 1 x 32 x 32)
    `fashion_mnist` (1 x 32 x 32, the 28 x 28 originals with a black border) and `sums` (32
    characters of English sums, and the 32 that follow one later). `folder` says
    where the IDX files of `fashion_mnist` are. `pad` is the width in pixels of the black border
    (by default 2 for `fashion_mnist`, so that LeNet-5 fits, and 0 otherwise). Raises InputError
    for an unknown name and for missing or damaged files.
    """
    one_of("data set", name, LOADERS)
    if pad is not None and (isinstance(pad, bool) or not isinstance(pad, int) or pad < 0):
        raise InputError(f"data set {name}, pad: {pad!r}; expected a number of pixels, 0 or more")
    return LOADERS[name](name, folder, pad)


def check_batch(dataset: Dataset, batch_size: int) -> None:
    """Raise InputError for a batch that the training part cannot fill."""
    if not 1 <= batch_size <= dataset.train_count:
        valid = f"1 to {dataset.train_count}, the examples to train on"
        raise InputError(f"batch_size: {batch_size}; expected {valid}")


def batches(
    dataset: Dataset, batch_size: int, steps: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return the training images of every step as indices, int64 [steps, batch_size].

    Each epoch is a fresh shuffle of the training part, cut into whole batches; what is left of
    an epoch is dropped, so no batch holds an image twice. Raises InputError for a size or a
    number of steps that is not positive, or a batch larger than the training part.
    """
    check_batch(dataset, batch_size)
    if steps < 1:
        raise InputError(f"steps: {steps}; expected at least 1")
    per_epoch = dataset.train_count // batch_size
    epochs = [
        rng.permutation(dataset.train_count)[: per_epoch * batch_size]
        for _ in range(math.ceil(steps / per_epoch))
    ]
    return np.concatenate(epochs).astype(np.int64).reshape(-1, batch_size)[:steps]


def _digits(name: str, folder: Path | None, pad: int | None) -> Dataset:
    if folder is not None:
        raise InputError(f"data set {name}, folder: {folder}; expected none, it is embedded")
    with (
        files("policysearch.data").joinpath("digits.npz").open("rb") as file,
        np.load(file, allow_pickle=False) as arrays,
    ):
        pixels, labels = arrays["images"], arrays["labels"]
    if name == "digits32":
        pixels = pixels.repeat(4, axis=1).repeat(4, axis=2)
    order = _split_order(len(labels))
    return _dataset(name, pixels[order], labels[order], (1437, 360), 16, pad or 0)


def _fashion_mnist(name: str, folder: Path | None, pad: int | None) -> Dataset:
    images, labels, test_images, test_labels = read_fashion_mnist(folder)
    order = _split_order(len(images))
    pixels = np.concatenate([images[order], test_images])
    # A twelfth of the training files validates: 55,000 and 5,000 of the published 60,000.
    validation_count = max(1, len(images) // 12)
    counts = (len(images) - validation_count, validation_count)
    labels = np.concatenate([labels[order], test_labels])
    return _dataset(name, pixels, labels, counts, 255, 2 if pad is None else pad)


def _sums(name: str, folder: Path | None, pad: int | None) -> Dataset:
    if folder is not None or pad is not None:
        raise InputError(f"data set {name}: a folder or pad; expected none, it is made here")
    windows, characters = sums(SPLIT_SEED)
    counts = (WINDOWS - VALIDATION_WINDOWS, VALIDATION_WINDOWS)
    inputs = (np.ascontiguousarray(windows[:, :-1]),)
    return Dataset(name, inputs, np.ascontiguousarray(windows[:, 1:]), *counts, len(characters))


def _split_order(count: int) -> NDArray[np.int64]:
    return np.random.default_rng(SPLIT_SEED).permutation(count)


def _dataset(
    name: str,
    pixels: NDArray[np.uint8],
    labels: Array,
    counts: tuple[int, int],
    white: int,
    pad: int,
) -> Dataset:
    """Pad, scale by the pixel value `white`, and normalise by the training part."""
    pixels = np.pad(pixels, ((0, 0), (pad, pad), (pad, pad)))
    mean, std = _mean_and_std(pixels[: counts[0]], white)
    if std == 0.0:
        raise InputError(f"data set {name}, images: all pixels {mean:g}; expected an image")
    table = ((np.arange(256) / white - mean) / std).astype(np.float32)
    images = np.empty(pixels.shape, np.float32)
    for image, codes in zip(images, pixels, strict=True):
        image[...] = table[codes]
    return Dataset(name, (images[:, np.newaxis],), labels.astype(np.int64), *counts, 10, mean, std)


def _mean_and_std(pixels: NDArray[np.uint8], white: int) -> tuple[float, float]:
    # From whole-number counts, so the same on every machine; image by image, to save memory.
    histogram = np.zeros(256, np.int64)
    for image in pixels:
        histogram += np.bincount(image.ravel(), minlength=256)
    share = histogram / histogram.sum()
    values = np.arange(256) / white
    mean = math.fsum(share * values)
    return mean, math.sqrt(math.fsum(share * (values - mean) ** 2))


_ONES = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen"),
    "nineteen",
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


def in_words(number: int) -> str:
    """Return a number from 0 to 199 in English."""
    if not 0 <= number < 200:
        raise InputError(f"in_words: {number}; expected 0 to 199")
    if number >= 100:
        rest = in_words(number - 100)
        return "one hundred" if number == 100 else f"one hundred and {rest}"
    if number < 20:
        return _ONES[number]
    tens, ones = _TENS[number // 10 - 2], number % 10
    return f"{tens}-{_ONES[ones]}" if ones else tens


def sentences(seed: int) -> Iterator[str]:
    """Yield sums of two numbers below 100, for ever: "forty-two plus nine is fifty-one. "."""
    rng = np.random.default_rng(seed)
    while True:
        a, b = (int(n) for n in rng.integers(0, 100, 2))
        yield f"{in_words(a)} plus {in_words(b)} is {in_words(a + b)}. "


def sums(seed: int) -> tuple[NDArray[np.int64], str]:
    """Return the text as numbers [WINDOWS, TIME + 1] of its characters, and those in order."""
    wanted, text = WINDOWS * (TIME + 1), ""
    for sentence in sentences(seed):
        text += sentence
        if len(text) >= wanted:
            break
    characters = "".join(sorted(set(text)))
    place = {character: number for number, character in enumerate(characters)}
    numbers = np.array([place[character] for character in text[:wanted]], np.int64)
    return numbers.reshape(WINDOWS, TIME + 1), characters


LOADERS: Mapping[str, Callable[[str, Path | None, int | None], Dataset]] = MappingProxyType(
    {"digits": _digits, "digits32": _digits, "fashion_mnist": _fashion_mnist, "sums": _sums}
)
