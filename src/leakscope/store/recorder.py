"""Recording captures while a federation trains; errors must not disturb training: counted, warned of once, never raised."""

from __future__ import annotations

import hashlib
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from leakscope.core.errors import InputError
from leakscope.core.tree import Tree
from leakscope.store.captures import Capture, Packed, pack_before, write_capture

GIB = 1 << 30
SPARE = 1 << 16  # headers and the JSON text


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What to record: every `every`-th round (the first included), at most `clients` a round, at most `most_bytes` in all."""

    directory: Path
    every: int = 1
    clients: int | None = None
    most_bytes: int = GIB
    seed: int = 0  # with round and client, decides by hash who is recorded: independent of the order of answers

    def __post_init__(self) -> None:
        if self.every < 1:
            raise InputError(f"Recording.every must be at least 1, got {self.every}")
        if self.clients is not None and self.clients < 1:
            raise InputError(f"Recording.clients must be at least 1, got {self.clients}")
        if self.most_bytes < 1:
            raise InputError(f"Recording.most_bytes must be positive, got {self.most_bytes}")

    def wants(self, number: int) -> bool:
        """Return whether a round (counted from 1) is recorded."""
        return (number - 1) % self.every == 0

    def choose(self, number: int, clients: Iterable[str]) -> list[str]:
        """Return the clients of a round that are recorded."""

        def place(client: str) -> bytes:
            return hashlib.sha256(f"{self.seed} {number} {client}".encode()).digest()

        return sorted(sorted(set(clients), key=place)[: self.clients])


class Recorder:
    """Writes captures until `most_bytes` is reached; counts what was written and what was left out, and why."""

    def __init__(self, settings: Recording) -> None:
        self.settings = settings
        self.written = 0
        self.left_out: Counter[str] = Counter()
        self.used = used_bytes(settings.directory)
        self.packed: tuple[Tree, Packed] | None = None

    def record(self, capture: Capture) -> bool:
        """Return whether the capture was written; never raise."""
        need = sum(t.nbytes for tree in (capture.before, capture.sent) for t in tree.values()) + SPARE
        if self.used + need > self.settings.most_bytes:
            return self.leave_out(f"Recording.most_bytes ({self.settings.most_bytes:,}) is used up")
        try:
            if self.packed is None or self.packed[0] is not capture.before:  # most clients of a round get the same
                self.packed = (capture.before, pack_before(capture))
            self.used += write_capture(self.settings.directory, capture, self.packed[1])
        except InputError as error:
            return self.leave_out(str(error))
        except Exception as error:  # training must continue, whatever a client sent
            return self.leave_out(f"{capture.name}: {type(error).__name__}: {error}")
        self.written += 1
        return True

    def leave_out(self, why: str) -> bool:
        """Count a capture that was not written; warn the first time. Return False."""
        if not self.left_out:
            warnings.warn(f"an update was not recorded ({why}); training goes on", stacklevel=3)
        self.left_out[why] += 1
        return False


def used_bytes(directory: Path) -> int:
    """Return the bytes of all files in a directory; 0 if it does not exist."""
    if not directory.is_dir():
        return 0
    return sum(path.lstat().st_size for path in directory.iterdir() if path.is_file())
