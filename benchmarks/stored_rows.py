"""Rows of a benchmark as JSON lines in the files of a directory, so that several processes can share a table and a cut one goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def read_rows(directory: Path) -> list[Row]:
    """Return the rows of every file; a line that was cut is left out."""
    rows = []
    for path in sorted(directory.glob("*.jsonl")):
        for line in path.read_text().splitlines():
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


def holds(rows: list[Row], settings: Row) -> bool:
    """Return whether a row has these settings."""
    return any(all(row.get(name) == value for name, value in settings.items()) for row in rows)
