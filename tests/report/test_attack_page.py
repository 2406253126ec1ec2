"""A story, the demo's or a peek's, is told as a sweep: the same numbers, the same pictures."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from leakscope.auditing.descriptions import sent_part
from leakscope.clients import Client, attacker_knowledge
from leakscope.core.tree import take
from leakscope.core.types import Batch, Observation, Outcome, Reconstruction, Round, Shares, make_batch
from leakscope.metrics import score, summarise
from leakscope.models import build
from leakscope.play import AttackResult, Demonstration, Exposure, NoiseResult
from leakscope.report import Page, cell_table, render
from leakscope.report.attack_page import page_of, results_of

WORDS = {
    "title": "a demo",
    "explanation": "Why.",
    "knowledge": "Nothing.",
    "limits": "Small.",
    "command": "leakscope demo",
}


def play(name: str, batch: Batch, noise: float, seed: int) -> AttackResult:
    """Return a made-up attack that is off by `noise`, its guesses of a trial in reverse order."""
    generator = torch.Generator().manual_seed(seed)
    T = batch.trials
    inputs = (batch.inputs + noise * torch.randn(batch.inputs.shape, generator=generator)).flip(1)
    made = Reconstruction(
        inputs=inputs,
        labels=batch.labels.flip(1),
        start=torch.rand(batch.inputs.shape, generator=generator),
        mismatch=torch.rand(T, generator=generator),
        iterations=torch.arange(T) + 5,
        evaluations=torch.arange(T) + 9,
        outcome=torch.tensor([int(Outcome.CONVERGED), int(Outcome.EXHAUSTED)] * T)[:T],
        trace=torch.rand(T, 6, generator=generator),
        trace_at=torch.arange(6).expand(T, 6),
        snapshots=inputs[:, None].expand(T, 2, *inputs.shape[1:]),
        snapshots_at=torch.tensor([1, 3]).expand(T, 2),
    )
    scores = score(batch.inputs, batch.labels, made.inputs, made.labels, mask=batch.mask)
    summary = summarise(scores, outcomes=made.outcome, iterations=made.iterations)
    return AttackResult(name, f"note on {name}", made, scores, summary, 1.0)


def exposed(batch: Batch, seeds: tuple[int, ...]) -> Exposure:
    """Return clients that sent an update of three ones each."""
    sent = Round({}, {}, {"w": torch.ones(batch.trials, 3)})
    observation = Observation((sent,), Shares.GRADIENT, torch.ones(batch.trials))
    model = build("mlp", tuple(batch.inputs.shape[2:]), 20, {"hidden": [2]})
    return Exposure(model, Client(), batch, seeds, observation, attacker_knowledge(model, Client(), batch))


def tell(samples: int = 1, attacks: int = 2, noise: bool = True, exact: bool = True) -> Demonstration:
    generator = torch.Generator().manual_seed(0)
    batch = make_batch(
        torch.rand(4, samples, 1, 12, 12, generator=generator),
        torch.arange(4 * samples).reshape(4, samples),
        classes=20,
    )
    first = take(batch, slice(0, 2))
    runs = tuple(play(f"attack {i}", batch, 0.02 + 0.2 * i, i) for i in range(attacks))
    fading = tuple(play("sigma", first, 0.01 + sigma, 9) for sigma in (0.0, 0.1))
    return Demonstration(
        exposure=exposed(batch, (7, 8, 9, 10)),
        names=tuple(f"name {i}" for i in range(4 * samples)),
        exact=(play("analytic", first, 0.0, 5), first) if exact else None,
        attacks=runs,
        noise=NoiseResult((0.0, 0.1), first, fading, 1.0) if noise else None,
        seconds=1.0,
    )


@pytest.mark.parametrize("samples", [1, 3])
def test_the_table_holds_the_summaries(samples: int) -> None:
    story = tell(samples)
    rows = cell_table(results_of(story).sheet).rows
    assert story.noise is not None
    for row, run in zip(rows, [*story.attacks, *story.noise.results], strict=True):
        summary = run.summary
        assert (row.trials, row.samples) == (summary.trials, summary.samples)
        assert row.content.value == pytest.approx(summary.content.value)
        assert row.content.low == pytest.approx(summary.content.low)
        assert row.mse.high == pytest.approx(summary.means["mse"].high)
        assert row.steps is not None
        assert row.steps.value == summary.iterations.mean.value
        assert row.label is not None
        assert summary.label is not None
        assert row.label.value == summary.label.value
        assert dict(row.outcomes) == {name: n for name, n in summary.outcomes.items() if n}


@pytest.mark.parametrize("samples", [1, 2])
def test_a_tile_is_the_picture_its_pairing_and_its_own_name(samples: int) -> None:
    story = tell(samples)
    page = page_of(story, **WORDS)
    assert page.gallery is not None
    tile = page.gallery.tiles[1 * samples + samples - 1]  # the last sample of trial 1 of the first attack
    run = story.attacks[0]
    guess = int(run.scores.pairing[1, samples - 1])
    assert torch.equal(tile.truth, story.exposure.batch.inputs[1, samples - 1])
    assert torch.equal(tile.frames[-1], run.reconstruction.inputs[1, guess])
    assert tile.frames_at == (0, 1, 3, 6)
    label = 1 * samples + samples - 1
    assert tile.label == f"name {label} (class {label})"
    assert (tile.label_correct, tile.axes["attack"]) == (True, "attack 0")


def test_noise_is_a_strength_and_does_not_enter_the_table_of_attacks() -> None:
    page = page_of(tell(), **WORDS)
    assert [section.title for section in page.sections] == ["By attack", "By gaussian_noise sigma"]
    assert [row.attack for row in page.sections[0].rows] == ["attack 0", "attack 1"]
    assert [row.attack for row in page.sections[1].rows] == [f"{tell().attacks[0].name}, up to 6 steps"] * 2
    assert [panel.title for panel in page.sections[1].panels] == ["Content recovered", "Mean MSE", "Mean SSIM"]
    [strength] = page.strengths
    assert [level.strength for level in strength.fadings[0].levels] == ["0", "0.1"]
    assert len(strength.fadings[0].truths) == 2
    assert any("noise" in fact for fact in page.threat.hidden)


def test_the_page_keeps_the_words_and_the_special_parts(figures: Callable[[str], list[str]]) -> None:
    story = tell()
    page = page_of(story, **WORDS)
    assert figures(page.headline) == ["4", "4"]
    assert "pictures were" in page.headline
    assert (page.title, page.explanation, page.limits) == ("a demo", "Why.", "Small.")
    assert page.threat.words.endswith("nothing.")
    assert page.threat.setting == (
        ("sent of the model", (sent_part(story.exposure).words,)),
        *((run.name, (run.note,)) for run in story.attacks),
    )
    assert page.exact is not None
    assert page.exact.pairs[1].label == f"{story.names[1]} (class {int(story.exposure.batch.labels.flatten()[1])})"
    assert list(page.update) == ["w"]
    assert figures(dict(page.provenance.facts)["Seeds"]) == ["7", "10", "4"]
    source = render(page)
    for words in ("Recovered by algebra", "the server saw", "A stronger defence", "leakscope demo"):
        assert words in source


def test_one_attack_on_one_picture_without_noise_is_a_page(figures: Callable[[str], list[str]]) -> None:
    story = tell(attacks=1, noise=False, exact=False)
    one = replace(
        story,
        exposure=exposed(take(story.exposure.batch, slice(0, 1)), (7,)),
        names=("mine",),
        attacks=(play("cpl", take(story.exposure.batch, slice(0, 1)), 0.9, 1),),
    )
    page: Page = page_of(one, **WORDS)
    assert figures(page.headline) == ["0", "1"]
    assert "picture was" in page.headline
    assert (page.strengths, page.exact) == ((), None)
    assert [section.title for section in page.sections] == ["By attack"]
    assert render(page)


def test_the_records_of_a_story_can_be_downloaded() -> None:
    page = page_of(tell(samples=2), **WORDS)
    assert page.download is not None
    rows = list(csv.DictReader(io.StringIO(page.download.text)))
    assert len(rows) == 2 * 4 * 2 + 2 * 2 * 2
    assert {row["seed"] for row in rows} == {"7", "8", "9", "10"}
    assert {row["axis.defences.0.sigma"] for row in rows} == {"", "0.0", "0.1"}


def test_padding_is_no_sample() -> None:
    story = tell(samples=2, noise=False, exact=False)
    mask = torch.ones(4, 2, dtype=torch.bool)
    mask[0, 1] = False
    batch = Batch(story.exposure.batch.inputs, story.exposure.batch.labels, mask)
    runs = tuple(play(run.name, batch, 0.02, 0) for run in story.attacks)
    [row, _] = cell_table(results_of(replace(story, exposure=exposed(batch, (7, 8, 9, 10)), attacks=runs)).sheet).rows
    assert (row.samples, row.trials) == (7, 4)
