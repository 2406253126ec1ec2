"""Conversion of Flower's ArrayRecords to named tensors, fast because parsed .npy headers are cached."""

from __future__ import annotations

import io
import math
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from leakscope.core.tree import Tree

NUMPY = "numpy.ndarray"
MAGIC = b"\x93NUMPY\x01\x00"  # version 1.0, which numpy writes whenever the header is shorter than 64 KiB
START = len(MAGIC) + 2
REMEMBERED = 4096  # parsing a header takes longer than reading a small layer, and headers repeat every round


def tree_of(arrays: Any) -> Tree:
    """Return a Flower ArrayRecord as named tensors with their own memory."""
    return {name: torch.from_numpy(numbers(array)) for name, array in arrays.items()}


def record_of(flower: Any, tree: Tree) -> Any:
    """Return named tensors as an ArrayRecord of `flower`, the module `flwr.app`."""
    return flower.ArrayRecord({name: flower.Array(value.numpy()) for name, value in tree.items()})


def numbers(array: Any) -> np.typing.NDArray[np.generic]:
    """Return a Flower Array as a numpy array with its own memory; unusual forms go through `Array.numpy()`."""
    data = array.data
    if array.stype == NUMPY and data.startswith(MAGIC):
        begin = START + int.from_bytes(data[START - 2 : START], "little")
        usual = read_header(data[START - 2 : begin])
        if usual is not None:
            dtype, shape = usual
            if len(data) - begin == dtype.itemsize * math.prod(shape):
                return np.frombuffer(data, dtype, offset=begin).reshape(shape).copy()
    return np.array(array.numpy())


@lru_cache(maxsize=REMEMBERED)
def read_header(header: bytes) -> tuple[np.dtype[np.generic], tuple[int, ...]] | None:
    """Return dtype and shape of an .npy header, None unless it is the usual form: plain numbers, row by row."""
    try:
        shape, columns_first, dtype = np.lib.format.read_array_header_1_0(io.BytesIO(header))
    except ValueError:
        return None
    if columns_first or dtype.kind not in "fiub":
        return None
    return dtype, shape
