"""kill -9 at any moment: what was landed stays whole, and running again makes the run that nobody disturbed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import IO

import pytest
import torch

from leakscope.store import Run


@dataclass
class Lander:
    """A process that forks children which land chunks; see lander.py."""

    orders: IO[str]
    told: IO[str]

    def go(self, directory: Path, chunks: int, *, step: int | None = None, seconds: float | None = None) -> int:
        """Let a child land what is missing, killed at a step or after a time if given; return how it ended."""
        print(json.dumps([str(directory), chunks, step, seconds]), file=self.orders, flush=True)
        return int(self.told.readline())


@pytest.fixture(scope="module")
def lander() -> Iterator[Lander]:
    command = [sys.executable, str(Path(__file__).with_name("lander.py"))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True, env=environment) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield Lander(process.stdin, process.stdout)
        process.stdin.close()


def count_whole_chunks(directory: Path, sweep: SimpleNamespace, chunks: int) -> int:
    """Read the run as it lies, unrepaired; assert that every chunk is there whole or not at all and return how many are."""
    if not Run.exists(directory):
        return 0
    run = Run.open(directory)
    landed = [record.trial for record in run.records(current=False)]
    assert len(set(landed)) == len(landed)
    assert set(landed) == run.done()
    all_chunks = [sweep.make_landing(k, pixels=4096) for k in range(chunks)]
    whole = [landing for landing in all_chunks if landing.records[0].trial in run.done()]
    assert len(landed) == sum(len(landing.records) for landing in whole)
    for landing in whole:
        for row, record in enumerate(landing.records):
            assert torch.equal(run.tensors(record.trial)["guess"], landing.tensors["guess"][row])
    return len(whole)


def check_that_nobody_would_notice(directory: Path, undisturbed: Path, sweep: SimpleNamespace) -> None:
    assert sweep.content(Run.open(directory)) == sweep.content(Run.open(undisturbed))
    assert not list(directory.rglob("*.part*"))


@pytest.mark.slow
def test_killed_at_random_moments(lander: Lander, tmp_path: Path, sweep: SimpleNamespace) -> None:
    chunks, hits, landed = 40, 0, 0
    began = time.monotonic()
    assert lander.go(tmp_path / "undisturbed", chunks) == 0
    window = (time.monotonic() - began) / 6
    draw, seen, runs = random.Random(3), set[int](), [tmp_path / "killed 0"]
    for _ in range(200):
        hits += lander.go(runs[-1], chunks, seconds=draw.uniform(0, window)) == -signal.SIGKILL
        before, landed = landed, count_whole_chunks(runs[-1], sweep, chunks)
        seen.add(landed)
        window *= (
            1.3 if landed == before else 0.9
        )  # some kills before the first chunk lands, some after, on any machine
        if landed == chunks:
            landed = 0
            runs.append(tmp_path / f"killed {len(runs)}")
        if hits >= 24 and len(seen) >= 8:
            break
    assert hits >= 24
    assert len(seen) >= 8, f"the kills must come while chunks land, but they left {sorted(seen)}"
    for run in runs:
        assert lander.go(run, chunks) == 0
        check_that_nobody_would_notice(run, tmp_path / "undisturbed", sweep)


@pytest.mark.slow
def test_killed_before_every_single_step_of_making_and_landing(
    lander: Lander, tmp_path: Path, sweep: SimpleNamespace
) -> None:
    assert lander.go(tmp_path / "undisturbed", 2) == 0
    for step in range(1, 200):
        killed = tmp_path / str(step)
        ended = lander.go(killed, 1, step=step)
        count_whole_chunks(killed, sweep, 1)
        assert lander.go(killed, 2) == 0
        check_that_nobody_would_notice(killed, tmp_path / "undisturbed", sweep)
        if ended == 0:
            break
        assert ended == -signal.SIGKILL
    assert ended == 0, "the last child must have run through without reaching its step"
    assert step > 30
