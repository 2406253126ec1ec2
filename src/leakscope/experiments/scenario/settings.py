"""What a cell of a scenario says that no piece of the library says already: which data, what is told, how to run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from leakscope.attacks.forms import FORMS
from leakscope.attacks.plan import DTYPES
from leakscope.core.errors import InputError
from leakscope.core.registry import lookup
from leakscope.data import SOURCES


@dataclass(frozen=True, slots=True, kw_only=True)
class DataChoice:
    """Which examples the clients hold: client i has the `samples` examples from number `first + i * samples` on.

    `order` 'shuffled' draws the examples of the whole part in a fixed random order instead. `scaling` 'statistics' gives the network
    the usual mean and standard deviation of the set; scores are always taken in [0, 1].
    """

    name: str
    part: Literal["train", "test"] = "test"
    first: int = 0
    samples: int = 1
    order: Literal["given", "shuffled"] = "given"
    scaling: Literal["none", "statistics"] = "none"

    def __post_init__(self) -> None:
        lookup(SOURCES, self.name, "data set")
        if self.first < 0:
            raise InputError(f"DataChoice.first must not be below 0, got {self.first}")
        if self.samples < 1:
            raise InputError(f"DataChoice.samples must be at least 1, got {self.samples}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnowledgeChoice:
    """What the attacker is told besides the network, the loss and the sample count: labels, the local training, defences.

    An attacker told of the `defence` knows its facts (what was sent, the clip, the bits, the noise level) and uses them.
    """

    labels: bool = False
    local: bool = True
    defence: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """What of the way to run may change the numbers: dtype and TF32; `form` and `chunk` only where they are forced."""

    dtype: str = "float32"
    tf32: bool = False
    form: str | None = None
    chunk: int | None = None

    def __post_init__(self) -> None:
        lookup(DTYPES, self.dtype, "dtype")
        if self.form is not None:
            lookup(dict.fromkeys(FORMS), self.form, "form")
        if self.chunk is not None and self.chunk < 1:
            raise InputError(f"Precision.chunk must be at least 1, got {self.chunk}")
