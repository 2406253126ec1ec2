"""The images of a gallery item: truth, start, intermediate frames and result of each cell's first clients, one strip each.

If a client transforms its images (`client.on_data`), a strip shows x, T(x), the reconstruction and, if different, the attack's
estimate of T(x). The images that a program stores for the first client of a row are one sheet, truth above reconstructions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from leakscope.core.record import Cell
from leakscope.metrics.interval import PSNR_CAP
from leakscope.report.cells import axis_value_text as say
from leakscope.report.films import film, thin, unit
from leakscope.report.gallery import paired
from leakscope.report.numbers import number
from leakscope.report.pictures import Pixels, data_uri, drawable, pixels, png, shrink
from leakscope.report.sheet import Results, results_of
from leakscope.store import Run
from leakscope_papers.items import Part, Pictures
from leakscope_papers.naming import places_of
from leakscope_papers.programs.pictures import Shown, read_pictures
from leakscope_papers.programs.rows import read_rows
from leakscope_papers.results import Result
from leakscope_papers.scales import note_of, scale_of

if TYPE_CHECKING:
    from torch import Tensor

MOST_STRIPS = 160
MOST_SIDE = 256
GAP = 2


@dataclass(frozen=True, slots=True)
class Strip:
    """One attacked image: its place, the attacker, the images side by side as PNG, and their captions."""

    where: str
    who: str
    scores: str
    recovered: bool
    picture: str
    words: tuple[str, ...]
    across: int = 0  # images side by side in a sheet, the many images of one client
    counted: str = ""  # how many images of a sheet were recovered

    @property
    def verdict(self) -> str:
        """Return whether the image was recovered, as text."""
        return self.counted or ("recovered" if self.recovered else "not recovered")


def strips_of(result: Result, axes: Collection[str]) -> tuple[tuple[Strip, ...], int]:
    """Return the strips of a gallery item, named by these axes, and how many were left out to keep the page small."""
    asked = result.item.pictures
    if asked is None:
        return (), 0
    strips = [strip for part in result.item.parts for strip in _of_part(result, part, asked, axes)]
    return tuple(strips[:MOST_STRIPS]), max(0, len(strips) - MOST_STRIPS)


def _of_part(result: Result, part: Part, asked: Pictures, axes: Collection[str]) -> Iterator[Strip]:
    directory = result.runs.get(part.name)
    if directory is None:
        return
    if not Run.exists(directory):
        yield from _sheets(result, part, directory, asked, axes)
        return
    results = results_of(Run.open(directory))
    sheet = results.sheet
    taken: dict[int, dict[int, None]] = {}
    for row in (sheet.samples & ~sheet.baseline).nonzero()[0].tolist():
        trials = taken.setdefault(int(sheet.cell[row]), {})
        trial = int(sheet.trial[row])
        if (trial not in trials and len(trials) >= asked.trials) or int(sheet.columns["sample"][row]) >= asked.samples:
            continue
        trials[trial] = None
        yield from _strips(result, part, results, row, asked.frames, axes)


def _strips(
    result: Result, part: Part, results: Results, row: int, frames: int, axes: Collection[str]
) -> Iterator[Strip]:
    """Yield the strip of a row for each reading and attacker of its cell; none if it is outside the item."""
    sheet = results.sheet
    cell: Cell = sheet.cells[sheet.cell[row]]
    tensors = results.tensors(row)
    if "truth" not in tensors or "inputs" not in tensors:
        return
    for where, who in _standing(result, part, cell.settings, axes):
        picture, words = _draw(results, row, frames)
        yield Strip(
            where=where,
            who=who,
            scores=_scores(sheet.columns, row),
            recovered=bool(sheet.columns["recovered"][row]),
            picture=data_uri(png(picture)),
            words=words,
        )


def _standing(
    result: Result, part: Part, settings: Mapping[str, object], axes: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Yield place and attacker of a cell as text, for each reading and attacker it belongs to; stand-in data has no note."""
    note = "" if scale_of(result.item, result.scale).stand_in else note_of(part, settings)
    for where, column in places_of(result.item, part, settings):
        place = ", ".join(f"{axis} {say(value)}" for axis, value in where.items() if axis in axes)
        yield place, ", ".join(word for word in (column.reading, column.attacker, note) if word)


def _sheets(result: Result, part: Part, directory: Path, asked: Pictures, axes: Collection[str]) -> Iterator[Strip]:
    """Yield a sheet for each row of a program that stored images."""
    rows = read_rows(directory)
    for row in rows.rows:
        shown = read_pictures(directory, row.key)
        if shown is None:
            continue
        n = min(asked.samples, len(shown.truth))
        recovered, psnr = int(shown.recovered[:n].sum()), float(shown.psnr[:n].clamp_max(PSNR_CAP).mean())
        for where, who in _standing(result, part, {"settings": rows.settings, **row.where}, axes):
            yield Strip(
                where=where,
                who=who,
                scores=f"mean PSNR {number(psnr)} dB",
                recovered=recovered > 0,
                picture=data_uri(png(_sheet(shown, n))),
                words=("truth above", "reconstruction below"),
                across=n,
                counted=f"{recovered} of {n} recovered",
            )


def _sheet(shown: Shown, n: int) -> Pixels:
    """Return the first images side by side, each above the guess it was scored against."""
    return _joined([_joined([_image(unit(each)) for each in row[:n]], 1) for row in (shown.truth, shown.guess)], 0)


def _draw(results: Results, row: int, frames: int) -> tuple[Pixels, tuple[str, ...]]:
    """Return truth and frames side by side, with their captions."""
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
    return _joined([_image(each) for _, each in shown], 1), tuple(words for words, _ in shown)


def _image(picture: Tensor) -> Pixels:
    return shrink(pixels(drawable(picture)), MOST_SIDE)


def _joined(images: Sequence[Pixels], along: int) -> Pixels:
    """Return images side by side (1) or stacked (0), with a white gap between them."""
    shape = list(images[0].shape)
    shape[along] = GAP
    gap = np.full(shape, 255, dtype=np.uint8)
    return np.concatenate([part for image in images for part in (image, gap)][:-1], axis=along)


def _scores(columns: Mapping[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]], row: int) -> str:
    ssim = float(columns["ssim"][row])
    words = [f"MSE {number(float(columns['mse'][row]))}", *([f"SSIM {number(ssim)}"] if ssim == ssim else [])]
    return ", ".join([*words, f"{columns['outcome'][row]} after {int(columns['iterations'][row])} steps"])
