"""The scenario beside the records, as it was given."""

from __future__ import annotations

from pathlib import Path

from leakscope.store.durable import replacing

SCENARIO = "scenario.yaml"


def write_scenario(directory: Path, scenario: str) -> None:
    """Write scenario.yaml unless it says this already; it is for people and editors, what counts is in the database."""
    path, data = directory / SCENARIO, scenario.encode()
    if not path.is_file() or path.read_bytes() != data:
        with replacing(path) as file:
            file.write(data)
