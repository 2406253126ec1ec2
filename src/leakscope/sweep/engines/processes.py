"""Several chunks at a time on one machine, each in its own fresh interpreter, which does not repeat the caller's script or threads.

A closed pipe means a dead worker, whose chunk is retried; concurrent.futures would abandon every running chunk instead.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Generic, cast

from leakscope.core.errors import InputError
from leakscope.sweep.engines.contract import C, Engine, Needs, Note, OnNote, engine_of
from leakscope.sweep.engines.driving import Job, Lost, drive

LOOK = 1.0  # seconds between checks that the workers are alive
VISIBLE = "CUDA_VISIBLE_DEVICES"
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def processes(workers: int, *, share_gpu: bool = False, gpus: Sequence[str] = ()) -> Engine:
    """Return an engine of `workers` processes, fewer while `Needs.memory` does not fit.

    `share_gpu`: all use the GPU of this process. `gpus` are one for each process, as CUDA_VISIBLE_DEVICES names them.
    """
    if workers < 1:
        raise InputError(f"processes(workers) must be at least 1, got {workers}")
    if os.name != "posix":
        raise InputError("processes need Linux or macOS; use the serial engine here")

    if gpus and len(gpus) < workers:
        raise InputError(f"processes(gpus) must name one GPU for each of {workers} workers, got {len(gpus)}")
    return engine_of(lambda order: drive(_Crew(workers, share_gpu, tuple(gpus), order.on_note), order))


class _Worker:
    """One process and the driver's end of its pipe."""

    def __init__(self, threads: int, gpu: str | None = None) -> None:
        self.gpu = gpu
        self.pipe, theirs = multiprocessing.Pipe()
        number = theirs.fileno()
        code = (
            f"import sys; sys.path[:] = {[str(place) for place in sys.path]}; from leakscope.sweep.engines.parcels import serve; "
            f"serve({number}, {os.getpid()})"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, **dict.fromkeys(THREADS, str(threads)), **({} if gpu is None else {VISIBLE: gpu})},
            stdin=subprocess.DEVNULL,
            pass_fds=(number,),
            process_group=0,  # Ctrl-C in the terminal is for the driver alone
        )
        theirs.close()

    def end(self) -> None:
        """Kill the process if it is running."""
        self.process.kill()
        self.process.wait()
        self.pipe.close()

    def fate(self) -> str:
        """Return how a process that closed its pipe ended; it may take a moment to exit."""
        try:
            code = self.process.wait(LOOK)
        except subprocess.TimeoutExpired:
            return "hung up"
        if code >= 0:
            return f"ended with code {code}"
        hint = " (out of memory?)" if code == -signal.SIGKILL else ""
        return f"ended by {signal.Signals(-code).name}{hint}"


class _Crew(Generic[C]):
    """At most `workers` processes, started when first needed."""

    def __init__(self, workers: int, share_gpu: bool, gpus: tuple[str, ...], on_note: OnNote | None) -> None:
        self.workers, self.share_gpu, self.on_note = workers, share_gpu or bool(gpus), on_note
        self.free_gpus = list(gpus)
        self.idle: list[_Worker] = []
        self.held: dict[Connection[object, object], tuple[_Worker, Job[C]]] = {}
        self.room: int | None = None

    def takes(self, needs: Needs) -> bool:
        """Return whether a worker and enough memory for such a chunk are free."""
        if needs.gpus and not self.share_gpu:
            raise InputError(
                "processes do not share out GPUs; use the serial engine, --workers for one GPU, or Ray for several"
            )
        if not self.held:
            return True
        return len(self.held) < self.workers and self._fits(needs)

    def _fits(self, needs: Needs) -> bool:
        if self.room is None:
            import torch

            from leakscope.kernels.memory import available

            self.room = available(torch.device("cpu"))  # measured once; memory of running jobs is subtracted below
        taken = sum(job.needs.memory or 0 for _, job in self.held.values())
        return taken + (needs.memory or 0) <= self.room

    def start(self, job: Job[C]) -> None:
        """Give a job to an idle worker or a new one."""
        gpu = self.free_gpus.pop(0) if self.free_gpus and not self.idle else None
        worker = self.idle.pop() if self.idle else _Worker(job.needs.threads, gpu)
        self.held[worker.pipe] = worker, job
        with contextlib.suppress(OSError):  # a dead worker is noticed when its pipe is read
            worker.pipe.send((job.packed, job.needs.threads, self.on_note is not None))

    def busy(self) -> bool:
        """Return whether any job is running."""
        return bool(self.held)

    def ended(self) -> Iterator[tuple[Job[C], bytes | Lost]]:
        """Wait for messages; pass notes on, yield ended jobs."""
        ready = wait(list(self.held), LOOK)
        dead = [
            pipe for pipe, (worker, _) in self.held.items() if pipe not in ready and worker.process.poll() is not None
        ]
        for pipe in [*ready, *dead]:
            ending = self._hear(pipe)  # type: ignore[arg-type]
            if ending is not None:
                yield ending

    def _hear(self, pipe: Connection[object, object]) -> tuple[Job[C], bytes | Lost] | None:
        worker, job = self.held[pipe]
        try:
            if not pipe.poll():
                raise EOFError
            heard = pipe.recv()
        except (EOFError, OSError):
            del self.held[pipe]
            fate = worker.fate()
            worker.end()
            self.free_gpus += [] if worker.gpu is None else [worker.gpu]
            return job, Lost(fate)
        if isinstance(heard, Note):
            if self.on_note is not None:
                self.on_note(heard)
            return None
        del self.held[pipe]
        self.idle.append(worker)
        return job, cast(bytes, heard)

    def dismiss(self) -> None:
        """Stop every worker, idle or not."""
        for worker in [*self.idle, *(worker for worker, _ in self.held.values())]:
            worker.end()
        self.idle.clear()
        self.held.clear()
