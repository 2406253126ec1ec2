"""The driver's loop over a crew of workers: who starts when, who is tried again, when to end. The same for every crew."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Generic, Protocol, cast

from leakscope.sweep.engines.contract import C, LostChunkError, Needs, Note, Order, R, name_of
from leakscope.sweep.engines.parcels import pack, unpack

RETRIES = 2


@dataclass(frozen=True, slots=True, eq=False)
class Job(Generic[C]):
    """A chunk on its way: packed for travel, with the workers it has lost so far."""

    chunk: C
    needs: Needs
    packed: bytes
    losses: int = 0


@dataclass(frozen=True, slots=True)
class Lost:
    """The end of a worker that died with a chunk in hand."""

    reason: str


class Crew(Protocol[C]):
    """Whoever carries out jobs."""

    def takes(self, needs: Needs) -> bool:
        """Return whether there is room for such a chunk now; an idle crew takes any chunk or raises."""
        ...

    def start(self, job: Job[C]) -> None:
        """Begin a job."""
        ...

    def busy(self) -> bool:
        """Return whether any job is in hand."""
        ...

    def ended(self) -> Iterator[tuple[Job[C], bytes | Lost]]:
        """Wait a moment and yield the jobs that ended meanwhile, if any."""
        ...

    def dismiss(self) -> None:
        """End all workers; what they had in hand is given up."""
        ...


def drive(crew: Crew[C], order: Order[C, R]) -> Iterator[tuple[C, R]]:
    """Yield (chunk, result) as the crew finishes them; see `Engine` for the rules."""
    shift = _Shift(crew, order)
    heard: dict[object, object] = {}
    try:
        shift.fill()
        while crew.busy():
            for job, ending in crew.ended():
                if isinstance(ending, Lost):
                    shift.lost(job, ending)
                    continue
                try:
                    result = cast(R, unpack(ending, name_of(job.chunk), heard))
                except Exception as error:
                    shift.fail(error)
                    continue
                shift.fill()  # before the caller gets to work on this result, so that no worker waits for it
                yield job.chunk, result
            shift.fill()
    finally:
        crew.dismiss()
    if shift.failure is not None:
        raise shift.failure


class _Shift(Generic[C, R]):
    """The state of one drive: what is left to start, and whether anything may start at all."""

    def __init__(self, crew: Crew[C], order: Order[C, R]) -> None:
        self.crew, self.order = crew, order
        self.waiting: deque[Job[C]] = deque()
        self.closed = False
        self.failure: Exception | None = None

    def fill(self) -> None:
        """Start jobs while there is room, those that lost a worker first; what cannot even start is a failure."""
        try:
            while not self._closed() and (self.waiting or self._draw()) and self.crew.takes(self.waiting[0].needs):
                self.crew.start(self.waiting.popleft())
        except Exception as error:
            self.fail(error)

    def _closed(self) -> bool:
        self.closed = self.closed or self.order.stop()
        return self.closed

    def _draw(self) -> bool:
        drawn = next(self.order.chunks, None)
        if drawn is not None:
            chunk, needs = drawn
            self.waiting.append(Job(chunk, needs, pack(self.order.work, chunk)))
        return drawn is not None

    def lost(self, job: Job[C], lost: Lost) -> None:
        """Put a job back in line, unless it has lost too many workers."""
        name, losses = name_of(job.chunk), job.losses + 1
        if losses > RETRIES:
            self.fail(LostChunkError(f"chunk {name} was given up: {losses} workers died of it, the last {lost.reason}"))
            return
        if self.order.on_note is not None:
            self.order.on_note(Note(name, note=f"worker lost ({lost.reason}); trying again, {losses} of {RETRIES}"))
        self.waiting.appendleft(replace(job, losses=losses))

    def fail(self, error: Exception) -> None:
        """Start nothing more; the first error is raised when all in hand is done."""
        self.closed, self.failure = True, self.failure or error
