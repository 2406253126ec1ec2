"""Tables as text for papers and spreadsheets: Markdown, LaTeX with booktabs, CSV."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

from leakscope.metrics.interval import Estimate
from leakscope.report.cells import ATTACK, axis_value_text
from leakscope.report.numbers import number, number_interval, percent, percent_interval
from leakscope.report.tables import Row, Table, have_images, learned_in
from leakscope.store.export import no_formula

WITHOUT = "without the update"
AUDIT_RUNS = ("attacks", "null_baselines")
AUDIT_COLUMNS = {"content": "content recovered", "mse": "MSE", "psnr": "PSNR, dB", "ssim": "SSIM"}
TEXT_COLUMNS = {
    "sentences": "whole sentences",
    "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2",
    "rouge_l": "ROUGE-L",
    "bag": "set of tokens",
}

Value = str | int | Estimate | None  # None: does not exist


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its heading, its values from top to bottom, and whether its estimates are shares."""

    head: str
    values: tuple[Value, ...]
    share: bool = False

    @property
    def right(self) -> bool:
        """Return whether the column is aligned to the right: it has no text."""
        return not any(isinstance(value, str) for value in self.values)


@dataclass(frozen=True, slots=True)
class TextTable:
    """Columns of equal length; the last `baselines` rows are attacks without the update."""

    columns: tuple[Column, ...]
    baselines: int = 0

    def rows(self, text: Callable[[Value, bool], str]) -> list[list[str]]:
        """Return the cells row by row, each as `text(value, share)`."""
        cells = [[text(value, column.share) for value in column.values] for column in self.columns]
        return [list(row) for row in zip(*cells, strict=True)]


def table_of(table: Table, label: Callable[[str], str]) -> TextTable:
    """Return the columns of a run's table as on the page; those without a value are left out."""
    rows = table.rows
    columns = [
        Column(ATTACK, tuple(f"{row.attack} ({WITHOUT})" if row.baseline else row.attack for row in rows)),
        *(
            Column(label(axis), tuple(axis_value_text(row.values[axis]) if axis in row.values else "" for row in rows))
            for axis in table.axes
            if axis != ATTACK
        ),
        Column("n", tuple(row.samples for row in rows)),
        Column("content recovered", tuple(row.content for row in rows), share=True),
        Column("converged", tuple(row.convergence for row in rows), share=True),
        Column("label right", tuple(row.label for row in rows), share=True),
        Column("MSE", tuple(row.mse for row in rows)),
        Column("PSNR, dB", tuple(row.psnr for row in rows)),
        Column("SSIM", tuple(row.ssim for row in rows)),
        Column("steps", tuple(row.steps for row in rows)),
        *(Column(name, tuple(row.learned.get(name) for row in rows)) for name in learned_in(rows)),
        Column("outcomes", tuple(_outcomes(row) for row in rows)),
    ]
    if not have_images(rows):
        columns = [column for column in columns if column.head not in ("MSE", "PSNR, dB")]
    shown = tuple(column for column in columns if not rows or any(value is not None for value in column.values))
    return TextTable(shown, sum(row.baseline for row in rows))


def audit_table(record: Mapping[str, object]) -> TextTable:
    """Return attacks and null baselines of an audit's record (`audit.json`) with their estimates; sentences have scores of their own."""
    if record.get("text") is not None:
        return _sentence_table(cast(Mapping[str, object], record["text"]))
    attacks, nulls = ([dict(run) for run in cast(list[dict[str, object]], record[name])] for name in AUDIT_RUNS)
    runs = [*attacks, *({**run, "name": f"{run['name']} ({WITHOUT})"} for run in nulls)]
    estimates = [cast(dict[str, dict[str, float | None]], run["estimates"]) for run in runs]
    columns = [
        Column(ATTACK, tuple(str(run["name"]) for run in runs)),
        Column("n", tuple(int(str(run["n"])) for run in runs)),
    ]
    columns += [
        Column(head, tuple(_estimate(values.get(name)) for values in estimates), share=name == "content")
        for name, head in AUDIT_COLUMNS.items()
        if any((values.get(name) or {}).get("value") is not None for values in estimates)
    ]
    return TextTable(tuple(columns), len(nulls))


def _sentence_table(text: Mapping[str, object]) -> TextTable:
    """Return the scores of a token network's sentences and of the null baselines, which have no intervals."""
    nulls = cast(list[dict[str, object]], text["nulls"])
    whole = cast(dict[str, float | None], text["sentences"])
    blank = {"low": None, "high": None, "n": whole["n"], "trials": whole["trials"]}

    def values(name: str) -> tuple[Value, ...]:
        means = [{**blank, "value": None if name == "bag" else float(str(null[name]))} for null in nulls]
        return tuple(_estimate(each) for each in (cast(dict[str, float | None] | None, text[name]), *means))

    columns = [
        Column(ATTACK, (f"{text['attack']}, bag of words", *(f"{null['name']} ({WITHOUT})" for null in nulls))),
        Column("n", (int(whole["n"] or 0),) * (1 + len(nulls))),
        *(Column(head, values(name), share=name in ("sentences", "bag")) for name, head in TEXT_COLUMNS.items()),
    ]
    shown = (column for column in columns if any(value is not None for value in column.values))
    return TextTable(tuple(shown), len(nulls))


def static_rows(record: Mapping[str, object]) -> list[tuple[str, str, str, str]]:
    """Return topic, severity, finding and what decides it, of every static line of an audit's record; older records have none."""
    static = cast(Mapping[str, list[dict[str, object]]], record.get("static") or {"lines": []})
    return [
        (
            str(line["topic"]),
            str(line["severity"]),
            str(line["finding"]),
            ", ".join(map(str, cast(list[str], line["decided_by"]))),
        )
        for line in static["lines"]
    ]


def _estimate(plain: Mapping[str, float | None] | None) -> Estimate | None:
    """Return an estimate of plain data; None if it has no value."""
    if plain is None or plain["value"] is None:
        return None
    value, low, high = (float(math.nan if (end := plain[part]) is None else end) for part in ("value", "low", "high"))
    return Estimate(value, low, high, int(plain["n"] or 0), int(plain["trials"] or 0))


def _outcomes(row: Row) -> str | None:
    return None if row.baseline else ", ".join(f"{count} {name}" for name, count in row.outcomes.items())


def markdown(table: TextTable) -> str:
    """Return the table in Markdown, values with their 95 % intervals in parentheses."""
    lines = [
        [_escape_markdown(column.head) for column in table.columns],
        ["---:" if column.right else ":---" for column in table.columns],
        *table.rows(lambda value, share: _escape_markdown(value_text(value, share))),
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def latex(table: TextTable) -> str:
    """Return the table in LaTeX with the rules of booktabs, values with their 95 % intervals in parentheses."""
    lines = [
        f"{' & '.join(row)} \\\\\n" for row in table.rows(lambda value, share: _escape_latex(value_text(value, share)))
    ]
    attacks = len(lines) - table.baselines
    if 0 < attacks < len(lines):
        lines.insert(attacks, "\\midrule\n")
    heads = " & ".join(_escape_latex(column.head) for column in table.columns)
    return "".join(
        [
            "% needs \\usepackage{booktabs}; 95 % intervals in parentheses\n",
            f"\\begin{{tabular}}{{{''.join('r' if column.right else 'l' for column in table.columns)}}}\n\\toprule\n",
            f"{heads} \\\\\n\\midrule\n",
            *lines,
            "\\bottomrule\n\\end{tabular}\n",
        ]
    )


def csv_text(table: TextTable) -> str:
    """Return the table as CSV: an estimate is four columns (value, low, high, n) of plain numbers."""
    columns = [column for wide in table.columns for column in _spread(wide)]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow([no_formula(_printable(name)) for name, _ in columns])
    writer.writerows(zip(*(values for _, values in columns), strict=True))
    return out.getvalue()


FORMATS: Mapping[str, Callable[[TextTable], str]] = {"markdown": markdown, "latex": latex, "csv": csv_text}


def _spread(column: Column) -> list[tuple[str, list[str]]]:
    """Return a column as (name, cells) of CSV; one of estimates becomes four."""
    if not any(isinstance(value, Estimate) for value in column.values):
        return [(column.head, ["" if value is None else no_formula(_printable(str(value))) for value in column.values])]
    return [
        (f"{column.head}{f' {part}' if part != 'value' else ''}", [_part(value, part) for value in column.values])
        for part in ("value", "low", "high", "n")
    ]


def _part(value: Value, part: str) -> str:
    plain = getattr(value, part, math.nan)
    return repr(plain) if math.isfinite(plain) else ""


def value_text(value: Value, share: bool) -> str:
    """Return a value as on the page: an estimate with its interval in parentheses."""
    if isinstance(value, Estimate):
        interval = percent_interval(value) if share else number_interval(value)
        shown = percent(value.value) if share else number(value.value)
        return f"{shown} ({interval})" if interval else shown
    return "n/a" if value is None else f"{value:,}" if isinstance(value, int) else _printable(value)


def _printable(text: str) -> str:
    """Return a text on one line without control characters."""
    return "".join(c if c.isprintable() else " " for c in text)


def _escape_markdown(text: str) -> str:
    r"""Return a text as a cell of a Markdown table.

    >>> _escape_markdown("a|b_c")
    'a\\|b\\_c'
    """
    return re.sub(r"([\\|`*_<\[])", r"\\\1", text)


_LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "×": r"$\times$",
}
_RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻"


def _escape_latex(text: str) -> str:
    r"""Return a text as LaTeX.

    >>> _escape_latex("50 % of a_b"), _escape_latex("3 × 10⁻⁷")
    ('50 \\% of a\\_b', '3 $\\times$ 10$^{-7}$')
    """
    escaped = "".join(_LATEX.get(character, character) for character in text)
    return re.sub(f"[{_RAISED}]+", lambda run: f"$^{{{run[0].translate(_FLAT)}}}$", escaped)


_FLAT = str.maketrans(_RAISED, "0123456789-")
