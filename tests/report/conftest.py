"""Runs to test with: small sweeps of made-up trials, scored and stored as real ones are."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from leakscope.core.record import Cell, Record, SampleScore
from leakscope.metrics import DEFAULT_RULE, score
from leakscope.store import Landing, Run

OUTCOMES = ("converged", "exhausted", "stalled")


def build_cells(
    attacks: Sequence[str] = ("cpl", "dlg"),
    sigmas: Sequence[float] = (0.0, 0.01, 0.1),
    baselines: Sequence[str] = ("class_mean", "nearest_public"),
    name: str = "a sweep",
) -> list[Cell]:
    """Return the cells of a sweep of attacks and strengths, with baselines."""
    data = {"name": "digits", "part": "test", "samples": 1}
    cells = [
        Cell(
            id=f"{attack} {sigma}",
            settings={
                "name": name,
                "data": data,
                "attack": {"name": attack},
                "defences": [{"name": "gaussian_noise", "sigma": sigma}],
                "knowledge": {"labels": False, "local": True},
            },
            axes={"attack": attack, "defences.0.sigma": sigma},
        )
        for attack in attacks
        for sigma in sigmas
    ]
    return cells + [
        Cell(
            id=f"b {b}",
            settings={"name": name, "data": data, "attack": {"name": b}},
            axes={"attack": b},
            baseline=True,
        )
        for b in baselines
    ]


def guess_noise(cell: Cell) -> float:
    """Return how far a made-up attack is off in a cell: further under more noise, and for DLG; baselines are far off."""
    sigma = float(str(cell.axes.get("defences.0.sigma", 0.0)))
    return 0.5 if cell.baseline else 0.03 + 4 * sigma + (0.05 if cell.axes.get("attack") == "dlg" else 0.0)


def land(
    run: Run,
    cells: Sequence[Cell],
    *,
    trials: int,
    samples: int,
    shape: tuple[int, ...],
    shots: int,
    pictures: Tensor | None,
) -> None:
    """Fill a run with made-up trials, scored as real ones are; all cells attack the same truths."""
    generator = torch.Generator().manual_seed(7)
    truth = torch.rand(trials, samples, *shape, generator=generator) if pictures is None else pictures
    labels = torch.arange(trials * samples).reshape(trials, samples) % 10
    with run.writing() as writer:
        writer.renew(run.scenario(), cells, run.facts())
        plan = writer.add_plan({"chunks": len(cells)})
        for place, cell in enumerate(cells):
            noise = guess_noise(cell) * torch.randn(truth.shape, generator=generator)
            guess = truth + noise
            guessed = torch.where(torch.rand(labels.shape, generator=generator) < 0.8, labels, (labels + 1) % 10)
            writer.land(_landing(cell, place, plan, truth, labels, guess, guessed, shots))


def learns(cell: Cell) -> bool:
    """Return whether the attack of a cell finds a number beside the pictures."""
    attack = cell.settings.get("attack")
    return isinstance(attack, dict) and attack["name"] == "sme"


def _landing(
    cell: Cell, place: int, plan: int, truth: Tensor, labels: Tensor, guess: Tensor, guessed: Tensor, shots: int
) -> Landing:
    scores = score(truth, labels, guess, guessed)
    recovered = DEFAULT_RULE.recovered(scores)
    assert scores.label_correct is not None
    assert scores.label_overlap is not None
    records = tuple(
        Record(
            trial=f"{place:04x}{t:04x}",
            cell=cell.id,
            number=t,
            seed=t,
            items=tuple(range(t * truth.shape[1], (t + 1) * truth.shape[1])),
            outcome=OUTCOMES[(place + t) % 3],
            iterations=10 + t,
            evaluations=20 + t,
            mismatch=0.5**t,
            label_overlap=float(scores.label_overlap[t]),
            seconds=0.1,
            version="0.1.0",
            samples=tuple(
                SampleScore(
                    sample=s,
                    label=int(labels[t, s]),
                    guess=None if cell.baseline else int(guessed[t, scores.pairing[t, s]]),
                    mse=float(scores.mse[t, s]),
                    psnr=float(scores.psnr[t, s]),
                    ssim=None if math.isnan(scores.ssim[t, s]) else float(scores.ssim[t, s]),
                    label_correct=None if cell.baseline else bool(scores.label_correct[t, s]),
                    recovered=bool(recovered[t, s]),
                    finite=True,
                )
                for s in range(truth.shape[1])
            ),
            learned={"alpha": 0.25 * t} if learns(cell) else {},
        )
        for t in range(len(truth))
    )
    way = torch.linspace(0.1, 0.9, shots).view(1, shots, *[1] * (truth.ndim - 1))
    start = (torch.rand(truth.shape, generator=torch.Generator().manual_seed(place)) * 255).to(torch.uint8)
    between = (1 - way) * start[:, None] / 255 + way * guess[:, None]
    steps = torch.arange(1, shots + 1).expand(len(truth), shots)
    tensors = {
        "truth": truth,
        "inputs": guess,
        "labels": guessed,
        "pairing": scores.pairing,
        "start": start,
        "snapshots": (between.clamp(0, 1) * 255).to(torch.uint8),
        "snapshots_at": steps,
        "trace": 10.0 ** -torch.arange(12.0).expand(len(truth), 12),
        "trace_at": torch.arange(12).expand(len(truth), 12),
    }
    if learns(cell):
        tensors["course.alpha"] = torch.linspace(0.5, 0.6, 12).expand(len(truth), 12)
    return Landing(chunk=f"c{place}", plan=plan, records=records, tensors=tensors, seconds=1.0)


def build_run(
    directory: Path,
    cells: Sequence[Cell] | None = None,
    *,
    trials: int = 5,
    samples: int = 1,
    shape: tuple[int, ...] = (1, 16, 16),
    shots: int = 3,
    pictures: Tensor | None = None,
    scenario: str = "name: a sweep\n",
    facts: Mapping[str, str] | None = None,
) -> Run:
    """Return a stored run of made-up trials; `pictures` are truths (trials x samples x ...)."""
    known = {"leakscope": "0.1.0", "machine": "2 cores", "command": "leakscope run a.yaml"}
    run = Run.create(directory, scenario, known if facts is None else facts)
    if pictures is not None:
        trials, samples = pictures.shape[:2]
    land(
        run,
        build_cells() if cells is None else cells,
        trials=trials,
        samples=samples,
        shape=shape,
        shots=shots,
        pictures=pictures,
    )
    return run


@pytest.fixture(scope="session")
def make_cells() -> Callable[..., list[Cell]]:
    return build_cells


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Run]:
    """Return a function that makes a run in a directory of its own."""
    made: list[Run] = []

    def make(cells: Sequence[Cell] | None = None, **settings: Any) -> Run:
        made.append(build_run(tmp_path / f"run-{len(made)}", cells, **settings))
        return made[-1]

    return make


@pytest.fixture
def figures() -> Callable[[str], list[str]]:
    """Return a function that gives the numbers of a sentence, in order."""
    return lambda text: re.findall(r"\d+(?:,\d{3})*(?:\.\d+)?", text)
