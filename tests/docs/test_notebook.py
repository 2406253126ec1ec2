"""The example notebook is a valid document, holds no results and no place of a machine, and its cells run in order."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook" / "first_audit.ipynb"
QUICK = {"MINUTES": 0.01, "ITERATIONS": 2}  # in the place of the notebook's own
FIELDS = {"cell_type", "id", "metadata", "source"}


@pytest.fixture
def notebook() -> dict[str, Any]:
    read: dict[str, Any] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return read


def code(notebook: dict[str, Any]) -> list[str]:
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_it_is_a_notebook_of_format_4(notebook: dict[str, Any]) -> None:
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook["metadata"]["language_info"]["name"] == "python"
    for cell in notebook["cells"]:
        wanted = FIELDS | ({"execution_count", "outputs"} if cell["cell_type"] == "code" else set())
        assert set(cell) == wanted
        assert cell["cell_type"] in ("markdown", "code")
        assert all(isinstance(line, str) for line in cell["source"])
        assert all(line.endswith("\n") for line in cell["source"][:-1])
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", each) for each in ids)


def test_it_stores_no_result_and_no_place(notebook: dict[str, Any]) -> None:
    assert all(
        cell["outputs"] == [] and cell["execution_count"] is None for cell in notebook["cells"] if "outputs" in cell
    )
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert not re.search(r"/(home|root|tmp|mnt|opt|Users)/", text)
    assert str(NOTEBOOK.parents[2]) not in text
    assert len(text) < 20_000


def test_documents_it_names_exist(notebook: dict[str, Any]) -> None:
    root = NOTEBOOK.parents[2]
    named = re.findall(r"`(docs/[\w./-]+)`", NOTEBOOK.read_text(encoding="utf-8"))
    assert named
    assert all((root / each).exists() for each in named)


@pytest.mark.slow
def test_its_cells_run_in_order(
    notebook: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    names: dict[str, Any] = {"__name__": "__main__"}
    with torch.random.fork_rng(devices=[]):
        for number, text in enumerate(code(notebook)):
            text = re.sub(
                r"^(MINUTES|ITERATIONS) = [\d.]+", lambda set_: f"{set_[1]} = {QUICK[set_[1]]}", text, flags=re.M
            )
            exec(compile(ast.parse(text), f"cell {number}", "exec"), names)
    said = capsys.readouterr().out
    assert {name: names[name] for name in QUICK} == QUICK
    assert names["verdict"].grade == "F"  # a dense first layer gives its input away
    assert names["done"].left == 0
    assert names["table"].stat().st_size > 0
    assert len(names["rows"]) == 6  # three levels, two attackers
    assert "grade F" in said
