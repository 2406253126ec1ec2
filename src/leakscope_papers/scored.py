"""The trials of a cell as tensors, from the columns of a stored run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from leakscope.metrics.interval import PSNR_CAP

ALPHA = "learned.alpha"  # the column of SME's alpha
SIMILARITY = "learned.similarity_loss"  # the column of DLFA's final similarity loss


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """The trials of one cell: by trial (T) outcome and iterations, by sample (T x N, padded) the scores."""

    ids: tuple[str, ...]
    converged: Tensor
    stalled: Tensor
    iterations: Tensor
    scored: Tensor
    mse: Tensor
    ssim: Tensor
    recovered: Tensor
    label: Tensor
    psnr: Tensor
    mismatch: Tensor
    outcomes: Mapping[str, int] = field(default_factory=dict)
    trace: Tensor | None = None  # mismatch at iterations `trace_at`, T x K, if an item needs it
    trace_at: Tensor | None = None
    image_mse: Tensor | None = None  # at `image_mse_at`, if the attack recorded its last iterations
    image_mse_at: Tensor | None = None
    alpha: Tensor | None = None  # final position of SME's surrogate; NaN without one
    similarity: Tensor | None = None  # final 1 - cos; NaN without one

    @property
    def trials(self) -> int:
        """Return T."""
        return len(self.converged)


def score_cells(columns: Mapping[str, npt.NDArray[np.generic]]) -> dict[int, Scored]:
    """Return cell number -> its trials, from the columns of a stored run (`Run.columns`)."""
    cells = np.asarray(columns["cell"], dtype=np.int64)
    order = np.argsort(cells, kind="stable")  # rows of a trial stay together
    bounds = np.flatnonzero(np.diff(cells[order])) + 1
    return {int(cells[rows[0]]): _scored(columns, rows) for rows in np.split(order, bounds) if len(rows)}


def _scored(columns: Mapping[str, npt.NDArray[np.generic]], rows: npt.NDArray[np.int64]) -> Scored:
    trial = columns["trial"][rows]
    first = np.ones(len(rows), dtype=np.bool_)
    first[1:] = trial[1:] != trial[:-1]
    number = np.cumsum(first) - 1
    place = np.arange(len(rows)) - np.flatnonzero(first)[number]
    shape = (int(number[-1]) + 1, int(place.max()) + 1)

    def spread(name: str) -> Tensor:
        values = np.full(shape, np.nan)
        values[number, place] = np.asarray(columns[name][rows], dtype=np.float64)
        return torch.from_numpy(values)

    outcome = columns["outcome"][rows][first].astype(str)
    names, counts = np.unique(outcome, return_counts=True)

    def once(name: str) -> Tensor:
        return torch.from_numpy(np.asarray(columns[name][rows][first], dtype=np.float64))

    return Scored(
        ids=tuple(str(name) for name in trial[first]),
        converged=torch.from_numpy(outcome == "converged"),
        stalled=torch.from_numpy(outcome == "stalled"),
        iterations=once("iterations"),
        scored=spread("sample") >= 0,
        mse=spread("mse"),
        ssim=spread("ssim"),
        recovered=spread("recovered") == 1,
        label=spread("label_correct"),
        psnr=spread("psnr").clamp_max(PSNR_CAP),
        mismatch=once("mismatch"),
        alpha=once(ALPHA) if ALPHA in columns else None,
        similarity=once(SIMILARITY) if SIMILARITY in columns else None,
        outcomes={str(name): int(count) for name, count in zip(names, counts, strict=True)},
    )
