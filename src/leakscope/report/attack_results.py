"""Attacks that ran in this process as the results of a sweep: a cell for each run, with columns like those of a stored run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from leakscope.core.record import COURSE, Cell, Plain
from leakscope.core.types import Batch, Outcome
from leakscope.play import AttackResult
from leakscope.report.cells import ATTACK
from leakscope.report.sheet import LEARNED, Columns, Results, Tensors, make_sheet

STORED = ("inputs", "start", "snapshots", "snapshots_at", "trace", "trace_at")

Values = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class AttackCell:
    """A run as a cell of a sweep, the truth it is scored against, and whether its images are shown."""

    cell: Cell
    run: AttackResult
    batch: Batch
    images: bool = True


def attack_cell(id: str, run: AttackResult, batch: Batch, *, named: bool = True, baseline: bool = False) -> AttackCell:
    """Return the cell of an attack or a baseline; unless `named`, the attack is no axis."""
    axes: dict[str, Plain] = {ATTACK: run.name} if named else {}
    return AttackCell(Cell(id=id, settings={ATTACK: {"name": run.name}}, axes=axes, baseline=baseline), run, batch)


def results_of_attacks(
    attacks: Iterable[AttackCell], seeds: Sequence[int], *, unlabelled: Sequence[int] = ()
) -> Results:
    """Return runs as the results of a sweep; `unlabelled` are trials whose true label is not known.

    A number that only some attacks learn is NaN for the others.
    """
    attacks = tuple(attacks)
    parts = [_columns(place, attack, seeds, unlabelled) for place, attack in enumerate(attacks)]
    tensors = {
        f"{attack.cell.id}-{t}": _tensors(attack, t)
        for attack in attacks
        if attack.images
        for t in range(attack.batch.trials)
    }
    names = dict.fromkeys(name for part in parts for name in part)
    columns = {name: np.concatenate([_column(part, name) for part in parts]) for name in names}

    def find(trial: str) -> Tensors:
        return tensors.get(trial, {})

    return Results(make_sheet([attack.cell for attack in attacks], columns), find)


def _column(part: Columns, name: str) -> Values:
    return part[name] if name in part else np.full(len(part["trial"]), np.nan)


def _columns(place: int, attack: AttackCell, seeds: Sequence[int], unlabelled: Sequence[int]) -> Columns:
    """Return the rows of one cell as columns."""
    guess, scores, batch = attack.run.reconstruction, attack.run.scores, attack.batch
    T, N = scores.mse.shape
    trial, sample = np.repeat(np.arange(T), N), np.tile(np.arange(N), T)

    def per_trial(values: Tensor) -> Values:
        return np.asarray(values.cpu())[trial]

    def per_sample(values: Tensor | None) -> Values:
        return np.full(T * N, -1) if values is None else np.asarray(values.cpu()).reshape(-1)

    correct = per_sample(scores.label_correct).astype(np.int8)
    columns = {
        "trial": np.array([f"{attack.cell.id}-{t}" for t in trial], dtype=object),
        "cell": np.full(T * N, place),
        "number": trial,
        "seed": np.array(seeds[:T])[trial],
        "outcome": np.array([Outcome(int(code)).name.lower() for code in guess.outcome], dtype=object)[trial],
        "iterations": per_trial(guess.iterations),
        "evaluations": per_trial(guess.evaluations),
        "mismatch": per_trial(guess.mismatch.double()),
        "sample": sample,
        "label": per_sample(batch.labels),
        "guess": per_sample(None if scores.label_correct is None else guess.labels.gather(1, scores.pairing)),
        "mse": per_sample(scores.mse.double()),
        "psnr": per_sample(scores.psnr.double()),
        "ssim": per_sample(scores.ssim.double()),
        "label_correct": np.where(np.isin(trial, list(unlabelled)), np.int8(-1), correct),
        "recovered": per_sample(attack.run.recovered),
        "finite": per_sample(scores.finite),
        **{f"{LEARNED}{name}": per_trial(value.double()) for name, value in guess.learned.items()},
    }
    scored = scores.scored.reshape(-1).numpy()
    return {name: values[scored] for name, values in columns.items()}


def _tensors(attack: AttackCell, trial: int) -> Tensors:
    guess = attack.run.reconstruction
    return {
        "truth": attack.batch.inputs[trial],
        "pairing": attack.run.scores.pairing[trial],
        **{name: getattr(guess, name)[trial] for name in STORED},
        **{f"{COURSE}{name}": course[trial] for name, course in guess.courses.items()},
    }
