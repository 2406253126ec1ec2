"""The state of a chunk on disk: a safetensors file, written atomically."""

from __future__ import annotations

import errno
import json
import os
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from leakscope.core.errors import InputError
from leakscope.core.tree import fill, flat_names

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Saved:
    """A loaded state: its tensors by name, and its tick."""

    tensors: dict[str, Tensor]
    tick: int

    def restore(self, part: str, like: V) -> V:
        """Return `like` with its tensors replaced by the saved ones of that part."""
        names = flat_names(like, part)
        missing = sorted(set(names) - set(self.tensors))
        if missing:
            raise InputError(f"saved state lacks {missing[0]!r}: it belongs to another run or version")
        device = next(iter(names.values())).device
        return fill(like, [self.tensors[name].to(device) for name in names])


def _saved_form(value: object) -> dict[str, Tensor]:
    """Return tensors by name that each own all of their memory, as safetensors needs them; only those that do not are copied."""
    saved: dict[str, Tensor] = {}
    owners: set[int] = set()
    for name, tensor in flat_names(value).items():
        t = tensor.detach().cpu()
        storage = t.untyped_storage()
        owned = t.is_contiguous() and storage.nbytes() == t.numel() * t.element_size()
        saved[name] = (
            t if owned and storage.data_ptr() not in owners else t.clone(memory_format=torch.contiguous_format)
        )
        owners.add(storage.data_ptr())
    return saved


@dataclass(slots=True)
class Checkpoint:
    """The file of a chunk's state; `stamp` identifies the run, and a file of another run is refused."""

    path: Path
    stamp: str
    every: float = 30.0
    _last: float = field(default_factory=time.monotonic)

    def due(self) -> bool:
        """Return whether the next save is due."""
        return time.monotonic() - self._last >= self.every

    def save(self, value: object, *, tick: int) -> None:
        """Write atomically: a crash leaves the old file or the new one."""
        flat, temporary = _saved_form(value), self.path.with_suffix(".part")
        try:
            save_file(flat, temporary, metadata={"leakscope": json.dumps({"stamp": self.stamp, "tick": tick})})
        except SafetensorError as error:  # it hides the operating system's message
            temporary.unlink(missing_ok=True)
            raise OSError(errno.EIO, f"the state of the chunk could not be written ({error})") from None
        os.replace(temporary, self.path)
        self._last = time.monotonic()

    def load(self) -> Saved | None:
        """Return the saved state, or None; a damaged one is dropped."""
        if not self.path.is_file():
            return None
        try:
            with safe_open(self.path, framework="pt") as file:
                about = json.loads((file.metadata() or {})["leakscope"])
                stamp, tick = about["stamp"], int(about["tick"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, KeyError, ValueError, TypeError, OSError) as error:
            warnings.warn(f"{self.path} is not a readable state ({error}); its chunk starts again", stacklevel=2)
            return None
        if stamp != self.stamp:
            raise InputError(f"{self.path.name} was saved by another run; use an empty directory or the same settings")
        return Saved(tensors, tick)

    def remove(self) -> None:
        """Delete the file once the chunk is done."""
        self.path.unlink(missing_ok=True)
