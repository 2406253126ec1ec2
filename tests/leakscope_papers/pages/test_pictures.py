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
from leakscope.store import Landing, Run
from leakscope_papers.items import read_item
from leakscope_papers.pages.page import render_papers
from leakscope_papers.pages.pictures import GAP, Strip, strips_of
from leakscope_papers.programs.pictures import Shown, keep_pictures
from leakscope_papers.programs.rows import keeping
from leakscope_papers.results import Result, result_of
from leakscope_papers.scales import parts_at, run_directory, scenario_at

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
    assert f'alt="{", ".join(strips[0].words)}: policy 3-1-7"' in render_papers([made], command="c")


def test_an_attack_that_tells_x_from_t_of_x_shows_both_of_its_guesses(tmp_path: Path) -> None:
    strips, _ = strips_of(result(tmp_path, kept=("truth", "inputs", "transformed", "seen")), ("policy",))
    for strip in strips:
        *pictures, last = strip.words
        assert pictures == ["x", "T(x)", "step 2"]
        assert last.startswith("T(x) ")
        assert greys(strip) == pytest.approx([10, 90, 170, 250], abs=1)


def test_an_untouched_picture_is_the_truth(tmp_path: Path) -> None:
    strips, _ = strips_of(result(tmp_path, kept=("truth", "inputs")), ("policy",))
    for strip in strips:
        assert strip.words == ("truth", "step 2")
        assert greys(strip) == pytest.approx([10, 170], abs=1)


def of_a_program(out: Path, *, pictures: bool = True) -> Result:
    """Lay the rows of table 6, with three pictures of the first client of one of them; nothing is attacked."""
    item = read_item("sme-figure-13")
    directory = run_directory(out, item, item.parts[0], "smoke")
    with keeping(directory, {}, {"device": "cpu"}) as keep:
        for attack in ("sme", "dlfa"):
            keep.done(attack)
            keep.add(attack, {"round": 2, "epochs": 2, "attack": attack}, {"psnr": [10.0, 11.0]})
    if pictures:
        level = torch.tensor([10, 60, 110], dtype=torch.uint8).reshape(3, 1, 1, 1).expand(3, 1, SIDE, SIDE)
        recovered = torch.tensor([1, 0, 1], dtype=torch.uint8)
        keep_pictures(directory, "sme", Shown(level, level + 100, torch.tensor([9.0, 11.0, 200.0]), recovered))
    made = result_of(item, "smoke", out)
    assert made is not None
    return made


def test_a_row_of_a_program_is_a_sheet_with_the_truth_above_the_reconstructions(tmp_path: Path) -> None:
    from PIL import Image

    made = of_a_program(tmp_path)
    (strip,), hidden = strips_of(made, ("round", "attack"))
    assert hidden == 0
    assert strip.where == "round 2, attack sme"
    assert strip.who == made.item.readings[0].label  # alone: the note of the part is not about digits
    assert (strip.verdict, strip.scores, strip.across) == (
        "2 of 3 recovered",
        "mean PSNR 40.0 dB",
        3,
    )  # 200 counts as 100
    data = base64.b64decode(strip.picture.partition(",")[2])
    pixels = np.asarray(Image.open(io.BytesIO(data)).convert("L"))
    middles = [SIDE // 2 + place * (SIDE + GAP) for place in range(3)]
    assert [[int(pixels[row, column]) for column in middles] for row in middles[:2]] == [[10, 60, 110], [110, 160, 210]]
    page = render_papers([made], command="c")
    assert '<figure class="strip sheet">' in page
    assert f"{strip.verdict}</span>, {strip.scores}" in page


def test_rows_made_before_pictures_were_kept_show_none(tmp_path: Path) -> None:
    assert strips_of(of_a_program(tmp_path, pictures=False), ("round",)) == ((), 0)
