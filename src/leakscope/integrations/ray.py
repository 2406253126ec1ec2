"""An engine on Ray, local or a cluster: each chunk is a task with its CPUs, GPUs and memory.

Ray gets no more chunks than the cluster can run now, so a long sweep does not fill its object store and can stop soon. Ray's
retries are off: the driver retries lost chunks by the same rule as for processes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import time
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Generic

from leakscope.core.errors import InputError, first_line, import_extra
from leakscope.sweep.engines.contract import C, Engine, Needs, Note, OnNote, Order, R, engine_of, name_of
from leakscope.sweep.engines.driving import Job, Lost, drive
from leakscope.sweep.engines.parcels import attempt, seldom

QUIET = 1.0  # seconds between two notes of a worker
LOOK = 0.5  # seconds the driver waits for a result before it checks for notes
NODES = 5.0  # seconds for which the list of nodes is cached
KNOCK = 5.0  # seconds to wait for an answer at an address


def ray_engine(address: str | None = None, *, cores: int | None = None, in_flight: int | None = None) -> Engine:
    """Return an engine that runs every chunk as a Ray task.

    Without an address it uses the connected Ray, else the cluster of $RAY_ADDRESS, else a temporary Ray with `cores` (default:
    all). `in_flight` is the number of chunks Ray holds at once: by default what the cluster can run now; more lets an autoscaler
    see demand.
    """
    for name, value in (("cores", cores), ("in_flight", in_flight)):
        if value is not None and value < 1:
            raise InputError(f"ray_engine({name}) must be at least 1, got {value}")
    if address is not None and cores is not None:
        raise InputError("ray_engine(cores) applies to a local Ray only, not to a cluster at an address")
    ray = import_extra("ray", "ray", "the Ray engine")

    def run(order: Order[C, R]) -> Iterator[tuple[C, R]]:
        with _connected(ray, address, cores) as ours:
            crew: _Crew[C] = _Crew(ray, in_flight, order.on_note, fixed=ours)
            yield from drive(crew, order)

    return engine_of(run)


@contextlib.contextmanager
def _connected(ray: ModuleType, address: str | None, cores: int | None) -> Iterator[bool]:
    """Connect to a cluster or start a Ray, unless connected; yield whether this call started it."""
    if ray.is_initialized():
        yield False
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    address = address or os.environ.get("RAY_ADDRESS")
    settings = {"log_to_driver": False, "logging_level": logging.ERROR}
    with _same_signals():
        if address is None:
            ray.init("local", num_cpus=cores, include_dashboard=False, **settings)
        else:
            _knock(address)
            try:
                ray.init(address, **settings)
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise InputError(f"cannot join the Ray cluster at {address!r}: {first_line(error)}") from None
    try:
        yield address is None
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """Raise if nothing answers at host:port; Ray itself would try for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdecimal():
        return  # 'auto' and similar: Ray reports errors at once
    try:
        socket.create_connection((host.strip("[]"), int(port)), KNOCK).close()
    except (OSError, OverflowError) as error:
        raise InputError(f"no Ray cluster answers at {address!r}: {first_line(error)}") from None


@contextlib.contextmanager
def _same_signals() -> Iterator[None]:
    """Keep the caller's SIGTERM handler, which Ray replaces; without one, Ray's stays."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    if callable(before) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)


def _attempt(packed: bytes, threads: int, ears: Any) -> bytes:
    """Run one packed chunk inside a Ray worker."""
    on_note = seldom(ears.hear.remote, QUIET) if ears is not None else None
    return attempt(packed, threads=threads, on_note=on_note)


class _Ears:
    """An actor that stores the last note of every chunk until the driver fetches it."""

    def __init__(self) -> None:
        self.heard: dict[str, Note] = {}

    def hear(self, note: Note) -> None:
        """Store a note."""
        self.heard[note.chunk] = note

    def take(self) -> list[Note]:
        """Return the notes since the last call."""
        notes, self.heard = list(self.heard.values()), {}
        return notes


class _Crew(Generic[C]):
    """The cluster, with at most as many chunks as it can run."""

    def __init__(self, ray: ModuleType, in_flight: int | None, on_note: OnNote | None, *, fixed: bool) -> None:
        self.ray, self.in_flight, self.on_note, self.fixed = ray, in_flight, on_note, fixed
        self.held: dict[object, Job[C]] = {}
        self.task = ray.remote(max_retries=0)(_attempt)
        self.ears: Any = ray.remote(num_cpus=0)(_Ears).remote() if on_note is not None else None
        self.nodes: list[dict[str, float]] = []
        self.looked = self.listened = -NODES
        self.asked: object = None
        self.warned = False

    def takes(self, needs: Needs) -> bool:
        """Return whether the cluster has room for one more such chunk; raises if it never can."""
        room = self._room(needs)
        if room == 0:
            self._too_large(needs)
        return len(self.held) < (self.in_flight or max(room, 1))

    def _room(self, needs: Needs) -> int:
        """Return how many such chunks all nodes together can run."""
        now = time.monotonic()
        if now - self.looked > NODES:
            self.nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
            self.looked = now
        wanted = {"CPU": needs.threads, "GPU": needs.gpus, "memory": needs.memory or 0}
        return sum(
            min(int(node.get(kind, 0) / amount) for kind, amount in wanted.items() if amount) for node in self.nodes
        )

    def _too_large(self, needs: Needs) -> None:
        largest = max((node.get("CPU", 0) for node in self.nodes), default=0)
        text = (
            f"a chunk needs {needs.threads} CPUs, {needs.gpus:g} GPUs and {needs.memory or 0:,} bytes on one node, "
            f"which no node of this Ray has (most CPUs: {largest:g})"
        )
        if self.fixed:
            raise InputError(f"{text}; use a plan with fewer threads, or the local engine")
        if not self.warned:
            warnings.warn(f"{text}; waiting for one to join", stacklevel=2)
            self.warned = True

    def start(self, job: Job[C]) -> None:
        """Submit a job to Ray."""
        needs = job.needs
        task = self.task.options(
            num_cpus=needs.threads, num_gpus=needs.gpus, memory=needs.memory, name=name_of(job.chunk)
        )
        self.held[task.remote(job.packed, needs.threads, self.ears)] = job

    def busy(self) -> bool:
        """Return whether any job is running."""
        return bool(self.held)

    def ended(self) -> Iterator[tuple[Job[C], bytes | Lost]]:
        """Wait for a result; pass notes on, yield ended jobs."""
        ready, _ = self.ray.wait(list(self.held), num_returns=1, timeout=LOOK)
        self._listen()
        for reference in ready:
            job = self.held.pop(reference)
            yield job, self._reply(reference)

    def _reply(self, reference: object) -> bytes | Lost:
        try:
            reply: bytes = self.ray.get(reference)
        except self.ray.exceptions.RayError as error:  # never an error of the work, which arrives as a reply
            return Lost(f"reported by Ray: {first_line(getattr(error, 'cause', None) or error)}")
        return reply

    def _listen(self) -> None:
        """Pass on the chunks' notes; if the actor fails, notes end but the run continues."""
        if self.on_note is None or self.ears is None:
            return
        if self.asked is None and time.monotonic() - self.listened > LOOK:
            self.asked, self.listened = self.ears.take.remote(), time.monotonic()
        try:
            answered = self.asked is not None and self.ray.wait([self.asked], timeout=0)[0]
            notes: list[Note] = self.ray.get(self.asked) if answered else []
        except self.ray.exceptions.RayError:
            self.ears = None
            return
        self.asked = None if answered else self.asked
        for note in notes:
            self.on_note(note)

    def dismiss(self) -> None:
        """Cancel the running jobs; Ray kills workers that do not stop."""
        for reference in self.held:
            self.ray.cancel(reference, force=True)
        if self.ears is not None:
            self.ray.kill(self.ears)
        self.held.clear()
