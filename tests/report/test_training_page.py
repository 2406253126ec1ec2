"""The page of a training: what it says, that nothing it is given becomes HTML, and that both themes are there."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from leakscope.core.types import LocalTraining
from leakscope.report.training_page import (
    checkpoints_of,
    drawings_of,
    explanation,
    headline,
    render_training,
    setting_of,
    thinned,
    write_training,
)
from leakscope.training import Point, Result, training_of


def result(rounds: int = 4, **changes: Any) -> Result:
    told = {
        "name": "A <b>title</b>",
        "data": "digits",
        "partition": {"name": "dirichlet", "clients": 6},
        "model": "mlp",
        "client": {"local": {"epochs": 2, "rate": 0.1}},
        "selection": {"name": "share", "share": 0.5, "replies": 0.8},
        "defences": [{"name": "clip", "bound": 0.5}],
        "decay": {"factor": 0.5, "at": [2]},
        "rounds": rounds,
    }
    training = training_of(told)
    curve = tuple(
        Point(r, 3 if r else 0, 30 if r else 0, 1.0, 100 * r // (rounds + 1), 100, 2.0 - r / rounds)
        for r in range(rounds + 1)
    )
    given: dict[str, Any] = {
        "training": replace(training, file=replace(training.file, text="name: <script>alert(1)</script>")),
        "curve": curve,
        "sizes": (1, 5, 9),
        "checkpoints": {2: "runs/a/checkpoints/round-00002.safetensors"},
        "facts": {"machine": "one <i>core</i>", "command": "hidden"},
    }
    return Result(**{**given, **changes})


def test_the_page_says_what_was_trained_and_how_well(same_text: Callable[[str, str], None]) -> None:
    page = render_training(result(), command="leakscope train x.yaml")
    same_text("training", page)
    assert page.count("<svg viewBox") == 3


def test_nothing_given_becomes_html_and_nothing_is_fetched() -> None:
    page = render_training(result(), command="x <img src=y>")
    for bad in ("<b>title", "<i>core", "<script>alert", "<img src=y"):
        assert bad not in page
    assert "default-src 'none'" in page
    assert not re.search(r"(?:src|href)=\"(?!data:|#)", page)


def test_both_themes_are_there() -> None:
    page = render_training(result(), command="x")
    assert 'data-theme="dark"' in page
    assert "prefers-color-scheme: dark" in page
    assert 'id="theme"' in page


def test_curves_begin_at_round_zero_and_are_drawn_along_a_linear_axis() -> None:
    accuracy, loss, answers = drawings_of(result(rounds=40))
    assert [text for _, text in accuracy.across] == ["0", "10", "20", "30", "40"]
    assert accuracy.strokes[0].bands
    assert not loss.strokes[0].bands
    assert "Clients that answered" in answers.title
    gaps = [b - a for (a, _), (b, _) in zip(accuracy.across, accuracy.across[1:], strict=False)]
    assert max(gaps) - min(gaps) < 0.2


def test_long_curves_are_thinned_and_keep_their_end() -> None:
    curve = result(rounds=500).curve
    kept = thinned(curve, 60)
    assert len(kept) <= 60
    assert kept[0] is curve[0]
    assert kept[-1] is curve[-1]
    assert thinned(curve[:5], 60) == list(curve[:5])
    assert thinned([], 60) == []


def test_a_training_that_was_stopped_or_diverged_says_so(figures: Callable[[str], list[str]]) -> None:
    stopped = result(stopped=True)
    assert figures(explanation(replace(stopped, curve=stopped.curve[:3])))[-2:] == ["2", "4"]  # rounds played
    last = Point(3, 3, 30, 1.0, 10, 100, float("nan"))
    blown = replace(stopped, curve=(*stopped.curve[:3], last), diverged=True)
    assert "diverged in round 3" in headline(blown)
    page = render_training(blown, command="x")
    assert not re.search(r'd="[^"]*(nan|inf)', page)


def test_rounds_that_were_not_measured_are_said_to_be(tmp_path: Path) -> None:
    bare = tuple(p if p.round != 2 else Point(2, 3, 30, 1.0, None, None, None) for p in result().curve)
    page = write_training(result(curve=bare), tmp_path / "deep" / "index.html", command="x").read_text()
    assert "not measured" in page
    assert checkpoints_of(result(curve=bare))[0].accuracy is None


@pytest.mark.parametrize("local", [None, LocalTraining(epochs=1, proximal=0.3)])
def test_the_setting_names_the_local_training(local: LocalTraining | None) -> None:
    base = result()
    training = replace(base.training, client=replace(base.training.client, local=local))
    words = dict(setting_of(result(training=training)))["Local training"]
    assert words.startswith("one gradient" if local is None else "epochs 1, ")
