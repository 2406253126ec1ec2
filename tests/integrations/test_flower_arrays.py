"""Our quick reading of Flower's arrays gives what Flower's own gives, and leaves to it whatever is not the usual form."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from leakscope.integrations.flower_arrays import MAGIC, numbers, read_header, tree_of

KINDS = ["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u1", "?"]


@dataclass(frozen=True)
class Array:
    """Flower's Array, without Flower: the bytes of an .npy file, and what they are."""

    data: bytes
    stype: str = "numpy.ndarray"

    def numpy(self) -> Any:
        return np.load(io.BytesIO(self.data), allow_pickle=False)


def packed(value: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, value, allow_pickle=False)
    return file.getvalue()


@settings(max_examples=40)
@given(
    value=st.sampled_from(KINDS).flatmap(lambda kind: arrays.arrays(kind, arrays.array_shapes(min_dims=0, min_side=0)))
)
def test_arrays_read_as_numpy_reads_them(value: Any) -> None:
    for given_value in (value, np.asfortranarray(value)):
        made = numbers(Array(packed(given_value)))
        np.testing.assert_array_equal(made, given_value)
        assert made.dtype == value.dtype
        assert made.shape == given_value.shape
        assert made.flags.writeable


def test_the_numbers_are_our_own() -> None:
    array = Array(packed(np.arange(4.0)))
    tree_of({"x": array})["x"].zero_()
    np.testing.assert_array_equal(array.numpy(), np.arange(4.0))


def test_a_header_is_read_once() -> None:
    read_header.cache_clear()
    for step in range(5):
        numbers(Array(packed(np.full((3, 2), float(step)))))
    assert read_header.cache_info().misses == 1


@settings(max_examples=40)
@given(cut=st.integers(0, 150), more=st.binary(max_size=4))
def test_bytes_that_were_cut_or_lengthened_fare_as_in_numpy(cut: int, more: bytes) -> None:
    array = Array(packed(np.arange(5.0))[:cut] + more)
    try:
        wanted = array.numpy()
    except Exception:
        with pytest.raises(Exception):  # noqa: B017
            numbers(array)
    else:
        np.testing.assert_array_equal(numbers(array), wanted)


def test_objects_are_never_unpickled() -> None:
    file = io.BytesIO()
    np.save(file, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    assert file.getvalue().startswith(MAGIC)
    with pytest.raises(ValueError, match="allow_pickle"):
        numbers(Array(file.getvalue()))
