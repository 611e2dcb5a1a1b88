"""Data sets: the embedded digits, Fashion-MNIST's files, and what damaged files are answered."""

from __future__ import annotations

import gzip
import hashlib
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from policysearch.data import datasets, fashion_mnist
from policysearch.data.datasets import LOADERS, Dataset, batches, check_finite, load_dataset
from policysearch.data.idx import read_idx
from policysearch.values import InputError

TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS = fashion_mnist.SHA256


def idx_bytes(array: NDArray[np.uint8]) -> bytes:
    head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.tobytes()


@pytest.fixture
def contents() -> dict[str, bytes]:
    """The four files of a small data set: 24 training and 5 test images of 28 x 28."""
    rng = np.random.default_rng(3)
    arrays = {}
    for images, labels, count in ((TRAIN_IMAGES, TRAIN_LABELS, 24), (TEST_IMAGES, TEST_LABELS, 5)):
        arrays[images] = idx_bytes(rng.integers(0, 256, (count, 28, 28), np.uint8))
        arrays[labels] = idx_bytes(np.arange(count, dtype=np.uint8) % 10)
    return arrays


@pytest.fixture
def folder(tmp_path: Path, contents: dict[str, bytes]) -> Path:
    """The same files on disk, gzipped."""
    for name, data in contents.items():
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(data))
    return tmp_path


@pytest.mark.parametrize("name", ["digits", "digits32"])
def test_an_embedded_data_set_is_split_normalised_and_frozen(name: str) -> None:
    dataset = load_dataset(name)
    (images,), labels = dataset.train
    assert images.mean(dtype=np.float64) == pytest.approx(0.0, abs=1e-6)
    assert images.std(dtype=np.float64) == pytest.approx(1.0, abs=1e-6)
    assert set(labels.tolist()) == set(dataset.validation[1].tolist()) == set(range(10))
    assert (len(images), len(dataset.validation[1]), dataset.test_count) == (1437, 360, 0)
    with pytest.raises(ValueError, match="read-only"):
        dataset.images[0] = 0.0


def test_the_page_of_data_sets_has_them_all() -> None:
    page = (Path(__file__).parents[1] / "docs" / "data.md").read_text(encoding="utf-8")
    assert [name for name in LOADERS if f"| `{name}` |" not in page] == []


def test_digits_are_the_published_ones() -> None:
    dataset = load_dataset("digits")
    pixels = (dataset.images.astype(np.float64) * dataset.std + dataset.mean) * 16
    assert np.abs(pixels - pixels.round()).max() < 1e-4
    # The class counts that scikit-learn's description of its copy gives.
    assert np.bincount(dataset.labels).tolist() == [
        *(178, 182, 177, 183, 181),
        *(182, 181, 179, 174, 180),
    ]
    sklearn_datasets = pytest.importorskip("sklearn.datasets")
    original = sklearn_datasets.load_digits()
    order = np.random.default_rng(0).permutation(1797)
    assert np.array_equal(pixels.round()[:, 0], original.images[order])
    assert np.array_equal(dataset.labels, original.target[order])


def test_the_split_is_the_same_on_every_machine() -> None:
    """A change here changes every result made before it."""
    assert load_dataset("digits").fingerprint.startswith("a04373ae097e0fa4")
    assert load_dataset("digits32").fingerprint.startswith("383e3181849c9414")


def test_digits32_repeat_each_pixel() -> None:
    small, large = load_dataset("digits"), load_dataset("digits32")
    assert large.image_shape == (1, 32, 32)
    for row, column in ((0, 0), (3, 2)):
        assert np.array_equal(large.images[:, :, row::4, column::4], small.images)


def test_padding_is_black() -> None:
    plain, padded = load_dataset("digits"), load_dataset("digits", pad=3)
    assert padded.image_shape == (1, 14, 14)
    black = np.float32(-padded.mean / padded.std)
    assert np.all(padded.images[:, :, :3] == black)
    assert np.all(padded.images[..., -3:] == black)
    inner = padded.images[:, :, 3:-3, 3:-3] * padded.std + padded.mean
    assert np.allclose(inner, plain.images * plain.std + plain.mean, atol=1e-6)


def test_fashion_mnist_from_the_real_files(fashion_mnist_folder: Path) -> None:
    dataset = load_dataset("fashion_mnist", fashion_mnist_folder, pad=0)
    assert dataset.image_shape == (1, 28, 28)
    assert (dataset.train_count, dataset.validation_count, dataset.test_count) == (
        55000,
        5000,
        10000,
    )
    assert np.bincount(dataset.labels[:60000]).tolist() == [6000] * 10
    assert np.bincount(dataset.test[1]).tolist() == [1000] * 10
    # The constants commonly published for all 60,000 training images.
    assert (dataset.mean, dataset.std) == pytest.approx((0.2860, 0.3530), abs=1e-3)


def test_the_real_files_have_the_published_hashes(fashion_mnist_folder: Path) -> None:
    for name, path in fashion_mnist.find_files(fashion_mnist_folder).items():
        data = path.read_bytes() if path.suffix != ".gz" else gzip.decompress(path.read_bytes())
        assert hashlib.sha256(data).hexdigest() == fashion_mnist.SHA256[name]


@pytest.mark.parametrize("plain", [TRAIN_IMAGES, TEST_LABELS])
def test_idx_files_may_be_plain_or_gzipped(
    folder: Path, contents: dict[str, bytes], plain: str
) -> None:
    gzipped = load_dataset("fashion_mnist", folder)
    assert gzipped.image_shape == (1, 32, 32)
    (folder / f"{plain}.gz").unlink()
    (folder / plain).write_bytes(contents[plain])
    assert load_dataset("fashion_mnist", folder).fingerprint == gzipped.fingerprint


@pytest.mark.parametrize(
    ("name", "edit", "message"),
    [
        (TRAIN_IMAGES, lambda d: b"\1" + d[1:], "magic number 0x01000803; expected 0x00000803"),
        (TRAIN_IMAGES, lambda d: d[:2] + b"\x0d" + d[3:], "expected 0x00000803"),
        (TRAIN_LABELS, lambda d: b"", "magic number 0x; expected 0x00000801"),
        (TRAIN_LABELS, lambda d: d[:6], "6 bytes; expected a header of 8 bytes"),
        (TRAIN_IMAGES, lambda d: d[: len(d) // 2], "values; expected 18816 .24 x 28 x 28"),
        (TEST_IMAGES, lambda d: d + b"\0", "more than 3920 values; expected 3920"),
        (TEST_LABELS, lambda d: idx_bytes(np.zeros(4, np.uint8)), "4 labels; expected 5"),
        (TEST_LABELS, lambda d: d[:-1] + b"\x0a", "label 10; expected labels from 0 to 9"),
        (TEST_IMAGES, lambda d: idx_bytes(np.ones((5, 8, 8), np.uint8)), "images of .8, 8."),
        (TRAIN_IMAGES, lambda d: d[:16] + bytes(len(d) - 16), "all pixels 0; expected an image"),
    ],
)
def test_a_damaged_file_is_named(
    folder: Path, contents: dict[str, bytes], name: str, edit: Any, message: str
) -> None:
    (folder / f"{name}.gz").write_bytes(gzip.compress(edit(contents[name])))
    with pytest.raises(InputError, match=message) as caught:
        load_dataset("fashion_mnist", folder)
    assert "\n" not in str(caught.value)
    assert name in str(caught.value) or "all pixels" in message


@pytest.mark.parametrize("keep", [0.02, 0.5, 0.999])
def test_a_cut_gzip_file_is_named(folder: Path, keep: float) -> None:
    path = folder / f"{TRAIN_IMAGES}.gz"
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(InputError, match=rf"{TRAIN_IMAGES}\.gz: damaged gzip file"):
        read_idx(path, 3)


def test_a_missing_folder_or_file_is_named(folder: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere: no such folder; expected one with train-im"):
        load_dataset("fashion_mnist", folder / "nowhere")
    (folder / f"{TEST_LABELS}.gz").unlink()
    with pytest.raises(InputError, match=rf"no file {TEST_LABELS} or {TEST_LABELS}\.gz"):
        load_dataset("fashion_mnist", folder)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mnist", {}, r"'mnist'; expected one of digits, digits32, fashion_mnist, sums$"),
        ("digits", {"folder": Path("/tmp")}, "folder: /tmp; expected none"),
        ("digits", {"pad": -1}, "pad: -1; expected a number of pixels"),
        ("digits", {"pad": True}, "pad: True; expected a number of pixels"),
    ],
)
def test_a_wrong_request_is_answered(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_dataset(name, **options)


def small(**changes: Any) -> Dataset:
    images = np.ones((6, 1, 2, 3), np.float32)
    fields = {"name": "own", "inputs": (images,), "labels": np.arange(6) % 3, "train_count": 4}
    return Dataset(**{**fields, "validation_count": 2, "classes": 3, **changes})


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_in_the_data_is_found(bad: float) -> None:
    images = np.ones((6, 1, 2, 3), np.float32)
    images[4, 0, 1, 2] = bad
    with pytest.raises(
        InputError, match=rf"data set own, inputs\[0\]\[4, 0, 1, 2\]: {bad}; expected"
    ):
        small(inputs=(images,))
    check_finite("fine", np.ones(3))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inputs": (np.ones((5, 2, 3), np.float32),)}, r"inputs.0.: float32 .5, 2, 3.; expected"),
        ({"inputs": (np.ones((6, 1, 2, 3)),)}, r"inputs.0.: float64"),
        ({"labels": np.arange(5) % 3}, r"inputs.0.: float32 .6, 1, 2, 3.; expected .* .5, "),
        ({"labels": np.arange(6.0)}, "labels: float64 .6.; expected int64 classes or float32"),
        ({"labels": [0, 1, 2, 0, 1, 2]}, "labels: a list; expected a numpy array"),
        ({"inputs": ([[1.0]] * 6,)}, r"inputs.0.: a list; expected a numpy array"),
        ({"labels": np.full(6, -100)}, "labels: none that counts; expected 0 to 2"),
        ({"labels": np.arange(6)}, "labels: 0 to 5; expected 0 to 2"),
        ({"train_count": 5}, "train_count . validation_count: 7; expected at most 6"),
        ({"train_count": 0}, "train_count: 0; expected a positive integer"),
    ],
)
def test_a_data_set_that_does_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        small(**changes)


def test_the_fingerprint_sees_every_part() -> None:
    images = np.ones((6, 1, 2, 3), np.float32)
    images[5, 0, 1, 2] = 2.0
    others = [
        small(inputs=(images,)),
        small(labels=np.array([0, 1, 2, 0, 1, 1])),
        small(train_count=3),
        small(inputs=(np.ones((6, 1, 3, 2), np.float32),)),
    ]
    assert len({small().fingerprint, *(other.fingerprint for other in others)}) == 5
    assert small(name="other").fingerprint == small().fingerprint


def test_batches_are_shuffled_epochs_of_the_training_part() -> None:
    dataset = load_dataset("digits")
    indices = batches(dataset, 64, 50, np.random.default_rng(1))
    assert indices.shape == (50, 64)
    assert indices.dtype == np.int64
    # 1437 images make 22 whole batches: no image comes twice within an epoch.
    first, second = indices[:22].ravel(), indices[22:44].ravel()
    assert len(set(first.tolist())) == len(set(second.tolist())) == 22 * 64
    assert not np.array_equal(first, second)
    assert indices.max() < dataset.train_count
    assert np.array_equal(indices, batches(dataset, 64, 50, np.random.default_rng(1)))
    assert np.array_equal(indices[:7], batches(dataset, 64, 7, np.random.default_rng(1)))


@pytest.mark.parametrize(("size", "steps"), [(0, 1), (1438, 1), (64, 0)])
def test_batches_that_cannot_be_are_refused(size: int, steps: int) -> None:
    with pytest.raises(InputError, match="expected"):
        batches(load_dataset("digits"), size, steps, np.random.default_rng(0))


def test_the_page_has_the_numbers_of_the_data_sets() -> None:
    page = (Path(__file__).parents[1] / "docs" / "data.md").read_text(encoding="utf-8")
    words = " ".join(page.split())
    for name in ("digits", "digits32", "sums"):
        data = load_dataset(name)
        counts = len(data.labels), data.train_count, data.validation_count
        row = next(line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
        assert f"{counts[1]:,} / {counts[2]:,} / {counts[0] - counts[1] - counts[2]:,}" in row
    digits = load_dataset("digits")
    assert f"{digits.mean:.6f} and {digits.std:.6f} for the digits" in words
    path = Path(datasets.__file__).with_name("digits.npz")
    with np.load(path) as held:
        told = hashlib.sha256(held["images"].tobytes() + held["labels"].tobytes()).hexdigest()
    assert f"`{told}`" in page
