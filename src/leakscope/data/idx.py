"""The IDX format of MNIST (LeCun, Cortes, Burges): magic number 00 00 TT DD, DD sizes of four bytes, values; big-endian; plain or gzip."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np

from leakscope.core.errors import InputError
from leakscope.data.dataset import Array, Dataset, image_set
from leakscope.data.files import directory, opened, read_up_to

TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}  # by TT
_LARGEST = 1 << 33


def read_idx(path: Path | str) -> Array:
    """Return the array in one IDX file, in native byte order."""
    path = Path(path)
    with opened(path) as stream:
        magic = read_up_to(stream, 4)
        if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in TYPES or not magic[3]:
            raise InputError(f"{path}: is not an IDX file: must start with 00 00, a type and the number of dimensions")
        sizes = read_up_to(stream, 4 * magic[3])
        if len(sizes) < 4 * magic[3]:
            raise InputError(f"{path}: ends inside the IDX header")
        shape = struct.unpack(f">{magic[3]}I", sizes)
        dtype = np.dtype(TYPES[magic[2]])
        expected = math.prod(shape) * dtype.itemsize
        if magic[3] > 32 or expected > _LARGEST:
            raise InputError(f"{path}: the IDX header announces an impossible shape of {expected} bytes")
        body = read_up_to(stream, expected + 1)
    if len(body) != expected:
        size = "more" if len(body) > expected else str(len(body))
        raise InputError(f"{path}: must hold {expected} bytes of values for shape {shape}, has {size}")
    return np.frombuffer(body, dtype).reshape(shape).astype(dtype.newbyteorder("="))


def read_idx_folder(
    path: Path | str, *, name: str | None = None, class_names: tuple[str, ...] = tuple("0123456789")
) -> Dataset:
    """Return the data set in a folder with the four usual files (train and t10k, images and labels)."""
    path = directory(Path(path))
    parts = {}
    for part in ("train", "t10k"):
        images = _usual_file(path, f"{part}-images", "idx3-ubyte")
        labels = _usual_file(path, f"{part}-labels", "idx1-ubyte")
        x, y = read_idx(images), read_idx(labels)
        if x.ndim != 3 or x.dtype != np.uint8:
            raise InputError(f"{images}: pictures must be uint8 of shape N x H x W, got {x.dtype} of shape {x.shape}")
        if y.shape != (len(x),) or y.dtype != np.uint8:
            raise InputError(f"{labels}: labels must be uint8, one for each of {len(x)} pictures, got shape {y.shape}")
        parts[part] = x[:, None], y
    return image_set(name or path.resolve().name, parts["train"], parts["t10k"], class_names, str(path))


def _usual_file(folder: Path, stem: str, ending: str) -> Path:
    """Return the path of one of the usual files: with a hyphen or a dot before the ending, plain or .gz."""
    for candidate in (f"{stem}{joint}{ending}{suffix}" for joint in "-." for suffix in (".gz", "")):
        if (folder / candidate).is_file():
            return folder / candidate
    raise InputError(f"{folder}: the file {stem}-{ending}.gz (or unpacked) is missing")
