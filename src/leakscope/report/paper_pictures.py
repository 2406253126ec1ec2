"""The pictures of a gallery item: truth, start, the way and the result of the first clients of every cell, one strip each.

Where a client transforms its pictures (`client.on_data`), a strip has x, T(x) as its network saw it, the reconstruction, and,
where the attack tells them apart, what the attack takes T(x) to be.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from leakscope.core.record import Cell
from leakscope.experiments.papers.items import Item, Part, Pictures
from leakscope.experiments.papers.naming import belongs, name_cell
from leakscope.experiments.papers.results import Result
from leakscope.report.films import film, thin, unit
from leakscope.report.gallery import paired
from leakscope.report.numbers import number
from leakscope.report.picture import Pixels, data_uri, drawable, pixels, png, shrink
from leakscope.report.results import Results, results_of
from leakscope.report.sheet import say
from leakscope.store import Run

MOST_STRIPS = 160
MOST_SIDE = 256
GAP = 2


@dataclass(frozen=True, slots=True)
class Strip:
    """One attacked picture: where it stands, who attacked, the pictures side by side as PNG, and their captions."""

    where: str
    who: str
    scores: str
    recovered: bool
    picture: str
    words: tuple[str, ...]


def strips_of(result: Result, axes: Collection[str]) -> tuple[tuple[Strip, ...], int]:
    """Return the strips of a gallery item, named by these axes, and how many were left out to keep the page small."""
    asked = result.item.pictures
    if asked is None:
        return (), 0
    found = [strip for part in result.item.parts for strip in _of_part(result, part, asked, axes)]
    return tuple(found[:MOST_STRIPS]), max(0, len(found) - MOST_STRIPS)


def _of_part(result: Result, part: Part, asked: Pictures, axes: Collection[str]) -> Iterator[Strip]:
    if part.name not in result.runs or not Run.exists(result.runs[part.name]):
        return  # not run, or a program, which keeps no pictures
    results = results_of(Run.open(result.runs[part.name]))
    sheet = results.sheet
    taken: dict[int, dict[int, None]] = {}
    for row in (sheet.samples & ~sheet.baseline).nonzero()[0].tolist():
        trials = taken.setdefault(int(sheet.cell[row]), {})
        trial = int(sheet.trial[row])
        if (trial not in trials and len(trials) >= asked.trials) or int(sheet.columns["sample"][row]) >= asked.samples:
            continue
        trials[trial] = None
        yield from _strips(result.item, part, results, row, asked.frames, axes)


def _strips(item: Item, part: Part, results: Results, row: int, frames: int, axes: Collection[str]) -> Iterator[Strip]:
    """Yield the strip of a row for each reading and attacker that its cell belongs to; nothing if it is outside the item."""
    sheet = results.sheet
    cell: Cell = sheet.cells[sheet.cell[row]]
    tensors = results.tensors(row)
    if "truth" not in tensors or "inputs" not in tensors:
        return
    for reading in item.readings:
        where = name_cell(item, part, reading, cell.settings)
        if where is None or (reading.parts and part.name not in reading.parts):
            continue
        for attacker in item.attackers:
            if belongs(cell.settings, reading, attacker):
                picture, words = _draw(results, row, frames)
                yield Strip(
                    where=", ".join(f"{axis} {say(value)}" for axis, value in where.items() if axis in axes),
                    who=", ".join(word for word in (reading.label, attacker.label, part.note) if word),
                    scores=_scores(sheet.columns, row),
                    recovered=bool(sheet.columns["recovered"][row]),
                    picture=data_uri(png(picture)),
                    words=words,
                )


def _draw(results: Results, row: int, frames: int) -> tuple[Pixels, tuple[str, ...]]:
    """Return truth and frames side by side, and what each of them is."""
    sheet, tensors = results.sheet, results.tensors(row)
    sample, last = int(sheet.columns["sample"][row]), int(sheet.columns["iterations"][row])
    guess = paired(tensors, sample)
    way, at = film(tensors, guess, last)
    kept = thin(list(range(len(at))), frames + 1) if frames > 1 else [len(at) - 1]
    shown = [("truth", unit(tensors["truth"][sample])), *((f"step {at[place]}", way[place]) for place in kept)]
    if "transformed" in tensors:
        shown[:1] = [("x", shown[0][1]), ("T(x)", unit(tensors["transformed"][sample]))]
        if "seen" in tensors and not tensors["seen"][guess].equal(tensors["inputs"][guess]):
            shown.append(("T(x) as the attack takes it", unit(tensors["seen"][guess])))
    images = [shrink(pixels(drawable(each)), MOST_SIDE) for _, each in shown]
    gap = np.full((images[0].shape[0], GAP, images[0].shape[2]), 255, dtype=np.uint8)
    whole = np.concatenate([part for image in images for part in (image, gap)][:-1], axis=1)
    return whole, tuple(words for words, _ in shown)


def _scores(columns: Mapping[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]], row: int) -> str:
    ssim = float(columns["ssim"][row])
    words = [f"MSE {number(float(columns['mse'][row]))}", *([f"SSIM {number(ssim)}"] if ssim == ssim else [])]
    return ", ".join([*words, f"{columns['outcome'][row]} after {int(columns['iterations'][row])} steps"])
