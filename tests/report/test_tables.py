"""Tables say what a slow reading of the records says, pool what they name, and never pool attacks."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np
import pytest
import torch

from leakscope.core.record import Cell, Record
from leakscope.core.types import Outcome
from leakscope.metrics import Scores, Summary, summarise
from leakscope.metrics.interval import POSSIBLE, Estimate, estimate_mean, estimate_rate
from leakscope.report import Row, Sheet, Table, cell_table, make_sheet, sheet_of, tabulate
from leakscope.report.cells import ATTACK, INFORMED, axes_of, families, name_of
from leakscope.report.tables import is_numeric_axis
from leakscope.store import Run

MakeRun = Callable[..., Run]
MakeCells = Callable[..., list[Cell]]


def axis_tables(sheet: Sheet) -> tuple[Table, ...]:
    """Return a table per axis, in families of cells that vary on the same axes; one table if nothing varies."""
    tables: list[Table] = []
    for family in families(sheet.cells):
        names = tuple(axes_of(family)) or (ATTACK,)
        tables += [table for name in names if (table := tabulate(sheet, (name,), family)).rows]
    return tuple(tables)


def slow(records: Iterable[Record]) -> Summary:
    """Return the summary of records as `metrics` makes it from whole tensors."""
    every = list(records)
    grid = [list(record.samples) for record in every]

    def column(name: str) -> torch.Tensor:
        return torch.tensor([[math.nan if (v := getattr(s, name)) is None else float(v) for s in row] for row in grid])

    shape = column("mse").shape
    scores = Scores(
        mse=column("mse").double(),
        psnr=column("psnr").double(),
        ssim=column("ssim").double(),
        label_correct=column("label_correct") == 1,
        label_overlap=None,
        pairing=torch.zeros(shape, dtype=torch.int64),
        scored=torch.ones(shape, dtype=torch.bool),
        finite=torch.ones(shape, dtype=torch.bool),
    )
    outcomes = torch.tensor([int(Outcome[record.outcome.upper()]) for record in every])
    return summarise(scores, outcomes=outcomes, iterations=torch.tensor([record.iterations for record in every]))


def agrees(found: Estimate | None, expected: Estimate | None) -> bool:
    if found is None or expected is None:
        return found is expected
    a, b = dataclasses.astuple(found), dataclasses.astuple(expected)
    return all(math.isclose(x, y, rel_tol=1e-5) or (x != x and y != y) for x, y in zip(a, b, strict=True))


def by_client(records: Iterable[Record], values: Callable[[Record], list[float | None]]) -> torch.Tensor:
    """Return the values of all records, a row for each client: cells of one sweep attack the same ones."""
    rows: dict[tuple[int, int], list[float]] = {}
    for record in records:
        rows.setdefault((record.seed, record.number), []).extend(math.nan if v is None else v for v in values(record))
    return torch.tensor(list(rows.values()), dtype=torch.float64)


def check(row: Row, run: Run) -> None:
    records = [record for cell in row.cells for record in run.records(cell=cell)]
    summary = slow(records)
    assert (row.trials, row.samples) == (summary.trials, summary.samples)

    def rate(values: Callable[[Record], list[float | None]]) -> Estimate:
        table = by_client(records, values)
        return estimate_rate(table == 1, torch.ones_like(table, dtype=torch.bool))

    def mean(name: str) -> Estimate:
        table = by_client(records, lambda record: [getattr(s, name) for s in record.samples])
        return estimate_mean(table.clamp_max(100.0), torch.ones_like(table, dtype=torch.bool), within=POSSIBLE[name])

    assert agrees(row.content, rate(lambda record: [float(s.recovered) for s in record.samples]))
    for name in ("mse", "psnr", "ssim"):
        assert agrees(getattr(row, name), mean(name))
        assert math.isclose(getattr(row, name).value, summary.means[name].value, rel_tol=1e-5)
    if not row.baseline:
        assert agrees(row.label, rate(lambda record: [float(s.label_correct or 0) for s in record.samples]))
        assert agrees(row.convergence, rate(lambda record: [float(record.outcome == "converged")]))
        steps = by_client(records, lambda record: [float(record.iterations)])
        assert agrees(row.steps, estimate_mean(steps, torch.ones_like(steps, dtype=torch.bool), within=(0, math.inf)))
    assert dict(row.outcomes) == Counter(record.outcome for record in records)


@pytest.mark.parametrize("samples", [1, 3])
def test_every_number_is_that_of_the_records(make_run: MakeRun, samples: int) -> None:
    run = make_run(trials=6, samples=samples)
    sheet = sheet_of(run)
    tables = [*axis_tables(sheet), cell_table(sheet)]
    assert [table.axes for table in tables] == [("attack",), ("defences.0.sigma",), ("attack", "defences.0.sigma")]
    for table in tables:
        for row in table.rows:
            check(row, run)


def test_a_row_holds_one_attack_and_pools_the_other_axes(make_run: MakeRun, make_cells: MakeCells) -> None:
    cells = make_cells()
    sheet = sheet_of(make_run(cells))
    by_attack, by_sigma = axis_tables(sheet)
    assert [row.attack for row in by_attack.rows] == ["cpl", "dlg", "class mean", "nearest public"]
    assert by_attack.pooled == ("defences.0.sigma",)
    assert [(row.attack, row.values) for row in by_sigma.rows if not row.baseline] == [
        (attack, {"defences.0.sigma": sigma}) for attack in ("cpl", "dlg") for sigma in (0.0, 0.01, 0.1)
    ]
    assert by_sigma.pooled == ()
    assert [row.values for row in by_sigma.rows if row.baseline] == [{}, {}]
    pooled = [cell for row in by_attack.rows for cell in row.cells]
    assert sorted(pooled) == sorted(cell.id for cell in cells)
    assert is_numeric_axis(by_sigma)
    assert not is_numeric_axis(cell_table(sheet))


def test_a_baseline_that_varies_with_the_data_has_a_row_for_each_value(make_run: MakeRun) -> None:
    cells = [
        Cell(id=f"{name}{n}", settings={}, axes={"attack": name, "data.samples": n}, baseline=name == "class_mean")
        for name in ("cpl", "class_mean")
        for n in (1, 2)
    ]
    table = axis_tables(sheet_of(make_run(cells)))[1]
    assert [(row.attack, row.baseline, row.values["data.samples"]) for row in table.rows] == [
        ("cpl", False, 1),
        ("cpl", False, 2),
        ("class mean", True, 1),
        ("class mean", True, 2),
    ]


def test_cells_that_vary_on_other_axes_are_not_pooled(make_run: MakeRun) -> None:
    cells = [Cell(id=f"a{i}", settings={"attack": {"name": f"a{i}"}}, axes={"attack": f"a{i}"}) for i in range(2)]
    cells += [Cell(id=f"n{s}", settings={"attack": {"name": "a0"}}, axes={"sigma": s}) for s in (0.0, 1.0)]
    sheet = sheet_of(make_run(cells))
    assert [len(family) for family in families(sheet.cells)] == [2, 2]
    by_attack, by_sigma = axis_tables(sheet)
    assert [row.cells for row in by_attack.rows] == [("a0",), ("a1",)]
    assert [row.cells for row in by_sigma.rows] == [("n0.0",), ("n1.0",)]
    assert len(cell_table(sheet).rows) == 4


def test_a_run_without_axes_has_one_table(make_run: MakeRun) -> None:
    [table] = axis_tables(sheet_of(make_run([Cell(id="x", settings={"attack": {"name": "dlg"}})])))
    assert [(row.attack, row.trials) for row in table.rows] == [("dlg", 5)]


def test_an_empty_run_has_no_rows(make_run: MakeRun, make_cells: MakeCells, tmp_path: object) -> None:
    run = make_run([])
    assert axis_tables(sheet_of(run)) == ()
    with run.writing() as writer:
        writer.renew("name: later", make_cells(), {})
    sheet = sheet_of(run)
    assert (len(sheet), sheet.trials) == (0, 0)
    assert axis_tables(sheet) == ()
    assert cell_table(sheet).rows == ()


def test_cells_of_an_older_scenario_are_left_out(make_run: MakeRun, make_cells: MakeCells) -> None:
    run = make_run()
    kept = make_cells()[3:5]
    with run.writing() as writer:
        writer.renew("name: smaller", list(reversed(kept)), {})
    sheet = sheet_of(run)
    assert [cell.id for cell in sheet.cells] == ["dlg 0.01", "dlg 0.0"]
    for row in cell_table(sheet).rows:
        check(row, run)
    assert {name_of(sheet.cells[i]) for i in sheet.cell} == {"dlg"}


def test_a_trial_without_samples_counts_as_a_trial_only() -> None:
    columns = {name: np.array([0.0, 0.0]) for name in ("mse", "psnr", "ssim", "mismatch")}
    columns |= {
        "trial": np.array(["a", "b"], dtype=object),
        "cell": np.array([0, 0]),
        "outcome": np.array(["converged", "diverged"], dtype=object),
        "iterations": np.array([10, 20]),
        "sample": np.array([0, -1]),
        "label_correct": np.array([1, -1], dtype=np.int8),
        "recovered": np.array([True, False]),
        "finite": np.array([True, False]),
        "mse": np.array([0.5, math.nan]),
        "psnr": np.array([math.inf, math.nan]),
        "ssim": np.array([math.nan, math.nan]),
    }
    [row] = cell_table(make_sheet([Cell(id="c", settings={})], columns)).rows
    assert (row.trials, row.samples, row.not_finite) == (2, 1, 0)
    assert (row.content.value, row.content.n, row.mse.value, row.psnr.value) == (1.0, 1, 0.5, 100.0)
    assert row.convergence is not None
    assert (row.convergence.value, row.ssim) == (0.5, None)


def test_axes_keep_apart_what_differs_in_the_last_digit() -> None:
    values = (0.1, 0.1 + 1e-12)
    cells = [Cell(id=str(i), settings={}, axes={"sigma": v}) for i, v in enumerate(values)]
    assert axes_of(cells) == {"sigma": values}


def large_sheet(trials: int, cells: int) -> Sheet:
    rng = np.random.default_rng(0)
    made = [Cell(id=str(i), settings={}, axes={"attack": f"a{i % 4}", "sigma": float(i // 4)}) for i in range(cells)]
    columns = {
        "trial": np.array([f"{i:064x}" for i in range(trials)], dtype=object),
        "cell": np.arange(trials) * cells // trials,
        "outcome": np.array(["converged", "exhausted"], dtype=object)[rng.integers(0, 2, trials)],
        "iterations": rng.integers(1, 300, trials),
        "sample": np.zeros(trials, dtype=np.int64),
        "label_correct": rng.integers(-1, 2, trials).astype(np.int8),
        "recovered": rng.random(trials) < 0.5,
        "finite": np.ones(trials, dtype=np.bool_),
        **{name: rng.random(trials) for name in ("mse", "psnr", "ssim")},
    }
    return make_sheet(made, columns)


def calls_of(sheet: Sheet) -> int:
    """Return how many functions Python calls to make the table of a sheet."""
    counted = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal counted
        counted += event in {"call", "c_call"}

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        cell_table(sheet)
    finally:
        sys.setprofile(before)
    return counted


def test_work_in_python_grows_with_the_cells_and_not_with_the_trials() -> None:
    cell_table(large_sheet(100, 4))  # imports
    few, many, more = (calls_of(large_sheet(*size)) for size in ((1_000, 50), (20_000, 50), (20_000, 500)))
    assert many < 1.1 * few
    assert more < 12 * many


def test_clients_that_several_cells_attack_are_counted_once() -> None:
    cells = [
        Cell(id=f"{number}", settings={"attack": {"name": "cpl"}}, axes={"threshold": value, "start": "a"})
        for number, value in enumerate((0.1, 0.2, 0.3))
    ]
    clients, hits = 6, np.array([1, 1, 0, 1, 0, 1])
    rows = [(place, client) for place in range(3) for client in range(clients)]
    columns = {
        "cell": np.array([place for place, _ in rows]),
        "trial": np.array([f"{place}-{client}" for place, client in rows]),
        "number": np.array([client for _, client in rows]),
        "seed": np.zeros(len(rows), dtype=np.int64),
        "sample": np.zeros(len(rows), dtype=np.int64),
        "outcome": np.array(["converged"] * len(rows)),
        "iterations": np.ones(len(rows)),
        "recovered": np.array([bool(hits[client]) for _, client in rows]),
        "finite": np.ones(len(rows), dtype=np.bool_),
        "label_correct": np.ones(len(rows)),
        "mse": np.ones(len(rows)),
        "psnr": np.ones(len(rows)),
        "ssim": np.ones(len(rows)),
    }
    sheet = make_sheet(cells, columns)
    pooled, single = tabulate(sheet, ("start",)).rows[0], tabulate(sheet, ("threshold",)).rows[0]
    assert (pooled.trials, single.trials) == (18, 6)
    assert pooled.content.value == single.content.value
    assert pooled.content.high - pooled.content.low >= 0.95 * (single.content.high - single.content.low)
    assert pooled.content.trials == clients


def test_an_attacker_who_was_told_is_not_pooled_with_one_who_was_not() -> None:
    told, untold = (
        Cell(id=str(value), settings={"attack": {"name": "cpl"}}, axes={"knowledge.defence": value})
        for value in (True, False)
    )
    assert name_of(told) != name_of(untold)


def test_an_attacker_who_was_told_is_called_so_where_no_axis_says_it() -> None:
    attack = {"name": "cpl"}
    names = {
        value: name_of(Cell(id="a", settings={"attack": attack, "knowledge": {"defence": value}}))
        for value in (True, False)
    }
    assert names == {True: f"cpl{INFORMED}", False: "cpl"}
    mean = Cell(id="b", settings={"attack": {"name": "class_mean"}, "knowledge": {"defence": True}}, baseline=True)
    assert name_of(mean) == "class mean"
