"""From a Story to the page that tells it."""

from __future__ import annotations

import datetime
import platform

import torch

from leakscope import __version__
from leakscope.core.types import Batch, Outcome
from leakscope.experiments.story import AttackRun, NoiseRun, Story
from leakscope.metrics import DEFAULT_RULE
from leakscope.metrics.score import arrange
from leakscope.report.films import film
from leakscope.report.page_data import Exact, Gallery, NoiseLevel, NoiseSweep, Page, Pair, Provenance, Tile, row_of

RULE = (
    f"A picture counts as recovered when its MSE is at most {DEFAULT_RULE.mse:g} and its SSIM at least "
    f"{DEFAULT_RULE.ssim:g} against the truth, after pairing by MSE. Convergence is the attack's own notion: its mismatch "
    "fell under its threshold. The attack never sees the truth."
)


def page_of(story: Story, *, title: str, explanation: str, knowledge: str, limits: str, command: str) -> Page:
    """Return the page of a story."""
    best = max(story.attacks, key=lambda run: run.summary.content.value)
    hits, n = int(best.recovered.sum()), best.summary.samples
    headline = f"From the update alone, {hits} of {n} private {'pictures were' if n > 1 else 'picture was'} recovered"
    return Page(
        title=title,
        headline=headline,
        explanation=explanation,
        rows=tuple(row_of(run.name, run.summary) for run in story.attacks),
        rule=RULE,
        speed=story.speed.line() if story.speed else "",
        update=story.update,
        knowledge=knowledge,
        exact=_exact(story),
        galleries=tuple(_gallery(story, run) for run in story.attacks),
        noise=_noise(story.noise, story.names) if story.noise else None,
        provenance=Provenance(
            version=__version__,
            command=command,
            date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
            machine=f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}, float32",
            seeds=f"{story.seeds[0]} to {story.seeds[-1]}" if len(story.seeds) > 1 else str(story.seeds[0]),
        ),
        limits=limits,
    )


def _label(story: Story, trial: int, sample: int) -> str:
    names = story.names
    return names[trial] if len(names) == story.batch.trials else names[trial * story.batch.samples + sample]


def _gallery(story: Story, run: AttackRun) -> Gallery:
    tiles = []
    recovered, made = run.recovered, run.reconstruction
    for trial in range(story.batch.trials):
        for sample in range(story.batch.samples):
            guess = int(run.scores.pairing[trial, sample])
            frames, at = film(made, trial, guess)
            truth, found = int(story.batch.labels[trial, sample]), int(made.labels[trial, guess])
            ssim = float(run.scores.ssim[trial, sample])
            tiles.append(
                Tile(
                    truth=story.batch.inputs[trial, sample],
                    frames=frames,
                    frames_at=at,
                    label=f"{_label(story, trial, sample)} (class {truth})",
                    guess=f"class {found}",
                    mse=float(run.scores.mse[trial, sample]),
                    ssim=None if ssim != ssim else ssim,
                    steps=int(made.iterations[trial]),
                    outcome=Outcome(int(made.outcome[trial])).name.lower(),
                    recovered=bool(recovered[trial, sample]),
                )
            )
    return Gallery(name=run.name, note=run.note, tiles=tuple(tiles))


def _exact(story: Story) -> Exact | None:
    run, batch = story.exact, story.exact_batch
    if run is None or batch is None:
        return None
    guesses = arrange(run.reconstruction.inputs, run.scores.pairing)
    pairs = tuple(
        Pair(
            truth=batch.inputs[t, s],
            recovered=guesses[t, s],
            label=_label(story, t, s),
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


def _noise(noise: NoiseRun, names: tuple[str, ...]) -> NoiseSweep:
    truths: Batch = noise.truths
    levels = tuple(
        NoiseLevel(
            sigma=sigma,
            pictures=arrange(run.reconstruction.inputs, run.scores.pairing).flatten(0, 1),
            content=run.summary.content,
            mse=run.summary.means["mse"],
        )
        for sigma, run in zip(noise.sigmas, noise.runs, strict=True)
    )
    flat = truths.inputs.flatten(0, 1)
    return NoiseSweep(
        note="The client adds Gaussian noise of standard deviation sigma to every number of its update before sharing it. "
        "The attacker here does not know of the noise.",
        truths=flat,
        labels=tuple(names[: len(flat)]),
        levels=levels,
    )
