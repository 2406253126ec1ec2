"""The recorded rows of a part as a Markdown table: what varies between them, beside what was measured."""

from __future__ import annotations

from collections.abc import Sequence

from leakscope.core.errors import InputError
from leakscope.report.cells import axis_value_text as say
from leakscope_papers.comparing import Measured
from leakscope_papers.pages.readme import markdown_row
from leakscope_papers.pages.table import entry_of
from leakscope_papers.status import recorded_results

HEADS = {
    "asr_convergence": "converged",
    "asr_content": "content",
    "asr_label": "label",
    "iterations_mean": "iterations",
    "ssim_all": "SSIM",
    "mse_all": "MSE",
}
RATES = ("asr_convergence", "asr_content", "asr_label")


def rows_table(name: str, part: str, measures: Sequence[str]) -> str:
    """Return the rows of a part of an item at its largest recorded scale; rates with their 95 % interval."""
    results = recorded_results(name).values()
    cells = next((rows for result in results if (rows := [row for row in result.cells if row.part == part])), [])
    if not cells:
        raise InputError(f"no row of {name}, part {part}, is recorded")
    axes = [axis for axis in cells[0].where if len({repr(cell.where.get(axis)) for cell in cells}) > 1]
    several = len({cell.column.title for cell in cells}) > 1
    heads = ["reading"] * several + axes + ["n"] + [HEADS.get(measure, measure.upper()) for measure in measures]
    lines = [markdown_row([head.replace("_", " ") for head in heads]), "|" + "---|" * len(heads)]
    for cell in cells:
        place = [cell.column.title] * several + [say(cell.where[axis]) if axis in cell.where else "" for axis in axes]
        lines.append(markdown_row([*place, str(cell.trials), *(_entry(cell, measure) for measure in measures)]))
    return "\n".join(lines) + "\n"


def _entry(cell: Measured, measure: str) -> str:
    entry = entry_of(measure, cell.values.get(measure))
    interval = f" ({entry.interval})" if measure in RATES and entry.interval else ""
    return f"{entry.value}{interval}"
