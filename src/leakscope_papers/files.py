"""Reading the data files of the papers: YAML as in a scenario, checked against a frozen dataclass, mistakes named by file and field."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from leakscope.core.errors import InputError
from leakscope.scenario.text import read_text

T = TypeVar("T")
STRICT = ConfigDict(extra="forbid")


def read_mapping(path: Path) -> dict[str, Any]:
    """Return the mapping that a YAML file holds."""
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise InputError(f"cannot read {path} ({error.strerror})") from None
    data = read_text(text, str(path), own=True).data
    if not isinstance(data, dict):
        raise InputError(f"{path}: must be a mapping of fields, got {type(data).__name__}")
    return data


def as_file(kind: type[T], data: dict[str, Any], path: Path) -> T:
    """Return the data as a frozen dataclass, or raise the first thing that is wrong with the file."""
    try:
        return TypeAdapter(kind).validate_python(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InputError(f"{path}: {place}: {first['msg']}, got {first.get('input')!r:.80}") from None


def natural(name: str) -> list[str | int]:
    """Return a key that sorts names with numbers as people do.

    >>> sorted(["figure-10", "figure-2"], key=natural)
    ['figure-2', 'figure-10']
    """
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]
