"""One flat table in three forms, the same to every program that reads it."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import statistics
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pandas
import polars
import pyarrow.parquet
import pytest

from leakscope.core.errors import InputError
from leakscope.core.record import Cell
from leakscope.store import Landing, Run, export
from leakscope.store.export import Column, Kind, write_csv

Rows = list[dict[str, Any]]

FIXED = {
    **{"trial": "string", "cell": "string", "baseline": "bool", "current": "bool", "number": "int64", "seed": "int64"},
    **{
        "outcome": "string",
        "iterations": "int64",
        "evaluations": "int64",
        "mismatch": "double",
        "label_overlap": "double",
    },
    **{
        "seconds": "double",
        "version": "string",
        "sample": "int64",
        "item": "int64",
        "label": "int64",
        "guess": "int64",
    },
    **{
        "mse": "double",
        "psnr": "double",
        "ssim": "double",
        "label_correct": "bool",
        "recovered": "bool",
        "finite": "bool",
    },
}


def leaves(value: Any, path: str) -> dict[str, Any]:
    if isinstance(value, dict):
        return {name: leaf for key, inner in value.items() for name, leaf in leaves(inner, f"{path}.{key}").items()}
    return {path: json.dumps(value) if isinstance(value, list) else value}


def slow_rows(run: Run) -> Rows:
    """Return the table the obvious way: from records and cells, one dict for each row."""
    cells = {cell.id: cell for cell in run.cells()}
    extra = {
        cell.id: {**{f"axis.{name}": value for name, value in cell.axes.items()}, **leaves(cell.settings, "setting")}
        for cell in cells.values()
    }
    names = [*FIXED, *sorted({name for row in extra.values() for name in row})]
    rows = []
    for record in run.records():
        for place, score in enumerate(record.samples):
            known = {name: getattr(record, name) for name in FIXED if hasattr(record, name)}
            known |= {name: getattr(score, name) for name in FIXED if hasattr(score, name)}
            known |= {"item": record.items[place], "baseline": cells[record.cell].baseline, "current": True}
            rows.append({name: plain({**known, **extra[record.cell]}.get(name)) for name in names})
    return rows


def plain(value: Any) -> Any:
    """Return a value as plain Python, None for every kind of nothing."""
    if value is None or value is pandas.NA or (isinstance(value, float) and math.isnan(value)):
        return None
    return value.item() if hasattr(value, "item") else value


def rows_of(names: list[str], rows: list[Any]) -> Rows:
    return [{name: plain(value) for name, value in zip(names, row, strict=True)} for row in rows]


def with_pandas(frame: pandas.DataFrame) -> Rows:
    return rows_of(list(frame.columns), list(frame.astype(object).itertuples(index=False, name=None)))


def with_duckdb(reader: str) -> Callable[[Path], Rows]:
    def read(path: Path) -> Rows:
        found = duckdb.connect().execute(f"SELECT * FROM {reader}", [str(path)])
        return rows_of([column[0] for column in found.description], found.fetchall())

    return read


READERS: dict[str, Callable[[Path], Rows]] = {
    "parquet pandas": lambda path: with_pandas(pandas.read_parquet(path, dtype_backend="numpy_nullable")),
    "parquet polars": lambda path: [
        {k: plain(v) for k, v in row.items()} for row in polars.read_parquet(path).to_dicts()
    ],
    "parquet duckdb": with_duckdb("read_parquet(?)"),
    "parquet pyarrow": lambda path: [
        {k: plain(v) for k, v in row.items()} for row in pyarrow.parquet.read_table(path).to_pylist()
    ],
    "csv pandas": lambda path: with_pandas(pandas.read_csv(path, dtype_backend="numpy_nullable")),
    "csv polars": lambda path: [  # polars leaves quotes in the header doubled
        {k.replace('""', '"'): v for k, v in row.items()}
        for row in polars.read_csv(path, infer_schema_length=None).to_dicts()
    ],
    "csv duckdb": with_duckdb("read_csv(?, sample_size=-1, types={'psnr': 'DOUBLE', 'mismatch': 'DOUBLE'})"),
    "json pandas": lambda path: with_pandas(pandas.read_json(path, dtype=False, precise_float=True).convert_dtypes()),
    "json polars": lambda path: polars.read_json(path, infer_schema_length=None).to_dicts(),
    "json duckdb": with_duckdb("read_json(?, sample_size=-1)"),
    "json json": lambda path: json.loads(path.read_text(encoding="utf-8")),
}


@pytest.mark.parametrize("reader", READERS)
def test_every_program_reads_the_same_rows(run: Run, tmp_path: Path, reader: str) -> None:
    form = reader.split()[0]
    found = READERS[reader](export(run, form, tmp_path / f"out.{form}"))
    wanted = slow_rows(run)
    if form == "json":
        wanted = [{k: None if v == math.inf else v for k, v in row.items()} for row in wanted]
    if form == "csv":  # an empty text and nothing are the same there
        wanted, found = (
            [{k: None if v == "" else v for k, v in row.items()} for row in rows] for rows in (wanted, found)
        )
    assert [list(row) for row in found] == [list(row) for row in wanted]
    for one, other in zip(found, wanted, strict=True):
        assert one == other


def test_the_types_of_the_parquet_file_are_the_documented_ones(run: Run, tmp_path: Path) -> None:
    schema = pyarrow.parquet.read_schema(export(run, "parquet", tmp_path / "out.parquet"))
    found = {field.name: str(field.type) for field in schema}
    assert list(found.items())[: len(FIXED)] == list(FIXED.items())
    assert found["axis.noise"] == "double"
    assert found["axis.defence"] == "string"
    assert found["setting.attack.name"] == "string"
    page = Path(__file__).parents[2] / "docs" / "reference" / "store.md"
    for name in FIXED:
        assert f"`{name}`" in page.read_text(encoding="utf-8"), f"docs/reference/store.md does not explain {name}"


def test_the_csv_is_what_the_csv_module_reads(run: Run, tmp_path: Path) -> None:
    with export(run, "csv", tmp_path / "out.csv").open(newline="", encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    for one, other in zip(found, slow_rows(run), strict=True):
        for name, value in other.items():
            text = "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
            assert one[name] == text, name


def test_a_csv_holds_no_formula() -> None:
    file, texts = io.BytesIO(), ["=HYPERLINK(1)", "+1+1", "-x", "@sum", "\tx", "plain", "-0.5"]
    write_csv([Column("setting", Kind.TEXT, list(texts))], file)
    cells = [row["setting"] for row in csv.DictReader(io.StringIO(file.getvalue().decode(), newline=""))]
    assert cells == [*(f"'{text}" for text in texts[:5]), *texts[5:]]


@pytest.mark.parametrize(
    ("values", "kind", "stored"),
    [
        ([True, None, False], "bool", [True, None, False]),
        ([1, None, 3], "int64", [1, None, 3]),
        ([1, 2.5, None], "double", [1.0, 2.5, None]),
        ([1, 2**70, None], "double", [1.0, 2.0**70, None]),
        (["a", 1, 2.5, True, None], "string", ["a", "1", "2.5", "true", None]),
        ([True, 1], "string", ["true", "1"]),
        ([None, None], "string", [None, None]),
    ],
)
def test_an_axis_of_mixed_values_gets_the_type_that_holds_them_all(
    tmp_path: Path, sweep: SimpleNamespace, values: list[Any], kind: str, stored: list[Any]
) -> None:
    run = Run.create(tmp_path / "run", "", {})
    cells = [Cell(id=f"c{i}", settings={}, axes={"x": value}) for i, value in enumerate(values)]
    records = tuple(replace(sweep.make_record(i), cell=cell.id) for i, cell in enumerate(cells))
    with run.writing() as writer:
        writer.renew("", cells, {})
        writer.land(Landing(chunk="c", plan=writer.add_plan({}), records=records))
    table = pyarrow.parquet.read_table(export(run, "parquet", tmp_path / "out.parquet"))
    assert str(table.schema.field("axis.x").type) == kind
    assert table["axis.x"].to_pylist()[::2] == stored


def test_only_the_asked_settings_and_only_current_cells(run: Run, tmp_path: Path, sweep: SimpleNamespace) -> None:
    def names(**asked: Any) -> set[str]:
        rows = json.loads(export(run, "json", tmp_path / "x", **asked).read_text())
        return {name for name in rows[0] if name.startswith("setting.")}

    assert names(settings=["attack"]) == {"setting.attack.name", "setting.attack.rates"}
    assert names(settings=["attack.name", "name"]) == {"setting.attack.name", "setting.name"}
    assert names(settings=[]) == set()
    with pytest.raises(InputError, match=r"'att'; .*attack\.name"):
        export(run, "csv", tmp_path / "x", settings=["att"])
    with run.writing() as writer:
        writer.renew("", [sweep.make_cell(1)], {})
    rows = json.loads(export(run, "json", tmp_path / "x").read_text())
    assert {row["cell"] for row in rows} == {sweep.make_cell(1).id}
    rows = json.loads(export(run, "json", tmp_path / "x", current=False).read_text())
    assert {row["cell"]: row["current"] for row in rows} == {sweep.make_cell(i).id: i == 1 for i in range(4)}


def test_a_run_without_records_gives_an_empty_table(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", "", {})
    assert json.loads(export(run, "json", tmp_path / "x").read_text()) == []
    assert polars.read_parquet(export(run, "parquet", tmp_path / "x")).shape == (0, len(FIXED))
    assert polars.read_csv(export(run, "csv", tmp_path / "x")).columns == list(FIXED)


def test_the_query_of_the_page_gives_the_right_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "store.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        exec(block, names)
    expected = []
    for cell in names["run"].cells():
        scores = [record.samples[0] for record in names["run"].records(cell=cell.id)]
        rate = statistics.mean(score.recovered for score in scores)
        expected.append((cell.axes["noise"], len(scores), rate, statistics.median(score.mse for score in scores)))
    assert names["answer"].fetchall() == expected
    assert len(expected) == 2


def test_an_export_that_breaks_leaves_the_old_file(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = export(run, "csv", tmp_path / "out.csv")
    before = out.read_bytes()

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(KeyboardInterrupt):
        export(run, "json", out)
    assert out.read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"run", "out.csv"}


def test_what_cannot_be_exported_is_one_clear_line(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"format 'parket'.*'parquet'"):
        export(run, "parket", tmp_path / "x")
    with pytest.raises(InputError, match="is a directory"):
        export(run, "csv", tmp_path)
    with pytest.raises(InputError, match=r"write .*nowhere .*: x "):
        export(run, "csv", tmp_path / "nowhere" / "x")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r'pip install "leakscope\[export\]"'):
        export(run, "parquet", tmp_path / "x")
    assert not list(tmp_path.glob("x*"))
