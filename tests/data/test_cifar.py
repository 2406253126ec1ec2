from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakscope.core.errors import InputError
from leakscope.data.cifar import CIFAR10, CIFAR100, read_cifar10, read_cifar100

Array = npt.NDArray[Any]
TEN = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]


def records(seed: int, batch: int, classes: int = 10, coarse: bool = False) -> tuple[bytes, Array, Array]:
    """Return a binary file made record by record, and what it should read as."""
    draw = np.random.default_rng(seed)
    x, y = draw.integers(0, 256, (batch, 3, 32, 32), dtype=np.uint8), draw.integers(0, classes, batch)
    body = b""
    for picture, label in zip(x, y, strict=True):
        red, green, blue = picture
        body += (b"\x07" if coarse else b"") + bytes([label]) + red.tobytes() + green.tobytes() + blue.tobytes()
    return body, x, y


def archive(members: dict[str, bytes]) -> bytes:
    """Return a .tar.gz of plain files."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz", compresslevel=1) as tar:
        for name, body in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(body)
            tar.addfile(info, io.BytesIO(body))
    return stream.getvalue()


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000), batch=st.integers(1, 3))
def test_what_is_written_is_read_from_folder_and_archive(seed: int, batch: int) -> None:
    made = {name: records(seed + i, batch) for i, name in enumerate(TEN)}
    with TemporaryDirectory() as folder:
        unpacked = Path(folder) / "cifar-10-batches-bin"
        unpacked.mkdir()
        for name, (body, _, _) in made.items():
            (unpacked / name).write_bytes(body)
        packed = Path(folder) / "cifar-10-binary.tar.gz"
        packed.write_bytes(archive({f"cifar-10-batches-bin/{name}": body for name, (body, _, _) in made.items()}))
        for path in (unpacked, packed):
            data = read_cifar10(path, batch=batch)
            assert data.input_shape == (3, 32, 32)
            assert data.class_names == CIFAR10
            assert np.array_equal(data.x_train, np.concatenate([made[name][1] for name in TEN[:5]]))
            assert np.array_equal(data.y_train, np.concatenate([made[name][2] for name in TEN[:5]]))
            assert np.array_equal(data.x_test, made["test_batch.bin"][1])
            assert np.array_equal(data.y_test, made["test_batch.bin"][2])


@pytest.fixture
def hundred(tmp_path: Path) -> tuple[Path, Array, Array]:
    train, test = records(1, 10, 100, coarse=True), records(2, 2, 100, coarse=True)
    path = tmp_path / "cifar-100-binary.tar.gz"
    path.write_bytes(archive({"cifar-100-binary/train.bin": train[0], "cifar-100-binary/test.bin": test[0]}))
    return path, train[1], train[2]


def test_the_fine_label_of_cifar100_is_the_second_byte(hundred: tuple[Path, Array, Array]) -> None:
    path, x, y = hundred
    data = read_cifar100(path, batch=2)
    assert len(set(CIFAR100)) == 100
    assert list(CIFAR100) == sorted(CIFAR100)
    assert np.array_equal(data.x_train, x)
    assert np.array_equal(data.y_train, y)
    assert (data.size("train"), data.size("test")) == (10, 2)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_a_truncated_archive_is_an_input_error(data: st.DataObject) -> None:
    whole = archive({"train.bin": records(1, 5, 100, coarse=True)[0], "test.bin": records(2, 1, 100, coarse=True)[0]})
    cut = data.draw(st.integers(0, len(whole) - 1) | st.integers(len(whole) - 30, len(whole) - 1))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "c.tar.gz"
        path.write_bytes(whole)
        read_cifar100(path, batch=1)
        path.write_bytes(whole[:cut])
        with pytest.raises(InputError, match=r"c.tar.gz: ") as caught:
            read_cifar100(path, batch=1)
        assert "\n" not in str(caught.value)


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_a_truncated_batch_is_an_input_error(data: st.DataObject) -> None:
    train, test = records(1, 5, 100, coarse=True)[0], records(2, 1, 100, coarse=True)[0]
    cut = data.draw(st.integers(0, len(train) - 1) | st.sampled_from([3074 * i for i in range(5)]))
    with TemporaryDirectory() as folder:
        (Path(folder) / "test.bin").write_bytes(test)
        (Path(folder) / "train.bin").write_bytes(train[:cut])
        with pytest.raises(InputError, match=f"15370 bytes, has {cut}"):
            read_cifar100(Path(folder), batch=1)


@settings(max_examples=30, deadline=None)
@given(place=st.integers(0, 2000), value=st.integers(0, 255))
def test_a_damaged_archive_never_raises_anything_else(place: int, value: int) -> None:
    body = bytearray(archive({"train.bin": bytes(5 * 3074), "test.bin": bytes(3074)}))
    body[place % len(body)] = value
    with TemporaryDirectory() as folder:
        path = Path(folder) / "c.tar.gz"
        path.write_bytes(bytes(body))
        message = ""
        try:
            read_cifar100(path, batch=1)
        except InputError as error:
            message = str(error)
        assert "\n" not in message


def test_labels_out_of_range(tmp_path: Path) -> None:
    for name in TEN:
        (tmp_path / name).write_bytes(b"\x0a" + bytes(3072))
    with pytest.raises(InputError, match=r"0 .. 9, got 10 .. 10"):
        read_cifar10(tmp_path, batch=1)


def test_missing_and_double_members(tmp_path: Path) -> None:
    path = tmp_path / "c.tar.gz"
    one, five = bytes(3074), bytes(5 * 3074)
    path.write_bytes(archive({"x/train.bin": five}))
    with pytest.raises(InputError, match=r"lacks test.bin"):
        read_cifar100(path, batch=1)
    path.write_bytes(archive({"x/train.bin": five, "y/train.bin": five, "x/test.bin": one}))
    with pytest.raises(InputError, match=r"train.bin twice"):
        read_cifar100(path, batch=1)
    path.write_bytes(archive({"x/train.bin": five, "x/test.bin": one + b"more"}))
    with pytest.raises(InputError, match="has more"):
        read_cifar100(path, batch=1)
    with pytest.raises(InputError, match="no such directory"):
        read_cifar100(tmp_path / "nothing")
    with pytest.raises(InputError, match=r"train.bin: no such"):
        read_cifar100(tmp_path)


@pytest.mark.parametrize("name", ["../train.bin", "/train.bin", "x/../../train.bin"])
def test_members_that_point_outside_are_passed_over(tmp_path: Path, name: str) -> None:
    path = tmp_path / "c.tar.gz"
    path.write_bytes(archive({name: bytes(5 * 3074), "x/test.bin": bytes(3074)}))
    with pytest.raises(InputError, match=r"lacks train.bin"):
        read_cifar100(path, batch=1)
    assert [item.name for item in tmp_path.iterdir()] == ["c.tar.gz"]


def test_links_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "c.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        link = tarfile.TarInfo("x/train.bin")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
        tar.addfile(link)
    with pytest.raises(InputError, match=r"lacks train.bin"):
        read_cifar100(path, batch=1)


def test_the_python_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data_batch_1").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(InputError, match="binary version"):
        read_cifar10(tmp_path)
    path = tmp_path / "cifar-100-python.tar.gz"
    path.write_bytes(archive({"cifar-100-python/train": b"cos\n", "cifar-100-python/meta": b""}))
    with pytest.raises(InputError, match="unpickling runs code"):
        read_cifar100(path)


def test_a_file_that_is_no_archive(tmp_path: Path) -> None:
    for body in (b"", b"hello", gzip.compress(b"hello"), gzip.compress(b"x" * 1000)):
        (tmp_path / "c.tar.gz").write_bytes(body)
        with pytest.raises(InputError, match=r"c.tar.gz: "):
            read_cifar10(tmp_path / "c.tar.gz")
