"""The binary version of CIFAR-10 and CIFAR-100 (Krizhevsky 2009), unpacked or from the official .tar.gz.

A record is one label byte (CIFAR-100: coarse, then fine) and 3 x 32 x 32 bytes, channel first. The python version is rejected: it
is a pickle, which runs code when read.
"""

from __future__ import annotations

import tarfile
from pathlib import Path, PurePosixPath

import numpy as np

from leakscope.core.errors import InputError
from leakscope.data.dataset import Array, Dataset, image_set
from leakscope.data.files import directory, one_line, opened, read_up_to

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_FINE = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
wardrobe whale willow_tree wolf woman worm
"""
CIFAR100 = tuple(_FINE.split())
_PYTHON_NAMES = {"data_batch_1", "test_batch", "batches.meta", "train", "test", "meta"}
Files = dict[str, tuple[int, int]]  # file name -> records it must hold, bytes before the pixels of a record


def read_cifar10(path: Path | str, *, batch: int = 10_000, name: str = "cifar10") -> Dataset:
    """Return CIFAR-10 from a folder or .tar.gz with data_batch_1.bin .. data_batch_5.bin and test_batch.bin, `batch` records each."""
    train = [f"data_batch_{i}.bin" for i in range(1, 6)]
    path = Path(path)
    records = _contents(path, dict.fromkeys([*train, "test_batch.bin"], (batch, 1)))
    joined = np.concatenate([records[file] for file in train])
    return image_set(name, _pictures(joined), _pictures(records["test_batch.bin"]), CIFAR10, str(path))


def read_cifar100(path: Path | str, *, batch: int = 10_000, name: str = "cifar100") -> Dataset:
    """Return CIFAR-100 with its 100 fine labels from a folder or .tar.gz with train.bin (5 `batch` records) and test.bin (`batch`)."""
    path = Path(path)
    records = _contents(path, {"train.bin": (5 * batch, 2), "test.bin": (batch, 2)})
    return image_set(name, _pictures(records["train.bin"]), _pictures(records["test.bin"]), CIFAR100, str(path))


def _pictures(records: Array) -> tuple[Array, Array]:
    """Return the pictures and labels of records; the label is the byte before the pixels."""
    return records[:, -PIXELS:].reshape(-1, *SHAPE), records[:, -PIXELS - 1]


def _contents(path: Path, files: Files) -> dict[str, Array]:
    """Return the records of each named file, from a folder or an archive."""
    if path.is_file():
        return _from_archive(path, files)
    present = {item.name for item in directory(path).iterdir()}
    _refuse_python(path, present, files)
    records = {}
    for name, form in files.items():
        with opened(path / name) as stream:
            records[name] = _records(f"{path / name}", read_up_to(stream, _length(form) + 1), form)
    return records


def _from_archive(path: Path, files: Files) -> dict[str, Array]:
    """Return the records of each named member, without unpacking to disk; other members are ignored."""
    records: dict[str, Array] = {}
    seen = set()
    try:
        with opened(path) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                name = _safe_name(member)
                seen.add(name)
                if name not in files:
                    continue
                if name in records:
                    raise InputError(f"{path}: holds the member {name} twice")
                content = archive.extractfile(member)
                body = read_up_to(content, _length(files[name]) + 1) if content else b""
                records[name] = _records(f"{path}: {name}", body, files[name])
            while stream.read(1 << 20):  # to the end, so that gzip checks its checksum
                pass
    except tarfile.TarError as error:
        raise InputError(f"{path}: is not a sound .tar.gz archive: {one_line(error)}") from error
    _refuse_python(path, seen, files)
    missing = [name for name in files if name not in records]
    if missing:
        raise InputError(f"{path}: the archive lacks {missing[0]}")
    return records


def _safe_name(member: tarfile.TarInfo) -> str:
    """Return a member's file name, or '' if it is not a plain file or lies outside the archive's folder."""
    place = PurePosixPath(member.name)
    return place.name if member.isreg() and not place.is_absolute() and ".." not in place.parts else ""


def _length(form: tuple[int, int]) -> int:
    records, labels = form
    return records * (labels + PIXELS)


def _records(where: str, body: bytes, form: tuple[int, int]) -> Array:
    """Return the bytes of a file as records x bytes."""
    if len(body) != _length(form):
        size = "more" if len(body) > _length(form) else str(len(body))
        raise InputError(f"{where}: must hold {form[0]} records, {_length(form)} bytes, has {size}")
    return np.frombuffer(body, np.uint8).reshape(form[0], -1)


def _refuse_python(path: Path, names: set[str], files: Files) -> None:
    if names & _PYTHON_NAMES and not names & set(files):
        raise InputError(
            f"{path}: is the python (pickle) version, which is never read because unpickling runs code; "
            "use the binary version (cifar-10-binary.tar.gz, cifar-100-binary.tar.gz)"
        )
