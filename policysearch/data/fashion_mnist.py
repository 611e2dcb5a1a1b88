"""Where the four Fashion-MNIST files come from: a folder, Debian's package, or a download."""

from __future__ import annotations

import http.client
import os
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from policysearch.data.idx import read_idx, sha256_of
from policysearch.values import InputError

DOWNLOAD_URL = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion"
DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
DOWNLOAD_TIMEOUT_SECONDS = 60.0

# Of the decompressed contents: the same data has been gzipped in more than one way.
SHA256: Mapping[str, str] = MappingProxyType(
    {
        "train-images-idx3-ubyte": (
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"
        ),
        "train-labels-idx1-ubyte": (
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"
        ),
        "t10k-images-idx3-ubyte": (
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"
        ),
        "t10k-labels-idx1-ubyte": (
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"
        ),
    }
)


def cache_folder() -> Path:
    """Return the user's cache folder for downloaded Fashion-MNIST files (not created here)."""
    base = os.environ.get("XDG_CACHE_HOME")
    root = Path(base) if base else Path.home() / ".cache"
    return root / "policysearch" / "fashion-mnist"


def find_files(folder: Path) -> dict[str, Path]:
    """Return the path of each of the four files in `folder`, plain or with `.gz`, by plain name.

    Raises InputError naming the folder or the first file that is missing.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; expected one with {', '.join(SHA256)} [.gz]")
    found = {}
    for name in SHA256:
        paths = [path for path in (folder / name, folder / f"{name}.gz") if path.is_file()]
        if not paths:
            raise InputError(f"{folder}: no file {name} or {name}.gz; expected all four IDX files")
        found[name] = paths[0]
    return found


def installed_files() -> dict[str, Path] | None:
    """Return the four files of Debian's dataset-fashion-mnist or of the cache; None without.

    Cached files count only if their contents have the published SHA-256.
    """
    if DEBIAN_FOLDER.is_dir():
        return find_files(DEBIAN_FOLDER)
    cached = {name: cache_folder() / f"{name}.gz" for name in SHA256}
    return cached if all(_intact(path, SHA256[name]) for name, path in cached.items()) else None


def download(
    cache: Path, url: str = DOWNLOAD_URL, sha256: Mapping[str, str] = SHA256
) -> dict[str, Path]:
    """Return the files named by `sha256` in `cache`, fetched from `url` unless intact there.

    Contents (decompressed) that do not have their SHA-256 raise InputError and are not kept.
    """
    files = {}
    for name, digest in sha256.items():
        path = cache / f"{name}.gz"
        if not _intact(path, digest):
            _fetch(f"{url}/{name}.gz", path, digest)
        files[name] = path
    return files


def read_fashion_mnist(
    folder: Path | None,
) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8]]:
    """Return training images [n, 28, 28] and labels [n], test images and labels, as stored.

    Read from `folder` if given, else from Debian's package, else from the cache, downloading
    first if needed. Raises InputError for a missing, damaged or inconsistent file.
    """
    files = find_files(folder) if folder else installed_files() or download(cache_folder())
    arrays = [read_idx(files[name], 3 if "images" in name else 1) for name in SHA256]
    train_images, train_labels, test_images, test_labels = arrays
    for images, labels, part in (
        (train_images, train_labels, "train"),
        (test_images, test_labels, "t10k"),
    ):
        path = files[f"{part}-labels-idx1-ubyte"]
        if len(images) != len(labels):
            raise InputError(f"{path}: {len(labels)} labels; expected {len(images)}, one per image")
        if len(labels) and labels.max() > 9:
            raise InputError(f"{path}: label {labels.max()}; expected labels from 0 to 9")
    if train_images.shape[1:] != test_images.shape[1:]:
        raise InputError(
            f"{files['t10k-images-idx3-ubyte']}: images of {test_images.shape[1:]}; "
            f"expected {train_images.shape[1:]}, as the training images"
        )
    return train_images, train_labels, test_images, test_labels


def _intact(path: Path, sha256: str) -> bool:
    if not path.is_file():
        return False
    try:
        return sha256_of(path) == sha256
    except InputError:
        return False


def _fetch(url: str, path: Path, sha256: str) -> None:
    try:
        with urllib.request.urlopen(url, timeout=DOWNLOAD_TIMEOUT_SECONDS) as response:
            data = response.read()
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise InputError(
            f"{url}: cannot download ({reason}); expected a network, Debian's package "
            f"dataset-fashion-mnist, or a folder with the four IDX files"
        ) from None
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        temporary = Path(name)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        if not _intact(temporary, sha256):
            raise InputError(f"{url}: other contents than published; expected SHA-256 {sha256}")
        temporary.replace(path)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; expected a writable cache folder") from None
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
