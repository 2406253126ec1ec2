"""What is landed comes back: every value, every tensor, whatever the names and numbers."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leakscope.core.errors import InputError
from leakscope.core.record import Cell, Record, SampleScore
from leakscope.store import Landing, Run
from leakscope.store.columns import FIELDS

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
WHOLE = st.integers(-(2**63), 2**63 - 1)
COUNT = st.integers(-(2**48), 2**48)
REAL = st.floats().map(lambda x: x + 0.0)  # sqlite does not keep the sign of zero
PLAIN = st.none() | st.booleans() | WHOLE | REAL | TEXT
JSON = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=8
)
TRIAL = TEXT | st.binary(min_size=1, max_size=32).map(bytes.hex) | st.binary(min_size=1).map(lambda b: b.hex().upper())
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool]

scores = st.builds(
    SampleScore,
    sample=COUNT,
    label=COUNT,
    guess=st.none() | COUNT,
    mse=REAL,
    psnr=REAL,
    ssim=st.none() | REAL,
    label_correct=st.none() | st.booleans(),
    recovered=st.booleans(),
    finite=st.booleans(),
)


def records(cells: Sequence[str]) -> st.SearchStrategy[list[Record]]:
    one = st.builds(
        Record,
        trial=TRIAL,
        cell=st.sampled_from(cells),
        number=COUNT,
        seed=WHOLE,
        items=st.lists(WHOLE, max_size=3).map(tuple),
        outcome=TEXT,
        iterations=COUNT,
        evaluations=COUNT,
        mismatch=st.none() | REAL,
        label_overlap=st.none() | REAL,
        seconds=REAL,
        version=TEXT,
        samples=st.lists(scores, max_size=3).map(tuple),
        learned=st.dictionaries(TEXT, REAL, max_size=2),
    )
    return st.lists(one, min_size=1, max_size=6, unique_by=lambda record: record.trial)


@st.composite
def sweeps(draw: st.DrawFn) -> tuple[list[Cell], list[Record]]:
    cell = st.builds(
        Cell,
        id=TEXT,
        settings=st.dictionaries(TEXT, JSON, max_size=3),
        axes=st.dictionaries(TEXT, PLAIN, max_size=3),
        baseline=st.booleans(),
    )
    cells = draw(st.lists(cell, min_size=1, max_size=3, unique_by=lambda cell: cell.id))
    return cells, draw(records([cell.id for cell in cells]))


@settings(max_examples=30, deadline=None)
@given(sweep=sweeps(), scenario=TEXT, facts=st.dictionaries(TEXT, TEXT, max_size=3))
def test_all_that_is_written_is_read_back(
    sweep: tuple[list[Cell], list[Record]], scenario: str, facts: dict[str, str]
) -> None:
    cells, landed = sweep
    with tempfile.TemporaryDirectory() as place:
        run = Run.create(Path(place) / "run", scenario, facts)
        with run.writing() as writer:
            writer.renew(scenario, cells, facts)
            plan = writer.add_plan({"cells": [cell.id for cell in cells]})
            writer.land(Landing(chunk="one", plan=plan, records=tuple(landed)))
        run = Run.open(run.directory)
        assert (run.scenario(), run.facts()) == (scenario, facts)
        assert (run.directory / "scenario.yaml").read_bytes() == scenario.encode()
        assert repr(run.cells()) == repr(cells)
        assert run.done() == {record.trial for record in landed}
        places = {cell.id: place for place, cell in enumerate(cells)}
        expected = sorted(landed, key=lambda record: (places[record.cell], record.number))
        assert repr(list(run.records())) == repr(expected)
        check_columns(run, expected)


def check_columns(run: Run, expected: list[Record]) -> None:
    """Compare the columns with the slow way round: record by record, sample by sample."""
    columns, cells = run.columns(), run.cells(current=False)
    assert set(columns) - set(FIELDS) == {f"learned.{name}" for record in expected for name in record.learned}
    rows = [(record, score) for record in expected for score in record.samples or (None,)]
    for row, (record, score) in enumerate(rows):
        found = {name: column[row] for name, column in columns.items()}
        assert cells[found.pop("cell")].id == record.cell
        for name, value in found.items():
            own = record.learned.get(name.removeprefix("learned.")) if name.startswith("learned.") else None
            wanted = getattr(record, name) if hasattr(record, name) else getattr(score, name, own)
            if wanted is None:
                assert value == (0 if name in ("recovered", "finite") else -1) or math.isnan(value), name
            else:
                assert value == wanted or (math.isnan(value) and math.isnan(wanted)), name
    assert {len(column) for column in columns.values()} == {len(rows)}


def test_columns_have_fixed_names_and_types(run: Run) -> None:
    types = {name: column.dtype for name, column in run.columns().items()}
    whole = dict.fromkeys(("cell", "number", "seed", "iterations", "evaluations", "sample", "label", "guess"), np.int64)
    real = dict.fromkeys(("mismatch", "label_overlap", "seconds", "mse", "psnr", "ssim"), np.float64)
    rest = {"trial": object, "outcome": object, "label_correct": np.int8, "recovered": np.bool_, "finite": np.bool_}
    assert types == {**whole, **real, **rest}


def test_columns_of_chosen_cells_and_names(run: Run, sweep: SimpleNamespace) -> None:
    every = run.columns()
    for i in range(4):
        some = run.columns(cells=[sweep.make_cell(i).id], names=["seed", "cell"])
        assert list(some) == ["seed", "cell"]
        assert some["seed"].tolist() == every["seed"][every["cell"] == i].tolist()
    assert run.columns(cells=[])["seed"].size == 0
    with pytest.raises(InputError, match="no cell 'nowhere'"):
        run.columns(cells=["nowhere"])
    with pytest.raises(InputError, match=r"'pnsr'.*'psnr'"):
        run.columns(names=["pnsr"])


@settings(max_examples=20, deadline=None)
@given(data=st.data(), number=st.integers(1, 5))
def test_each_trial_gets_its_own_row_of_every_tensor(data: st.DataObject, number: int) -> None:
    shapes = data.draw(
        st.dictionaries(TEXT, st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 3), max_size=3)), max_size=4)
    )
    made = {
        name: (torch.randn([*shape, number], generator=torch.Generator().manual_seed(1)) * 9).to(dtype).movedim(-1, 0)
        for name, (dtype, shape) in shapes.items()
    }
    landed = tuple(record(i) for i in range(number))
    with tempfile.TemporaryDirectory() as place:
        run = Run.create(Path(place) / "run", "", {})
        with run.writing() as writer:
            writer.renew("", [Cell(id="c", settings={})], {})
            writer.land(Landing(chunk="x", plan=writer.add_plan({}), records=landed, tensors=made))
        for row, one in enumerate(landed):
            found = run.tensors(one.trial)
            assert {name: (t.dtype, t.tolist()) for name, t in found.items()} == {
                name: (t.dtype, t[row].tolist()) for name, t in made.items()
            }


def record(i: int) -> Record:
    numbers = {"number": i, "seed": i, "iterations": i, "evaluations": i, "mismatch": 0.0, "label_overlap": 0.0}
    return Record(trial=f"{i:08x}", cell="c", items=(i,), outcome="stalled", seconds=0.0, version="1", **numbers)


def test_numbers_of_numpy_and_torch_are_stored_as_plain_numbers(tmp_path: Path) -> None:
    score = SampleScore(
        sample=np.int64(0),
        label=torch.tensor(3),
        guess=np.int32(4),
        mse=np.float32(0.5),
        psnr=torch.tensor(2.0),
        ssim=np.float64(1.0),
        label_correct=np.bool_(False),
        recovered=torch.tensor(True),
        finite=np.bool_(True),
    )
    odd = Record(
        **{**{name: getattr(record(1), name) for name in Record.__slots__}, "seed": np.int64(9), "samples": (score,)}
    )
    run = Run.create(tmp_path / "run", "", {})
    with run.writing() as writer:
        writer.renew("", [Cell(id="c", settings={})], {})
        writer.land(Landing(chunk="x", plan=writer.add_plan({}), records=(odd,)))
    (found,) = run.records()
    assert found.seed == 9
    assert type(found.seed) is int
    assert found.samples == (
        SampleScore(
            sample=0, label=3, guess=4, mse=0.5, psnr=2.0, ssim=1.0, label_correct=False, recovered=True, finite=True
        ),
    )


def test_an_unknown_trial_and_a_chunk_without_tensors(run: Run) -> None:
    with pytest.raises(InputError, match="trial 'abc'"):
        run.tensors("abc")
    landed = Landing(chunk="bare", plan=1, records=(Record(**fields_of(next(run.records()), trial="bare")),))
    with run.writing() as writer:
        writer.land(landed)
    assert run.tensors("bare") == {}


def fields_of(record: Record, **changed: object) -> dict[str, object]:
    return {**{name: getattr(record, name) for name in Record.__slots__}, **changed}
