"""The records behind a page as CSV: one line for each sample of each trial, named as `leakscope export` names them."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from typing import Any

import numpy as np

from leakscope.report.page_data import Download
from leakscope.report.sheet import Sheet, axes_of

MOST_ROWS = 20_000
FIRST = ("trial", "cell", "baseline", "number", "seed", "outcome")
WHOLE = frozenset({"sample", "label", "guess"})
FLAGS = frozenset({"recovered", "finite", "label_correct"})


def download_of(sheet: Sheet, name: str, export: str) -> Download:
    """Return the records as a download; beyond `MOST_ROWS` only the words that say how to `export` them."""
    if len(sheet) > MOST_ROWS:
        note = f"{len(sheet):,} records are too many to carry in a page"
        return Download(name=name, text="", note=f"{note}: {export}" if export else note)
    trials, beside = int(sheet.first.sum()), ", baselines included" if sheet.baseline.any() else ""
    note = f"{len(sheet):,} lines, one for each sample of {trials:,} trials{beside}"
    return Download(name=name, text=csv_of(sheet), note=note)


def csv_of(sheet: Sheet) -> str:
    """Return all rows of the sheet as CSV; what does not exist is empty."""
    axes = tuple(axes_of(sheet.cells))
    plain = [name for name in sheet.columns if name not in (*FIRST, "cell")]
    names = [*FIRST, *plain]
    columns = [_words(sheet, name) for name in names]
    columns += [[_say(cell.axes.get(axis)) for cell in (sheet.cells[i] for i in sheet.cell)] for axis in axes]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow([*names, *(f"axis.{axis}" for axis in axes)])
    writer.writerows(zip(*columns, strict=True))
    return out.getvalue()


def _words(sheet: Sheet, name: str) -> list[str]:
    if name == "cell":
        return [sheet.cells[i].id for i in sheet.cell]
    if name == "baseline":
        return [_say(bool(flag)) for flag in sheet.baseline]
    values = sheet.columns[name]
    missing: Callable[[Any], bool] = (lambda v: v == -1) if name in WHOLE | FLAGS else (lambda v: v != v)
    kind = bool if name in FLAGS else (lambda v: v)
    return ["" if missing(value) else _say(kind(value)) for value in np.asarray(values).tolist()]


def _say(value: object) -> str:
    """Return a value as CSV holds it: numbers so that they read back the same, truth as true and false."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else str(value)
