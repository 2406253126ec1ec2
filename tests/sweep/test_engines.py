"""What is the processes' alone: death of either side, signals; the choice of `local`; what travels and how."""

from __future__ import annotations

import math
import operator
import os
import pickle
import re
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from leakscope.attacks.engine.state import Progress
from leakscope.core.errors import InputError
from leakscope.sweep.engines import (
    LostChunkError,
    Needs,
    Note,
    listening,
    local,
    processes,
    report,
    reporter,
    threads_for,
    usable_cores,
)
from leakscope.sweep.engines.contract import Order, name_of
from leakscope.sweep.engines.driving import Job, Lost, drive
from leakscope.sweep.engines.local import START_UP, visible_gpus, workers_for
from leakscope.sweep.engines.parcels import attempt, pack, seldom, unpack
from leakscope.sweep.engines.processes import _Crew

ONE = Needs()


class Calls:
    """Pickles as a call, so that a worker does something the moment it unpacks its chunk, before torch is imported."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = function, arguments
        self.name = getattr(function, "__name__", "call")

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


class OddError(Exception):
    """Does not survive pickling: it is made from two arguments and remembers one."""

    def __init__(self, left: str, right: str) -> None:
        super().__init__(f"{left} {right}")


def be_odd(_: object) -> None:
    raise OddError("very", "odd")


def warn(text: str) -> str:
    warnings.warn(text, stacklevel=1)
    return text


# -- the driver's loop, with a crew that lives in this process


class Crew:
    """Carries out jobs in an order of its own choosing, and loses the workers it is told to lose."""

    def __init__(self, room: int, order: list[int], losses: Counter[int]) -> None:
        self.room, self.order, self.losses = room, order, losses
        self.held: list[Job[int]] = []
        self.most = 0
        self.dismissed = False

    def takes(self, needs: Needs) -> bool:
        return len(self.held) < self.room

    def start(self, job: Job[int]) -> None:
        self.held.append(job)
        self.most = max(self.most, len(self.held))

    def busy(self) -> bool:
        return bool(self.held)

    def ended(self):  # type: ignore[no-untyped-def]
        job = self.held.pop((self.order.pop() if self.order else 0) % len(self.held))
        if self.losses[job.chunk] > 0:
            self.losses[job.chunk] -= 1
            yield job, Lost("killed by the test")
        else:
            yield job, attempt(job.packed, threads=1, on_note=None)

    def dismiss(self) -> None:
        self.dismissed = True


@given(
    number=st.integers(0, 12),
    room=st.integers(1, 4),
    order=st.lists(st.integers(0, 10), max_size=30),
    lost=st.lists(st.integers(0, 11), max_size=6),
    stop_after=st.integers(0, 20),
)
def test_every_chunk_ends_once_whatever_the_order_the_losses_and_the_moment_of_stopping(
    number: int, room: int, order: list[int], lost: list[int], stop_after: int
) -> None:
    crew = Crew(room, order, losses := Counter(lost))
    doomed = {chunk for chunk, times in losses.items() if times > 2 and chunk < number}
    made: list[tuple[int, int]] = []
    chunks = ((i, ONE) for i in range(number))
    given_up = ""
    try:
        for pair in drive(crew, Order(operator.neg, iter(chunks), lambda: len(made) >= stop_after)):
            made.append(pair)
    except LostChunkError as error:
        given_up = str(error)
    assert not given_up or any(f"chunk {chunk} was given up" in given_up for chunk in doomed)
    assert all(result == -chunk for chunk, result in made)
    assert len(made) == len(set(made))
    assert crew.most <= room
    assert crew.dismissed
    if not doomed and stop_after > number:
        assert len(made) == number
        assert not given_up


# -- what travels


def test_work_that_workers_cannot_import_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="of a module"):
        pack(lambda chunk: chunk, 1)
    monkeypatch.setattr(warn, "__module__", "__main__")
    with pytest.raises(InputError, match=r"warn .*function"):
        pack(warn, "a")


def test_an_error_that_does_not_survive_pickling_says_the_same() -> None:
    with pytest.raises(RuntimeError, match=r"^OddError: very odd"):
        unpack(attempt(pack(be_odd, 0), threads=1, on_note=None), "c0", {})


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = pack(math.factorial, 3)
    monkeypatch.setattr("leakscope.sweep.engines.parcels.__version__", "99.0")
    with pytest.raises(InputError, match=r"driver .*, its worker 99.0"):
        unpack(attempt(packed, threads=1, on_note=None), "c0", {})


def test_warnings_come_along_once_for_each_place_and_text() -> None:
    heard: dict[object, object] = {}
    replies = [attempt(pack(warn, text), threads=1, on_note=None) for text in ("a", "a", "b")]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        assert [unpack(reply, "c", heard) for reply in replies] == ["a", "a", "b"]
    assert [str(w.message) for w in caught] == ["a", "b"]


def test_reports_go_to_whoever_listens_and_nowhere_else() -> None:
    heard: list[Note] = []
    report(Note("nobody"))
    assert reporter("nobody") is None
    with listening(heard.append):
        tell = reporter("c0")
        assert tell is not None
        tell(Progress(total=4, done=3, converged=2, diverged=1, iteration=9, evaluations=99, note="waits"))
    assert heard == [Note("c0", total=4, done=3, converged=2, diverged=1, iteration=9, note="waits")]


def test_notes_are_few_but_the_last_and_the_wordy_always_come() -> None:
    heard: list[Note] = []
    tell = seldom(heard.append, 3600)
    for done in range(100):
        tell(Note("c", total=100, done=done))
    tell(Note("c", total=100, done=99, note="compiling"))
    tell(Note("c", total=100, done=100))
    assert [(note.done, note.note) for note in heard] == [(0, ""), (99, "compiling"), (100, "")]


def test_needs_that_cannot_be_are_refused_and_names_are_short() -> None:
    for bad in ({"threads": 0}, {"gpus": -1}, {"memory": 0}):
        with pytest.raises(InputError, match=next(iter(bad))):
            Needs(**bad)  # type: ignore[arg-type]
    assert pickle.loads(pickle.dumps(Note("c", 1))) == Note("c", 1)  # noqa: S301
    assert len(name_of("x" * 500)) == 60


# -- processes


@pytest.mark.slow
def test_a_chunk_that_kills_every_worker_is_given_up_by_name_and_costs_nobody_else() -> None:
    given = [(Calls(int, 4), ONE), (Calls(signal.raise_signal, signal.SIGKILL), ONE), (Calls(int, 5), ONE)]
    landed: list[object] = []
    heard: list[Note] = []
    with pytest.raises(LostChunkError) as caught:
        landed.extend(result for _, result in processes(1)(str, given, on_note=heard.append))
    reason = "ended by SIGKILL (out of memory?)"
    assert re.fullmatch(f"chunk raise_signal .*{re.escape(reason)}", str(caught.value))
    assert [note.note for note in heard] == [f"worker lost ({reason}); trying again, {i} of 2" for i in (1, 2)]
    assert landed == ["4"]


def test_processes_refuse_what_they_cannot_do() -> None:
    with pytest.raises(InputError, match="at least 1"):
        processes(0)
    with pytest.raises(InputError, match="GPUs"):
        list(processes(2)(str, [(1, Needs(gpus=1))]))


@pytest.mark.slow
def test_processes_share_one_gpu_when_asked() -> None:
    assert sorted(processes(2, share_gpu=True)(str, [(n, Needs(gpus=1)) for n in (1, 2, 3)])) == [
        (1, "1"),
        (2, "2"),
        (3, "3"),
    ]


def test_chunks_share_the_memory_that_was_free_when_the_first_began() -> None:
    crew: _Crew[int] = _Crew(3, False, (), None)
    assert crew.takes(Needs(memory=2**60)), "alone, a chunk may try"
    crew.room = 100
    crew.held = {None: (None, Job(0, Needs(memory=60), b""))}  # type: ignore[dict-item]
    assert crew.takes(Needs(memory=40))
    assert not crew.takes(Needs(memory=41))
    assert crew.takes(ONE)


def driver(body: str) -> subprocess.Popen[str]:
    """Run a driver in a process and a group of its own; its chunks sleep."""
    head = """
import os, signal, sys, time
from leakscope.sweep.engines import Needs
from leakscope.sweep.engines import processes
class Sleep:
    def __init__(self, seconds): self.seconds = seconds
    def __reduce__(self): return time.sleep, (self.seconds,)
"""
    return subprocess.Popen([sys.executable, "-c", head + body], stdout=subprocess.PIPE, text=True, process_group=0)


def children(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(parent) == pid and state != "Z":
            found.append(int(stat.parent.name))
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for(true: Callable[[], bool], seconds: float = 20) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_worker_outlives_a_killed_driver() -> None:
    parent = driver("list(processes(2)(str, [(Sleep(120), Needs()) for _ in range(4)]))")
    wait_for(lambda: len(children(parent.pid)) == 2)
    time.sleep(1)  # long enough that they are asleep in their chunks and do not look at their pipes
    workers = children(parent.pid)
    parent.kill()
    parent.wait()
    wait_for(lambda: not any(alive(pid) for pid in workers), 10)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_control_c_reaches_the_driver_alone_and_what_is_in_hand_is_finished() -> None:
    parent = driver("""
asked = []
signal.signal(signal.SIGINT, lambda *_: asked.append(1))
chunks = [(Sleep(0.5), Needs()) for _ in range(6)]
print(len(list(processes(2)(str, chunks, stop=lambda: bool(asked)))), flush=True)
""")
    wait_for(lambda: len(children(parent.pid)) == 2)
    os.killpg(parent.pid, signal.SIGINT)
    assert parent.communicate(timeout=60)[0].strip() == "2"
    assert parent.returncode == 0


# -- the default


def card_of(_: object) -> str:
    time.sleep(0.3)  # so that no process takes both chunks
    return os.environ["CUDA_VISIBLE_DEVICES"]


def card_or_death(path: Path) -> str:
    if not path.exists():
        path.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return os.environ["CUDA_VISIBLE_DEVICES"]


@pytest.mark.slow
def test_each_process_has_a_card_of_its_own_where_there_are_several(tmp_path: Path) -> None:
    chunks = [(n, Needs(gpus=1)) for n in range(2)]
    assert sorted(card for _, card in local(gpus=("3", "5"))(card_of, iter(chunks))) == ["3", "5"]
    with pytest.raises(InputError, match=r"2 workers.*1"):
        processes(2, gpus=("0",))
    again = list(processes(1, gpus=("7",))(card_or_death, [(tmp_path / "died", Needs(gpus=1))]))
    assert again == [(tmp_path / "died", "7")]  # the card of a dead worker is used again


def test_the_cards_of_a_machine_are_those_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_gpus() == ("0", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-6")
    assert visible_gpus() == ("4", "GPU-6")


@given(chunks=st.integers(1, 1000), cores=st.integers(1, 128))
def test_threads_times_chunks_at_a_time_never_exceed_the_cores(chunks: int, cores: int) -> None:
    threads = threads_for(chunks, cores)
    workers = workers_for([Needs(threads)] * min(chunks, cores), cores)
    assert 1 <= threads * workers <= cores
    assert threads * workers > cores / 2


def test_local_is_serial_where_processes_cannot_pay() -> None:
    assert workers_for([ONE], cores=8) == 1
    assert workers_for([Needs(threads=8)] * 8, cores=8) == 1
    assert workers_for([Needs(gpus=1)] * 8, cores=8) == 1
    assert workers_for([ONE] * 8, cores=8, seconds=START_UP / 2) == 1
    assert workers_for([ONE] * 8, cores=8, seconds=START_UP * 2) == 8
    with pytest.raises(InputError):
        local(0)


@pytest.mark.slow
@pytest.mark.parametrize("cores", [1, 2])
def test_local_is_a_map(cores: int) -> None:
    made = local(cores)(math.factorial, ((i, ONE) for i in range(5)))
    assert sorted(made) == [(i, math.factorial(i)) for i in range(5)]


def test_cores_are_those_of_the_container(tmp_path: Path) -> None:
    limits = tmp_path / "cpu.max"
    limits.write_text("100000 100000\n")
    assert usable_cores(limits) == 1
    limits.write_text("max 100000\n")
    assert usable_cores(limits) == len(os.sched_getaffinity(0))
    limits.write_text("5000 100000\n")
    assert usable_cores(limits) == 1
