"""The insider's start in a scenario: a public example of the same class, drawn from the trial's seed alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leakscope.attacks.starts import STARTS
from leakscope.core.errors import InputError
from leakscope.data import load
from leakscope.scenario import ScenarioError
from leakscope.scenario.cell import read_settings
from leakscope.scenario.insider import PublicExample
from leakscope.store import Run
from leakscope.sweep.objects import insider_misfits, public_examples
from sweeper import small, sweep

DIGITS = load("digits")


def insider(**changed: object) -> dict[str, object]:
    short = {"name": "cpl", "iterations": 1, "optimiser": {"name": "lbfgs", "inner": 1}}
    return {
        "attacks": [{**short, "start": "insider"}, short],
        "grid": {},
        "defences": [],
        "baselines": [],
        **changed,
    }


@settings(deadline=None, max_examples=30)
@given(
    labels=st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=1, max_size=5),
    seed=st.integers(0, 99),
)
def test_an_example_is_of_the_same_class_and_from_the_other_part(labels: list[list[int]], seed: int) -> None:
    wanted, seeds = torch.tensor(labels), [seed + number for number in range(len(labels))]
    made = public_examples(DIGITS, "test", wanted, seeds)
    assert made.shape == (*wanted.shape, *DIGITS.input_shape)
    public, known = DIGITS.pictures("train", slice(None)), DIGITS.labels("train", slice(None))
    for picture, label in zip(made.flatten(0, 1), wanted.flatten(), strict=True):
        places = (public == picture).flatten(1).all(1).nonzero()[:, 0]
        assert int(label) in known[places].tolist()
    alone = [public_examples(DIGITS, "test", wanted[n : n + 1], seeds[n : n + 1]) for n in range(len(seeds))]
    assert torch.equal(torch.cat(alone), made)  # neighbours do not matter


def test_draws_reach_every_example_of_a_class() -> None:
    own = int((DIGITS.labels("test", slice(None)) == 3).sum())
    drawn = public_examples(DIGITS, "train", torch.full((4000, 1), 3), range(4000))[:, 0]
    assert len(drawn.flatten(1).unique(dim=0)) == own


def test_a_scenario_begins_from_the_drawn_examples(tmp_path: Path) -> None:
    scenario = small(**insider())
    sweep(tmp_path / "run", scenario)
    run = Run.open(tmp_path / "run")
    cells = {cell.id: cell.settings["attack"]["start"]["name"] for cell in run.cells()}  # type: ignore[index]
    assert sorted(cells.values()) == ["insider", "patterned"]
    for record in run.records():
        start = run.tensors(record.trial)["start"]
        labels = torch.tensor([[sample.label for sample in record.samples]])
        wanted = (public_examples(DIGITS, "test", labels, [record.seed])[0] * 255).round().to(torch.uint8)
        assert torch.equal(start, wanted) == (cells[record.cell] == "insider")


def test_measuring_a_group_plays_it_too(tmp_path: Path) -> None:
    done = sweep(tmp_path / "run", small(**insider(precision={"form": None, "chunk": 3}, seeds=[0])), measure=True)
    assert done.landed == 6


def test_the_other_starts_keep_their_ids() -> None:
    ids = {cell.settings["attack"]["start"]["name"]: cell.id for cell in small(**insider()).cells()}  # type: ignore[index]
    short = {"name": "cpl", "iterations": 1, "optimiser": {"name": "lbfgs", "inner": 1}}
    alone = small(**insider(attacks=[short]))
    assert ids["patterned"] == next(iter(alone.cells())).id
    assert "insider" not in STARTS  # the library's own needs pictures


def test_a_class_without_a_public_example_is_refused() -> None:
    without = replace(DIGITS, x_train=DIGITS.x_train[DIGITS.y_train != 4], y_train=DIGITS.y_train[DIGITS.y_train != 4])
    (cell,) = small(**insider(attacks=[{"name": "cpl", "start": "insider"}])).cells()
    (problem,) = insider_misfits(read_settings(cell.settings), without)
    assert problem.path == ("attack", "start")
    assert "of class 4" in problem.message
    assert insider_misfits(read_settings(cell.settings), DIGITS) == []
    with pytest.raises(InputError, match="of class 4"):
        public_examples(without, "test", torch.tensor([[4]]), [0])


def test_outside_a_scenario_it_says_what_to_do() -> None:
    with pytest.raises(InputError, match="pass Insider"):
        PublicExample()(torch.tensor(0), None)  # type: ignore[arg-type]
    with pytest.raises(ScenarioError, match="start"):
        small(**insider(attacks=[{"name": "cpl", "start": {"name": "insider", "class": 3}}]))
