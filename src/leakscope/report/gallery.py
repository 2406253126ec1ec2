"""The gallery of a sweep: truth, start and reconstruction of its images, with scores, traces and baselines."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from leakscope.core.record import Cell
from leakscope.report.cells import ATTACK, axes_of, axis_value_text, name_of
from leakscope.report.films import courses, film, trace, unit
from leakscope.report.page_data import Gallery, Guess, Tile
from leakscope.report.pictures import drawable
from leakscope.report.sheet import Codes, Results, Sheet

if TYPE_CHECKING:
    from torch import Tensor

MOST_TILES, LEAST_TILES = 200, 24
USUAL_SIZE = 2 * 3 * 32 * 32  # up to twice the size of a CIFAR image, all tiles fit on a page
PICKED = ("median", "best", "worst")
AT_RANDOM = "random"
ALL = "Every attacked {noun} of the run is shown, none picked."
SOME = (
    "{shown:,} of {total:,} attacked {nouns} are shown, chosen by rule: of every setting in turn the median, the best and the "
    "worst by MSE, then others at random (seed {seed}). Tables and curves count all of them."
)

Spot = tuple[int, int]  # (trial number, sample)
Namer = Callable[[Cell, int, Spot | None], str]  # the name of a class; of a single image if a spot is given


@dataclass(frozen=True, slots=True, eq=False)
class _Frame:
    """What every tile of a gallery needs; `nulls` are the rows of `_baseline_rows`."""

    results: Results
    axes: tuple[str, ...]
    name: Namer
    nulls: Mapping[tuple[str, int, int], list[int]]


@dataclass(frozen=True, slots=True)
class Choice:
    """One row of the sheet, and why it is shown ('' if all are)."""

    row: int
    place: str = ""


def gallery_of(
    results: Results, label: Callable[[str], str], name: Namer, nouns: tuple[str, str], *, seed: int = 0
) -> Gallery | None:
    """Return the gallery, None if no trial kept its images; `nouns` is the noun of an input, singular and plural."""
    sheet = results.sheet
    attacked = [cell for cell in sheet.cells if not cell.baseline]
    axes = tuple(dict.fromkeys((ATTACK, *axes_of(attacked))))
    frame = _Frame(results, axes, name, _baseline_rows(results))
    shown = (_tile(frame, choice) for choice in choose(sheet, _most_tiles(results), seed=seed))
    tiles = tuple(tile for tile in shown if tile is not None)
    if not tiles:
        return None
    total = int((sheet.samples & ~sheet.baseline).sum())
    words = (ALL if len(tiles) == total else SOME).format(
        shown=len(tiles), total=total, noun=nouns[0], nouns=nouns[1], seed=seed
    )
    varied = tuple((a, label(a)) for a in axes if len({tile.axes.get(a) for tile in tiles}) > 1)
    return Gallery(note=words, axes=varied, tiles=tiles, total=total)


def _most_tiles(results: Results) -> int:
    """Return how many tiles fit on a page: fewer of large images."""
    truth = results.tensors(0).get("truth") if len(results.sheet) else None
    size = 1 if truth is None else max(1, truth[0].numel())
    return max(LEAST_TILES, min(MOST_TILES, MOST_TILES * USUAL_SIZE // size))


def _tile(frame: _Frame, choice: Choice) -> Tile | None:
    """Return the tile of a row, None if the trial's images were not kept."""
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
        axes={ATTACK: name_of(cell)} | {a: axis_value_text(cell.axes[a]) for a in frame.axes if a in cell.axes},
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
    """Return by name the values that the attack recovered beside the image of a row."""
    values = {name: float(sheet.columns[column][row]) for name, column in sheet.learned.items()}
    return {name: value for name, value in values.items() if not math.isnan(value)}


def paired(tensors: Mapping[str, Tensor], sample: int) -> int:
    """Return the index of the reconstruction that was scored against a sample."""
    return int(tensors["pairing"][sample]) if "pairing" in tensors else sample


def _baseline_rows(results: Results) -> dict[tuple[str, int, int], list[int]]:
    """Return the rows of baselines by (data, trial number, sample)."""
    sheet = results.sheet
    rows: dict[tuple[str, int, int], list[int]] = {}
    for row in (sheet.samples & sheet.baseline).nonzero()[0].tolist():
        cell = sheet.cells[sheet.cell[row]]
        key = (_data(cell), int(sheet.columns["number"][row]), int(sheet.columns["sample"][row]))
        rows.setdefault(key, []).append(row)
    return rows


def _guesses(frame: _Frame, cell: Cell, row: int, sample: int, truth: Tensor) -> tuple[Guess, ...]:
    """Return the baselines' reconstructions of the same truth, one per name."""
    columns = frame.results.sheet.columns
    guesses: dict[str, Guess] = {}
    for other in frame.nulls.get((_data(cell), int(columns["number"][row]), sample), ()):
        name = name_of(frame.results.sheet.cells[frame.results.sheet.cell[other]])
        tensors = frame.results.tensors(other)
        if name in guesses or "inputs" not in tensors or not _same(tensors, sample, truth):
            continue
        guesses[name] = Guess(
            name=name,
            picture=drawable(unit(tensors["inputs"][paired(tensors, sample)])),
            mse=float(columns["mse"][other]),
            ssim=_known(float(columns["ssim"][other])),
        )
    return tuple(guesses.values())


def _same(tensors: Mapping[str, Tensor], sample: int, truth: Tensor) -> bool:
    return "truth" in tensors and len(tensors["truth"]) > sample and tensors["truth"][sample].equal(truth)


def _data(cell: Cell) -> str:
    return json.dumps(cell.settings.get("data"), sort_keys=True, default=str)


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def class_namer(names: Mapping[str, Sequence[str]]) -> Namer:
    """Return the function that names a class number, from the class names of each data set."""

    def name(cell: Cell, number: int, _: Spot | None) -> str:
        data = cell.settings.get("data")
        of_data = names.get(str(data.get("name") if isinstance(data, Mapping) else data), ())
        return f"{of_data[number]} (class {number})" if 0 <= number < len(of_data) else f"class {number}"

    return name


def choose(sheet: Sheet, limit: int, *, seed: int = 0) -> list[Choice]:
    """Return up to `limit` samples: every cell in turn gives its median, best and worst (by MSE), then random ones."""
    rows = np.flatnonzero(sheet.samples & ~sheet.baseline)
    if len(rows) <= limit:
        return [Choice(int(row)) for row in rows]
    rng = np.random.default_rng(seed)
    queues = [_queue(sheet, rows[sheet.cell[rows] == cell], rank) for cell, rank in _ranks(sheet, rows, rng)]
    chosen: dict[int, str] = {}
    for turn in range(max(len(queue) for queue in queues)):
        for queue in queues:
            if turn < len(queue) and len(chosen) < limit:
                chosen[queue[turn].row] = queue[turn].place
    return [Choice(row, chosen[row]) for row in sorted(chosen)]


def _ranks(sheet: Sheet, rows: Codes, rng: np.random.Generator) -> list[tuple[int, Codes]]:
    """Return the cells in random order with one shared random rank per image, so that it is seen under several settings."""
    pictures = np.stack([sheet.columns["number"][rows], sheet.columns["sample"][rows]])
    _, code = np.unique(pictures, axis=1, return_inverse=True)
    rank = np.zeros(len(sheet), dtype=np.int64)
    rank[rows] = rng.permutation(int(code.max()) + 1)[code.reshape(-1)]
    return [(int(cell), rank) for cell in rng.permutation(np.unique(sheet.cell[rows]))]


def _queue(sheet: Sheet, rows: Codes, rank: Codes) -> list[Choice]:
    """Return the samples of one cell in the order of selection."""
    by_score = rows[np.argsort(sheet.floats("mse")[rows], kind="stable")]
    first = dict.fromkeys(int(by_score[i]) for i in (len(by_score) // 2, 0, -1))
    places = dict(zip((int(by_score[i]) for i in (len(by_score) // 2, 0, -1)), PICKED, strict=True))
    others = (int(row) for row in rows[np.argsort(rank[rows], kind="stable")] if int(row) not in first)
    return [Choice(row, places[row]) for row in first] + [Choice(row, AT_RANDOM) for row in others]
