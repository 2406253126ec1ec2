"""The section on a defence whose strength is an axis: the same images, attacked under every strength."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from leakscope.core.record import Cell
from leakscope.report.cells import ATTACK, axes_of, axis_value_text, families, name_of, strength_axes
from leakscope.report.films import unit
from leakscope.report.gallery import Namer, Spot, paired
from leakscope.report.page_data import Fading, Level, Strength
from leakscope.report.pictures import drawable
from leakscope.report.sheet import Results
from leakscope.report.tables import Row, Table

if TYPE_CHECKING:
    from torch import Tensor

MOST_PICTURES, LEAST_TRUTHS, MOST_TRUTHS = 200, 4, 8
MOST_FADINGS = 6

Ladder = dict[str, Cell]  # strength in words -> cell


def strengths_of(
    results: Results,
    table: Table,
    label: Callable[[str], str],
    name: Namer,
    accuracy: Mapping[str, float] | None = None,
) -> tuple[Strength, ...]:
    """Return a section for every axis that is a defence's strength; `accuracy` is by cell id, where it was measured."""
    rows = {row.cells[0]: row for row in table.rows}
    strengths = []
    for family in families(results.sheet.cells):
        for axis in strength_axes(family):
            ladders = _ladders(family, axis, label)
            shown = dict(list(ladders.items())[:MOST_FADINGS])
            fadings = [
                _fading(results, rows, who, ladder, len(shown), name, accuracy or {}) for who, ladder in shown.items()
            ]
            drawn = tuple(fading for fading in fadings if fading is not None)
            if drawn:
                strengths.append(Strength(axis=label(axis), note=_note(len(drawn), len(ladders)), fadings=drawn))
    return tuple(strengths)


def _note(shown: int, total: int) -> str:
    note = "The same private inputs, attacked once under every strength. The numbers count every trial, not only those drawn."
    return (
        note if shown == total else f"{note} {shown} of {total} settings are drawn, the first in the order of the run."
    )


def _ladders(family: Sequence[Cell], axis: str, label: Callable[[str], str]) -> dict[str, Ladder]:
    """Return the cells by strength for each attack and each value of the other axes, incomplete ones left out."""
    axes = axes_of(family)
    steps = [axis_value_text(value) for value in axes[axis]]
    others = [name for name, values in axes.items() if name not in (axis, ATTACK) and len(values) > 1]
    ladders: dict[str, Ladder] = {}
    for cell in family:
        parts = [f"{label(other)} {axis_value_text(cell.axes[other])}" for other in others if other in cell.axes]
        ladders.setdefault(", ".join([name_of(cell), *parts]), {})[axis_value_text(cell.axes[axis])] = cell
    return {
        who: {step: ladder[step] for step in steps}
        for who, ladder in ladders.items()
        if all(s in ladder for s in steps)
    }


def _fading(
    results: Results,
    rows: Mapping[str, Row],
    who: str,
    ladder: Ladder,
    fadings: int,
    name: Namer,
    accuracy: Mapping[str, float],
) -> Fading | None:
    """Return one attack's fading, None if no image was kept under every strength."""
    if any(cell.id not in rows for cell in ladder.values()):
        return None
    most = max(LEAST_TRUTHS, min(MOST_TRUTHS, MOST_PICTURES // (len(ladder) * fadings)))
    common = _common(results, list(ladder.values()), most)
    if not common:
        return None
    import torch

    spots = [rows_at for rows_at, _ in common]
    sheet = results.sheet
    first = next(iter(ladder.values()))
    levels = tuple(
        Level(
            strength=step,
            pictures=torch.stack([_picture(results, at[i]) for at in spots]),
            content=rows[cell.id].content,
            mse=rows[cell.id].mse,
            accuracy=accuracy.get(cell.id),
        )
        for i, (step, cell) in enumerate(ladder.items())
    )
    return Fading(
        attack=who,
        truths=torch.stack([truth for _, truth in common]),
        labels=tuple(name(first, int(sheet.columns["label"][at[0]]), _spot(results, at[0])) for at in spots),
        levels=levels,
    )


def _common(results: Results, cells: Sequence[Cell], most: int) -> list[tuple[list[int], Tensor]]:
    """Return the first true images that were attacked in all cells: each with its row in every cell."""
    sheet = results.sheet
    by_spot = [_rows_by_spot(results, sheet.cells.index(cell)) for cell in cells]
    common: list[tuple[list[int], Tensor]] = []
    for spot in by_spot[0]:
        if len(common) == most:
            break
        at = [rows[spot] for rows in by_spot if spot in rows]
        truths = [_truth(results, row) for row in at] if len(at) == len(cells) else [None]
        first = truths[0]
        if first is not None and all(truth is not None and truth.equal(first) for truth in truths):
            common.append((at, first))
    return common


def _rows_by_spot(results: Results, place: int) -> dict[Spot, int]:
    sheet = results.sheet
    rows = (sheet.samples & (sheet.cell == place)).nonzero()[0].tolist()
    return {_spot(results, row): row for row in rows}


def _spot(results: Results, row: int) -> Spot:
    columns = results.sheet.columns
    return int(columns["number"][row]), int(columns["sample"][row])


def _truth(results: Results, row: int) -> Tensor | None:
    tensors = results.tensors(row)
    sample = int(results.sheet.columns["sample"][row])
    return drawable(unit(tensors["truth"][sample])) if "truth" in tensors and "inputs" in tensors else None


def _picture(results: Results, row: int) -> Tensor:
    tensors = results.tensors(row)
    return drawable(unit(tensors["inputs"][paired(tensors, int(results.sheet.columns["sample"][row]))]))
