"""From a demonstration, the demo's or a peek's, to its page: a small sweep held in memory."""

from __future__ import annotations

from collections.abc import Iterator

from leakscope.core.record import Cell
from leakscope.metrics.scoring import arrange
from leakscope.play import Demonstration
from leakscope.report.attack_results import AttackCell, attack_cell, results_of_attacks
from leakscope.report.cells import ATTACK, DEFENCES
from leakscope.report.gallery import Namer, Spot, gallery_of
from leakscope.report.page_data import Exact, Page, Pair, Provenance, Threat
from leakscope.report.sections import labels_of, sections_of
from leakscope.report.sheet import Results
from leakscope.report.sources import RULE, download_of, input_nouns, machine_facts, seeds_text
from leakscope.report.strengths import strengths_of
from leakscope.report.tables import cell_table
from leakscope.report.threat import ALWAYS_HIDDEN, ALWAYS_KNOWN, FACTS

SIGMA = f"{DEFENCES}.0.sigma"


def page_of(shown: Demonstration, *, title: str, explanation: str, knowledge: str, limits: str, command: str) -> Page:
    """Return the page of a demonstration; `knowledge` says in words what the attacker was told."""
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
    """Return a demonstration as the results of a sweep: a cell for each attack, and one for each strength of noise."""
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
    """Return the names that the demonstration gives its images, and numbers for other classes."""
    names, batch = shown.names, shown.exposure.batch

    def name(_: Cell, number: int, spot: Spot | None) -> str:
        if spot is None:
            return f"class {number}"
        trial, sample = spot
        place = trial if len(names) == batch.trials else trial * batch.samples + sample
        return f"{names[place]} (class {number})"

    return name


def _threat(shown: Demonstration, knowledge: str) -> Threat:
    noise = ("that noise was added, where it was",) if shown.noise else ()
    return Threat(
        words=f"What it knew: {knowledge}",
        setting=tuple((run.name, (run.note,)) for run in shown.attacks if run.note),
        told=ALWAYS_KNOWN,
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
