"""The IDX file format of MNIST and its successors, plain or gzipped."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from policysearch.values import InputError

_UNSIGNED_BYTE = 0x08
_GZIP_MAGIC = b"\x1f\x8b"


def read_bytes(path: Path) -> bytes:
    """Return the contents of `path`, decompressed if they are gzipped (whatever the file's name).

    Raises InputError for a file that is missing, unreadable, or a damaged or cut gzip stream.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; expected a readable IDX file") from None
    if not data.startswith(_GZIP_MAGIC):
        return data
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: damaged gzip file ({error}); expected a whole one") from None


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Return the unsigned-byte array of `dimensions` axes stored in the IDX file `path`.

    The layout is two zero bytes, the type code, the number of axes, each axis as a big-endian
    32-bit count, then the values in C order (http://yann.lecun.com/exdb/mnist, "The IDX file
    format"). Raises InputError for a wrong magic number, type or size.
    """
    data = read_bytes(path)
    magic = bytes([0, 0, _UNSIGNED_BYTE, dimensions])
    if data[:4] != magic:
        raise InputError(
            f"{path}: magic number 0x{data[:4].hex()}; expected 0x{magic.hex()} "
            f"(unsigned bytes, {dimensions} axes)"
        )
    start = 4 + 4 * dimensions
    if len(data) < start:
        raise InputError(f"{path}: {len(data)} bytes; expected a header of {start} bytes")
    shape = struct.unpack(f">{dimensions}I", data[4:start])
    if len(data) - start != math.prod(shape):
        raise InputError(
            f"{path}: {len(data) - start} values; expected {math.prod(shape)} "
            f"({' x '.join(map(str, shape))}, as its header says)"
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)
