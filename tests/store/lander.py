"""A process whose children are killed: one line of JSON on standard input for each, `[directory, chunks, step, seconds]`.

The child makes or opens the run and lands what is missing of so many chunks. It is killed just before the given step (an
fsync, a rename, a removal, a new directory or a statement of the database) or after the given seconds; null is never.
How it ended is printed: 0, or the negative number of the signal.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch  # noqa: F401  (imported here once, not in every child)

from conftest import FACTS, SCENARIO, fill
from leakscope.store import Run, schema


def go(directory: Path, chunks: int) -> None:
    run = Run.open(directory) if Run.exists(directory) else Run.create(directory, SCENARIO, FACTS)
    with run.writing() as writer:
        fill(writer, range(chunks), pixels=4096)


def die_at(step: int) -> None:
    """Make this process kill itself just before its given step."""
    left = step

    def count(*_: object) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def counting(function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            count()
            return function(*arguments, **named)

        return counted

    for name in ("fsync", "replace", "unlink", "mkdir"):
        setattr(os, name, counting(getattr(os, name)))
    connect = schema._connect

    def traced(path: Path, mode: str) -> sqlite3.Connection:
        made = connect(path, mode)
        made.set_trace_callback(count)
        return made

    schema._connect = traced


def main() -> None:
    for line in sys.stdin:
        directory, chunks, step, seconds = json.loads(line)
        child = os.fork()
        if child == 0:
            if step is not None:
                die_at(step)
            go(Path(directory), chunks)
            os._exit(0)
        if seconds is not None:
            time.sleep(seconds)
            os.kill(child, signal.SIGKILL)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
