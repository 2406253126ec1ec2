"""Settings of a scenario's cell that belong to no component: data, knowledge, precision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from leakscope.attacks.engine.forms import FORMS
from leakscope.attacks.engine.plan import DTYPES
from leakscope.core.errors import InputError
from leakscope.core.model import Mode
from leakscope.core.registry import lookup
from leakscope.data import SOURCES
from leakscope.data.resizing import MOST_SIDE
from leakscope.data.text import GENERATED, LENGTH

MOST_LENGTH, LEAST_WORDS, MOST_WORDS = 512, 10, 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DataChoice:
    """Which examples the clients hold: client i has the `samples` examples from number `first + i * samples` on.

    Where `client.aggregate` sums K clients, these are the examples of each, and the next K clients make one update.

    Examples before `first` are not used, and no two clients share any. With order `writers`, client i holds the first `samples`
    examples of writer `first + i` of those with as many, in a fixed random order. Scores are always computed in [0, 1].
    """

    name: str
    part: Literal["train", "test"] = "test"
    first: int = 0
    samples: int = 1
    order: Literal["given", "shuffled", "writers"] = "given"  # shuffled: the whole part in a fixed random order
    scaling: Literal["none", "statistics"] = "none"  # statistics: by the set's mean and standard deviation
    mix: Literal["given", "random", "equal", "two"] = "given"  # random: any labels; equal: one class; two: two
    size: int | None = None  # images are resized to size x size before the client sees them
    length: int | None = None  # words of a sentence (8), longer ones are cut and shorter ones left out
    shortest: int | None = (
        None  # least words of a sentence: shorter ones than `length` are padded, and the network masks padding
    )
    words: int | None = None  # vocabulary of generated sentences (2000)

    def __post_init__(self) -> None:
        lookup(SOURCES, self.name, "data set")
        if self.first < 0:
            raise InputError(f"DataChoice.first must not be below 0, got {self.first}")
        if self.samples < 1:
            raise InputError(f"DataChoice.samples must be at least 1, got {self.samples}")
        if self.order == "writers" and self.mix != "given":
            raise InputError(f"DataChoice.mix must be given with order writers, got {self.mix}")
        if self.size is not None and not 1 <= self.size <= MOST_SIDE:
            raise InputError(f"DataChoice.size must be in 1 .. {MOST_SIDE}, got {self.size}")
        check_sentences("DataChoice", self.name, self.length, self.words, self.shortest)


def check_sentences(owner: str, name: str, length: int | None, words: int | None, shortest: int | None) -> None:
    """Refuse settings of sentences on other data or out of range; `owner` is the class whose fields they are."""
    text, longest = SOURCES[name].kind == "text", LENGTH if length is None else length
    if length is not None and not (text and 1 <= length <= MOST_LENGTH):
        raise InputError(f"{owner}.length is for sentences, in 1 .. {MOST_LENGTH}, got {length}")
    if shortest is not None and not (text and 1 <= shortest <= longest):
        raise InputError(f"{owner}.shortest is for sentences, in 1 .. {longest}, got {shortest}")
    if words is not None and (name != GENERATED or not LEAST_WORDS <= words <= MOST_WORDS):
        raise InputError(f"{owner}.words is for {GENERATED}, in {LEAST_WORDS} .. {MOST_WORDS}, got {words}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnowledgeChoice:
    """What the attacker is given besides the network, the loss and the sample count: labels, the local training, defences."""

    labels: bool = False
    local: bool = True
    defence: bool = False  # uses mask, clip, bits, noise level; averages rounds; simulates local steps
    dropout: bool = False  # simulates with the client's dropout masks instead of averaging over masks
    norm: Mode | None = None  # the mode of batch norm that the attacker assumes; None: the client's

    def __post_init__(self) -> None:
        if self.dropout and not self.defence:
            raise InputError(
                "KnowledgeChoice.dropout gives the masks to an attacker who knows the defence: set defence: true"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Numerical settings that can change results: dtype and TF32; `form` and `chunk` only to force them."""

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
