"""The foot of a page: the rule of recovery, its limits, provenance, and the records as CSV (columns of `leakscope export`)."""

from __future__ import annotations

import csv
import datetime
import io
import platform
from collections.abc import Sequence

import numpy as np

from leakscope.core.version import __version__
from leakscope.metrics.success import DEFAULT_RULE
from leakscope.report.cells import axes_of
from leakscope.report.page_data import Download
from leakscope.report.sheet import Sheet
from leakscope.store.export import no_formula

RULE = (
    f"An input counts as recovered when its MSE is at most {DEFAULT_RULE.mse:g} and, for a picture, its SSIM at least "
    f"{DEFAULT_RULE.ssim:g} against the truth, after pairing by MSE. Convergence is the attack's own notion: its mismatch "
    "fell under its threshold. The attack never sees the truth."
)
LIMITS = (
    "These numbers hold for this data, this network with these weights, and these attacks with these many steps. An input that "
    "was not recovered may not be safe: a stronger or better informed attack may exist. What counts as recovered is a "
    "convention; the scores of every trial are in the records."
)
EXPORT = "use leakscope export RUN --to csv"
PICTURES, INPUTS = ("picture", "pictures"), ("input", "inputs")
PLANE_RANK = 2  # dimensions of the smallest image: H x W

MOST_RECORDS = 20_000
FIRST_COLUMNS = ("trial", "cell", "baseline", "number", "seed", "outcome")
WHOLE = frozenset({"sample", "label", "guess"})
FLAGS = frozenset({"recovered", "finite", "label_correct"})

Facts = tuple[tuple[str, str], ...]  # (what, value), in words


def input_nouns(sample_shape: Sequence[int], *, smallest: int = PLANE_RANK) -> tuple[str, str]:
    """Return the noun for inputs of this shape (without trials and samples), singular and plural.

    >>> input_nouns((1, 28, 28)), input_nouns((30,))
    (('picture', 'pictures'), ('input', 'inputs'))
    """
    return PICTURES if len(sample_shape) >= smallest else INPUTS  # fewest dimensions of an image


def machine_facts() -> Facts:
    """Return version, date and machine of numbers computed in this process."""
    import torch

    machine = f"{platform.machine()}, threads {torch.get_num_threads()}, torch {torch.__version__}, float32"
    return ("Version", __version__), ("Date", now_text()), ("Machine", machine)


def now_text() -> str:
    """Return the current date and time in UTC."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")


def seeds_text(sheet: Sheet) -> str:
    """Return the range and number of seeds of all trials."""
    seeds = np.unique(sheet.columns["seed"])
    if len(seeds) < 2:
        return ", ".join(str(seed) for seed in seeds) or "none yet"
    return f"{seeds[0]} to {seeds[-1]}, {len(seeds):,} of them"


def download_of(sheet: Sheet, name: str, export: str) -> Download:
    """Return the records as a download; beyond `MOST_RECORDS` only a note on how to `export` them."""
    if len(sheet) > MOST_RECORDS:
        note = f"{len(sheet):,} records are too many to carry in a page"
        return Download(name=name, text="", note=f"{note}: {export}" if export else note)
    trials, baselines = int(sheet.first.sum()), ", baselines included" if sheet.baseline.any() else ""
    note = f"{len(sheet):,} lines, one for each sample of {trials:,} trials{baselines}"
    return Download(name=name, text=csv_of(sheet), note=note)


def csv_of(sheet: Sheet) -> str:
    """Return all rows of the sheet as CSV; missing values are empty."""
    axes = tuple(axes_of(sheet.cells))
    names = [*FIRST_COLUMNS, *(name for name in sheet.columns if name not in FIRST_COLUMNS)]
    columns = [_column(sheet, name) for name in names]
    columns += [[_csv_text(cell.axes.get(axis)) for cell in (sheet.cells[i] for i in sheet.cell)] for axis in axes]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow([*names, *(f"axis.{axis}" for axis in axes)])
    writer.writerows(zip(*columns, strict=True))
    return out.getvalue()


def _column(sheet: Sheet, name: str) -> list[str]:
    if name == "cell":
        return [_csv_text(sheet.cells[i].id) for i in sheet.cell]
    if name == "baseline":
        return [_csv_text(bool(flag)) for flag in sheet.baseline]
    values = np.asarray(sheet.columns[name]).tolist()
    if name in FLAGS:
        return ["" if value == -1 else _csv_text(bool(value)) for value in values]
    if name in WHOLE:
        return ["" if value == -1 else _csv_text(value) for value in values]
    return ["" if value != value else _csv_text(value) for value in values]


def _csv_text(value: object) -> str:
    """Return a value as CSV text: floats read back exactly, booleans as true and false."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else no_formula(str(value))
