"""A hundred thousand trials are no burden: seconds of the processor, so that busy neighbours do not count."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from leakscope.store import Landing, Run

TRIALS, CHUNK = 100_000, 1000


@pytest.mark.slow
def test_a_hundred_thousand_records(tmp_path: Path, sweep: SimpleNamespace) -> None:
    like = [replace(record, samples=record.samples[:1]) for record in map(sweep.make_record, range(4))]
    run = Run.create(tmp_path / "run", sweep.SCENARIO, sweep.FACTS)
    spent: dict[str, float] = {}
    with run.writing() as writer:
        writer.renew(sweep.SCENARIO, [sweep.make_cell(i) for i in range(4)], sweep.FACTS)
        plan = writer.add_plan(sweep.PLAN)
        began = time.process_time()
        for start in range(0, TRIALS, CHUNK):
            records = tuple(replace(like[i % 4], trial=f"{i:064x}", number=i) for i in range(start, start + CHUNK))
            writer.land(Landing(chunk=f"c{start}", plan=plan, records=records))
        spent["land"] = time.process_time() - began
    for name, read in {"done": run.done, "columns": run.columns}.items():
        began = time.process_time()
        found = read()
        spent[name] = time.process_time() - began
        assert len(found if name == "done" else found["psnr"]) == TRIALS
    size = (run.directory / "records.sqlite").stat().st_size
    assert spent["land"] < 20, spent
    assert spent["done"] < 0.5, spent
    assert spent["columns"] < 1, spent
    assert size < 300 * TRIALS
