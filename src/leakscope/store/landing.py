"""A finished chunk on its way into the store."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leakscope.core.errors import InputError
from leakscope.core.record import Record

if TYPE_CHECKING:
    from torch import Tensor

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_RESERVED = "__metadata__"  # safetensors keeps its own header there


@dataclass(frozen=True, slots=True, kw_only=True)
class Landing:
    """All that a chunk made: its records, and tensors whose row i belongs to records[i].

    `plan` is the number that `Writer.add_plan` gave, `seconds` the time of the whole chunk.
    """

    chunk: str
    plan: int
    records: tuple[Record, ...]
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.chunk):
            raise InputError(
                f"Landing.chunk must be a plain name of up to 100 letters, digits, '.', '_' and '-', got {self.chunk!r}"
            )
        if not self.records:
            raise InputError(f"Landing.records must not be empty (chunk {self.chunk})")
        trial, times = Counter(record.trial for record in self.records).most_common(1)[0]
        if times > 1:
            raise InputError(
                f"Landing.records must be of different trials, chunk {self.chunk} has {trial} {times} times"
            )
        for name, tensor in self.tensors.items():
            if name == _RESERVED:
                raise InputError(f"Landing.tensors must not use the name {_RESERVED!r}")
            if tensor.ndim == 0 or tensor.shape[0] != len(self.records):
                shape = tuple(tensor.shape)
                raise InputError(
                    f"Landing.tensors[{name!r}] must lead with {len(self.records)} records, its shape is {shape}"
                )
