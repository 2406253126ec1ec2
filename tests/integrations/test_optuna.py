"""`leakscope search --compare` with Optuna itself (extra 'search'), on bundled pictures: cut, gone on with, shown on a page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from leakscope.cli import app
from leakscope.search.policy_search import compare_methods
from leakscope.search.settings import read_search
from leakscope.sweep.engines import serial

FILE = """
data: fashion_mnist
model: lenet_dlg
width: 2
candidates: 12
keep: 3
threshold: null
images: 2
points: 3
epochs: 1
share: 0.02
batches: 1
batch_size: 20
group: 4
seed: 1
sampler: {sampler}
"""


@pytest.fixture(params=["nsga2", "tpe"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    pytest.importorskip("optuna", reason="Optuna (extra 'search') is not installed")
    path = tmp_path / "policies.yaml"
    path.write_text(FILE.format(sampler=request.param), encoding="utf-8")
    return path


def test_a_comparison_that_was_cut_ends_as_if_it_had_not_been(file: Path, tmp_path: Path) -> None:
    said = read_search(file)
    whole = compare_methods(said, tmp_path / "whole", engine=serial)
    lines: list[str] = []
    scored = lambda: sum(line.startswith("optuna") and "scored" in line for line in lines)  # noqa: E731
    cut = compare_methods(said, tmp_path / "cut", engine=serial, say=lines.append, stop=lambda: scored() >= 2)
    assert (cut["random"].left, cut["optuna"].left) == (0, 4)
    ended = compare_methods(said, tmp_path / "cut", engine=serial)
    assert ended["optuna"].left == 0
    for method, found in ended.items():
        assert [c.policy for c in found.candidates] == [c.policy for c in whole[method].candidates], method
    assert ended["optuna"].reference == ended["random"].reference, "both meet the same network, pictures and draws"


def test_the_command_prints_both_and_its_page_shows_both(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    told = CliRunner().invoke(
        app, ["search", str(file), "--out", str(out), "--engine", "serial", "--compare", "--json"]
    )
    assert told.exit_code == 0, told.output
    both = json.loads(told.stdout)
    assert {name: found["scored"] for name, found in both.items()} == {"random": 12, "optuna": 12}
    page = (out / "report.html").read_text(encoding="utf-8")
    assert f"<small>{read_search(file).sampler}</small>" in page
    for found in both.values():
        for kept in found["kept"]:
            assert f'<th scope="row">{kept["policy"]}</th>' in page
