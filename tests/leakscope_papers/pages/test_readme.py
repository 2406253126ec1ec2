"""The README of a paper is derived from its rows: it cannot differ from them, and a number in prose cannot go stale."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from leakscope.core.errors import InputError
from leakscope_papers.cli import paper as commands
from leakscope_papers.notes import filled, read_notes
from leakscope_papers.pages import readme
from leakscope_papers.pages.readme import MOST_LINES, readme_file, rendered
from leakscope_papers.registry import OURS, papers
from leakscope_papers.results import Result, results_in


def find(name: str, scale: str | None) -> Result:
    return results_in(None, scale or "small", [name])[0]


@pytest.mark.parametrize("paper", OURS)
def test_every_paper_has_a_page_that_is_up_to_date_and_short(paper: str) -> None:
    page = readme_file(paper).read_text("utf-8")
    assert page == rendered(paper)
    assert len(page.splitlines()) <= MOST_LINES
    for head in ("claims", "found", "measured numbers", "Claims", "could not reproduce", "Run it again"):
        assert head in page


@pytest.fixture
def one_paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "mixing"
    shutil.copytree(papers()["mixing"], folder)
    monkeypatch.setattr("leakscope_papers.registry.papers", lambda: {"mixing": folder})
    for module in ("records", "pages.readme", "items"):
        monkeypatch.setattr(f"leakscope_papers.{module}.papers", lambda: {"mixing": folder})
    readme._recorded.cache_clear()
    return folder


def test_check_names_the_page_that_differs_from_its_data(one_paper: Path) -> None:
    def render(*words: str) -> tuple[int, str]:
        readme._recorded.cache_clear()
        ended = CliRunner().invoke(commands, ["render", *words])
        return ended.exit_code, ended.output

    assert render("--check")[0] == 0
    data = one_paper / "results" / "table-1.small.json"
    data.write_text(data.read_text("utf-8").replace('"n":20', '"n":21'), "utf-8")
    code, output = render("--check")
    assert code == 1
    assert f"{one_paper / 'README.md'} differs" in output
    assert render()[0] == 0
    assert render("--check")[0] == 0
    readme._recorded.cache_clear()


def test_a_quote_is_filled_from_its_row() -> None:
    quote = "{sme-table-2/data=cifar100; samples=10; epochs=20; attack=sme: psnr}"
    assert filled(f"SME has {quote} dB.", find) == "SME has 25.1 [24.0, 26.2] dB."
    assert filled(quote.replace("{", "{printed "), find) == "26.9"
    assert filled(quote.replace("psnr", "n"), find) == "8"


@pytest.mark.parametrize(
    ("quote", "problem"),
    [
        ("{sme-table-2: psnr}", "item/conditions: measure"),
        ("{sme-table-2/data=cifar100; attack=sme: psnr}", "one row.* 6"),
        ("{sme-table-2/data=cifar100; epochs=21: psnr}", "one row.* 0"),
        ("{sme-table-2/data=cifar100; samples=10; epochs=20; attack=sme: nothing}", "no nothing"),
        ("{printed sme-table-2/data=mnist: psnr}", "printed number.* 0"),
    ],
)
def test_a_key_that_fits_no_row_or_several_is_an_error(quote: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        filled(quote, find)


@pytest.mark.parametrize("paper", OURS)
def test_notes_quote_rows(paper: str) -> None:
    notes = read_notes(papers()[paper])
    assert notes is not None
    assert any("{" in sentence for sentence in notes.found)
