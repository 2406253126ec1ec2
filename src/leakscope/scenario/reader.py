"""Reading user files (scenarios, trainings, audits, searches): YAML with the line of every value, checked, all errors at once."""

from __future__ import annotations

import copy
import functools
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError

from leakscope.core.errors import InputError
from leakscope.core.plugins import load_plugins
from leakscope.scenario.components import KINDS, Kind
from leakscope.scenario.problems import Problem, ScenarioError
from leakscope.scenario.schema import message_of, problem_of
from leakscope.scenario.text import MOST_BYTES, Text, read_text, write_text

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class UserFile:
    """The fields of a file, its text, its name ("" for a mapping) and the line of every value."""

    data: dict[str, Any]
    text: str = field(repr=False)
    source: str = ""
    lines: Text = field(default_factory=Text, repr=False)

    def error(self, problems: list[Problem]) -> ScenarioError:
        """Return problems as one error, each with its line."""
        located = [replace(problem, line=problem.line or self.lines.line(problem.path)) for problem in problems]
        return ScenarioError(located, self.source)

    def check(self, model: type[BaseModel], kinds: Mapping[str, Kind] = KINDS) -> dict[str, Any]:
        """Return the fields with every default filled in, or raise all validation errors."""
        try:
            return model.model_validate(self.data).model_dump()
        except ValidationError as error:
            problems = [problem_of(self.data, item, model, kinds) for item in error.errors(include_url=False)]
            raise self.error(problems) from None

    def read(self, kind: type[T]) -> T:
        """Return the fields as a frozen dataclass, or raise all validation errors."""
        try:
            value: T = _adapter(kind).validate_python(self.data)  # type: ignore[arg-type]  # mypy: a class is no Hashable
        except ValidationError as error:
            problems = [Problem(tuple(item["loc"]), message_of(item)) for item in error.errors(include_url=False)]
            raise self.error(problems) from None
        return value


@functools.cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def read_user_file(path: FilePath | str, kind: str, *, may_be_empty: bool = False) -> UserFile:
    """Return the fields of a YAML file; `kind` names it in messages, such as 'an audit file'. `may_be_empty` allows all defaults."""
    what = kind.partition(" ")[2]
    try:
        with open(
            path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)
        ) as file:  # no FIFO is waited for
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise InputError(f"{path} is no {what}: only plain files are read")
            raw = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise InputError(f"cannot read the {what} {path} ({error.strerror})") from None
    if len(raw) > MOST_BYTES:
        raise InputError(f"{path} is no {what}: it has more than the {MOST_BYTES:,} bytes that are read")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is no text in UTF-8 ({error.reason} at byte {error.start})") from None
    read = read_text(text, str(path))
    return _fields(replace(read, data={}) if read.data is None and may_be_empty else read, text, str(path), kind)


def parse_user_file(text: str, source: str, kind: str) -> UserFile:
    """Return the fields of a YAML text; `source` names it in messages."""
    return _fields(read_text(text, source), text, source, kind)


def user_file_of(data: Mapping[str, Any], kind: str) -> UserFile:
    """Return a plain mapping as a user file."""
    plain = copy.deepcopy(dict(data))
    try:
        text = write_text(plain)
        json.dumps(plain, ensure_ascii=False, default=str).encode("utf-8")
    except (yaml.YAMLError, RecursionError, ValueError, TypeError) as error:
        line = str(error).splitlines()[0]
        raise InputError(f"{kind} must consist of plain values, lists and mappings ({line})") from None
    return _fields(Text(data=plain), text, "", kind)


def _fields(read: Text, text: str, source: str, kind: str) -> UserFile:
    load_plugins()  # a file may name what an installed package registers
    if not isinstance(read.data, dict):
        message = f"{kind} is a mapping of fields, got {type(read.data).__name__}"
        raise ScenarioError([Problem((), message, 1)], source)
    return UserFile(read.data, text, source, read)
