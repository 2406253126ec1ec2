"""Tables in comma-separated text with a header line, plain or gzip."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable
from pathlib import Path

from leakscope.core.errors import InputError
from leakscope.data.dataset import Dataset
from leakscope.data.files import one_line, opened
from leakscope.data.table import encode_table


def read_csv(
    path: Path | str, *, target: str, split: str = "split", categorical: Collection[str] = (), name: str | None = None
) -> Dataset:
    """Return the data set in a .csv or .csv.gz; `target` names the column of classes, `split` that of the parts. See `encode_table`."""
    path = Path(path)
    columns = parse_rows(str(path), read_text(path))
    title = name or path.name.removesuffix(".gz").removesuffix(".csv")
    return encode_table(str(path), columns, target=target, split=split, categorical=categorical, name=title)


def read_text(path: Path) -> str:
    """Return the content of a text file, plain or gzip, without a byte order mark."""
    with opened(path) as stream:
        body = stream.read()
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not UTF-8 text: {one_line(error)}") from error


def parse_rows(where: str, text: str, header: Iterable[str] | None = None) -> dict[str, list[str]]:
    """Return the columns of comma-separated text; `header` replaces a missing first line."""
    try:
        reader = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True, strict=True)
        rows = [(reader.line_num, row) for row in reader if row]
    except csv.Error as error:
        raise InputError(f"{where}: is not comma-separated text: {one_line(error)}") from error
    if header is not None:
        rows.insert(0, (0, list(header)))
    if not rows:
        raise InputError(f"{where}: is empty")
    titles = [title.strip() for title in rows[0][1]]
    if len(set(titles)) != len(titles) or "" in titles:
        raise InputError(f"{where}: the header must name every column once, got {', '.join(titles)}")
    for line, row in rows[1:]:
        if len(row) != len(titles):
            raise InputError(f"{where}: line {line} must have {len(titles)} cells, has {len(row)}")
    return {title: [row[i].strip() for _, row in rows[1:]] for i, title in enumerate(titles)}
