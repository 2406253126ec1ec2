"""The page of a demonstration (`leakscope demo` or `peek`), built as a small sweep in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from leakscope.auditing.descriptions import sent_part
from leakscope.core.record import COURSE, Cell, Plain
from leakscope.core.types import Batch, Outcome
from leakscope.metrics.scoring import arrange
from leakscope.play import AttackResult, Demonstration
from leakscope.report.cells import ATTACK, DEFENCES
from leakscope.report.gallery import Namer, Spot, gallery_of
from leakscope.report.page_data import Exact, Page, Pair, Provenance, Threat
from leakscope.report.sections import labels_of, sections_of
from leakscope.report.sheet import LEARNED, Columns, Results, Tensors, make_sheet
from leakscope.report.sources import RULE, download_of, input_nouns, machine_facts, seeds_text
from leakscope.report.strengths import strengths_of
from leakscope.report.tables import cell_table
from leakscope.report.threat import ALWAYS_HIDDEN, ALWAYS_KNOWN, FACTS

SIGMA = f"{DEFENCES}.0.sigma"


def page_of(shown: Demonstration, *, title: str, explanation: str, knowledge: str, limits: str, command: str) -> Page:
    """Return the page of a demonstration; `knowledge` says in words what the attacker knows."""
    results = results_of(shown)
    sheet, label, name = results.sheet, labels_of(results.sheet), _namer(shown)
    nouns = input_nouns(shown.exposure.batch.inputs.shape[2:])
    best = max(shown.attacks, key=lambda run: run.summary.content.value)
    hits, n = int(best.recovered.sum()), best.summary.samples
    return Page(
        title=title,
        headline=f"From the update alone, {hits} of {n} private {nouns[n > 1]} {'were' if n > 1 else 'was'} recovered",
        explanation=explanation,
        threat=_threat(shown, knowledge),
        rule=RULE,
        limits=limits,
        provenance=Provenance(command=command, facts=(*machine_facts(), ("Seeds", seeds_text(sheet)))),
        download=download_of(sheet, f"{title.replace(' ', '-')}.csv", ""),
        sections=sections_of(sheet),
        speed=shown.speed.line() if shown.speed else "",
        update=shown.update,
        exact=_exact(shown),
        strengths=strengths_of(results, cell_table(sheet), label, name),
        gallery=gallery_of(results, label, name, nouns),
    )


def results_of(shown: Demonstration) -> Results:
    """Return a demonstration as results of a sweep: one cell per attack and one per noise strength."""
    return results_of_attacks(_cells(shown), shown.exposure.seeds, unlabelled=tuple(shown.unlabelled))


def _cells(shown: Demonstration) -> Iterator[AttackCell]:
    several = len(shown.attacks) > 1
    for i, run in enumerate(shown.attacks):
        yield attack_cell(f"attack-{i}", run, shown.exposure.batch, named=several)
    for i, run in enumerate(shown.baselines):
        yield attack_cell(f"null-{i}", run, shown.exposure.batch, baseline=True)
    if shown.noise is None:
        return
    steps = max(int(run.reconstruction.iterations.max()) for run in shown.noise.results)
    name = f"{shown.attacks[0].name}, up to {steps} steps"
    for i, (sigma, run) in enumerate(zip(shown.noise.sigmas, shown.noise.results, strict=True)):
        settings = {ATTACK: {"name": name}, DEFENCES: [{"name": "gaussian_noise", "sigma": sigma}]}
        yield AttackCell(Cell(id=f"noise-{i}", settings=settings, axes={SIGMA: sigma}), run, shown.noise.batch)


def _namer(shown: Demonstration) -> Namer:
    """Return a function with the demonstration's names of its images, and numbers for other classes."""
    names, batch = shown.names, shown.exposure.batch

    def name(_: Cell, number: int, spot: Spot | None) -> str:
        if spot is None:
            return f"class {number}"
        trial, sample = spot
        place = trial if len(names) == batch.trials else trial * batch.samples + sample
        return f"{names[place]} (class {number})" if batch.targets is None else names[place]

    return name


def _threat(shown: Demonstration, knowledge: str) -> Threat:
    noise = ("that noise was added, where it was",) if shown.noise else ()
    return Threat(
        words=f"It knows {knowledge[:1].lower()}{knowledge[1:]}",
        setting=(
            ("sent of the model", (sent_part(shown.exposure).words,)),
            *((run.name, (run.note,)) for run in shown.attacks if run.note),
        ),
        known=ALWAYS_KNOWN,
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


STORED = ("inputs", "start", "snapshots", "snapshots_at", "trace", "trace_at")

Values = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class AttackCell:
    """A run as a cell of a sweep, the true batch, and whether its images are shown."""

    cell: Cell
    run: AttackResult
    batch: Batch
    images: bool = True


def attack_cell(id: str, run: AttackResult, batch: Batch, *, named: bool = True, baseline: bool = False) -> AttackCell:
    """Return the cell of an attack or a baseline; unless `named`, the attack is not an axis."""
    axes: dict[str, Plain] = {ATTACK: run.name} if named else {}
    return AttackCell(Cell(id=id, settings={ATTACK: {"name": run.name}}, axes=axes, baseline=baseline), run, batch)


def results_of_attacks(
    attacks: Iterable[AttackCell], seeds: Sequence[int], *, unlabelled: Sequence[int] = ()
) -> Results:
    """Return runs as results of a sweep; `unlabelled` are trials whose true label is not known."""
    attacks = tuple(attacks)
    parts = [_columns(place, attack, seeds, unlabelled) for place, attack in enumerate(attacks)]
    tensors = {
        f"{attack.cell.id}-{t}": _tensors(attack, t)
        for attack in attacks
        if attack.images
        for t in range(attack.batch.trials)
    }
    names = dict.fromkeys(name for part in parts for name in part)  # missing values of a cell become NaN
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
