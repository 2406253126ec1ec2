"""Strips of a gallery: of a client that transforms its pictures they show x, T(x) and the reconstruction, in this order."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from leakscope.core.record import Cell, Record, SampleScore
from leakscope.experiments.papers.items import read_item
from leakscope.experiments.papers.results import Result, result_of
from leakscope.experiments.papers.scales import parts_at, run_directory, scenario_at
from leakscope.report.paper_page import render_papers
from leakscope.report.paper_pictures import GAP, Strip, strips_of
from leakscope.store import Landing, Run

SIDE = 8
GREYS = {"truth": 10, "transformed": 90, "inputs": 170, "seen": 250}


def plain(number: int, grey: int) -> Tensor:
    """Return one grey picture for each trial, in the middle of a grey level so that rounding does not matter."""
    return torch.full((number, 1, 1, SIDE, SIDE), grey / 255)


def result(out: Path, *, kept: tuple[str, ...], seen: int = GREYS["seen"]) -> Result:
    """Lay a run of figure 8 with pictures of one grey each; nothing is attacked."""
    item = read_item("ats-figure-8")
    (part,) = parts_at(item, "smoke")
    scenario = scenario_at(item, part, "smoke")
    cells = [cell for cell in {cell.id: cell for cell in scenario.cells()}.values() if not cell.baseline]
    run = Run.create(run_directory(out, item, part, "smoke"), scenario.text, {"device": "cpu"})
    records = tuple(record(place, cell) for place, cell in enumerate(cells))
    greys = GREYS | {"seen": seen}
    tensors = {name: plain(len(records), greys[name]) for name in kept}
    with run.writing() as writer:
        writer.renew(scenario.text, cells, {"device": "cpu"})
        writer.add_plan({"chunks": []})
        writer.land(Landing(chunk="g1-c1", plan=1, records=records, tensors=tensors, seconds=0.1))
    made = result_of(item, "smoke", out)
    assert made is not None
    return made


def record(place: int, cell: Cell) -> Record:
    score = SampleScore(
        sample=0, label=1, guess=1, mse=0.1, psnr=10.0, ssim=0.5, label_correct=True, recovered=False, finite=True
    )
    return Record(
        trial=f"{place:024x}",
        cell=cell.id,
        number=0,
        seed=0,
        items=(0,),
        outcome="exhausted",
        iterations=2,
        evaluations=2,
        mismatch=0.1,
        label_overlap=None,
        seconds=0.1,
        version="0",
        samples=(score,),
    )


def greys(strip: Strip) -> list[int]:
    """Return the grey level of every picture of a strip, from its PNG."""
    from PIL import Image

    data = base64.b64decode(strip.picture.partition(",")[2])
    pixels = np.asarray(Image.open(io.BytesIO(data)).convert("L"))
    assert pixels.shape[0] == SIDE
    return [int(pixels[SIDE // 2, left + SIDE // 2]) for left in range(0, pixels.shape[1], SIDE + GAP)]


def test_a_policy_shows_x_then_what_the_network_saw_then_the_reconstruction(tmp_path: Path) -> None:
    made = result(tmp_path, kept=("truth", "inputs", "transformed", "seen"), seen=GREYS["inputs"])
    strips, hidden = strips_of(made, ("policy",))
    assert hidden == 0
    assert {strip.where for strip in strips} >= {"policy none", "policy 3-1-7"}
    for strip in strips:
        assert strip.words == ("x", "T(x)", "step 2")
        assert greys(strip) == pytest.approx([10, 90, 170], abs=1)
    assert 'alt="x, T(x), step 2: policy 3-1-7"' in render_papers([made], command="c")


def test_an_attack_that_tells_x_from_t_of_x_shows_both_of_its_guesses(tmp_path: Path) -> None:
    strips, _ = strips_of(result(tmp_path, kept=("truth", "inputs", "transformed", "seen")), ("policy",))
    for strip in strips:
        assert strip.words == ("x", "T(x)", "step 2", "T(x) as the attack takes it")
        assert greys(strip) == pytest.approx([10, 90, 170, 250], abs=1)


def test_an_untouched_picture_is_the_truth(tmp_path: Path) -> None:
    strips, _ = strips_of(result(tmp_path, kept=("truth", "inputs")), ("policy",))
    for strip in strips:
        assert strip.words == ("truth", "step 2")
        assert greys(strip) == pytest.approx([10, 170], abs=1)
