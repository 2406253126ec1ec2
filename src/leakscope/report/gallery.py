"""The gallery of a sweep: truth, start and reconstruction of its pictures, with scores, traces and baselines."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leakscope.core.record import Cell
from leakscope.report.animation import courses, film, trace, unit
from leakscope.report.page_data import Gallery, Guess, Tile
from leakscope.report.picture import drawable
from leakscope.report.results import Results
from leakscope.report.sampling import Choice, choose
from leakscope.report.sheet import ATTACK, Sheet, axes_of, name_of, say

if TYPE_CHECKING:
    from torch import Tensor

MOST_TILES, LEAST_TILES = 200, 24
USUAL_SIZE = 2 * 3 * 32 * 32  # up to twice a picture of CIFAR, all tiles find room on a page
ALL = "Every attacked {thing} of the run is here, none picked."
SOME = (
    "{shown:,} of {total:,} attacked {things} are here, chosen by rule: of every setting in turn the median, the best and the "
    "worst by MSE, then others at random (seed {seed}). Tables and curves count all of them."
)

Spot = tuple[int, int]  # the number of a trial, a sample of it
Namer = Callable[[Cell, int, Spot | None], str]  # a class of a cell in words; its own name if it is that of a picture


@dataclass(frozen=True, slots=True, eq=False)
class _Frame:
    """What every tile of a gallery needs: the results, the axes with their headings, and names for classes."""

    results: Results
    axes: tuple[str, ...]
    name: Namer
    nulls: Mapping[tuple[str, int, int], list[int]]


def gallery_of(
    results: Results, label: Callable[[str], str], name: Namer, things: tuple[str, str], *, seed: int = 0
) -> Gallery | None:
    """Return the gallery, None if no trial kept its pictures; `things` is the noun of an input, one and many."""
    sheet = results.sheet
    attacked = [cell for cell in sheet.cells if not cell.baseline]
    axes = tuple(dict.fromkeys((ATTACK, *axes_of(attacked))))
    frame = _Frame(results, axes, name, _baseline_rows(results))
    found = (_tile(frame, choice) for choice in choose(sheet, _most_tiles(results), seed=seed))
    tiles = tuple(tile for tile in found if tile is not None)
    if not tiles:
        return None
    total = int((sheet.samples & ~sheet.baseline).sum())
    words = (ALL if len(tiles) == total else SOME).format(
        shown=len(tiles), total=total, thing=things[0], things=things[1], seed=seed
    )
    varied = tuple((a, label(a)) for a in axes if len({tile.axes.get(a) for tile in tiles}) > 1)
    return Gallery(note=words, axes=varied, tiles=tiles, total=total)


def _most_tiles(results: Results) -> int:
    """Return how many tiles a page has room for: fewer of large pictures."""
    truth = results.tensors(0).get("truth") if len(results.sheet) else None
    size = 1 if truth is None else max(1, truth[0].numel())
    return max(LEAST_TILES, min(MOST_TILES, MOST_TILES * USUAL_SIZE // size))


def _tile(frame: _Frame, choice: Choice) -> Tile | None:
    """Return the tile of a row, None if the trial's pictures were not kept."""
    sheet, row = frame.results.sheet, choice.row
    tensors = frame.results.tensors(row)
    if "truth" not in tensors or "inputs" not in tensors:
        return None
    cell, sample = sheet.cells[sheet.cell[row]], int(sheet.columns["sample"][row])
    steps, number = int(sheet.columns["iterations"][row]), int(sheet.columns["number"][row])
    frames, at = film(tensors, paired(tensors, sample), steps)
    mismatch, seen_at = trace(tensors)
    guess, correct = int(sheet.columns["guess"][row]), int(sheet.columns["label_correct"][row])
    return Tile(
        truth=drawable(unit(tensors["truth"][sample])),
        frames=drawable(frames, stack=True),
        frames_at=at,
        axes={ATTACK: name_of(cell)} | {a: say(cell.axes[a]) for a in frame.axes if a in cell.axes},
        number=number,
        label=frame.name(cell, int(sheet.columns["label"][row]), (number, sample)),
        guess=None if guess < 0 else frame.name(cell, guess, None),
        label_correct=None if correct < 0 else correct == 1,
        mse=float(sheet.columns["mse"][row]),
        psnr=float(sheet.columns["psnr"][row]),
        ssim=_known(float(sheet.columns["ssim"][row])),
        steps=steps,
        outcome=str(sheet.columns["outcome"][row]),
        recovered=bool(sheet.columns["recovered"][row]),
        trace=mismatch,
        trace_at=seen_at,
        learned=_learned(sheet, row),
        courses=courses(tensors),
        baselines=_guesses(frame, cell, row, sample, tensors["truth"][sample]),
        place=choice.place,
    )


def _learned(sheet: Sheet, row: int) -> dict[str, float]:
    """Return what the attack found beside the picture of a row, by name."""
    values = {name: float(sheet.columns[column][row]) for name, column in sheet.learned.items()}
    return {name: value for name, value in values.items() if not math.isnan(value)}


def paired(tensors: Mapping[str, Tensor], sample: int) -> int:
    """Return the place of the guess that was scored against a sample."""
    return int(tensors["pairing"][sample]) if "pairing" in tensors else sample


def _baseline_rows(results: Results) -> dict[tuple[str, int, int], list[int]]:
    """Return the rows of baselines by what data they saw, the trial's number and the sample."""
    sheet = results.sheet
    found: dict[tuple[str, int, int], list[int]] = {}
    for row in (sheet.samples & sheet.baseline).nonzero()[0].tolist():
        cell = sheet.cells[sheet.cell[row]]
        key = (_data(cell), int(sheet.columns["number"][row]), int(sheet.columns["sample"][row]))
        found.setdefault(key, []).append(row)
    return found


def _guesses(frame: _Frame, cell: Cell, row: int, sample: int, truth: Tensor) -> tuple[Guess, ...]:
    """Return what the baselines show for the very same truth, one of each name."""
    columns = frame.results.sheet.columns
    found: dict[str, Guess] = {}
    for other in frame.nulls.get((_data(cell), int(columns["number"][row]), sample), ()):
        name = name_of(frame.results.sheet.cells[frame.results.sheet.cell[other]])
        tensors = frame.results.tensors(other)
        if name in found or "inputs" not in tensors or not _same(tensors, sample, truth):
            continue
        found[name] = Guess(
            name=name,
            picture=drawable(unit(tensors["inputs"][paired(tensors, sample)])),
            mse=float(columns["mse"][other]),
            ssim=_known(float(columns["ssim"][other])),
        )
    return tuple(found.values())


def _same(tensors: Mapping[str, Tensor], sample: int, truth: Tensor) -> bool:
    return "truth" in tensors and len(tensors["truth"]) > sample and tensors["truth"][sample].equal(truth)


def _data(cell: Cell) -> str:
    return json.dumps(cell.settings.get("data"), sort_keys=True, default=str)


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def class_namer(names: Mapping[str, Sequence[str]]) -> Namer:
    """Return the function that puts a class number into words, from the class names of each data set by its name."""

    def name(cell: Cell, number: int, _: Spot | None) -> str:
        data = cell.settings.get("data")
        known = names.get(str(data.get("name") if isinstance(data, Mapping) else data), ())
        return f"{known[number]} (class {number})" if 0 <= number < len(known) else f"class {number}"

    return name
