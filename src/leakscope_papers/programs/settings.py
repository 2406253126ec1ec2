"""The settings of programs as typed values. Rows are stored with the plain mapping they are read from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypeAlias, TypeVar

from pydantic import BeforeValidator

from leakscope.core.model import Model
from leakscope.data import Dataset
from leakscope.models import build
from leakscope.scenario.cell import ModelChoice
from leakscope.scenario.reader import UserFile
from leakscope_papers.files import file_dataclass

T = TypeVar("T")
Number: TypeAlias = int | float  # stored as in the file: 0 stays an int
PieceSettings: TypeAlias = Mapping[str, object]  # an attack or partition: its name and settings


def _choice(value: object) -> ModelChoice:
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise ValueError("must be a mapping with a name")
    return ModelChoice.of(value)


Network: TypeAlias = Annotated[ModelChoice, BeforeValidator(_choice)]


@file_dataclass
class DataName:
    """A data set."""

    name: str


@file_dataclass
class SizedData:
    """A data set; with a `size` its images are resized to size x size."""

    name: str
    size: int | None = None


def read_settings(kind: type[T], plain: Mapping[str, object]) -> T:
    """Return a program's settings as this dataclass, or raise all errors; other keys are ignored, as programs share one mapping."""
    return UserFile({name: plain[name] for name in kind.__annotations__ if name in plain}, "").read(kind)


def build_network(choice: ModelChoice, data: Dataset) -> Model:
    """Return a network for a data set."""
    return build(choice.name, data.input_shape, data.classes, dict(choice.settings))
