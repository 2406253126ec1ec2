"""Figures for papers: every chart and gallery of a page, with the numbers of its table."""

from __future__ import annotations

import base64
import csv
import io
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from command_line import leakscope
from leakscope.core.errors import InputError
from leakscope.report import Page, figures_of, page_of_run, render, write_figure
from leakscope.report.figures import figure_svg
from leakscope.report.pictures import pixels
from leakscope.store import Run

SVG = "{http://www.w3.org/2000/svg}"
MSE = "by-gaussian-noise-sigma-mean-mse"
MakePage = Callable[..., Page]
MakeRun = Callable[..., Run]


def elements(text: str, tag: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(text).iter(f"{SVG}{tag}"))


def curve_values(text: str) -> dict[str, list[float]]:
    """Return the values of every line of a chart on a log scale, read off its coordinates and ticks."""
    ticks = [t for t in elements(text, "text") if t.get("text-anchor") == "end"]
    raised = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
    places = [
        (float(t.get("y", "")) - 4, re.sub("^10(?=[⁻⁰-⁹¹²³])", "1e", t.text or "").translate(raised)) for t in ticks
    ]
    (low, at_low), (high, at_high) = places[0], places[-1]
    slope = (math.log10(float(at_high)) - math.log10(float(at_low))) / (high - low)
    values = {}
    for group in elements(text, "g"):
        curve, *points = group.findall(f"{SVG}path")
        if points and points[0].find(f"{SVG}title") is not None:
            name = re.split(r", [\d.]+:|:", points[0].find(f"{SVG}title").text)[0]  # type: ignore[union-attr,arg-type]
            heights = [float(y) for y in re.findall(r"[ML]\S+ ([\d.]+)", curve.get("d", ""))]
            values[name] = [float(at_low) * 10 ** (slope * (y - low)) for y in heights]
    return values


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 8, 8), (30,)])
def test_every_chart_and_gallery_of_the_page_is_a_figure(make_page: MakePage, shape: tuple[int, ...]) -> None:
    page = make_page(shape=shape)
    figures = figures_of(page)
    charts = re.findall(r'<figure class="panel">\s*<figcaption>([^<]*)<', render(page))
    assert [figure.drawing.title for figure in figures.values() if figure.drawing] == charts
    assert list(figures)[len(charts) :] == [
        "update",
        "by-algebra",
        "strength-sigma-attack-0",
        "strength-sigma-attack-1",
        "gallery",
    ]
    for name, figure in figures.items():
        text = figure_svg(figure)
        assert figure.name == name
        assert len(elements(text, "image")) == sum(len(strip.uris) for strip in figure.strips)
        assert ElementTree.fromstring(text).get("width") == "3.3in"


def test_a_chart_has_the_numbers_of_the_table(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run()
    drawn = curve_values(figure_svg(figures_of(page_of_run(run, command=""))[MSE]))
    assert leakscope("show", run.directory, "--to", "csv", "--out", tmp_path / "table.csv").code == 0
    table = list(csv.DictReader(io.StringIO((tmp_path / "table.csv").read_text("utf-8"))))
    assert set(drawn) == {"cpl", "dlg", "class mean", "nearest public"}
    assert len(table) == 8
    for name, values in drawn.items():
        means = [float(row["MSE"]) for row in table if row["attack"].removesuffix(" (without the update)") == name]
        assert values == pytest.approx(means * (len(values) // len(means)), rel=0.01)


def test_a_gallery_has_the_pictures_of_the_page(make_page: MakePage) -> None:
    page = make_page(attacks=2, tiles=3)
    assert page.gallery is not None
    images = [image.get("href", "") for image in elements(figure_svg(figures_of(page)["gallery"]), "image")]
    tiles = page.gallery.tiles
    pictures = (
        [t.truth for t in tiles[:3]] + [t.frames[-1] for t in tiles] + [t.baselines[0].picture for t in tiles[:3]]
    )
    assert len(images) == len(pictures) == 12  # both attacks below one row of truths
    for uri, picture in zip(images, pictures, strict=True):
        drawn = np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.split(",")[1]))))
        assert np.array_equal(drawn[:: len(drawn) // 28, :: len(drawn) // 28], pixels(picture)[..., 0])


@pytest.mark.slow
def test_the_command_lists_and_writes_figures(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run()
    listed = leakscope("report", run.directory, "--figure", "list").out.split()
    assert listed == list(figures_of(page_of_run(run, command="")))
    for name in listed:
        done = leakscope("report", run.directory, "--figure", f"{name}.svg")
        assert (done.code, done.out.strip()) == (0, str(run.directory / f"{name}.svg"))
        ElementTree.parse(run.directory / f"{name}.svg")
    elsewhere = leakscope("report", run.directory, "--figure", f"{MSE}.svg", "--out", tmp_path / "a.svg")
    assert elsewhere.code == 0
    assert (tmp_path / "a.svg").read_bytes() == (run.directory / f"{MSE}.svg").read_bytes()


@pytest.mark.parametrize("figure", ["galery.svg", "gallery.jpg", "gallery", ""])
def test_an_unknown_figure_or_format_is_refused(make_run: MakeRun, figure: str) -> None:
    done = leakscope("report", make_run().directory, "--figure", figure)
    assert (done.code, done.out, len(done.err.splitlines())) == (2, "", 1)


def test_names_that_are_markup_or_control_characters_stay_text(
    make_page: MakePage, make_tile: Callable[..., object]
) -> None:
    page = make_page()
    assert page.gallery is not None
    evil = "<script>\x1b[31m&\x00"
    tiles = tuple(make_tile(tile.truth, axes={"attack": evil}) for tile in page.gallery.tiles)
    text = figure_svg(
        figures_of(make_page(gallery=type(page.gallery)(note=evil, axes=(), tiles=tiles, total=6)))["gallery"]
    )
    assert not elements(text, "script")


@pytest.mark.slow
def test_pdf_and_png_are_a_column_wide(make_page: MakePage, tmp_path: Path) -> None:
    pytest.importorskip("cairosvg")
    page = make_page()
    for name in figures_of(page):
        with Image.open(write_figure(page, name, tmp_path / f"{name}.png")) as image:
            assert (image.width, image.mode) == (990, "RGB")
            assert image.info["dpi"] == pytest.approx((300, 300), rel=1e-3)
    pdf = write_figure(page, "by-sigma-content-recovered", tmp_path / "a.pdf").read_bytes()
    assert pdf.startswith(b"%PDF-")
    assert b"/Subtype /Image" not in pdf  # vectors
    assert b"/FontFile" in pdf  # embedded


def test_a_missing_renderer_is_said_and_svg_needs_none(
    make_page: MakePage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cairosvg", None)
    with pytest.raises(InputError, match=r"leakscope\[figures\]"):
        write_figure(make_page(), "gallery", tmp_path / "a.pdf")
    assert not (tmp_path / "a.pdf").exists()
    assert write_figure(make_page(), "gallery", tmp_path / "a.svg").stat().st_size > 0
