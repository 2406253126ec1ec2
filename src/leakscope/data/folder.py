"""A folder of images: one subfolder a class, or all images in one folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from leakscope.core.errors import InputError
from leakscope.data.dataset import Array, Dataset, image_set
from leakscope.data.files import directory
from leakscope.data.picture import check_shape, read_picture

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})


def read_folder(path: Path | str, *, shape: tuple[int, int, int], name: str | None = None) -> Dataset:
    """Return the images of a folder, in sorted order, cropped and resized to `shape` (C, H, W); C is 1 or 3.

    Subfolders are classes; images without subfolders form one class named after the folder. If the only subfolders are `train`
    and `test`, they are the two parts; else every image is a training image.
    """
    path = Path(path)
    check_shape(shape)
    title = path.resolve().name
    folders = _subfolders(directory(path))
    parts = {f.name: f for f in folders} if {f.name for f in folders} == {"train", "test"} else {"train": path}
    files = {part: _classes(folder, title) for part, folder in parts.items()}
    class_names = tuple(sorted({name for by_class in files.values() for name in by_class}))
    train, test = (_stack(files.get(part, {}), class_names, shape) for part in ("train", "test"))
    return image_set(name or title, train, test, class_names, str(path))


def _subfolders(path: Path) -> list[Path]:
    return sorted(item for item in path.iterdir() if item.is_dir() and not item.name.startswith("."))


def _pictures(path: Path) -> list[Path]:
    return sorted(
        item for item in path.iterdir()
        if item.is_file() and item.suffix.lower() in SUFFIXES and not item.name.startswith(".")
    )  # fmt: skip


def _classes(path: Path, title: str) -> dict[str, list[Path]]:
    """Return the images of each class of one part, those without a subfolder under `title`; other files are ignored."""
    folders, loose = _subfolders(path), _pictures(path)
    if folders and loose:
        raise InputError(f"{path}: must hold loose pictures or one subfolder a class, not both ({loose[0].name})")
    by_class = {folder.name: _pictures(folder) for folder in folders} if folders else {title: loose}
    for label, pictures in by_class.items():
        if not pictures:
            where = path / label if folders else path
            raise InputError(f"{where}: holds no pictures ({', '.join(sorted(SUFFIXES))})")
    return by_class


def _stack(by_class: dict[str, list[Path]], names: tuple[str, ...], shape: tuple[int, int, int]) -> tuple[Array, Array]:
    """Return the images N x C x H x W and their labels, class after class."""
    files = [(file, names.index(label)) for label, pictures in sorted(by_class.items()) for file in pictures]
    x = np.zeros((len(files), *shape), np.uint8)
    for i, (file, _) in enumerate(files):
        x[i] = read_picture(file, shape)
    return x, np.array([label for _, label in files], dtype=np.int64)
