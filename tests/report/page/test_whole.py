"""The page as one file: small, the same each time, at home in a notebook, and imported for nothing."""

from __future__ import annotations

import html
import importlib
import pkgutil
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

import leakscope.report
from leakscope.data import load
from leakscope.report import Page, fragment, render, write
from leakscope.report.layout import lay_out

MakePage = Callable[..., Page]
EVIL = "<script>alert(1)</script>"


class Tags(HTMLParser):
    """Collects start tags with their attributes."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))


@pytest.mark.slow
def test_a_full_demo_stays_small(make_page: MakePage) -> None:
    truths = load("fashion_mnist").pictures("test", slice(32))
    page = make_page(truths=truths, attacks=3, frames=17)
    assert len(render(page).encode()) < 2_000_000
    assert lay_out(page).detail.coarse == 0


@pytest.mark.slow
def test_in_colour_it_is_noise_that_loses_values(make_page: MakePage) -> None:
    grey = torch.nn.functional.pad(load("fashion_mnist").pictures("test", slice(64)), (2, 2, 2, 2))
    truths = grey * torch.rand(64, 3, 1, 1, generator=torch.Generator().manual_seed(0))
    page = make_page(truths=truths, attacks=3, frames=17, strengths=(), exact=None)
    assert len(render(page).encode()) < 5_000_000
    assert lay_out(page).detail.coarse > 0


@pytest.mark.slow
def test_large_pictures_are_shrunk_and_the_page_says_so(make_page: MakePage) -> None:
    source = render(make_page(shape=(3, 224, 224), tiles=8, frames=4, strengths=(), exact=None))
    assert len(source.encode()) < 5_000_000
    assert "points a side" in source


def test_render_repeats_itself(make_page: MakePage) -> None:
    page = make_page()
    assert render(page) == render(page)


def test_write_makes_the_folder(make_page: MakePage, tmp_path: Path) -> None:
    page = make_page(title="a title — σ")
    path = write(page, tmp_path / "new" / "page.html")
    assert path.read_text("utf-8") == render(page)


def test_the_fragment_holds_the_whole_page_and_nothing_that_clashes(make_page: MakePage) -> None:
    page = make_page(title=EVIL)
    [(tag, attributes)] = Tags(fragment(page)).tags
    assert tag == "iframe"
    assert attributes["srcdoc"] == render(page)
    assert attributes["title"] == EVIL
    assert attributes["sandbox"] == "allow-scripts allow-downloads"
    assert html.escape(EVIL) in fragment(page)


def test_the_room_is_imported_without_its_heavy_parts() -> None:
    code = "import sys, leakscope.report; print([m for m in ('torch', 'jinja2', 'PIL', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_no_name_of_the_room_is_hidden_by_a_file_of_the_same_name() -> None:
    for module in pkgutil.iter_modules(leakscope.report.__path__):
        importlib.import_module(f"leakscope.report.{module.name}")
    assert [name for name in leakscope.report.__all__ if not callable(getattr(leakscope.report, name))] == []
    with pytest.raises(AttributeError, match="rendr"):
        getattr(leakscope.report, "rendr")  # noqa: B009  a type checker knows that it is missing
