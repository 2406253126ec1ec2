"""The interface of engines: chunks with their needs go in, results come out as they finish, notes report progress.

A result must not depend on where it was computed or on what ran beside it. So a chunk is a picklable value, the work an
importable function, and the number of torch threads is part of the chunk's needs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar, cast

from leakscope.core.errors import InputError

if TYPE_CHECKING:
    from leakscope.attacks.engine.state import Progress

C = TypeVar("C")
R = TypeVar("R")
LONGEST_NAME = 60


@dataclass(frozen=True, slots=True)
class Needs:
    """What one chunk needs: torch threads, (fractions of) GPUs, and bytes of memory if known."""

    threads: int = 1
    gpus: float = 0
    memory: int | None = None

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise InputError(f"Needs.threads must be at least 1, got {self.threads}")
        if self.gpus < 0:
            raise InputError(f"Needs.gpus must not be below 0, got {self.gpus}")
        if self.memory is not None and self.memory < 1:
            raise InputError(f"Needs.memory must be positive bytes, got {self.memory}")


class Note(NamedTuple):
    """Progress of a chunk: trials in total, done, converged and diverged; iteration of the slowest; a message if it waits."""

    chunk: str
    total: int = 0
    done: int = 0
    converged: int = 0
    diverged: int = 0
    iteration: int = 0
    note: str = ""


OnNote = Callable[[Note], None]


class LostChunkError(RuntimeError):
    """A chunk whose workers died repeatedly; the message is one line for the terminal."""


class Engine(Protocol):
    """Any map over chunks."""

    def __call__(
        self,
        work: Callable[[C], R],
        chunks: Iterable[tuple[C, Needs]],
        *,
        stop: Callable[[], bool] = ...,
        on_note: OnNote | None = ...,
    ) -> Iterator[tuple[C, R]]:
        """Yield (chunk, result) as they finish, in any order, each exactly once.

        Once `stop()` is true, or a chunk raises, nothing new starts; running chunks are finished and yielded, then the error is
        raised. Chunks are drawn from the iterable when there is room, at most one ahead.
        """
        ...


def never() -> bool:
    """Return False: never stop."""
    return False


@dataclass(frozen=True, slots=True)
class Order(Generic[C, R]):
    """The arguments of one engine call: the work, the chunks, when to stop, and where notes go."""

    work: Callable[[C], R]
    chunks: Iterator[tuple[C, Needs]]
    stop: Callable[[], bool] = never
    on_note: OnNote | None = None


def engine_of(run: Callable[[Order[object, object]], Iterator[tuple[object, object]]]) -> Engine:
    """Return the engine that runs orders with this function."""

    def engine(
        work: Callable[[C], R],
        chunks: Iterable[tuple[C, Needs]],
        *,
        stop: Callable[[], bool] = never,
        on_note: OnNote | None = None,
    ) -> Iterator[tuple[C, R]]:
        return cast(Iterator[tuple[C, R]], run(Order(work, iter(chunks), stop, on_note)))  # type: ignore[arg-type]

    return engine


def name_of(chunk: object) -> str:
    """Return a chunk's name for messages: its `name` if it has one, else its repr, truncated.

    >>> name_of(range(3))
    'range(0, 3)'
    """
    name = getattr(chunk, "name", None)
    text = name if isinstance(name, str) else repr(chunk)
    return text if len(text) <= LONGEST_NAME else text[: LONGEST_NAME - 3] + "..."


_listener: ContextVar[OnNote | None] = ContextVar("listener", default=None)


def report(note: Note) -> None:
    """Pass a note to the listener of this chunk, if there is one."""
    on_note = _listener.get()
    if on_note is not None:
        on_note(note)


def reporter(chunk: str) -> Callable[[Progress], None] | None:
    """Return a callback for `Execution.progress` that reports under this name, or None without a listener."""
    if _listener.get() is None:
        return None

    return lambda now: report(Note(chunk, now.total, now.done, now.converged, now.diverged, now.iteration, now.note))


@contextlib.contextmanager
def listening(on_note: OnNote | None) -> Iterator[None]:
    """Pass notes reported inside the context to `on_note`."""
    before = _listener.set(on_note)
    try:
        yield
    finally:
        _listener.reset(before)


@contextlib.contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """Set the number of torch threads inside the context and restore it afterwards."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
