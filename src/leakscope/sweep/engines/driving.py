"""The driver's loop over a pool of workers: starting jobs, retrying lost ones, stopping. Shared by all engines with workers."""

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
    """A pickled chunk with the number of workers it has lost so far."""

    chunk: C
    needs: Needs
    packed: bytes
    losses: int = 0


@dataclass(frozen=True, slots=True)
class Lost:
    """The result of a worker that died while running a chunk."""

    reason: str


class Crew(Protocol[C]):
    """A pool of workers that runs jobs."""

    def takes(self, needs: Needs) -> bool:
        """Return whether there is room for such a chunk now; an idle pool takes any chunk or raises."""
        ...

    def start(self, job: Job[C]) -> None:
        """Start a job."""
        ...

    def busy(self) -> bool:
        """Return whether any job is running."""
        ...

    def ended(self) -> Iterator[tuple[Job[C], bytes | Lost]]:
        """Wait briefly and yield the jobs that ended meanwhile, if any."""
        ...

    def dismiss(self) -> None:
        """Stop all workers and abandon their jobs."""
        ...


def drive(crew: Crew[C], order: Order[C, R]) -> Iterator[tuple[C, R]]:
    """Yield (chunk, result) as the workers finish them; see `Engine` for the rules."""
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
                shift.fill()  # before the caller processes this result, so that no worker idles
                yield job.chunk, result
            shift.fill()
    finally:
        crew.dismiss()
    if shift.failure is not None:
        raise shift.failure


class _Shift(Generic[C, R]):
    """The state of one drive: the jobs left to start, and whether anything may start."""

    def __init__(self, crew: Crew[C], order: Order[C, R]) -> None:
        self.crew, self.order = crew, order
        self.waiting: deque[Job[C]] = deque()
        self.closed = False
        self.failure: Exception | None = None

    def fill(self) -> None:
        """Start jobs while there is room, those that lost a worker first; an error on starting is a failure."""
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
        """Put a job back in the queue, unless it has lost too many workers."""
        name, losses = name_of(job.chunk), job.losses + 1
        if losses > RETRIES:
            self.fail(LostChunkError(f"chunk {name} was given up: {losses} workers died of it, the last {lost.reason}"))
            return
        if self.order.on_note is not None:
            self.order.on_note(Note(name, note=f"worker lost ({lost.reason}); trying again, {losses} of {RETRIES}"))
        self.waiting.appendleft(replace(job, losses=losses))

    def fail(self, error: Exception) -> None:
        """Stop starting jobs; the first error is raised when the running ones have finished."""
        self.closed, self.failure = True, self.failure or error
