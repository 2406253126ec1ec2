"""Class names and row decoders of the data sets that cells name, if available on this machine."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from leakscope.core.errors import InputError
from leakscope.core.record import Cell
from leakscope.data import SOURCES, load, sentence_set
from leakscope.metrics.tabular import Row


@dataclass(frozen=True, slots=True)
class Decoder:
    """Decodes encoded rows: `columns` in order, `spans` the range of every numeric column."""

    columns: tuple[str, ...]
    spans: Mapping[str, float]
    decode: Callable[[Tensor], Sequence[Row]]  # N x F -> the N nearest valid rows


def decoders_of(cells: Iterable[Cell]) -> dict[str, Decoder]:
    """Return data set -> row decoder, for the available tables."""
    decoders = {
        name: decoder_of(name) for name in _data_names(cells) if name in SOURCES and SOURCES[name].kind == "table"
    }
    return {name: decoder for name, decoder in decoders.items() if decoder is not None}


def decoder_of(name: str) -> Decoder | None:
    """Return the decoder of one data set, None if it is unavailable or has no encoded rows."""
    try:
        encoding = load(name).encoding
    except InputError:
        return None
    if encoding is None:
        return None
    return Decoder(tuple(column.name for column in encoding.columns), encoding.spans, encoding.decode)


def class_names_of(cells: Iterable[Cell]) -> dict[str, tuple[str, ...]]:
    """Return data set -> class names, for the available sets."""
    names: dict[str, tuple[str, ...]] = {}
    for name in _data_names(cells):
        with contextlib.suppress(InputError):
            names[name] = load(name).class_names
    return names


def words_of_data(cell: Cell) -> tuple[str, ...] | None:
    """Return the vocabulary of the sentences of a cell; None if this leakscope does not know them."""
    data = cell.settings.get("data")
    chosen = dict(data) if isinstance(data, Mapping) else {}
    with contextlib.suppress(InputError, TypeError, ValueError):
        sizes = {name: chosen.get(name) for name in ("length", "words", "shortest")}
        return sentence_set(str(chosen.get("name")), **sizes).words
    return None


def _data_names(cells: Iterable[Cell]) -> list[str]:
    chosen = [cell.settings.get("data") for cell in cells]
    return list(dict.fromkeys(str(data["name"]) for data in chosen if isinstance(data, Mapping) and "name" in data))
