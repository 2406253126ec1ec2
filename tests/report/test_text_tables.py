"""Tables to paste: the numbers of the page in Markdown, LaTeX and CSV, with names that stay text."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from command_line import leakscope
from leakscope.core.record import Cell
from leakscope.metrics.interval import Estimate
from leakscope.report.cells import axis_label
from leakscope.report.numbers import number, number_interval, percent, percent_interval
from leakscope.report.sheet import sheet_of
from leakscope.report.tables import Table, cell_table
from leakscope.report.text_tables import Column, TextTable, csv_text, latex, markdown, table_of
from leakscope.store import Run

MakeRun = Callable[..., Run]
ESTIMATES = {
    "content recovered": "content",
    "converged": "convergence",
    "MSE": "mse",
    "PSNR, dB": "psnr",
    "SSIM": "ssim",
}
EVIL = (
    "=1+1",
    "+1",
    "-cmd",
    "@sum",
    "a|b",
    "a & b",
    "50 %",
    "x_y",
    r"\input{x}",
    "$a^b$",
    "~#{}",
    "a\nb\x1b[31m",
    "<b>",
    "*a*",
)


@pytest.fixture
def tables(make_run: MakeRun) -> tuple[Table, TextTable]:
    sheet = sheet_of(make_run())
    table = cell_table(sheet)
    return table, table_of(table, lambda axis: axis_label(axis, sheet.cells))


def read_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def markdown_cells(text: str) -> list[list[str]]:
    lines = [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines()]
    return [[re.sub(r"\\(.)", r"\1", cell.strip()) for cell in line] for line in lines]


def latex_cells(text: str) -> list[list[str]]:
    body = text.split("\\toprule\n")[1].split("\\bottomrule")[0].replace("\\midrule\n", "")
    return [re.split(r" (?<!\\)& ", line.removesuffix(" \\\\")) for line in body.splitlines()]


def test_csv_has_the_estimates_of_the_table_to_the_last_bit(tables: tuple[Table, TextTable]) -> None:
    rows = read_csv(csv_text(tables[1]))
    assert len(rows) == len(tables[0].rows)
    for row, written in zip(tables[0].rows, rows, strict=True):
        assert int(written["n"]) == row.samples
        for head, field in ESTIMATES.items():
            estimate = getattr(row, field)
            for part, name in (("value", head), ("low", f"{head} low"), ("high", f"{head} high"), ("n", f"{head} n")):
                assert float(written[name] or "nan") == pytest.approx(
                    getattr(estimate, part, math.nan), abs=0, nan_ok=True
                )


def test_markdown_and_latex_have_the_numbers_and_intervals_of_the_page(tables: tuple[Table, TextTable]) -> None:
    heads, _, *rows = markdown_cells(markdown(tables[1]))
    pasted = latex_cells(latex(tables[1]))
    assert len(pasted) == 1 + len(rows) == 1 + len(tables[0].rows)
    assert {len(line) for line in (*rows, *pasted)} == {len(heads)}
    for row, cells, tex in zip(tables[0].rows, rows, pasted[1:], strict=True):
        assert (
            cells[heads.index("content recovered")] == f"{percent(row.content.value)} ({percent_interval(row.content)})"
        )
        assert cells[heads.index("MSE")] == f"{number(row.mse.value)} ({number_interval(row.mse)})"
        assert re.findall(r"\d+", tex[heads.index("content recovered")]) == re.findall(
            r"\d+", cells[heads.index("content recovered")]
        )


def test_latex_separates_baselines_and_has_booktabs_rules(tables: tuple[Table, TextTable]) -> None:
    lines = latex(tables[1]).splitlines()
    assert [lines.count(rule) for rule in ("\\toprule", "\\midrule", "\\bottomrule")] == [1, 2, 1]
    assert len(lines) - 1 - lines[::-1].index("\\midrule") == len(lines) - 3 - sum(
        row.baseline for row in tables[0].rows
    )


def test_columns_without_a_value_are_left_out(tables: tuple[Table, TextTable]) -> None:
    rows = tuple(replace(row, ssim=None, label=None) for row in tables[0].rows)
    heads = {column.head for column in table_of(replace(tables[0], rows=rows), str).columns}
    assert heads.isdisjoint({"SSIM", "label right"})
    assert {"MSE", "content recovered"} <= heads


@given(st.one_of(st.sampled_from(EVIL), st.text(max_size=20)))
def test_a_name_stays_one_cell_of_text(name: str) -> None:
    estimate = Estimate(0.5, 0.1, 0.9, 8, 8)
    table = TextTable((Column("attack", (name, "next")), Column("content recovered", (estimate, None), share=True)))
    plain = "".join(c if c.isprintable() else " " for c in name)
    assert markdown_cells(markdown(table))[2][0] == plain.strip()
    written = [row["attack"] for row in read_csv(csv_text(table))]
    assert written[0].removeprefix("'") == plain.removeprefix("'")
    assert written[1] == "next"
    tex = latex(table).splitlines()[5]
    assert tex.endswith(r" & 50 \% (10 to 90 \%) \\")
    cell = re.sub(
        r"\\text\w+\{\}|\\[&%$#_{}]|\$\\times\$|\$\^\{[-\d]+\}\$", "", tex.removesuffix(r" & 50 \% (10 to 90 \%) \\")
    )
    assert not set(cell) & set("\\{}$&#%_^~")


@pytest.mark.parametrize("text", EVIL[:4])
def test_a_cell_that_a_spreadsheet_would_run_is_quoted(make_run: MakeRun, tmp_path: Path, text: str) -> None:
    cell = Cell(id="a", settings={"attack": {"name": "cpl"}}, axes={"attack": text})
    out = tmp_path / "table.csv"
    assert leakscope("show", make_run([cell]).directory, "--to", "csv", "--out", out).code == 0
    [row] = read_csv(out.read_text("utf-8"))
    assert row["attack"] == (text if text == "+1" else f"'{text}")


@pytest.mark.parametrize("to", ["markdown", "latex", "csv"])
def test_the_command_writes_the_rows_of_the_axes_named(make_run: MakeRun, tmp_path: Path, to: str) -> None:
    out = tmp_path / "table"
    words = ["show", make_run().directory, "--to", to, "--out", out, "--by", "defences.0.sigma"]
    done = leakscope(*words)
    assert (done.code, done.out.strip()) == (0, str(out))
    text = out.read_text("utf-8")
    rows = {
        "markdown": lambda: markdown_cells(text)[2:],
        "latex": lambda: latex_cells(text)[1:],
        "csv": lambda: read_csv(text),
    }
    assert len(rows[to]()) == 2 * 3 + 2


@pytest.mark.parametrize("words", [("--to", "html"), ("--out", "a.csv")])
def test_an_unknown_format_and_a_file_without_one_are_refused(make_run: MakeRun, words: tuple[str, ...]) -> None:
    done = leakscope("show", make_run().directory, *words)
    assert (done.code, done.out, len(done.err.splitlines())) == (2, "", 1)
