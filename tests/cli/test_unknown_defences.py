"""Defences that reveal nothing: one row, no attacker "told" of them, and every command says that nobody knows them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from command_line import TINY, leakscope, write
from leakscope.core import tree
from leakscope.core.record import nobody_knows
from leakscope.defences import DEFENCES, Revealed
from leakscope.report.cells import INFORMED, name_of
from leakscope.report.sheet import sheet_of
from leakscope.report.threat import DEFENDED, threat_of
from leakscope.scenario.components import component_type
from leakscope.scenario.identity import cell_id
from leakscope.scenario.scenario import scenario_of
from leakscope.scenario.schema import cell_model, file_model
from leakscope.store import Run


@dataclass(frozen=True, slots=True)
class Tenth:
    """Send a tenth of the update, and tell nobody."""

    share: float = 0.1

    def protect_update(self, update: tree.Tree, key: Tensor) -> tree.Tree:
        del key
        return tree.scale(update, self.share)


@dataclass(frozen=True, slots=True)
class Silent(Tenth):
    """Reveal nothing by a method."""

    def reveal(self, sent: tree.Tree) -> Revealed:
        del sent
        return Revealed()


@pytest.fixture(autouse=True)
def mine() -> Iterator[None]:
    DEFENCES.update(tenth=Tenth, silent=Silent)  # type: ignore[dict-item]
    read_anew()
    yield
    del DEFENCES["tenth"], DEFENCES["silent"]
    read_anew()


def read_anew() -> None:
    """Let files be read with the defences there are now; a process reads the tables once."""
    for remembered in (component_type, cell_model, file_model):
        remembered.cache_clear()


BASE = {name: value for name, value in TINY.items() if name != "knowledge"}
UNKNOWN: list[dict[str, Any]] = [{"name": "low_rank", "rank": 1}, {"name": "tenth"}, {"name": "silent"}]
CPL = {"name": "cpl", "iterations": 1}


@pytest.mark.parametrize("defence", UNKNOWN, ids=lambda item: item["name"])
def test_a_defence_that_reveals_nothing_meets_one_attacker(defence: dict[str, Any]) -> None:
    (cell,) = scenario_of({**BASE, "attack": CPL, "defences": [defence]}).cells()
    assert cell.unknown_defences == (defence["name"],)
    assert defence["name"] in nobody_knows([cell])
    threat = threat_of([cell])
    assert DEFENDED not in (*threat.known, *threat.mixed)
    assert nobody_knows([cell]) in threat.hidden
    assert not any("unknown" in name for name, _ in threat.setting)


@pytest.mark.parametrize("defence", UNKNOWN, ids=lambda item: item["name"])
def test_an_attacker_named_as_told_is_not_called_so(defence: dict[str, Any]) -> None:
    (cell,) = scenario_of({**BASE, "attack": CPL, "defences": [defence], "knowledge": {"defence": True}}).cells()
    assert INFORMED not in name_of(cell)
    assert DEFENDED not in threat_of([cell]).known


def test_beside_a_defence_that_is_known_both_attackers_are_run() -> None:
    stack = [{"name": "low_rank", "rank": 1}, {"name": "clip", "bound": 1.0}]
    cells = list(scenario_of({**BASE, "attack": CPL, "defences": stack}).cells())
    assert [name_of(cell) for cell in cells] == ["cpl", f"cpl{INFORMED}"]
    assert threat_of(cells).mixed == (DEFENDED,)
    assert nobody_knows(cells) in threat_of(cells).hidden


def test_the_names_are_no_part_of_a_cells_identity() -> None:
    plain = {**BASE, "attack": CPL, "knowledge": {"defence": False}}
    (cell,) = scenario_of({**plain, "defences": [{"name": "low_rank", "rank": 1}]}).cells()
    assert cell.id == cell_id({k: v for k, v in cell.settings.items() if k not in ("name", "unknown_defences")})
    (known,) = scenario_of({**plain, "defences": [{"name": "clip"}]}).cells()
    assert known.unknown_defences == ()
    assert "unknown_defences" not in known.settings


def test_run_show_and_report_say_that_nobody_knows_it(tmp_path: Path) -> None:
    scenario = {**BASE, "attack": CPL, "baselines": [], "defences": [{"name": "low_rank", "rank": 1}]}
    run = leakscope("run", write(tmp_path / "a.yaml", scenario), "--out", tmp_path / "run")
    assert run.code == 0
    cells = sheet_of(Run.open(tmp_path / "run")).cells
    assert len(cells) == 1
    line = nobody_knows(cells)
    for output in (run, leakscope("show", tmp_path / "run")):
        assert line in " ".join((output.out + output.err).split())
    assert leakscope("report", tmp_path / "run", "--out", tmp_path / "page.html").code == 0
    assert line in (tmp_path / "page.html").read_text(encoding="utf-8")
