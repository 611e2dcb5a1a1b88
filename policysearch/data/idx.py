"""The IDX file format of MNIST and its successors, plain or gzipped."""

from __future__ import annotations

import gzip
import hashlib
import math
import struct
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from policysearch.values import InputError

_UNSIGNED_BYTE = 0x08
_GZIP_MAGIC = b"\x1f\x8b"
_PART_BYTES = 2**20
_MOST_VALUES = 2**30


def open_bytes(path: Path) -> gzip.GzipFile | BinaryIO:
    """Return `path` opened for reading, decompressed if it is gzipped (whatever its name).

    Raises InputError for a file that is missing or unreadable.
    """
    try:
        with path.open("rb") as file:
            gzipped = file.read(2) == _GZIP_MAGIC
        return gzip.open(path, "rb") if gzipped else path.open("rb")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; expected a readable IDX file") from None


def read_bytes(file: gzip.GzipFile | BinaryIO, count: int, path: Path) -> bytes:
    """Return at most `count` bytes of `file`, the opened `path`; InputError if it is damaged."""
    try:
        return file.read(count)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: damaged gzip file ({error}); expected a whole one") from None


def sha256_of(path: Path) -> str:
    """Return the SHA-256 in hex of what `path` holds, decompressed; InputError as `open_bytes`."""
    digest = hashlib.sha256()
    with open_bytes(path) as file:
        while part := read_bytes(file, _PART_BYTES, path):
            digest.update(part)
    return digest.hexdigest()


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Return the unsigned-byte array of `dimensions` axes stored in the IDX file `path`.

    The layout is two zero bytes, the type code, the number of axes, each axis as a big-endian
    32-bit count, then the values in C order (http://yann.lecun.com/exdb/mnist, "The IDX file
    format"). Raises InputError for a wrong magic number, type or size. No more is read than the
    header announces, so a small file that decompresses to a huge one does no harm.
    """
    magic = bytes([0, 0, _UNSIGNED_BYTE, dimensions])
    start = 4 + 4 * dimensions
    with open_bytes(path) as file:
        head = read_bytes(file, start, path)
        if head[:4] != magic:
            raise InputError(
                f"{path}: magic number 0x{head[:4].hex()}; expected 0x{magic.hex()} "
                f"(unsigned bytes, {dimensions} axes)"
            )
        if len(head) < start:
            raise InputError(f"{path}: {len(head)} bytes; expected a header of {start} bytes")
        shape = struct.unpack(f">{dimensions}I", head[4:])
        data = _values(file, shape, path)
    return np.frombuffer(data, np.uint8).reshape(shape)


def _values(file: gzip.GzipFile | BinaryIO, shape: tuple[int, ...], path: Path) -> bytes:
    size = math.prod(shape)
    said = f"({' x '.join(map(str, shape))}, as its header says)"
    if size > _MOST_VALUES:
        raise InputError(f"{path}: {size} values {said}; expected at most {_MOST_VALUES}")
    data = read_bytes(file, size + 1, path)
    if len(data) != size:
        given = f"more than {size}" if len(data) > size else len(data)
        raise InputError(f"{path}: {given} values; expected {size} {said}")
    return data
