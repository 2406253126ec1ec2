"""FEMNIST (Caldas et al. 2018): letters by writer, from LEAF's JSON or from the parquet files of the hubs.

LEAF writes `{"users": [...], "num_samples": [...], "user_data": {writer: {"x": [784 floats in [0, 1]], "y": [class]}}}`. The hubs'
parquet has a row an image: `image` (PNG bytes), `writer_id`, `hsf_id`, `character`. Both count the classes 0-9, A-Z, a-z and draw dark
ink on white. Groups are the writers.
"""

from __future__ import annotations

import io
import json
import string
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np

from leakscope.core.errors import InputError
from leakscope.data.dataset import Array, Dataset, Part
from leakscope.data.files import one_line, opened

SIDE, TENTH = 28, 10
CLASS_NAMES = (*string.digits, *string.ascii_uppercase, *string.ascii_lowercase)
COLUMNS = ("image", "writer_id", "character")
Examples = tuple[Array, Array, list[str]]  # images N x 28 x 28, labels, writers


def read_femnist(path: Path | str) -> Dataset:
    """Return FEMNIST from a .json or .parquet file or a folder of such files; in the order of the files, groups are the writers.

    A file belongs to the test part if its name begins with `test` or it lies in a folder `test`. If no file does, every tenth
    image of each writer is the test part (LEAF's share).
    """
    path = Path(path)
    files = _files(path)
    parts: dict[Part, list[Examples]] = {"train": [], "test": []}
    for file in files:
        read = _read_json if file.suffix == ".json" else _read_parquet
        test = "test" in file.relative_to(path.parent).parts[1:-1] or file.name.startswith("test")
        parts["test" if test else "train"].append(read(file))
    train, test_part = _joined(parts["train"]), _joined(parts["test"])
    if not len(test_part[1]):
        train, test_part = _every_tenth(train)
    number = {writer: i for i, writer in enumerate(sorted({*train[2], *test_part[2]}))}
    return Dataset(
        name="femnist",
        kind="image",
        x_train=train[0][:, None],
        y_train=train[1],
        x_test=test_part[0][:, None],
        y_test=test_part[1],
        class_names=CLASS_NAMES,
        groups_train=np.array([number[writer] for writer in train[2]], np.int64),
        groups_test=np.array([number[writer] for writer in test_part[2]], np.int64),
        source=str(path),
    )


def write_leaf(data: Dataset, folder: Path | str) -> None:
    """Write a data set with writers as LEAF's JSON: `folder`/train/train.json and `folder`/test/test.json."""
    for part, x, y, writers in _by_part(data):
        users = list(dict.fromkeys(writers))
        places = {user: [i for i, writer in enumerate(writers) if writer == user] for user in users}
        user_data = {
            user: {"x": (x[at].reshape(len(at), -1) / 255).tolist(), "y": y[at].tolist()} for user, at in places.items()
        }
        content = {"users": users, "num_samples": [len(at) for at in places.values()], "user_data": user_data}
        file = Path(folder) / part / f"{part}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(content), "utf-8")


def write_femnist_parquet(data: Dataset, folder: Path | str) -> None:
    """Write a data set with writers as the hubs' parquet: `folder`/train-00000-of-00001.parquet and `folder`/test-...; needs pyarrow."""
    arrow, parquet = _pyarrow()
    from PIL import Image

    Path(folder).mkdir(parents=True, exist_ok=True)
    for part, x, y, writers in _by_part(data):
        images = []
        for picture in x:
            png = io.BytesIO()
            Image.fromarray(picture).save(png, "PNG")
            images.append({"bytes": png.getvalue(), "path": None})
        columns = {"image": images, "writer_id": writers, "hsf_id": [0] * len(y), "character": y.tolist()}
        parquet.write_table(arrow.table(columns), Path(folder) / f"{part}-00000-of-00001.parquet")


def _by_part(data: Dataset) -> Iterator[tuple[Part, Array, Array, list[str]]]:
    """Yield each part that has examples: its name, images N x H x W, labels and writers."""
    parts: tuple[Part, ...] = ("train", "test")
    for part in parts:
        x, y, groups = (getattr(data, f"{field}_{part}") for field in ("x", "y", "groups"))
        if len(y):
            if groups is None or x.shape[1:] != (1, SIDE, SIDE):
                raise InputError(f"FEMNIST's files need writers and images 1 x {SIDE} x {SIDE}; {data.name} has others")
            yield part, x[:, 0], y, [f"f{group:04}" for group in groups]


def _files(path: Path) -> list[Path]:
    """Return the files of a copy, JSON before parquet; a folder is searched to any depth."""
    if not path.exists():
        raise InputError(f"{path}: no such file or directory")
    for suffix in (".json", ".parquet"):
        files = sorted(path.rglob(f"*{suffix}")) if path.is_dir() else [path] * (path.suffix == suffix)
        if files:
            return files
    raise InputError(f"{path}: FEMNIST must be a .json or .parquet file, or a folder with such files")


def _read_json(path: Path) -> Examples:
    with opened(path) as stream:
        body = stream.read()
    try:
        user_data = json.loads(body)["user_data"]
        each = [(writer, user_data[writer]["x"], user_data[writer]["y"]) for writer in user_data]
        return _joined([_leaf_images(path, writer, x, y) for writer, x, y in each])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: is no JSON of LEAF's FEMNIST: {one_line(error)}") from error


def _leaf_images(path: Path, writer: str, x: object, y: object) -> Examples:
    pixels, labels = np.asarray(x, np.float64), np.asarray(y, np.int64)
    if pixels.shape != (len(labels), SIDE * SIDE) or not (pixels.size and pixels.min() >= 0 and pixels.max() <= 1):
        raise InputError(
            f"{path}: the images of {writer} must be {SIDE * SIDE} numbers in [0, 1] each, one for each label"
        )
    return (255 * pixels).round().astype(np.uint8).reshape(-1, SIDE, SIDE), labels, [str(writer)] * len(labels)


def _read_parquet(path: Path) -> Examples:
    _, parquet = _pyarrow()
    try:
        columns = parquet.read_table(path, columns=list(COLUMNS)).to_pydict()
        images, writers, labels = (columns[name] for name in COLUMNS)
        x = np.stack([_png(image["bytes"]) for image in images]) if images else np.zeros((0, SIDE, SIDE), np.uint8)
        return x, np.asarray(labels, np.int64), [str(writer) for writer in writers]
    except Exception as error:  # pyarrow and Pillow raise many types on a broken file
        raise InputError(f"{path}: is no parquet of FEMNIST with {', '.join(COLUMNS)}: {one_line(error)}") from error


def _png(body: bytes) -> Array:
    from PIL import Image

    with Image.open(io.BytesIO(body)) as picture:
        if picture.size != (SIDE, SIDE):
            raise InputError(f"an image must be {SIDE} x {SIDE}, got {picture.size}")
        return np.array(picture.convert("L"), np.uint8)


def _joined(parts: list[Examples]) -> Examples:
    nothing = (np.zeros((0, SIDE, SIDE), np.uint8), np.zeros(0, np.int64))
    x, y = (np.concatenate([nothing[i], *(part[i] for part in parts)]) for i in (0, 1))
    return x, y, [writer for part in parts for writer in part[2]]


def _every_tenth(examples: Examples) -> tuple[Examples, Examples]:
    """Return the images without every tenth of each writer, and those."""
    x, y, writers = examples
    count: Counter[str] = Counter()
    test = np.zeros(len(y), np.bool_)
    for i, writer in enumerate(writers):
        count[writer] += 1
        test[i] = count[writer] % TENTH == 0
    halves = [(x[at], y[at], [writers[i] for i in np.flatnonzero(at)]) for at in (~test, test)]
    return halves[0], halves[1]


def _pyarrow() -> tuple[ModuleType, ModuleType]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InputError('FEMNIST in parquet needs pyarrow: pip install "leakscope[export]"') from None
    return pyarrow, pyarrow.parquet
