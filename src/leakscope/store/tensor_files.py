"""A finished chunk on its way into the store, and its pictures: one safetensors file, one row for each trial."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from leakscope.core.errors import InputError
from leakscope.core.record import Record
from leakscope.store.disk import replacing

if TYPE_CHECKING:
    from torch import Tensor

TENSORS = "tensors"
SUFFIX = ".safetensors"
_BLOCK = 1 << 20
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


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a file must look like: its length in bytes and the SHA-256 of them."""

    size: int
    sha256: bytes


def file_of(directory: Path, plan: int, chunk: str) -> Path:
    """Return the file of a chunk; the plan is part of its name, so that each plan may count its chunks from one."""
    return directory / TENSORS / f"{plan}-{chunk}{SUFFIX}"


def write_tensors(path: Path, landing: Landing) -> Stamp:
    """Write the tensors of a landing, whole or not at all, and return what the file must look like from now on."""
    from safetensors.torch import save

    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in landing.tensors.items()}
    about = {"chunk": landing.chunk, "plan": landing.plan, "trials": [record.trial for record in landing.records]}
    data = save(plain, metadata={"leakscope": json.dumps(about)})
    with replacing(path) as file:
        file.write(data)
    return Stamp(len(data), hashlib.sha256(data).digest())


def fault(path: Path, stamp: Stamp) -> str | None:
    """Return what is wrong with a file, None if its length and every byte are right."""
    try:
        size = path.stat().st_size
        if size != stamp.size:
            return f"has {size} bytes instead of {stamp.size}"
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return None if digest.digest() == stamp.sha256 else "is not as it was written"


def read_row(path: Path, row: int) -> Mapping[str, Tensor]:
    """Return one trial's row of every tensor in a file, reading no other row."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_slice(name)[row : row + 1][0] for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path} cannot be read ({reason}); running the scenario again makes it anew") from None
