"""Pages and runs to test with: small, but with every section, and any part replaceable."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from leakscope.core.record import Cell, Record, SampleScore
from leakscope.metrics import DEFAULT_RULE, score
from leakscope.metrics.interval import Estimate, wilson
from leakscope.report import (
    Download,
    Exact,
    Fading,
    Gallery,
    Guess,
    Level,
    Page,
    Pair,
    Provenance,
    Row,
    Section,
    Strength,
    Threat,
    Tile,
)
from leakscope.report.curves import Line, Panel
from leakscope.store import Landing, Run

SIGMAS = ("0", "0.0001", "0.001", "0.01", "0.1")
OUTCOMES = ("converged", "exhausted", "stalled", "diverged")


def rate(hits: int, n: int) -> Estimate:
    return Estimate(hits / n, *wilson(hits / n, n), n, n)


def mean(value: float) -> Estimate:
    return Estimate(value, 0.9 * value, 1.1 * value, 8, 8)


def build_tile(truth: Tensor, *, seed: int = 0, frames: int = 5, last: int = 40, **changes: Any) -> Tile:
    """Return a tile whose film goes from noise to the truth."""
    noise = torch.randn(truth.shape, generator=torch.Generator().manual_seed(seed))
    share = torch.linspace(0, 1, frames).view(-1, *[1] * truth.ndim)
    at = tuple(round(last * i / max(1, frames - 1)) for i in range(frames))
    parts: dict[str, Any] = {
        "truth": truth,
        "frames": (1 - share) * noise + share * truth if frames > 1 else truth[None],
        "frames_at": at,
        "axes": {"attack": "attack 0"},
        "number": seed,
        "label": "boot",
        "guess": "bag",
        "label_correct": False,
        "mse": 3.1e-7,
        "psnr": 65.1,
        "ssim": 0.998 if truth.ndim > 1 else None,
        "steps": at[-1],
        "outcome": "converged",
        "recovered": True,
        "trace": tuple(10.0 ** (1 - i) for i in range(6)),
        "trace_at": tuple(range(0, 60, 10)),
        "baselines": (Guess(name="class mean", picture=truth * 0.5, mse=0.04, ssim=0.3 if truth.ndim > 1 else None),),
    }
    return Tile(**(parts | changes))


def build_row(attack: str, values: Mapping[str, Any], *, baseline: bool = False, hits: int = 31) -> Row:
    return Row(
        attack=attack,
        values=values,
        baseline=baseline,
        cells=("c",),
        trials=32,
        samples=32,
        content=rate(hits, 32),
        convergence=None if baseline else rate(30, 32),
        label=None,
        mse=mean(2e-5),
        psnr=mean(47.0),
        ssim=mean(0.9),
        steps=None if baseline else mean(120.0),
        outcomes={"converged": 30, "exhausted": 2},
    )


def build_section() -> Section:
    values = tuple(rate(h, 32) for h in (32, 31, 30, 8, 0))
    panel = Panel(
        "Content recovered",
        "sigma",
        True,
        True,
        (Line("attack 0", tuple(float(s) for s in SIGMAS), values),),
        (("class mean", rate(1, 32)),),
    )
    rows = [build_row("attack 0", {"sigma": float(s)}, hits=h) for s, h in zip(SIGMAS, (32, 31, 30, 8, 0), strict=True)]
    rows.append(build_row("class mean", {}, baseline=True, hits=1))
    return Section(title="By sigma", note="A note.", axes=(("sigma", "sigma"),), rows=tuple(rows), panels=(panel,))


def build_strength(truths: Tensor, attacks: int = 2) -> Strength:
    return Strength(
        axis="sigma",
        note="Noise.",
        fadings=tuple(
            Fading(
                attack=f"attack {a}",
                truths=truths,
                labels=tuple(f"picture {i}" for i in range(len(truths))),
                levels=tuple(
                    Level(
                        strength=s,
                        pictures=truths * (1 - 0.2 * i) * (1 - 0.05 * a),
                        content=rate(8 - i, 8),
                        mse=mean(0.01 * i),
                        accuracy=0.9 - 0.1 * i if a == 0 else None,
                    )
                    for i, s in enumerate(SIGMAS)
                ),
            )
            for a in range(attacks)
        ),
    )


def build_page(
    *,
    shape: tuple[int, ...] = (1, 28, 28),
    truths: Tensor | None = None,
    attacks: int = 2,
    tiles: int = 3,
    frames: int = 5,
    **changes: Any,
) -> Page:
    """Return a page of `tiles` random truths (or those given) per attack; `changes` replaces fields of the Page."""
    generator = torch.Generator().manual_seed(1)
    truths = torch.rand(tiles, *shape, generator=generator) if truths is None else truths
    shown = tuple(
        build_tile(
            truth,
            seed=a * len(truths) + i,
            frames=frames,
            last=40 + 3 * i,
            label=f"picture {i}",
            axes={"attack": f"attack {a}"},
            number=i,
            mse=10.0 ** -(1 + a + i),
            ssim=0.2 + 0.1 * (a + i) if truth.ndim > 1 else None,
            recovered=a + i > 1,
            outcome=OUTCOMES[(a + i) % 2],
        )
        for a in range(attacks)
        for i, truth in enumerate(truths)
    )
    parts: dict[str, Any] = {
        "title": "demo",
        "headline": "From the update alone, 31 of 32 private pictures were recovered",
        "explanation": "An explanation.",
        "threat": Threat(
            words="Words.",
            setting=(("Network", ("lenet", "resnet")),),
            told=("the loss",),
            hidden=("the labels",),
            mixed=("the bound",),
        ),
        "rule": "Recovered means close.",
        "limits": "Small pictures only.",
        "provenance": Provenance(
            command="leakscope demo",
            facts=(("Version", "leakscope 0.1.0"), ("Seeds", "0 to 31")),
            scenario="name: demo\n",
            plan="{}",
        ),
        "download": Download(name="demo.csv", text="trial,mse\r\na,0.5\r\n", note="one line"),
        "sections": (build_section(),),
        "every": dataclasses.replace(build_section(), title="Every setting", panels=()),
        "speed": "96 attacks in 41 s; the usual loop here: 338 s",
        "update": {
            "conv.weight": torch.randn(4, 1, 5, 5, generator=generator),
            "conv.bias": torch.randn(4, generator=generator),
        },
        "exact": Exact(
            note="By division.", pairs=tuple(Pair(truth=t, recovered=t, label="boot", mse=0.0) for t in truths)
        ),
        "strengths": (build_strength(truths),),
        "gallery": Gallery(note="All.", axes=(("attack", "attack"),), tiles=shown, total=len(shown)),
    }
    return Page(**(parts | changes))


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
def make_tile() -> Callable[..., Tile]:
    return build_tile


@pytest.fixture(scope="session")
def make_page() -> Callable[..., Page]:
    return build_page


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
