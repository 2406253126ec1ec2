"""From a demonstration, the demo's or a peek's, to its page: a small sweep held in memory."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from leakscope.core.record import COURSE, Cell, Plain
from leakscope.core.types import Batch, Outcome
from leakscope.core.version import __version__
from leakscope.metrics.scoring import arrange
from leakscope.play import AttackResult, Demonstration
from leakscope.report.axes import DEFENCES
from leakscope.report.gallery import Namer, Spot, gallery_of
from leakscope.report.page_data import Exact, Page, Pair, Provenance, Threat
from leakscope.report.phrases import INPUTS, PICTURES, RULE
from leakscope.report.records import download_of
from leakscope.report.results import Results, Tensors
from leakscope.report.run_page import seeds_in_words
from leakscope.report.sections import labels_of, sections_of
from leakscope.report.sheet import ATTACK, LEARNED, Columns, make_sheet
from leakscope.report.strength import strengths_of
from leakscope.report.tables import cell_table
from leakscope.report.threat import ALWAYS_HIDDEN, ALWAYS_TOLD, FACTS

SIGMA = f"{DEFENCES}.0.sigma"
PICTURE_RANK = 4  # T x N x H x W, or T x N x C x H x W


def page_of(shown: Demonstration, *, title: str, explanation: str, knowledge: str, limits: str, command: str) -> Page:
    """Return the page of a demonstration; `knowledge` says in words what the attacker was told."""
    results = results_of(shown)
    sheet, label, name = results.sheet, labels_of(results.sheet), _namer(shown)
    things = PICTURES if shown.exposure.batch.inputs.ndim >= PICTURE_RANK else INPUTS
    best = max(shown.attacks, key=lambda run: run.summary.content.value)
    hits, n = int(best.recovered.sum()), best.summary.samples
    return Page(
        title=title,
        headline=f"From the update alone, {hits} of {n} private {things[n > 1]} {'were' if n > 1 else 'was'} recovered",
        explanation=explanation,
        threat=_threat(shown, knowledge),
        rule=RULE,
        limits=limits,
        provenance=Provenance(
            command=command,
            facts=(
                ("Version", __version__),
                ("Date", datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")),
                (
                    "Machine",
                    f"{platform.machine()}, threads {torch.get_num_threads()}, torch {torch.__version__}, float32",
                ),
                ("Seeds", seeds_in_words(sheet)),
            ),
        ),
        download=download_of(sheet, f"{title.replace(' ', '-')}.csv", ""),
        sections=sections_of(sheet),
        speed=shown.speed.line() if shown.speed else "",
        update=shown.update,
        exact=_exact(shown),
        strengths=strengths_of(results, cell_table(sheet), label, name),
        gallery=gallery_of(results, label, name, things),
    )


def results_of(shown: Demonstration) -> Results:
    """Return a demonstration as the results of a sweep: a cell for each attack, and one for each strength of noise."""
    cells, pieces = [], []
    tensors: dict[str, Tensors] = {}
    for place, (cell, run, batch) in enumerate(_cells(shown)):
        cells.append(cell)
        pieces.append(_columns(place, cell, run, batch, shown.exposure.seeds, shown.unlabelled))
        tensors |= {f"{cell.id}-{t}": _tensors(run, batch, t) for t in range(batch.trials)}
    names = dict.fromkeys(name for piece in pieces for name in piece)
    columns = {name: np.concatenate([_own(piece, name) for piece in pieces]) for name in names}
    return Results(make_sheet(cells, columns), tensors.__getitem__)


def _own(piece: Columns, name: str) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    """Return a column of a cell; NaN where its attack did not look for such a number."""
    return piece[name] if name in piece else np.full(len(piece["trial"]), np.nan)


def _cells(shown: Demonstration) -> Iterator[tuple[Cell, AttackResult, Batch]]:
    axes: Mapping[str, Plain]
    for i, run in enumerate(shown.attacks):
        axes = {ATTACK: run.name} if len(shown.attacks) > 1 else {}
        yield Cell(id=f"attack-{i}", settings={ATTACK: {"name": run.name}}, axes=axes), run, shown.exposure.batch
    for i, run in enumerate(shown.baselines):
        cell = Cell(id=f"null-{i}", settings={ATTACK: {"name": run.name}}, axes={ATTACK: run.name}, baseline=True)
        yield cell, run, shown.exposure.batch
    if shown.noise is None:
        return
    steps = max(int(run.reconstruction.iterations.max()) for run in shown.noise.results)
    name = f"{shown.attacks[0].name}, up to {steps} steps"
    for i, (sigma, run) in enumerate(zip(shown.noise.sigmas, shown.noise.results, strict=True)):
        settings = {ATTACK: {"name": name}, DEFENCES: [{"name": "gaussian_noise", "sigma": sigma}]}
        yield Cell(id=f"noise-{i}", settings=settings, axes={SIGMA: sigma}), run, shown.noise.batch


def _columns(
    place: int,
    cell: Cell,
    run: AttackResult,
    batch: Batch,
    seeds: Sequence[int],
    unlabelled: frozenset[int] = frozenset(),
) -> Columns:
    """Return the rows of one cell as columns, like those of a stored run."""
    made, scores = run.reconstruction, run.scores
    T, N = scores.mse.shape
    trial, sample = np.repeat(np.arange(T), N), np.tile(np.arange(N), T)
    kept = scores.scored.reshape(-1).numpy()

    def spread(values: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
        return np.asarray(values.cpu())[trial]

    def flat(values: Tensor | None, missing: int = -1) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
        return np.full(T * N, missing) if values is None else np.asarray(values.cpu()).reshape(-1)

    columns = {
        "trial": np.array([f"{cell.id}-{t}" for t in trial], dtype=object),
        "cell": np.full(T * N, place),
        "number": trial,
        "seed": np.array(seeds[:T])[trial],
        "outcome": np.array([Outcome(int(code)).name.lower() for code in made.outcome], dtype=object)[trial],
        "iterations": spread(made.iterations),
        "evaluations": spread(made.evaluations),
        "mismatch": spread(made.mismatch.double()),
        "sample": sample,
        "label": flat(batch.labels),
        "guess": flat(None if scores.label_correct is None else made.labels.gather(1, scores.pairing)),
        "mse": flat(scores.mse.double()),
        "psnr": flat(scores.psnr.double()),
        "ssim": flat(scores.ssim.double()),
        "label_correct": flat(scores.label_correct).astype(np.int8),
        "recovered": flat(run.recovered),
        "finite": flat(scores.finite),
        **{f"{LEARNED}{name}": spread(value.double()) for name, value in made.learned.items()},
    }
    unknown = np.isin(trial, list(unlabelled))  # no label of theirs was right or wrong
    columns["label_correct"] = np.where(unknown, np.int8(-1), columns["label_correct"])
    return {name: values[kept] for name, values in columns.items()}


def _tensors(run: AttackResult, batch: Batch, trial: int) -> Tensors:
    made = run.reconstruction
    return {
        "truth": batch.inputs[trial],
        "pairing": run.scores.pairing[trial],
        **{
            name: getattr(made, name)[trial]
            for name in ("inputs", "start", "snapshots", "snapshots_at", "trace", "trace_at")
        },
        **{f"{COURSE}{name}": course[trial] for name, course in made.courses.items()},
    }


def _namer(shown: Demonstration) -> Namer:
    """Return the names that the demonstration gives its pictures, and numbers for other classes."""
    names, batch = shown.names, shown.exposure.batch

    def name(_: Cell, number: int, spot: Spot | None) -> str:
        if spot is None:
            return f"class {number}"
        trial, sample = spot
        own = names[trial] if len(names) == batch.trials else names[trial * batch.samples + sample]
        return f"{own} (class {number})"

    return name


def _threat(shown: Demonstration, knowledge: str) -> Threat:
    noise = ("that noise was added, where it was",) if shown.noise else ()
    return Threat(
        words=f"What it knew: {knowledge}",
        setting=tuple((run.name, (run.note,)) for run in shown.attacks if run.note),
        told=ALWAYS_TOLD,
        hidden=(*ALWAYS_HIDDEN, FACTS["labels"], *noise),
    )


def _exact(shown: Demonstration) -> Exact | None:
    if shown.exact is None:
        return None
    run, batch = shown.exact
    guesses, name = arrange(run.reconstruction.inputs, run.scores.pairing), _namer(shown)
    pairs = tuple(
        Pair(
            truth=batch.inputs[t, s],
            recovered=guesses[t, s],
            label=name(Cell(id="", settings={}), int(batch.labels[t, s]), (t, s)),
            mse=float(run.scores.mse[t, s]),
        )
        for t in range(batch.trials)
        for s in range(batch.samples)
    )
    return Exact(
        note="Where a network begins with a dense layer with a bias, no optimisation is needed: the weight gradient of a "
        "unit divided by its bias gradient is the input itself.",
        pairs=pairs,
    )
