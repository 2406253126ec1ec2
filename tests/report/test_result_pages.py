"""Results show themselves: a short text, a page in a plain file, a sandboxed frame in a notebook."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pytest
import torch
from torch import nn

import leakscope
from leakscope import Audit, Run, run_scenario, scenario_of
from leakscope.auditing.verdict import Grade, measure
from leakscope.core.errors import InputError
from leakscope.data import load
from leakscope.servers import Imprint
from leakscope.studies.frontier import Frontier, FrontierSettings, Point

SHORT = 1500
EVIL = "<script>alert(1)</script>"
SCENARIO = {
    "name": EVIL,
    "data": {"name": "digits", "part": "test", "samples": 1},
    "model": {"name": "lenet_cpl", "width": 4},
    "weights": {"name": "uniform", "a": 0.5},
    "attacks": [{"name": "cpl", "iterations": 1}],
    "trials": 1,
}


class Shown(Protocol):
    def write(self, path: str | Path) -> Path: ...

    def _repr_html_(self) -> str: ...


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Shown]:
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 10))
    digits = load("digits")
    x, y = digits.pictures("test", [0]), torch.as_tensor(digits.labels("test", [0]))
    peek = leakscope.peek(network, x, y, iterations=1, noise=False)
    run = replace(peek.shown.attacks[0], name=EVIL)
    audit = Audit(
        name=EVIL, grade=Grade.F, minutes=1, seconds=1, seed=0, measures=measure([run], [], None), runs=(run,) * 40,
        exposure=peek.shown.exposure, notes=(EVIL,),
    )  # fmt: skip
    done = run_scenario(scenario_of(SCENARIO), tmp_path_factory.mktemp("runs") / "run", workers=1, measure=False)
    point = Point(EVIL, "", None, run.summary.content, run)
    frontier = Frontier((point,), peek.shown.exposure.batch, (0,), FrontierSettings(clients=1, attacked=1))
    model, batch = leakscope.build("mlp", (1, 8, 8), 10, {"hidden": (20,)}), peek.shown.exposure.batch
    manipulation = leakscope.manipulate(
        model, batch, Imprint(name=EVIL), digits.pictures("train", range(50)), torch.arange(50) % 10
    )
    return {
        "peek": peek, "audit": audit, "run": done.run, "done": done, "frontier": frontier, "manipulation": manipulation,
    }  # fmt: skip


NAMES = ("peek", "audit", "run", "done", "frontier", "manipulation")


@pytest.mark.parametrize("name", NAMES)
def test_a_result_prints_briefly(results: dict[str, Shown], name: str) -> None:
    assert len(repr(results[name])) < SHORT
    assert "tensor(" not in repr(results[name])
    assert "\x1b" not in repr(results[name])


@pytest.mark.parametrize("name", NAMES)
def test_a_result_writes_its_page_to_a_plain_file_only(results: dict[str, Shown], name: str, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "page.html"
    assert results[name].write(str(path)) == path
    assert EVIL not in path.read_text("utf-8")
    other, link = tmp_path / "other", tmp_path / "link.html"
    other.write_text("kept")
    link.symlink_to(other)
    with pytest.raises(InputError):
        results[name].write(link)
    assert other.read_text() == "kept"
    assert sorted(each.name for each in tmp_path.rglob("*")) == ["deep", "link.html", "other", "page.html"]


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_shows_a_sandboxed_frame(results: dict[str, Shown], name: str) -> None:
    shown = results[name]._repr_html_()
    assert re.match(r'<iframe [^>]*sandbox="allow-scripts allow-downloads"', shown)
    assert "allow-same-origin" not in shown
    assert "<script" not in shown  # the page is escaped as a whole
    page = html.unescape(shown[shown.index('srcdoc="') :])
    assert EVIL not in page
    assert "script-src 'sha256-" in page


def test_the_page_of_a_manipulation_has_no_honest_server(results: dict[str, Shown], tmp_path: Path) -> None:
    texts = {name: results[name].write(tmp_path / name).read_text("utf-8") for name in ("manipulation", "peek")}
    assert {name: "A dishonest server" in text for name, text in texts.items()} == {"manipulation": True, "peek": False}
    assert {name: "honest but curious" in text for name, text in texts.items()} == {"manipulation": False, "peek": True}


def test_a_run_counts_its_trials(results: dict[str, Shown]) -> None:
    run = results["run"]
    assert isinstance(run, Run)
    trials = len(list(run.records()))
    assert str(run) == f"{run.directory}: {trials} trials in {len(run.cells())} cells"
