"""Encoding columns of text as a data set."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from leakscope.core.errors import InputError
from leakscope.core.registry import lookup
from leakscope.data.dataset import Dataset
from leakscope.data.encoding import Category, Column, Encoding, Number

UNKNOWN = "?"
MOST_WORDS = 1000
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_WHOLE = re.compile(r"[+-]?\d+", re.ASCII)
_NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)


def encode_table(
    where: str,
    columns: Mapping[str, Sequence[str]],
    *,
    target: str,
    split: str,
    categorical: Collection[str],
    name: str,
) -> Dataset:
    """Return the data set of a table given as text, column by column.

    Numeric columns are min-max scaled over both parts, so that every row can be encoded and decoded; others are one-hot over
    their sorted words, `?` included. `categorical` names numeric columns to treat as words. `split`, if present, says train or
    test; else every row is a training row.
    """
    label = lookup(columns, target, f"target column of {where}")
    for title in categorical:
        lookup(columns, title, f"categorical column of {where}")
    if not label:
        raise InputError(f"{where}: the table has no rows")
    features = {title: values for title, values in columns.items() if title not in (target, split)}
    if not features:
        raise InputError(f"{where}: the table has no columns except {target!r}")
    encoding = Encoding(tuple(_column(where, t, values, t in categorical) for t, values in features.items()))
    x = np.concatenate([column.encode(features[column.name]) for column in encoding.columns], axis=1)
    class_names = _words(where, target, label)
    place = {word: i for i, word in enumerate(class_names)}
    y = np.array([place[word] for word in label], dtype=np.int64)
    test = _in_test(where, split, columns.get(split), len(label))
    return Dataset(
        name=name,
        kind="table",
        x_train=x[~test],
        y_train=y[~test],
        x_test=x[test],
        y_test=y[test],
        class_names=class_names,
        encoding=encoding,
        source=where,
    )


def _column(where: str, title: str, values: Sequence[str], as_words: bool) -> Column:
    """Return how a column is encoded: as numbers if every value is one, else as words."""
    if "" in values:
        row = values.index("") + 1
        raise InputError(f"{where}: column {title!r} has an empty cell in row {row}; write {UNKNOWN} for unknown")
    if not as_words and all(_NUMBER.fullmatch(value) or _NOT_FINITE.fullmatch(value) for value in values):
        number = np.array([float(value) for value in values])
        if not np.isfinite(number).all():
            bad = int(np.flatnonzero(~np.isfinite(number))[0])
            raise InputError(f"{where}: column {title!r} must be finite, row {bad + 1} is {values[bad]}")
        whole = all(_WHOLE.fullmatch(value) for value in values)
        return Number(title, float(number.min()), float(number.max()), whole)
    return Category(title, _words(where, title, values))


def _words(where: str, title: str, values: Sequence[str]) -> tuple[str, ...]:
    """Return the distinct words of a column, sorted; rejects free text and identifiers before they fill memory."""
    words = tuple(sorted(set(values)))
    if len(words) > MOST_WORDS:
        raise InputError(f"{where}: column {title!r} must have at most {MOST_WORDS} different words, has {len(words)}")
    return words


def _in_test(where: str, split: str, values: Sequence[str] | None, rows: int) -> npt.NDArray[np.bool_]:
    """Return which rows belong to the test part."""
    if values is None:
        return np.zeros(rows, np.bool_)
    odd = sorted(set(values) - {"train", "test"})
    if odd:
        raise InputError(f"{where}: column {split!r} must say train or test, got {odd[0]!r}")
    return np.array([value == "test" for value in values])
