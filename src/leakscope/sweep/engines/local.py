"""The default engine: one process or several, whichever uses this machine's cores better for the given chunks."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from leakscope.core.errors import InputError
from leakscope.sweep.engines.contract import C, Engine, Needs, Order, R, engine_of, listening, name_of, torch_threads
from leakscope.sweep.engines.processes import VISIBLE, processes

START_UP = 8.0  # seconds until fresh workers have imported torch and traced their first chunk (docs/how-to/cluster.md)


def usable_cores(limits: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Return the cores this process may use, by affinity and by the container's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = limits.read_text(encoding="ascii").split()
        return max(1, min(cores, int(quota) // int(period)))
    except (OSError, ValueError):
        return cores  # no container, or one without a quota ('max')


def threads_for(chunks: int, cores: int) -> int:
    """Return the threads for each chunk: one, unless there are fewer chunks than cores.

    Two processes of one thread do more work than one process of two threads (docs/how-to/cluster.md).

    >>> [threads_for(chunks, cores=8) for chunks in (1, 2, 3, 8, 100)]
    [8, 4, 2, 1, 1]
    """
    return max(1, cores // max(chunks, 1))


def visible_gpus() -> tuple[str, ...]:
    """Return the GPUs this process may use, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    number = torch.cuda.device_count() if torch.cuda.is_available() else 0
    named = [name.strip() for name in os.environ.get(VISIBLE, "").split(",") if name.strip()]
    return tuple(named[:number] or map(str, range(number)))


def local(cores: int | None = None, *, seconds: float | None = None, gpus: Sequence[str] = ()) -> Engine:
    """Return an engine that keeps the machine's cores, or its `gpus`, busy.

    Serial for one chunk, for chunks of one GPU, for chunks that use all cores, and if `seconds` (an estimate of the whole run on
    one core) is too short to repay starting processes; else as many processes as the chunks' threads leave room for. Chunks for
    a GPU run in one process for each of `gpus`.
    """
    if cores is not None and cores < 1:
        raise InputError(f"local(cores) must be at least 1, got {cores}")
    most = cores or usable_cores()

    def run(order: Order[C, R]) -> Iterator[tuple[C, R]]:
        first = list(itertools.islice(order.chunks, max(most, len(gpus))))
        if any(needs.gpus for _, needs in first):
            workers = min(len(first), len(gpus))
            chosen: Engine = serial if workers < 2 else processes(workers, gpus=gpus)
        else:
            workers = workers_for([needs for _, needs in first[:most]], most, seconds)
            chosen = serial if workers == 1 else processes(workers)
        chunks = itertools.chain(first, order.chunks)
        return chosen(order.work, chunks, stop=order.stop, on_note=order.on_note)

    return engine_of(run)


def workers_for(first: list[Needs], cores: int, seconds: float | None = None) -> int:
    """Return the number of processes for chunks with such needs; `first` may stop at the number of cores.

    >>> workers_for([Needs(threads=2)] * 4, cores=4)
    2
    """
    if os.name != "posix" or any(needs.gpus for needs in first):
        return 1
    workers = min(len(first), cores // max((needs.threads for needs in first), default=1))
    if workers < 2 or (seconds is not None and seconds * (1 - 1 / workers) < START_UP):
        return 1
    return workers


def _one_by_one(order: Order[C, R]) -> Iterator[tuple[C, R]]:
    """Yield (chunk, result) in the order given.

    >>> list(serial(len, [("ab", Needs()), ("abc", Needs())]))
    [('ab', 2), ('abc', 3)]
    """
    while not order.stop() and (drawn := next(order.chunks, None)) is not None:
        chunk, needs = drawn
        try:
            with torch_threads(needs.threads), listening(order.on_note):
                result = order.work(chunk)
        except Exception as error:
            error.add_note(f"in chunk {name_of(chunk)}")
            raise
        yield chunk, result


serial = engine_of(_one_by_one)  # in this process; the reference for all other engines
