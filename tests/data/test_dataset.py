from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leakscope.core.errors import InputError
from leakscope.core.scaling import Scaling
from leakscope.data.dataset import Dataset
from leakscope.data.encoding import Encoding, Number


def pictures(**changes: Any) -> Dataset:
    draw = np.random.default_rng(0)
    fields: dict[str, Any] = {
        "name": "toy",
        "kind": "image",
        "x_train": draw.integers(0, 256, (6, 3, 4, 5), dtype=np.uint8),
        "y_train": np.array([0, 1, 2, 0, 1, 2], dtype=np.uint8),
        "x_test": draw.integers(0, 256, (2, 3, 4, 5), dtype=np.uint8),
        "y_test": np.array([2, 1]),
        "class_names": ("a", "b", "c"),
    }
    return Dataset(**{**fields, **changes})


def rows(**changes: Any) -> Dataset:
    fields: dict[str, Any] = {
        "name": "toy",
        "kind": "table",
        "x_train": np.array([[0, 1], [0.5, 0.25]], dtype=np.float32),
        "y_train": np.array([0, 1]),
        "x_test": np.zeros((0, 2), np.float32),
        "y_test": np.zeros(0, np.int64),
        "class_names": ("no", "yes"),
    }
    return Dataset(**{**fields, **changes})


def test_what_it_says_about_itself() -> None:
    data = pictures()
    assert (data.input_shape, data.classes, data.size("train"), data.size("test")) == ((3, 4, 5), 3, 6, 2)
    assert data.scaling == Scaling()
    assert data.statistics == Scaling()


@settings(deadline=None, max_examples=40)
@given(index=st.lists(st.integers(0, 5), max_size=8))
def test_pictures_are_the_stored_bytes_over_255(index: list[int]) -> None:
    data = pictures()
    taken = data.pictures("train", index)
    assert taken.dtype == torch.float32
    assert taken.shape == (len(index), 3, 4, 5)
    slow = torch.stack([torch.tensor(data.x_train[i].tolist()) / 255 for i in index]) if index else taken
    assert torch.equal(taken, slow)
    assert data.labels("train", index).tolist() == [data.y_train[i] for i in index]


def test_every_byte_comes_back_from_its_float() -> None:
    x = np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16)
    data = pictures(x_train=x, y_train=np.zeros(1, int), x_test=x, y_test=np.zeros(1, int))
    taken = data.pictures("train", 0)
    assert taken.min() == 0
    assert taken.max() == 1
    assert torch.equal((taken * 255).round().to(torch.uint8), torch.from_numpy(x[0]))


@pytest.mark.parametrize(
    "index", [slice(1, 3), [1, 2], (1, 2), np.array([1, 2]), torch.tensor([1, 2]), range(1, 3)], ids=str
)
def test_every_kind_of_index_takes_the_same(index: Any) -> None:
    data = pictures()
    assert torch.equal(data.pictures("train", index), data.pictures("train", slice(None))[1:3])
    assert data.labels("train", index).tolist() == [1, 2]


def test_one_number_gives_one_input() -> None:
    assert pictures().pictures("test", 1).shape == (3, 4, 5)
    assert pictures().labels("test", 1).item() == 1


def test_what_is_handed_out_is_a_copy_and_what_is_held_cannot_be_changed() -> None:
    data, table = pictures(), rows()
    for one in (data, table):
        before = one.x_train.copy()
        one.pictures("train", slice(None)).fill_(0.5)
        one.labels("train", slice(None)).fill_(0)
        assert np.array_equal(one.x_train, before)
        with pytest.raises(ValueError, match="read-only"):
            one.x_train[0] = 0
    assert data.y_train.tolist() == [0, 1, 2, 0, 1, 2]


def test_the_makers_arrays_stay_writable() -> None:
    x = np.zeros((6, 3, 4, 5), np.uint8)
    pictures(x_train=x)
    x[0] = 1


@pytest.mark.parametrize("index", [6, -7, [0, 6], [0.5], np.array([True])], ids=str)
def test_an_index_outside_is_an_input_error(index: Any) -> None:
    with pytest.raises(InputError, match="toy train"):
        pictures().pictures("train", index)


def test_an_unknown_part_lists_the_known() -> None:
    with pytest.raises(InputError, match=r"'trian'.*'train'"):
        pictures().pictures("trian", 0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"x_train": np.zeros((6, 4, 5), np.uint8)}, "N x C"),
        ({"x_train": np.zeros((6, 2, 4, 5), np.uint8)}, "C 1 or 3"),
        ({"x_train": np.zeros((6, 3, 4, 5), np.float32)}, "must be uint8"),
        ({"x_train": np.zeros((6, 3, 4, 4), np.uint8)}, r"\(3, 4, 4\) .*\(3, 4, 5\)"),
        ({"y_train": np.zeros(5, int)}, "each of 6"),
        ({"y_train": np.zeros(6)}, "whole numbers"),
        ({"y_test": np.array([0, 3])}, r"0 .. 2, got 0 .. 3"),
        ({"y_test": np.array([-1, 0])}, r"got -1 .. 0"),
        ({"groups_train": np.zeros(5, int)}, "groups .*6"),
        ({"encoding": Encoding((Number("a", 0, 1),))}, "1 wide"),
    ],
)
def test_pictures_that_break_a_rule(changes: dict[str, Any], rule: str) -> None:
    with pytest.raises(InputError, match=rule):
        pictures(**changes)


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), float("inf")])
def test_rows_lie_in_the_unit_box(value: float) -> None:
    with pytest.raises(InputError, match=r"must lie in \[0, 1\]"):
        rows(x_train=np.array([[0, value], [0, 0]], dtype=np.float32))


def test_rows_are_float32_tables() -> None:
    with pytest.raises(InputError, match="float32"):
        rows(x_train=np.zeros((2, 2)))
    with pytest.raises(InputError, match="N x F"):
        rows(x_train=np.zeros((2, 2, 1), np.float32))


def test_the_file_is_named_where_it_is_known() -> None:
    with pytest.raises(InputError, match=r"^some/file.npz: "):
        pictures(y_train=np.zeros(6), source="some/file.npz")


def test_replacing_the_scaling_keeps_the_rest() -> None:
    data = pictures(statistics=Scaling((0.5,), (0.25,)))
    scaled = replace(data, scaling=data.statistics)
    assert scaled.scaling.mean == (0.5,)
    assert np.array_equal(scaled.x_train, data.x_train)
