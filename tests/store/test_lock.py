"""One writer at a time; the dead do not count."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from leakscope.core.errors import InputError
from leakscope.store import Run

WRITER = """
import sys
from pathlib import Path
from leakscope.store import Run
with Run.open(Path(sys.argv[1])).writing():
    print("writing", flush=True)
    sys.stdin.readline()
"""


@contextmanager
def another_writer(run: Run) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", WRITER, str(run.directory)]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        yield process
        if process.poll() is None:
            process.communicate("go on\n")


@pytest.mark.slow
def test_a_second_process_is_told_who_writes_and_may_read(run: Run) -> None:
    with another_writer(run) as process:
        with pytest.raises(InputError) as error, run.writing():
            pass
        line = str(error.value)
        since = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00"
        assert re.search(rf"process {process.pid} on {re.escape(socket.gethostname())} \(since {since}\)", line)
        assert str(run.directory) in line
        assert "\n" not in line
        assert len(run.done()) == 6
    with run.writing() as writer:
        assert writer.verify() == []


@pytest.mark.slow
def test_the_lock_of_a_killed_process_is_no_obstacle(run: Run) -> None:
    with another_writer(run) as process:
        process.kill()
        process.wait()
    assert json.loads((run.directory / "run.lock").read_text())["process"] == process.pid
    with run.writing():
        pass


def test_two_writers_in_one_process_are_refused_too(run: Run) -> None:
    with run.writing():
        with pytest.raises(InputError, match=f"process {os.getpid()}"), run.writing():
            pass
        with pytest.raises(InputError, match="is being written"), run.writing():
            pass
    with run.writing():
        pass


def test_an_unreadable_signature_is_no_obstacle_and_no_traceback(run: Run) -> None:
    (run.directory / "run.lock").write_bytes(b"\xff{not json")
    with run.writing():
        (run.directory / "run.lock").write_bytes(b"[1]")
        with pytest.raises(InputError, match="by another process"), run.writing():
            pass


FORKING_WRITER = """
import os, sys, time
from pathlib import Path
from leakscope.store import Run
with Run.open(Path(sys.argv[1])).writing():
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    print(child, flush=True)
    time.sleep(60)
"""


@pytest.mark.slow
def test_a_worker_that_outlives_its_killed_parent_does_not_keep_the_lock(run: Run) -> None:
    command = [sys.executable, "-c", FORKING_WRITER, str(run.directory)]
    with subprocess.Popen(command, stdout=-1, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        process.kill()
        process.wait()
    try:
        os.kill(child, 0)
        for left in range(50, -1, -1):  # the child lets go as soon as it is run for the first time
            try:
                with run.writing():
                    break
            except InputError:
                if not left:
                    raise
                time.sleep(0.1)
    finally:
        os.kill(child, signal.SIGKILL)
