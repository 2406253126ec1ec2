"""Pieces from outside: new names only, one owner each, nothing left of a plug-in that fails."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import leakscope
from leakscope.attacks import ATTACKS, cpl
from leakscope.core.errors import InputError, UnknownNameError
from leakscope.core.plugins import broken_plugins, import_plugin, load_plugins, origin, plugin_imports, registered_in
from leakscope.core.registry import lookup
from leakscope.data import SOURCES
from leakscope.defences import DEFENCES, Clip
from leakscope.metrics import METRICS, Direction, Metric
from leakscope.models import MODELS
from leakscope.scenario import ScenarioError, scenario_of
from own_pieces import install, no_plugins

TABLES = {"attack": ATTACKS, "defence": DEFENCES, "data set": SOURCES, "model": MODELS, "metric": METRICS}
CELL = {"data": "digits", "model": {"name": "mlp", "hidden": [16]}, "trials": 1, "baselines": []}
REGISTER = "import leakscope\nfrom leakscope.attacks import cpl\nleakscope.register_attack({!r}, cpl)\n"


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    before = {kind: dict(table) for kind, table in TABLES.items()}
    with no_plugins():
        yield
    assert {kind: dict(table) for kind, table in TABLES.items()} == before


def metric(name: str) -> Metric:
    return Metric(name, METRICS["mse"].function, Direction.LOWER, best=0.0)


def every_kind(name: str) -> dict[str, object]:
    return {
        "attack": lambda: leakscope.register_attack(name, cpl),
        "defence": lambda: leakscope.register_defence(name, Clip),
        "data set": lambda: leakscope.register_data(name, SOURCES["digits"]),
        "model": lambda: leakscope.register_model(name, MODELS["mlp"]),
        "metric": lambda: leakscope.register_metric(metric(name)),
    }


@pytest.mark.parametrize("kind", TABLES)
def test_a_piece_gets_a_new_name_and_keeps_its_origin(kind: str) -> None:
    every_kind("mine")[kind]()  # type: ignore[operator]
    assert "mine" in TABLES[kind]
    assert origin(kind, "mine") == __name__
    built_in = next(iter(TABLES[kind]))
    assert origin(kind, built_in) is None
    with pytest.raises(InputError):
        every_kind(built_in)[kind]()  # type: ignore[operator]
    for name in ("", "a b", "1st", "ä"):
        with pytest.raises(InputError):
            every_kind(name)[kind]()  # type: ignore[operator]


@pytest.mark.parametrize("name", ["class_mean", "suite"])
def test_an_attack_cannot_take_the_name_of_a_baseline_or_of_the_suite(name: str) -> None:
    with pytest.raises(InputError):
        leakscope.register_attack(name, cpl)


def test_a_name_has_one_owner_who_may_replace_the_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("first_owner", "second_owner"):
        (tmp_path / f"{module}.py").write_text(REGISTER.format("contested"))
    monkeypatch.chdir(tmp_path)
    import_plugin("first_owner")
    with pytest.raises(InputError):
        import_plugin("second_owner")
    assert origin("attack", "contested") == "first_owner"
    leakscope.register_attack("mine", cpl)
    leakscope.register_attack("mine", leakscope.ig)  # a cell of a notebook that is run again
    assert ATTACKS["mine"] is leakscope.ig


def needs_a_setting(*, strength: float) -> object:
    return cpl()


@pytest.mark.parametrize(
    "register",
    [
        lambda: leakscope.register_attack("mine", cpl()),  # type: ignore[arg-type]
        lambda: leakscope.register_attack("mine", needs_a_setting),  # type: ignore[arg-type]
        lambda: leakscope.register_defence("mine", cpl),  # type: ignore[arg-type]
        lambda: leakscope.register_data("mine", "digits.npz"),  # type: ignore[arg-type]
        lambda: leakscope.register_metric(METRICS["mse"].function),  # type: ignore[arg-type]
    ],
)
def test_what_a_file_could_not_name_is_refused(register: object) -> None:
    with pytest.raises(InputError):
        register()  # type: ignore[operator]


def test_a_file_may_name_a_piece_as_soon_as_it_is_registered() -> None:
    with pytest.raises(ScenarioError):
        scenario_of({**CELL, "attack": "mine"})
    leakscope.register_attack("mine", cpl)
    scenario = scenario_of({**CELL, "attack": {"name": "mine", "iterations": 7}})
    assert scenario.bases[0]["attack"]["iterations"] == 7
    used = registered_in(cell.settings for cell in scenario.cells())
    assert used == {("attack", "mine"): __name__}


def test_metrics_are_part_of_a_cell_only_where_they_are_asked_for() -> None:
    leakscope.register_metric(metric("mine"))
    (plain,), (asked,) = (
        list(scenario_of({**CELL, "attack": "cpl", **more}).cells()) for more in ({}, {"metrics": ["mine"]})
    )
    assert "metrics" not in plain.settings
    assert asked.settings["metrics"] == ["mine"]
    assert plain.id != asked.id
    with pytest.raises(ScenarioError):
        scenario_of({**CELL, "attack": "cpl", "metrics": ["none_such"]})


def test_installed_plugins_are_loaded_when_a_name_is_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = {"good": "good_pieces", "half": "half_pieces", "lost": "no_such_module", "odd": "good_pieces:register"}
    site = install(tmp_path, entries)
    (site / "good_pieces.py").write_text(REGISTER.format("good"))
    (site / "half_pieces.py").write_text(REGISTER.format("half") + "raise RuntimeError('two\\nlines')\n")
    monkeypatch.syspath_prepend(str(site))
    assert "good_pieces" not in sys.modules
    assert lookup(ATTACKS, "good", "attack") is cpl
    assert origin("attack", "good") == "good_pieces"
    assert plugin_imports() == (("good_pieces", None),)
    assert "half" not in ATTACKS
    assert set(broken_plugins()) == {"half", "lost", "odd"}
    lines = capsys.readouterr().err.splitlines()
    assert [sum(name in line for line in lines) for name in ("'half'", "'lost'", "'odd'")] == [1, 1, 1]
    assert len(lines) == 3
    load_plugins()
    with pytest.raises(UnknownNameError, match="half"):
        lookup(ATTACKS, "hlf", "attack")
    assert capsys.readouterr().err == ""


def test_a_module_that_registers_nothing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "registers_nothing.py").write_text("x = 1\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError):
        import_plugin("registers_nothing")


def test_a_module_among_captures_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "captured.py").write_text(REGISTER.format("captured"))
    (tmp_path / "round-00001-client-0.json").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError):
        import_plugin("captured")
    assert "captured" not in ATTACKS
