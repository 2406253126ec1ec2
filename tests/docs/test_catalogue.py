"""The generated pages are what the code says, and every attack and defence says all of it."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from leakscope.attacks.recipes import ATTACKS
from leakscope.attacks.tokens.readings import TEXT_ATTACKS
from leakscope.defences import DEFENCES
from leakscope.defences.on_data import OPERATIONS

ROOT = Path(__file__).parents[2]


def load(name: str) -> ModuleType:
    """Return a program of tools/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made  # dataclasses look their module up
    spec.loader.exec_module(made)
    return made


@pytest.fixture(scope="module")
def catalogue() -> ModuleType:
    return load("catalogue")


def test_the_page_is_up_to_date(catalogue: ModuleType) -> None:
    written = (ROOT / "docs" / "reference" / "catalogue.md").read_text(encoding="utf-8")
    assert written == catalogue.page(), "run python tools/catalogue.py"


@pytest.mark.parametrize("page", ["cli", "api"])
def test_a_page_of_the_reference_is_up_to_date(page: str) -> None:
    written = (ROOT / "docs" / "reference" / f"{page}.md").read_text(encoding="utf-8")
    assert written == getattr(load("reference"), f"{page}_page")(), "run python tools/reference.py"


def test_every_attack_defence_and_operation_is_there(catalogue: ModuleType) -> None:
    titles = [line[4:] for line in catalogue.page().splitlines() if line.startswith("### ")]
    assert titles == [*ATTACKS, *TEXT_ATTACKS, *DEFENCES, "transform", "polarisation", "dp_sgd"]
    rows = [line for line in catalogue.page().splitlines() if line.startswith("| ") and line[2].isdigit()]
    assert len(rows) == len(OPERATIONS)


def test_every_piece_has_all_four_lines(catalogue: ModuleType) -> None:
    page = catalogue.page()
    number = len(ATTACKS) + len(TEXT_ATTACKS) + len(DEFENCES) + 3
    for label in catalogue.LABELS:
        assert page.count(f"- **{label}**: ") == number


def test_a_piece_that_lacks_a_line_is_refused_by_name(catalogue: ModuleType) -> None:
    def silent() -> None:
        """Does nothing.

        Equation: `0`.
        Costs: none.
        """

    with pytest.raises(SystemExit, match=r"silent: .*Works when"):
        catalogue.said(catalogue.Piece("silent", silent), {})
    rest = {"Reference": "a", "Works when": "b"}
    assert list(catalogue.said(catalogue.Piece("silent", silent), {"silent": rest})) == list(catalogue.LABELS)
    with pytest.raises(SystemExit, match="in the notes"):
        catalogue.said(catalogue.Piece("silent", silent), {"silent": {**rest, "Costs": "c"}})


def test_a_note_about_nothing_is_refused(catalogue: ModuleType) -> None:
    with pytest.raises(SystemExit, match="not there: nobody"):
        catalogue.page({**catalogue.NOTES, "nobody": {}})


def test_lines_go_on_until_a_blank_one(catalogue: ModuleType) -> None:
    found = catalogue.labelled("First.\n\nEquation: a\n    + b.\nCosts: none.\n\nNot: this.")
    assert found == {"Equation": "a + b.", "Costs": "none."}


def test_the_picture_of_the_frontier_is_drawn_from_its_numbers() -> None:
    images = ROOT / "docs" / "images"
    cells = json.loads((images / "lora_frontier.json").read_text(encoding="utf-8"))
    assert (images / "lora_frontier.svg").read_text(encoding="utf-8") == load("frontier_picture").draw(cells)
