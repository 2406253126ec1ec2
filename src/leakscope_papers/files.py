"""The data files of the papers: YAML read into frozen dataclasses, with errors named by file, line and field."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar, dataclass_transform

from pydantic import ConfigDict

from leakscope.core.errors import InputError
from leakscope.scenario.reader import UserFile
from leakscope.scenario.text import read_text

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def file_dataclass(cls: type[T]) -> type[T]:
    """Return a class as a frozen dataclass that pydantic reads from a file; unknown keys are rejected."""
    cls.__pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[attr-defined]
    return dataclass(frozen=True, slots=True, kw_only=True)(cls)


def read_file(path: Path) -> UserFile:
    """Return the fields of a file in a package."""
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise InputError(f"cannot read {path} ({error.strerror})") from None
    lines = read_text(text, str(path), own=True)
    if not isinstance(lines.data, dict):
        raise InputError(f"{path}: must be a mapping of fields, got {type(lines.data).__name__}")
    return UserFile(lines.data, text, str(path), lines)


def natural(name: str) -> list[str | int]:
    """Return a sort key that orders numbers in names by value.

    >>> sorted(["figure-10", "figure-2"], key=natural)
    ['figure-2', 'figure-10']
    """
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]
