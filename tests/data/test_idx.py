from __future__ import annotations

import gzip
import struct
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from leakscope.core.errors import InputError
from leakscope.data.idx import TYPES, read_idx, read_idx_folder

Array = npt.NDArray[Any]
ARRAYS = st.sampled_from(list(TYPES.values())).flatmap(
    lambda kind: hnp.arrays(np.dtype(kind), hnp.array_shapes(max_dims=4, max_side=4, min_side=0))
)


def idx_bytes(array: Array) -> bytes:
    """Return an array as an IDX file, written from the format's description."""
    code = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}[array.dtype.str[1:]]
    header = bytes([0, 0, code, array.ndim]) + b"".join(struct.pack(">I", side) for side in array.shape)
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


def read_back(body: bytes) -> Array:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "some-idx"
        path.write_bytes(body)
        return read_idx(path)


@settings(deadline=None, max_examples=60)
@given(array=ARRAYS, packed=st.booleans())
def test_what_is_written_is_read(array: Array, packed: bool) -> None:
    body = idx_bytes(array)
    back = read_back(gzip.compress(body) if packed else body)
    assert back.shape == array.shape
    assert back.dtype == array.dtype.newbyteorder("=")
    assert np.array_equal(back, array, equal_nan=array.dtype.kind == "f")


@settings(deadline=None, max_examples=60)
@given(array=ARRAYS, packed=st.booleans(), data=st.data())
def test_a_truncated_file_is_an_input_error(array: Array, packed: bool, data: st.DataObject) -> None:
    body = idx_bytes(array)
    whole = gzip.compress(body) if packed else body
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(InputError, match="some-idx: "):
        read_back(whole[:cut])


@settings(deadline=None, max_examples=60)
@given(array=ARRAYS, extra=st.binary(min_size=1, max_size=4), packed=st.booleans())
def test_bytes_after_the_end_are_an_input_error(array: Array, extra: bytes, packed: bool) -> None:
    body = idx_bytes(array) + extra
    with pytest.raises(InputError, match="has more"):
        read_back(gzip.compress(body) if packed else body)


@settings(deadline=None, max_examples=60)
@given(body=st.binary(max_size=40))
def test_any_bytes_give_an_array_or_an_input_error(body: bytes) -> None:
    message = ""
    try:
        read_back(body)
    except InputError as error:
        message = str(error)
    assert "\n" not in message


def test_a_lying_header_does_not_fill_the_memory() -> None:
    huge = bytes([0, 0, 0x08, 3]) + struct.pack(">III", 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF)
    with pytest.raises(InputError, match="impossible shape"):
        read_back(huge)
    with pytest.raises(InputError, match="must hold 1000000000 bytes"):
        read_back(gzip.compress(bytes([0, 0, 0x08, 1]) + struct.pack(">I", 10**9)))


def write_folder(folder: Path, suffix: str = "-idx{}-ubyte.gz") -> tuple[Array, Array]:
    draw = np.random.default_rng(1)
    x = draw.integers(0, 256, (5, 6, 7), dtype=np.uint8)
    y = np.array([3, 1, 4, 1, 9], dtype=np.uint8)
    for part in ("train", "t10k"):
        for kind, array in (("images", x), ("labels", y)):
            body = idx_bytes(array)
            name = f"{part}-{kind}" + suffix.format(array.ndim)
            (folder / name).write_bytes(gzip.compress(body) if name.endswith(".gz") else body)
    return x, y


@pytest.mark.parametrize("suffix", ["-idx{}-ubyte.gz", "-idx{}-ubyte", ".idx{}-ubyte"])
def test_a_folder_with_the_four_usual_files(tmp_path: Path, suffix: str) -> None:
    x, y = write_folder(tmp_path, suffix)
    data = read_idx_folder(tmp_path, name="mine")
    assert data.name == "mine"
    assert data.input_shape == (1, 6, 7)
    assert np.array_equal(data.x_train[:, 0], x)
    assert np.array_equal(data.y_test, y)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    write_folder(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(InputError, match=r"t10k-labels-idx1-ubyte.gz"):
        read_idx_folder(tmp_path)
    with pytest.raises(InputError, match="no such directory"):
        read_idx_folder(tmp_path / "nowhere")
    with pytest.raises(InputError, match="no such file"):
        read_idx(tmp_path / "nothing")
    with pytest.raises(InputError, match="a directory"):
        read_idx(tmp_path)


def test_labels_out_of_range_and_swapped_files(tmp_path: Path) -> None:
    write_folder(tmp_path)
    with pytest.raises(InputError, match=r"0 .. 4, got 1 .. 9"):
        read_idx_folder(tmp_path, class_names=tuple("abcde"))
    labels = tmp_path / "train-labels-idx1-ubyte.gz"
    labels.write_bytes(idx_bytes(np.zeros(4, np.uint8)))
    with pytest.raises(InputError, match="each of 5"):
        read_idx_folder(tmp_path)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(labels.read_bytes())
    with pytest.raises(InputError, match="N x H"):
        read_idx_folder(tmp_path)
