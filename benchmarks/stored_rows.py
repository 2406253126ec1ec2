"""Rows of a benchmark as JSON lines in the files of a directory, so that several processes can share a table and a cut one goes on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def read_rows(directory: Path) -> list[Row]:
    """Return the rows of every file; a line that was cut is left out."""
    return [row for path in sorted(directory.glob("*.jsonl")) for row in read_lines(path)]


def read_lines(path: Path) -> list[Row]:
    """Return the rows of one file, none if it does not exist."""
    rows = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


def add_rows(path: Path, rows: list[Row]) -> None:
    """Append rows to one file, which one process writes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))


def merge_rows(path: Path, rows: list[Row], names: Sequence[str]) -> list[Row]:
    """Return the rows of a file and these, and write them to it: the first of those that agree in `names`, sorted by them."""
    merged = {tuple(row[name] for name in names): row for row in reversed([*read_lines(path), *rows])}
    table = sorted(merged.values(), key=lambda row: json.dumps([row[name] for name in names]))
    path.write_text("".join(json.dumps(row) + "\n" for row in table))
    return table


def holds(rows: list[Row], settings: Row) -> bool:
    """Return whether a row has these settings."""
    return any(all(row.get(name) == value for name, value in settings.items()) for row in rows)
