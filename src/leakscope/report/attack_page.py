"""From a Story, the demo's or a peek's, to its page: a small sweep held in memory."""

from __future__ import annotations

from collections.abc import Iterator

from leakscope.core.record import Cell
from leakscope.metrics.scoring import arrange
from leakscope.play.story import Story
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


def page_of(story: Story, *, title: str, explanation: str, knowledge: str, limits: str, command: str) -> Page:
    """Return the page of a story; `knowledge` says in words what the attacker was told."""
    results = results_of_story(story)
    sheet, label, name = results.sheet, labels_of(results.sheet), _namer(story)
    nouns = input_nouns(story.batch.inputs.shape[2:])
    best = max(story.attacks, key=lambda run: run.summary.content.value)
    hits, n = int(best.recovered.sum()), best.summary.samples
    return Page(
        title=title,
        headline=f"From the update alone, {hits} of {n} private {nouns[n > 1]} {'were' if n > 1 else 'was'} recovered",
        explanation=explanation,
        threat=_threat(story, knowledge),
        rule=RULE,
        limits=limits,
        provenance=Provenance(command=command, facts=(*machine_facts(), ("Seeds", seeds_text(sheet)))),
        download=download_of(sheet, f"{title.replace(' ', '-')}.csv", ""),
        sections=sections_of(sheet),
        speed=story.speed.line() if story.speed else "",
        update=story.update,
        exact=_exact(story),
        strengths=strengths_of(results, cell_table(sheet), label, name),
        gallery=gallery_of(results, label, name, nouns),
    )


def results_of_story(story: Story) -> Results:
    """Return a story as the results of a sweep: a cell for each attack, and one for each strength of noise."""
    return results_of_attacks(_cells(story), story.seeds, unlabelled=tuple(story.invented))


def _cells(story: Story) -> Iterator[AttackCell]:
    several = len(story.attacks) > 1
    for i, run in enumerate(story.attacks):
        yield attack_cell(f"attack-{i}", run, story.batch, named=several)
    for i, run in enumerate(story.baselines):
        yield attack_cell(f"null-{i}", run, story.batch, baseline=True)
    if story.noise is None:
        return
    steps = max(int(run.reconstruction.iterations.max()) for run in story.noise.runs)
    name = f"{story.attacks[0].name}, up to {steps} steps"
    for i, (sigma, run) in enumerate(zip(story.noise.sigmas, story.noise.runs, strict=True)):
        settings = {ATTACK: {"name": name}, DEFENCES: [{"name": "gaussian_noise", "sigma": sigma}]}
        yield AttackCell(Cell(id=f"noise-{i}", settings=settings, axes={SIGMA: sigma}), run, story.noise.truths)


def _namer(story: Story) -> Namer:
    """Return the names that the story gives its images, and numbers for other classes."""
    names, batch = story.names, story.batch

    def name(_: Cell, number: int, spot: Spot | None) -> str:
        if spot is None:
            return f"class {number}"
        trial, sample = spot
        place = trial if len(names) == batch.trials else trial * batch.samples + sample
        return f"{names[place]} (class {number})"

    return name


def _threat(story: Story, knowledge: str) -> Threat:
    noise = ("that noise was added, where it was",) if story.noise else ()
    return Threat(
        words=f"What it knew: {knowledge}",
        setting=tuple((run.name, (run.note,)) for run in story.attacks if run.note),
        told=ALWAYS_KNOWN,
        hidden=(*ALWAYS_HIDDEN, FACTS["labels"], *noise),
    )


def _exact(story: Story) -> Exact | None:
    run, batch = story.exact, story.exact_batch
    if run is None or batch is None:
        return None
    guesses, name = arrange(run.reconstruction.inputs, run.scores.pairing), _namer(story)
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
