"""Recording updates: `capture` writes one; a `Recorder` writes those of a federation and never stops its training."""

from __future__ import annotations

import contextlib
import hashlib
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from leakscope.core.errors import InputError
from leakscope.core.tree import Tree
from leakscope.core.types import Shares
from leakscope.store.captures import Capture, Packed, Plain, pack_before, write_capture

GIB = 1 << 30
SPARE = 1 << 16  # headers and the JSON text


def capture(
    before: Mapping[str, Tensor] | nn.Module,
    after: Mapping[str, Tensor] | nn.Module,
    *,
    directory: Path | str,
    round: int,
    client: str | int,
    samples: int | None = None,
    partition: int | None = None,
    shares: Shares = Shares.WEIGHTS,
    config: Mapping[str, Plain] | None = None,
) -> Path:
    """Write the update of one client in one round and return the path of its description, for `leakscope audit DIRECTORY`.

    `before` holds the weights that the client received; `after` holds what it sent: its new weights, or with
    `Shares.GRADIENT` its gradient by parameter name. Each is a module or a state_dict. `samples` counts the client's
    training examples; `partition` is the number by which `Target.truth` finds them; `config` is what the server sent the
    client (`lr`, `epochs`, `batch_size`). The same tensors give the same files as the recorders of Flower and NVFlare.
    """
    received, sent = _named_tensors(before, "before"), _named_tensors(after, "after")
    if sent and all(name in received and received[name].data_ptr() == v.data_ptr() for name, v in sent.items()):
        raise InputError(
            "capture(): before and after share their memory, so training changed both; "
            "copy the weights first: before = copy.deepcopy(model.state_dict())"
        )
    update = Capture(
        round=round,
        client=str(client),
        before=received,
        sent=sent,
        shares=shares.value,
        partition=partition,
        examples=samples,
        config=config or {},
    )
    write_capture(Path(directory), update)
    return Path(directory) / f"{update.name}.json"


def _named_tensors(weights: Mapping[str, Tensor] | nn.Module, argument: str) -> Tree:
    state = weights.state_dict() if isinstance(weights, nn.Module) else weights
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise InputError(f"capture({argument}): {name!r:.80} must be a tensor, got {type(value).__name__}")
    return {name: value.to_dense() if value.is_sparse else value for name, value in state.items()}


def plain_config(*records: Mapping[str, object]) -> dict[str, Plain]:
    """Return what a server sent a client as plain values; lists, bytes and non-finite numbers are left out."""
    return {
        str(name): value
        for record in records
        for name, value in record.items()
        if isinstance(value, str | int | bool) or (isinstance(value, float) and math.isfinite(value))
    }


def reported_count(name: str, *records: Mapping[str, object]) -> int | None:
    """Return the first whole number of that name that a client reported, None if there is none."""
    for record in records:
        value = record.get(name)
        if isinstance(value, int | float) and math.isfinite(value) and value >= 0 and value == int(value):
            return int(value)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What to record: every `every`-th round (the first included), at most `clients` per round, at most `most_bytes` in total."""

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

    def safely(self, work: Callable[[], None]) -> None:
        """Run `work` without stopping the training on an error; errors are counted."""
        try:
            work()
        except Exception as error:
            with contextlib.suppress(Exception):  # warnings may be configured as errors
                self.leave_out(f"{type(error).__name__}: {error}")

    def leave_out(self, why: str) -> bool:
        """Count a capture that was not written; warn the first time. Return False."""
        if not self.left_out:
            warnings.warn(f"an update was not recorded ({why}); training continues", stacklevel=3)
        self.left_out[why] += 1
        return False


def used_bytes(directory: Path) -> int:
    """Return the bytes of all files in a directory; 0 if it does not exist."""
    if not directory.is_dir():
        return 0
    return sum(path.lstat().st_size for path in directory.iterdir() if path.is_file())
