"""What a cell of a scenario says that no piece of the library says already: which data, what is told, how to run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from leakscope.attacks.engine.forms import FORMS
from leakscope.attacks.engine.plan import DTYPES
from leakscope.core.errors import InputError
from leakscope.core.registry import lookup
from leakscope.data import SOURCES
from leakscope.data.resizing import MOST_SIDE


@dataclass(frozen=True, slots=True, kw_only=True)
class DataChoice:
    """Which examples the clients hold: client i has the `samples` examples from number `first + i * samples` on.

    `order` 'shuffled' draws the examples of the whole part in a fixed random order instead. `scaling` 'statistics' gives the network
    the usual mean and standard deviation of the set; scores are always taken in [0, 1]. `mix` is the label mix of a batch: 'given'
    as above, 'random' drawn at random with labels as they fall, 'equal' all of one class, 'two' of two classes; the
    examples before `first` take no part, and no two clients share any. `size` resizes pictures to size x size before the client
    sees them.
    """

    name: str
    part: Literal["train", "test"] = "test"
    first: int = 0
    samples: int = 1
    order: Literal["given", "shuffled"] = "given"
    scaling: Literal["none", "statistics"] = "none"
    mix: Literal["given", "random", "equal", "two"] = "given"
    size: int | None = None

    def __post_init__(self) -> None:
        lookup(SOURCES, self.name, "data set")
        if self.first < 0:
            raise InputError(f"DataChoice.first must not be below 0, got {self.first}")
        if self.samples < 1:
            raise InputError(f"DataChoice.samples must be at least 1, got {self.samples}")
        if self.size is not None and not 1 <= self.size <= MOST_SIDE:
            raise InputError(f"DataChoice.size must be in 1 .. {MOST_SIDE}, got {self.size}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnowledgeChoice:
    """What the attacker is told besides the network, the loss and the sample count: labels, the local training, defences.

    An attacker told of the `defence` knows its facts (what was sent, the clip, the bits, the noise level) and uses them; several
    rounds of one batch under fresh noise become one with their mean; local steps are simulated; dropout in the client's network is
    averaged over masks, or, told `dropout` too, simulated with the masks the client drew.
    """

    labels: bool = False
    local: bool = True
    defence: bool = False
    dropout: bool = False

    def __post_init__(self) -> None:
        if self.dropout and not self.defence:
            raise InputError(
                "KnowledgeChoice.dropout tells the masks to an attacker who knows the defence: set defence: true"
            )


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
