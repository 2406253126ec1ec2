"""Encoding of table rows as vectors in [0, 1], and decoding of any real vector to the nearest valid row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from leakscope.core.errors import InputError

Value = str | int | float
Row = Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Number:
    """A numeric column, min-max scaled: `x = (value - low) / (high - low)`, and 0 if low = high."""

    name: str
    low: float
    high: float
    whole: bool = False  # integers, decoded exactly from float32 while the range is under 2**23

    @property
    def width(self) -> int:
        """The number of entries this column takes in a vector."""
        return 1

    def encode(self, values: Sequence[Value]) -> npt.NDArray[np.float32]:
        """Return an N x 1 array in [0, 1]."""
        try:
            number = np.array([float(value) for value in values], dtype=np.float64)
        except ValueError as error:
            raise InputError(f"column {self.name!r} must hold numbers: {error}") from error
        inside = (number >= self.low) & (number <= self.high)
        if not inside.all():
            odd = number[~inside][0]
            raise InputError(f"column {self.name!r} must lie in [{self.low:g}, {self.high:g}], got {odd:g}")
        return ((number - self.low) / (self.high - self.low or 1.0)).astype(np.float32)[:, None]

    def decode(self, x: npt.NDArray[np.float64]) -> list[Value]:
        """Return the nearest valid value for each row of an N x 1 array."""
        value = self.low + np.clip(x[:, 0], 0, 1) * (self.high - self.low)
        return [int(v) for v in np.rint(value)] if self.whole else [float(v) for v in value]


@dataclass(frozen=True, slots=True)
class Category:
    """A column of words, one-hot encoded."""

    name: str
    values: tuple[str, ...]

    @property
    def width(self) -> int:
        """The number of entries this column takes in a vector."""
        return len(self.values)

    def encode(self, values: Sequence[Value]) -> npt.NDArray[np.float32]:
        """Return an N x width array with a single 1 in each row."""
        place = {value: i for i, value in enumerate(self.values)}
        try:
            index = np.array([place[str(value)] for value in values], dtype=np.int64)
        except KeyError as error:
            raise InputError(f"column {self.name!r} must be one of {', '.join(self.values)}; got {error}") from error
        return np.eye(self.width, dtype=np.float32)[index]

    def decode(self, x: npt.NDArray[np.float64]) -> list[Value]:
        """Return the word with the largest entry in each row; the first on ties."""
        return [self.values[i] for i in x.argmax(1)]


Column = Number | Category


@dataclass(frozen=True, slots=True)
class Encoding:
    """The columns of a table in order; an encoded row is the concatenation of their encodings.

    >>> encoding = Encoding((Number("age", 17, 90, whole=True), Category("sex", ("Female", "Male"))))
    >>> encoding.decode(np.array([[0.3, 0.2, 0.7]]))
    [{'age': 39, 'sex': 'Male'}]
    """

    columns: tuple[Column, ...]

    @property
    def width(self) -> int:
        """The length of an encoded row."""
        return sum(column.width for column in self.columns)

    @property
    def slices(self) -> dict[str, slice]:
        """The position of each column in an encoded row."""
        ends = np.cumsum([column.width for column in self.columns]).tolist()
        return {c.name: slice(end - c.width, end) for c, end in zip(self.columns, ends, strict=True)}

    @property
    def spans(self) -> dict[str, float]:
        """The range of every numeric column."""
        return {column.name: column.high - column.low for column in self.columns if isinstance(column, Number)}

    def encode(self, rows: Sequence[Row]) -> npt.NDArray[np.float32]:
        """Return an N x width array in [0, 1]; an unknown value is an error."""
        missing = [c.name for c in self.columns if any(c.name not in row for row in rows)]
        if missing:
            raise InputError(f"a row lacks the column {missing[0]!r}")
        return np.concatenate([c.encode([row[c.name] for row in rows]) for c in self.columns], axis=1)

    def decode(self, x: npt.NDArray[np.generic] | Tensor) -> list[dict[str, Value]]:
        """Return the valid row nearest to each real-valued row: clamped, rounded, one word a column; NaN counts as 0."""
        real = np.asarray(x.detach().cpu() if isinstance(x, Tensor) else x, dtype=np.float64)
        if real.ndim != 2 or real.shape[1] != self.width:
            raise InputError(f"rows to decode must have shape N x {self.width}, got {real.shape}")
        real = np.nan_to_num(real)
        where = self.slices
        decoded = {c.name: c.decode(real[:, where[c.name]]) for c in self.columns}
        return [{name: values[i] for name, values in decoded.items()} for i in range(len(real))]
