"""leakscope's compact format: one .npz with x_train, y_train, x_test, y_test, class_names, and no pickle."""

from __future__ import annotations

import struct
import tokenize
import zipfile
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from leakscope.core.errors import InputError
from leakscope.data.dataset import Array, Dataset
from leakscope.data.encoding import Encoding, Number
from leakscope.data.files import one_line

GROUP_KEYS = ("group", "writer", "photo")
_MOST_CLASSES = 1 << 16
_BROKEN = (
    OSError, EOFError, ValueError, KeyError, TypeError, SyntaxError, NotImplementedError, RuntimeError, MemoryError,
    OverflowError, IndexError, zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError,
)  # fmt: skip


def read_npz(path: Path | str, *, name: str | None = None) -> Dataset:
    """Return the data set in an .npz: uint8 images N x H x W or N x H x W x C, or a float table N x F.

    A table is min-max scaled over both parts. One part may be absent. `class_names` and `feature_names` are optional; `group_*`,
    `writer_*` or `photo_*` become the groups.
    """
    path = Path(path)
    arrays = _arrays(path)
    given = [part for part in ("train", "test") if f"x_{part}" in arrays]
    if not given:
        has = ", ".join(sorted(arrays)) or "none"
        raise InputError(f"{path}: needs the arrays x_train, y_train, x_test, y_test; has {has}")
    lacking = [f"y_{part}" for part in given if f"y_{part}" not in arrays]
    if lacking:
        raise InputError(f"{path}: the array {lacking[0]} is missing")
    x = {part: arrays[f"x_{part}"] for part in given}
    y = {part: arrays[f"y_{part}"] for part in given}
    table = any(values.ndim == 2 for values in x.values())
    encoding = _encoding(path, x, arrays.get("feature_names")) if table else None
    inputs = {part: _scaled(v, encoding) if encoding else _channel_first(path, part, v) for part, v in x.items()}
    empty = next(iter(inputs.values()))[:0]
    nothing = np.zeros(0, np.int64)
    groups = {part: arrays[f"{key}_{part}"] for part in given for key in GROUP_KEYS if f"{key}_{part}" in arrays}
    return Dataset(
        name=name or path.stem,
        kind="table" if table else "image",
        x_train=inputs.get("train", empty),
        y_train=y.get("train", nothing),
        x_test=inputs.get("test", empty),
        y_test=y.get("test", nothing),
        class_names=_class_names(path, arrays.get("class_names"), list(y.values())),
        groups_train=groups.get("train"),
        groups_test=groups.get("test"),
        encoding=encoding,
        source=str(path),
    )


def sizes(path: Path) -> tuple[int, int]:
    """Return the number of train and test examples in an .npz, reading only the labels."""
    arrays = _arrays(path, only=("y_train", "y_test"))
    train, test = (arrays.get(name, np.zeros(0)).size for name in ("y_train", "y_test"))
    return train, test


def _arrays(path: Path, only: tuple[str, ...] | None = None) -> dict[str, Array]:
    """Return the arrays of an .npz, all or those named; numpy rejects objects (pickles)."""
    if not path.is_file():
        raise InputError(f"{path}: {'a file is needed, this is a directory' if path.is_dir() else 'no such file'}")
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise InputError(f"{path}: is a single array, an .npz of named arrays is needed")
        with archive:
            return {key: archive[key] for key in archive if only is None or key in only}
    except InputError:
        raise
    except _BROKEN as error:
        raise InputError(f"{path}: is not a sound .npz file: {one_line(error)}") from error


def _channel_first(path: Path, part: str, x: Array) -> Array:
    """Return N x C x H x W for images stored N x H x W or N x H x W x C."""
    if x.ndim == 3:
        return x[:, None]
    if x.ndim == 4 and x.shape[3] in (1, 3):
        return np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    raise InputError(f"{path}: x_{part} must be N x H x W, N x H x W x 3 or a table N x F, got shape {x.shape}")


def _encoding(path: Path, x: dict[str, Array], names: Array | None) -> Encoding:
    """Return the min-max encoding of a table, over both parts together."""
    if {values.ndim for values in x.values()} != {2} or len({values.shape[1] for values in x.values()}) != 1:
        raise InputError(f"{path}: tables must be N x F, got shapes {', '.join(str(v.shape) for v in x.values())}")
    if any(values.dtype.kind not in "fiu" for values in x.values()):
        raise InputError(f"{path}: tables must hold numbers, got {', '.join(str(v.dtype) for v in x.values())}")
    rows = np.concatenate(list(x.values())).astype(np.float64)
    if not rows.size:
        raise InputError(f"{path}: the table is empty")
    if not np.isfinite(rows).all():
        column = int(np.argwhere(~np.isfinite(rows))[0][1])
        raise InputError(f"{path}: the table must be finite, column {column} is not")
    titles = [str(i) for i in range(rows.shape[1])] if names is None else [str(n) for n in names.ravel()]
    if len(titles) != rows.shape[1] or len(set(titles)) != len(titles):
        raise InputError(f"{path}: feature_names must be {rows.shape[1]} different names, got {len(titles)}")
    bounds = zip(titles, rows.min(0).tolist(), rows.max(0).tolist(), strict=True)
    return Encoding(tuple(Number(title, low, high) for title, low, high in bounds))


def _scaled(x: Array, encoding: Encoding) -> npt.NDArray[np.float32]:
    numbers = [column for column in encoding.columns if isinstance(column, Number)]
    low = np.array([column.low for column in numbers])
    span = np.array([column.high - column.low or 1.0 for column in numbers])
    return np.asarray((x - low) / span, dtype=np.float32)


def _class_names(path: Path, names: Array | None, labels: list[Array]) -> tuple[str, ...]:
    """Return the stored names, or the numbers up to the largest label."""
    if names is not None:
        if names.ndim != 1 or names.dtype.kind != "U":
            raise InputError(f"{path}: class_names must be a list of words, got {names.dtype} of shape {names.shape}")
        return tuple(str(n) for n in names)
    largest = max((int(y.max()) for y in labels if y.size and y.dtype.kind in "iu"), default=-1)
    if largest >= _MOST_CLASSES:
        raise InputError(f"{path}: labels must be under {_MOST_CLASSES} where class_names is absent, got {largest}")
    return tuple(str(i) for i in range(largest + 1))
