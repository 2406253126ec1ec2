from __future__ import annotations

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
from leakscope.data.npz import read_npz, sizes

Array = npt.NDArray[Any]


def write(folder: Path | str, **arrays: Any) -> Path:
    path = Path(folder) / "toy.npz"
    np.savez_compressed(path, **arrays)
    return path


def images(**changes: Any) -> dict[str, Any]:
    x, y = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3), np.array([1, 0], dtype=np.uint8)
    fields = {"x_train": x, "y_train": y, "x_test": x, "y_test": y, "class_names": np.array(["no", "yes"])}
    return {name: value for name, value in {**fields, **changes}.items() if value is not None}


@settings(deadline=None)
@given(x=hnp.arrays(np.uint8, st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4), st.just(3))))
def test_colour_pictures_become_channel_first(x: Array) -> None:
    y = np.zeros(len(x), np.uint8)
    with TemporaryDirectory() as folder:
        data = read_npz(write(folder, x_train=x, y_train=y, x_test=x, y_test=y))
    n, height, width, _ = x.shape
    slow = [[[[x[i, r, c, k] for c in range(width)] for r in range(height)] for k in range(3)] for i in range(n)]
    assert data.x_train.tolist() == np.array(slow).tolist()
    assert data.name == "toy"
    assert data.class_names == ("0",)


def test_grey_pictures_groups_and_names(tmp_path: Path) -> None:
    x = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    path = write(tmp_path, **images(x_train=x, x_test=x, writer_train=np.array([7, 8]), writer_test=np.array([9, 9])))
    data = read_npz(path, name="mine")
    assert (data.name, data.kind, data.input_shape) == ("mine", "image", (1, 3, 4))
    assert data.class_names == ("no", "yes")
    assert data.groups_train is not None
    assert data.groups_test is not None
    assert data.groups_train.tolist() == [7, 8]
    assert data.groups_test.tolist() == [9, 9]
    assert sizes(path) == (2, 2)


def test_one_part_may_be_absent(tmp_path: Path) -> None:
    path = write(tmp_path, **images(x_train=None, y_train=None))
    data = read_npz(path)
    assert (data.size("train"), data.size("test"), data.input_shape) == (0, 2, (3, 4, 5))
    assert data.pictures("train", slice(None)).shape == (0, 3, 4, 5)
    assert sizes(path) == (0, 2)


def test_a_table_is_scaled_over_both_parts_and_decodes(tmp_path: Path) -> None:
    train, test = np.array([[1.0, 5.0], [3.0, 5.0]], dtype=np.float32), np.array([[5.0, 5.0]], dtype=np.float32)
    features = np.array(["width", "same"])
    y = np.array([0, 1])
    path = write(tmp_path, **images(x_train=train, x_test=test, y_train=y, y_test=y[:1], feature_names=features))
    data = read_npz(path)
    assert data.kind == "table"
    assert data.x_train.tolist() == [[0, 0], [0.5, 0]]
    assert data.x_test.tolist() == [[1, 0]]
    assert data.encoding is not None
    assert data.encoding.decode(data.x_train) == [{"width": 1.0, "same": 5.0}, {"width": 3.0, "same": 5.0}]


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"x_train": None, "x_test": None}, "arrays x_train"),
        ({"y_test": None}, "array y_test"),
        ({"x_train": np.zeros((2, 4, 5, 2), np.uint8)}, "x_train .*N x"),
        ({"x_train": np.zeros((2, 4, 5, 3))}, "got float64"),
        ({"x_train": np.zeros((2, 4, 4, 3), np.uint8)}, "train is"),
        ({"y_train": np.array([0, 2])}, r"0 .. 1, got 0 .. 2"),
        ({"y_train": np.array([0.0, 1.0])}, "whole numbers"),
        ({"y_train": np.array(["no", "yes"])}, "whole numbers"),
        ({"y_train": np.array([0])}, "each of 2"),
        ({"class_names": np.array([1, 2])}, "class_names must"),
        ({"class_names": None, "y_train": np.array([0, 10**9])}, "must be under 65536"),
        ({"writer_train": np.zeros(3, int)}, "groups of train"),
        ({"x_train": np.array([[1.0, np.nan]] * 2), "x_test": np.zeros((2, 2))}, "finite, column 1"),
        ({"x_train": np.array([[1.0, np.inf]] * 2), "x_test": np.zeros((2, 2))}, "finite, column 1"),
        ({"x_train": np.zeros((2, 2)), "x_test": np.zeros((2, 3))}, "tables .*N x"),
        ({"x_train": np.zeros((2, 2))}, "tables .*N x"),
        ({"x_train": np.zeros((2, 2), complex), "x_test": np.zeros((2, 2))}, "must hold numbers"),
        ({"x_train": np.zeros((2, 2)), "x_test": np.zeros((2, 2)), "feature_names": np.array(["a"])}, "2 different"),
        ({"x_train": np.zeros((0, 2)), "x_test": None, "y_train": np.zeros(0, int)}, "table is empty"),
    ],
)
def test_arrays_that_break_a_rule(tmp_path: Path, changes: dict[str, Any], rule: str) -> None:
    with pytest.raises(InputError, match=rf"toy.npz: .*{rule}"):
        read_npz(write(tmp_path, **images(**changes)))


def test_pickles_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, **images(extra=np.array([{"a": 1}], dtype=object)))
    with pytest.raises(InputError, match="allow_pickle=False"):
        read_npz(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_npz(tmp_path / "nothing.npz")
    with pytest.raises(InputError, match="a directory"):
        read_npz(tmp_path)
    single = tmp_path / "single.npy"
    np.save(single, np.zeros(3))
    with pytest.raises(InputError, match="single array"):
        read_npz(single)
    single.write_bytes(b"hello")
    with pytest.raises(InputError, match=r"sound .npz"):
        read_npz(single)


@settings(deadline=None)
@given(data=st.data())
def test_a_truncated_file_is_an_input_error(data: st.DataObject) -> None:
    with TemporaryDirectory() as folder:
        path = write(folder, **images())
        whole = path.read_bytes()
        path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
        with pytest.raises(InputError, match=r"toy.npz: .*sound"):
            read_npz(path)


@settings(deadline=None, max_examples=200)
@given(data=st.data())
def test_a_damaged_file_never_raises_anything_else(data: st.DataObject) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "toy.npz"
        np.savez(path, **images())
        body = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 3))):
            body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
        path.write_bytes(bytes(body))
        message = ""
        try:
            read_npz(path)
        except InputError as error:
            message = str(error)
        assert "\n" not in message
