"""From a stored run to its page: every picture is the stored one, every record is in the download, nothing is read as HTML."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
from collections.abc import Callable
from html.parser import HTMLParser

import pytest
import torch

from leakscope.core.record import Cell
from leakscope.data import load
from leakscope.report import Gallery, Page, Strength, page_of_run, render, sheet_of
from leakscope.report.run_page import NOTHING
from leakscope.report.sources import MOST_RECORDS, csv_of, download_of
from leakscope.store import Run, export

MakeRun = Callable[..., Run]
MakeCells = Callable[..., list[Cell]]
EVIL = "<script>alert(1)</script>"
QUOTED = "a \"double\" and a 'single' & <b>"


def page_of(run: Run, **settings: object) -> Page:
    return page_of_run(run, command="leakscope report RUN", **settings)  # type: ignore[arg-type]


def gallery_of(page: Page) -> Gallery:
    assert page.gallery is not None
    return page.gallery


def test_a_tile_shows_what_was_stored(make_run: MakeRun) -> None:
    run = make_run(trials=3, samples=2, shots=4)
    gallery = gallery_of(page_of(run))
    records = {(r.cell, r.number): r for r in run.records()}
    assert len(gallery.tiles) == gallery.total == 6 * 3 * 2
    tile = gallery.tiles[3]  # cpl 0.0, trial 1, sample 1
    record = records["cpl 0.0", 1]
    stored = run.tensors(record.trial)
    guess = int(stored["pairing"][1])
    assert torch.equal(tile.truth, stored["truth"][1])
    assert torch.equal(tile.frames[-1], stored["inputs"][guess])
    assert torch.equal(tile.frames[0], stored["start"][guess].float() / 255)
    assert torch.equal(tile.frames[2], stored["snapshots"][1, guess].float() / 255)
    assert tile.frames_at == (0, 1, 2, 3, 4, record.iterations)
    assert (tile.number, tile.steps, tile.outcome) == (1, record.iterations, record.outcome)
    score = record.samples[1]
    assert (tile.mse, tile.psnr, tile.ssim) == (score.mse, score.psnr, score.ssim)
    assert (tile.recovered, tile.label_correct) == (score.recovered, score.label_correct)
    assert tile.label == f"class {score.label}"
    assert tile.guess == f"class {score.guess}"
    assert tile.axes == {"attack": "cpl", "defences.0.sigma": "0"}
    assert tile.trace == tuple(stored["trace"].tolist())
    assert tile.trace_at == tuple(range(12))


def test_baselines_of_the_same_truth_stand_beside_a_tile(make_run: MakeRun) -> None:
    run = make_run(trials=3)
    by_cell = {(r.cell, r.number): r for r in run.records()}
    for tile in gallery_of(page_of(run)).tiles:
        assert [guess.name for guess in tile.baselines] == ["class mean", "nearest public"]
        stored = by_cell["b class_mean", tile.number]
        assert torch.equal(tile.baselines[0].picture, run.tensors(stored.trial)["inputs"][0])
        assert tile.baselines[0].mse == stored.samples[0].mse


def test_a_baseline_on_other_data_is_not_taken_for_one_on_these(make_run: MakeRun, make_cells: MakeCells) -> None:
    cells = make_cells()
    other = dataclasses.replace(cells[-1], settings={**cells[-1].settings, "data": {"name": "other"}})
    tiles = gallery_of(page_of(make_run([*cells[:-1], other], trials=2))).tiles
    assert {guess.name for tile in tiles for guess in tile.baselines} == {"class mean"}


def test_classes_have_names_where_the_data_set_gives_them(make_run: MakeRun) -> None:
    gallery = gallery_of(page_of(make_run(trials=3), class_names={"digits": ("zero", "one")}))
    assert [tile.label for tile in gallery.tiles[:3]] == ["zero (class 0)", "one (class 1)", "class 2"]


def only_strength(page: Page) -> Strength:
    [strength] = page.strengths
    return strength


def test_the_same_pictures_fade_under_growing_strength(make_run: MakeRun) -> None:
    run = make_run(trials=9)
    strength = only_strength(page_of(run, accuracy={"cpl 0.01": 0.75}))
    assert strength.axis == "gaussian_noise sigma"
    assert [fading.attack for fading in strength.fadings] == ["cpl", "dlg"]
    records = {(r.cell, r.number): r for r in run.records()}
    for fading in strength.fadings:
        assert [level.strength for level in fading.levels] == ["0", "0.01", "0.1"]
        assert len(fading.truths) == 8
        for level in fading.levels:
            cell = f"{fading.attack} {float(level.strength)}"
            for i in range(8):
                stored = run.tensors(records[cell, i].trial)
                assert torch.equal(level.pictures[i], stored["inputs"][0])
                assert torch.equal(fading.truths[i], stored["truth"][0])
            assert level.content.n == 9
    assert [level.accuracy for level in strength.fadings[0].levels] == [None, 0.75, None]


def test_pictures_that_were_not_attacked_under_every_strength_do_not_fade(
    make_run: MakeRun, make_cells: MakeCells
) -> None:
    cells = make_cells(attacks=("cpl",), sigmas=(0.0, 0.1), baselines=())
    run = make_run(cells[:1], trials=2)
    with run.writing() as writer:
        writer.renew("name: more", cells, {})
    page = page_of(run)
    assert page.strengths == ()
    assert len(gallery_of(page).tiles) == 2


def test_a_run_that_kept_no_pictures_still_has_its_numbers(make_run: MakeRun) -> None:
    class Bare(Run):
        def tensors(self, trial: str) -> dict[str, torch.Tensor]:
            return {}

    page = page_of(Bare(make_run().directory))
    assert (page.gallery, page.strengths) == (None, ())
    assert len(page.sections) == 2
    assert "private inputs" in page.headline
    assert "gallery" not in [line.strip() for line in render(page).splitlines() if "<dialog" in line]


def test_an_empty_run_is_a_page_too(make_run: MakeRun) -> None:
    page = page_of(make_run([]))
    assert page.headline == NOTHING
    assert page.download is None
    assert "leakscope run a.yaml" in render(page)


def test_more_than_two_hundred_pictures_are_a_fair_part_of_them(make_run: MakeRun) -> None:
    page = page_of(make_run(trials=50, shape=(1, 8, 8), shots=1))
    gallery = gallery_of(page)
    assert (len(gallery.tiles), gallery.total) == (200, 300)
    assert gallery.note.startswith("200 of 300 ")
    assert {tile.place for tile in gallery.tiles} == {"median", "best", "worst", "random"}
    assert sum(row.trials for row in page.sections[0].rows if not row.baseline) == 300
    assert page.download is not None
    assert page.download.text.count("\r\n") == 1 + 400


def test_of_large_pictures_fewer_are_shown(make_run: MakeRun) -> None:
    gallery = gallery_of(page_of(make_run(trials=20, shape=(3, 64, 64), shots=1)))
    assert (len(gallery.tiles), gallery.total) == (100, 120)
    assert gallery.note.startswith("100 of 120 ")


@pytest.mark.parametrize("shape", [(30,), (2, 5, 5), (4, 3, 6, 6), (8, 8)])
def test_inputs_of_any_shape_can_be_shown(make_run: MakeRun, shape: tuple[int, ...]) -> None:
    page = page_of(make_run(trials=2, shape=shape))
    assert render(page)
    assert ("pictures" in page.headline) == (len(shape) > 1)


def test_the_download_holds_every_record_as_the_export_does(make_run: MakeRun) -> None:
    run = make_run(trials=4, samples=2)
    page = page_of(run)
    assert page.download is not None
    rows = list(csv.DictReader(io.StringIO(page.download.text)))
    exported = export(run, "csv", run.directory / "all.csv", settings=[]).read_text("utf-8")
    theirs = list(csv.DictReader(io.StringIO(exported)))
    assert len(rows) == len(theirs) == 8 * 4 * 2
    shared = [name for name in rows[0] if name in theirs[0]]
    assert set(rows[0]) == set(shared)
    assert {"trial", "cell", "mse", "ssim", "recovered", "outcome", "axis.attack", "axis.defences.0.sigma"} <= set(
        shared
    )
    for ours, other in zip(rows, theirs, strict=True):
        assert {name: ours[name] for name in shared} == {name: other[name] for name in shared}


def test_numbers_in_the_download_read_back_as_they_were(make_run: MakeRun) -> None:
    run = make_run(trials=3)
    rows = {(r["trial"], r["sample"]): r for r in csv.DictReader(io.StringIO(csv_of(sheet_of(run))))}
    for record in run.records():
        for score in record.samples:
            row = rows[record.trial, str(score.sample)]
            assert float(row["mse"]) == score.mse
            assert (float(row["ssim"]) if row["ssim"] else None) == score.ssim
            assert (row["label_correct"] or None) == (
                None if score.label_correct is None else str(score.label_correct).lower()
            )
            assert row["guess"] == ("" if score.guess is None else str(score.guess))


def test_too_many_records_are_left_to_the_export(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leakscope.report.sources.MOST_RECORDS", 10)
    download = download_of(sheet_of(make_run()), "a.csv", "use the export")
    assert download.text == ""
    assert download.note.startswith("40 records")
    assert download.note.endswith(": use the export")
    assert MOST_RECORDS > 10


class Reader(HTMLParser):
    """Collects tags, attributes and scripts."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.handlers: list[str] = []
        self.text = ""
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.handlers += [name for name, _ in attrs if name.startswith("on")]

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("evil", [f"{EVIL} {QUOTED} </style><img src=x onerror=alert(1)> {{{{ 7 * 191 }}}} \x00\n", ""])
def test_whatever_a_scenario_names_stays_text(make_run: MakeRun, make_cells: MakeCells, evil: str) -> None:
    def poisoned(word: str) -> str:
        cells = [
            dataclasses.replace(
                cell,
                settings={**cell.settings, "name": word, word: {word: word}, "attack": {"name": word}},
                axes={"attack": f"{word} {cell.axes['attack']}"}
                | {f"{word} {name}": value for name, value in cell.axes.items() if name != "attack"},
            )
            for cell in make_cells()
        ]
        run = make_run(cells, trials=2, scenario=f"name: {word}", facts={word: word, "command": word})
        return render(page_of_run(run, command=word, title=word, class_names={"digits": (word, word)}))

    plain, read = Reader(poisoned("word")), Reader(poisoned(evil))
    assert read.tags == plain.tags
    assert read.handlers == []
    assert not evil or f"{EVIL} {QUOTED}" in read.text


def test_not_a_number_and_infinity_reach_the_page(make_run: MakeRun) -> None:
    page = page_of(make_run(trials=2))
    tile = dataclasses.replace(
        gallery_of(page).tiles[0],
        mse=math.nan,
        psnr=math.inf,
        ssim=math.nan,
        trace=(1.0, math.inf, math.nan),
        trace_at=(0, 1, 2),
    )
    source = render(dataclasses.replace(page, gallery=dataclasses.replace(gallery_of(page), tiles=(tile,))))
    block = source.split('<script type="application/json" id="data">')[1].split("</script>")[0]
    data = json.loads(block, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert data["tiles"][0]["trace"] == [1.0, None, None]
    assert data["tiles"][0]["mse"] is None


@pytest.mark.slow
@pytest.mark.parametrize("colour", [False, True])
def test_two_hundred_trials_stay_under_five_megabytes(make_run: MakeRun, make_cells: MakeCells, colour: bool) -> None:
    grey = load("fashion_mnist").pictures("test", slice(25))[:, None]
    if colour:
        grey = torch.nn.functional.pad(grey, (2, 2, 2, 2)).expand(-1, -1, 3, -1, -1)
        grey = grey * torch.rand(25, 1, 3, 1, 1, generator=torch.Generator().manual_seed(0))
    cells = make_cells(sigmas=(0.0, 0.001, 0.01, 0.1), baselines=("class_mean", "prior_only", "nearest_public"))
    page = page_of(make_run(cells, pictures=grey, shots=16))
    assert len(gallery_of(page).tiles) == 200
    source = render(page)
    assert len(source.encode()) < 5_000_000
    assert not any(word in source for word in ("http://", "https://"))
