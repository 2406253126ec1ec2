"""A small made-up sweep with awkward names and numbers, for all tests of the store and the processes they start."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from leakscope.core.record import Cell, Record, SampleScore
from leakscope.store import Landing, Run, Writer

collect_ignore = ["lander.py", "fills_disk.py"]  # programs that tests start

SCENARIO = "name: a sweep\r\ntrials: 4 # ünïcode, no newline at the end"
FACTS = {"leakscope": "0.1.0", "host": "a 'quoted' \"machine\""}
PLAN = {"chunks": ["c0", "c1"], "dtype": "float64"}
NAMES = ("<script>alert(1)</script>", 'it\'s "quoted",\r\nin; two lines\t', "naïve 漢字 🕳️", "", "=1+1, a\\b")
OUTCOMES = ("converged", "exhausted", "stalled", "diverged")
PER_CHUNK = 3


def make_cell(i: int) -> Cell:
    name = NAMES[i % len(NAMES)]
    settings = {"name": name, "attack": {"name": "dlg", "rates": [1, 0.5]}, "noise": {name: {"sigma": i / 10}}}
    return Cell(id=f"cell {i} {name}", settings=settings, axes={"noise": i / 10, "defence": name}, baseline=i == 2)


def make_score(i: int, sample: int) -> SampleScore:
    bare = (i + sample) % 3 == 0
    return SampleScore(
        sample=sample,
        label=i % 10,
        guess=None if bare else i % 7,
        mse=0.0 if i % 5 == 0 else 1 / (3 + i),
        psnr=math.inf if i % 5 == 0 else 10 + i / 3,
        ssim=None if bare else i / 100,
        label_correct=None if bare else i % 2 == 0,
        recovered=i % 2 == 1,
        finite=i % 4 != 3,
    )


def make_record(i: int) -> Record:
    return Record(
        trial=hashlib.sha256(f"trial {i}".encode()).hexdigest(),
        cell=make_cell(i % 4).id,
        number=i // 4,
        seed=2**63 - 1 - i,
        items=(i, i + 1),
        outcome=OUTCOMES[i % 4],
        iterations=i,
        evaluations=2 * i,
        mismatch=(None, math.nan, math.inf, i / 7)[i % 4],
        label_overlap=None if i % 2 else 0.5,
        seconds=i * 0.1,
        version="0.1.0",
        samples=tuple(make_score(i, sample) for sample in range(2)),
    )


def make_landing(k: int, plan: int = 1, *, pixels: int = 64) -> Landing:
    """Return chunk k of the sweep; its tensors follow from k alone."""
    numbers = range(k * PER_CHUNK, (k + 1) * PER_CHUNK)
    values = torch.arange(PER_CHUNK * 2 * pixels, dtype=torch.float32).reshape(PER_CHUNK, 2, pixels) + 1000 * k
    return Landing(
        chunk=f"c{k}",
        plan=plan,
        records=tuple(make_record(i) for i in numbers),
        tensors={
            "guess": values,
            "label": torch.tensor([[i, i + 1] for i in numbers]),
            "empty": values[:, :, :0],
        },
        seconds=k / 8,
    )


def fill(writer: Writer, chunks: Iterable[int], *, pixels: int = 64) -> None:
    """Make the run that of the sweep, and land those chunks of it that are missing."""
    writer.renew(SCENARIO, [make_cell(i) for i in range(4)], FACTS)
    plan = writer.add_plan(PLAN)
    done = Run(writer.directory).done()
    for k in chunks:
        landing = make_landing(k, plan, pixels=pixels)
        if not {record.trial for record in landing.records} <= done:
            writer.land(landing)


def content(run: Run) -> dict[str, object]:
    """Return all that a run holds except times, in a form that compares NaN as equal."""
    chunks = sorted((str(c["chunk"]), c["plan"], c["seconds"], c["trials"], c["size"]) for c in run.chunks())
    return {
        "scenario": (run.scenario(), (run.directory / "scenario.yaml").read_bytes()),
        "facts": run.facts(),
        "cells": repr(run.cells(current=False)),
        "plans": [(plan["id"], plan["plan"]) for plan in run.plans()],
        "chunks": chunks,
        "records": [repr(record) for record in run.records(current=False)],
        "files": {path.name: path.read_bytes() for path in (run.directory / "tensors").iterdir()},
    }


@pytest.fixture
def sweep() -> SimpleNamespace:
    return SimpleNamespace(**globals())


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run of two landed chunks."""
    run = Run.create(tmp_path / "run", SCENARIO, FACTS)
    with run.writing() as writer:
        fill(writer, range(2))
    return run
