"""The tensors of a finished chunk: one safetensors file with one row per trial."""

from __future__ import annotations

import hashlib
import json
import re
import stat
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from leakscope.core.errors import InputError
from leakscope.core.record import Record
from leakscope.core.short_repr import short_repr
from leakscope.store.disk import PART, check_plain, replacing

if TYPE_CHECKING:
    from torch import Tensor

TENSORS = "tensors"
SUFFIX = ".safetensors"
_BLOCK = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_FILE = re.compile(rf"[0-9]+-{_NAME.pattern}{re.escape(SUFFIX)}({re.escape(PART)})?")
_RESERVED = "__metadata__"  # used by safetensors itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Landing:
    """The results of a chunk: its records, and tensors whose row i belongs to records[i]."""

    chunk: str
    plan: int  # number returned by `Writer.add_plan`
    records: tuple[Record, ...]
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    seconds: float = 0.0  # of the whole chunk

    __repr__ = short_repr

    def __post_init__(self) -> None:
        check_chunk_name(self.chunk)
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
    """The expected size and SHA-256 of a file."""

    size: int
    sha256: bytes


def check_chunk_name(name: str) -> None:
    """Raise if a chunk has a name that could lead out of the run."""
    if not _NAME.fullmatch(name):
        raise InputError(f"the name of a chunk must be up to 100 letters, digits, '.', '_' and '-', got {name!r:.120}")


def is_ours(path: Path) -> bool:
    """Return whether a path is a plain file with the name of a tensor file, finished or not."""
    return bool(_FILE.fullmatch(path.name)) and stat.S_ISREG(path.lstat().st_mode)


def file_of(directory: Path, plan: int, chunk: str) -> Path:
    """Return the file of a chunk; the plan is part of its name, because each plan counts its chunks from one."""
    check_chunk_name(chunk)
    return directory / TENSORS / f"{plan}-{chunk}{SUFFIX}"


def write_tensors(path: Path, landing: Landing) -> Stamp:
    """Write the tensors of a landing atomically and return the file's stamp."""
    from safetensors.torch import save

    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in landing.tensors.items()}
    about = {"chunk": landing.chunk, "plan": landing.plan, "trials": [record.trial for record in landing.records]}
    data = save(plain, metadata={"leakscope": json.dumps(about)})
    with replacing(path) as file:
        file.write(data)
    return Stamp(len(data), hashlib.sha256(data).digest())


def fault(path: Path, stamp: Stamp) -> str | None:
    """Return what is wrong with a file, None if its size and hash match."""
    try:
        size = path.lstat().st_size
        if not is_ours(path):
            return "is no plain file"
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
    """Return one trial's row of every tensor in a file without reading the other rows."""
    from safetensors import SafetensorError, safe_open

    try:
        check_plain(path)  # opening a FIFO waits for ever
        with safe_open(path, framework="pt") as file:
            return {name: file.get_slice(name)[row : row + 1][0] for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, IndexError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path} cannot be read ({reason}); run the scenario again to write it again") from None
