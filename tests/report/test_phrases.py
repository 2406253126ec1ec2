"""Axes, threat models and headlines in words that the data bears out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from leakscope.core.record import Cell
from leakscope.report import Row, Table, cell_table, sheet_of
from leakscope.report.cells import DEFENCE_KNOWN, PRIVATE_HEAD, axis_label, name_of, strength_axes, with_known_heads
from leakscope.report.run_page import NOTHING, headline
from leakscope.report.threat import AVERAGED, BETWEEN, DEFENDED, FACTS, SEEN, SIMULATED, describe, threat_of
from leakscope.store import Run

MakeCells = Callable[..., list[Cell]]
THINGS = ("picture", "pictures")


def test_a_strength_is_an_axis_whose_value_the_defence_was_given(make_cells: MakeCells) -> None:
    cells = [cell for cell in make_cells() if not cell.baseline]
    assert strength_axes(cells) == ["defences.0.sigma"]
    renamed = [dataclasses.replace(cell, axes={'"how much"': cell.axes["defences.0.sigma"]}) for cell in cells]
    assert strength_axes(renamed) == ['"how much"']
    bare = [dataclasses.replace(cell, settings={**cell.settings, "defences": []}) for cell in cells]
    assert strength_axes(bare) == []
    assert strength_axes([cell for cell in cells if cell.axes["defences.0.sigma"] == 0.01]) == []


def test_no_defence_may_stand_for_strength_zero(make_cells: MakeCells) -> None:
    cells = [
        dataclasses.replace(cell, settings={**cell.settings, "defences": []}) if "0.0" in cell.id.split() else cell
        for cell in make_cells()
        if not cell.baseline
    ]
    assert strength_axes(cells) == ["defences.0.sigma"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("defences.0.sigma", "gaussian_noise sigma"),
        ("defences.1.sigma", "defences 1 sigma"),
        ("data.samples", "data samples"),
        ("attack", "attack"),
        ("..", ".."),
        ("<b>.\"'", "<b> \"'"),
    ],
)
def test_axes_in_words(make_cells: MakeCells, name: str, words: str) -> None:
    assert axis_label(name, make_cells()) == words


def knowing(defences: list[dict[str, object]], trains: object, **knowledge: Any) -> Cell:
    settings = {"client": {"local": trains}, "defences": defences, "knowledge": knowledge}
    return Cell(id=str((knowledge, trains)), settings=settings)


def test_what_was_told_and_what_not() -> None:
    threat = threat_of([knowing([], {"epochs": 2}, labels=False, local=True, colour_of_hair=True)])
    assert FACTS["labels"] in threat.hidden
    assert f"{FACTS['local']} (all of it)" in threat.known
    assert "colour of hair" in threat.known
    assert threat.mixed == ()
    assert not any("defended" in fact for fact in threat.hidden)


def test_local_training_that_does_not_happen_is_not_told() -> None:
    threat = threat_of([knowing([], None, local=True)])
    assert not any("trains" in fact for fact in (*threat.known, *threat.hidden))


@pytest.mark.parametrize(
    ("local", "samples", "several"),
    [
        ({"epochs": 2, "batch_size": None}, 1, True),
        ({"epochs": 1, "batch_size": 2}, 3, True),
        ({"epochs": 1, "batch_size": 4}, 4, False),
        (None, 4, False),
    ],
)
def test_of_several_local_steps_the_ends_are_seen_and_what_lies_between_is_not(
    local: dict[str, Any] | None, samples: int, several: bool
) -> None:
    settings = {"client": {"local": local}, "data": {"samples": samples}, "knowledge": {"local": True}}
    threat = threat_of([Cell(id="a", settings=settings)])
    assert (SEEN in threat.known) == several
    assert (BETWEEN in threat.hidden) == several


def test_how_a_client_trains_is_told_whole_or_not_at_all() -> None:
    known, unknown = (knowing([], {"epochs": 2}, local=told) for told in (True, False))
    for cells, place, word in (
        ([known], "known", "(all of it)"),
        ([unknown], "hidden", "(none of it)"),
        ([known, unknown], "mixed", "it or none)"),
    ):
        (fact,) = (fact for fact in getattr(threat_of(cells), place) if fact.startswith(FACTS["local"]))
        assert fact.endswith(word)


def test_one_told_of_a_defence_is_not_said_to_be_told_nothing_of_it() -> None:
    noise: list[dict[str, object]] = [{"name": "gaussian_noise", "sigma": 0.1}]
    assert DEFENDED in threat_of([knowing(noise, None, defence=True)]).known
    assert threat_of([knowing(noise, None, defence=told) for told in (True, False)]).mixed == (DEFENDED,)
    assert not any("defence" in fact for fact in threat_of([knowing([], None, defence=False)]).hidden)


@pytest.mark.parametrize(("attack", "simulates"), [("ig_update", True), ("sme", False), ("dlfa", False)])
def test_who_simulates_steps_anyway_is_not_said_to_be_told_to(attack: str, simulates: bool) -> None:
    steps = [knowing([], {"epochs": 2}, defence=told, local=True) for told in (True, False)]
    cells = [dataclasses.replace(cell, settings={**cell.settings, "attack": {"name": attack}}) for cell in steps]
    assert threat_of(cells).mixed == (SIMULATED,) * simulates


def test_dropout_is_something_to_be_told_of() -> None:
    cells = [
        Cell(id="a", settings={"model": {"dropout": 0.5}, "knowledge": {"defence": told}}) for told in (True, False)
    ]
    assert threat_of(cells).mixed == (AVERAGED,)


def test_masks_are_no_secret_of_a_network_without_dropout() -> None:
    dropping = Cell(id="a", settings={"model": {"dropout": 0.5}, "knowledge": {"dropout": False}})
    assert FACTS["dropout"] in threat_of([dropping]).hidden
    assert FACTS["dropout"] not in threat_of([knowing([], None, dropout=False)]).hidden


def head_cell(attack: str, told: bool, **client: object) -> Cell:
    settings = {"attack": {"name": attack}, "client": client, "knowledge": {"defence": told}}
    return Cell(id=f"{attack}{told}", settings=settings, axes={"attack": attack, DEFENCE_KNOWN: told})


@pytest.mark.parametrize("attack", ["spn_aware", "spn_head", "spn_pull"])
def test_an_attacker_made_for_private_heads_stands_at_what_it_knows(
    attack: str, make_run: Callable[[list[Cell]], Run]
) -> None:
    cells = [
        head_cell(attack, False, on_model={}),
        head_cell("cpl", False, on_model={}),
        head_cell("cpl", True, on_model={}),
    ]
    assert [cell.axes[DEFENCE_KNOWN] for cell in with_known_heads(cells)] == [PRIVATE_HEAD, False, True]
    assert [cell.axes[DEFENCE_KNOWN] for cell in with_known_heads([head_cell(attack, False, on_model=None)])] == [False]
    assert [row.values[DEFENCE_KNOWN] for row in cell_table(sheet_of(make_run(cells))).rows] == [
        PRIVATE_HEAD,
        False,
        True,
    ]
    assert name_of(with_known_heads(cells)[0]) == attack
    assert any("defended" in fact for fact in threat_of(cells[:1]).known)
    assert any("defended" in fact for fact in threat_of(cells[1:2]).hidden)


def test_a_defence_the_attacker_does_not_know_is_said_to_be_hidden() -> None:
    noise: list[dict[str, object]] = [{"name": "gaussian_noise", "sigma": 0.1}]
    assert any("defended" in fact for fact in threat_of([knowing(noise, None)]).hidden)
    told = threat_of([knowing(noise, None, sigma=True)])
    assert FACTS["sigma"] in told.known
    assert not any("defended" in fact for fact in told.hidden)


def test_what_the_sweep_varies_is_told_in_some_settings() -> None:
    threat = threat_of([knowing([], None, labels=True), knowing([], None, labels=False)])
    assert threat.mixed == (FACTS["labels"],)
    assert FACTS["labels"] not in (*threat.known, *threat.hidden)


def test_an_insider_was_told_an_example_of_the_class() -> None:
    inside, outside = (
        Cell(id=start, settings={"attack": {"name": "cpl", "start": {"name": start}}})
        for start in ("insider", "patterned")
    )
    (fact,) = threat_of([inside, outside]).mixed
    assert "public example" in fact
    assert fact in threat_of([inside]).known
    assert fact not in (*threat_of([outside]).known, *threat_of([outside]).hidden)


def test_the_setting_shows_unknown_keys_and_cuts_long_ones() -> None:
    cells = [
        Cell(id=str(i), settings={"moon": {"phase": i}, "attack": {"name": "x" * 5, "s": "y, " * 200}})
        for i in range(9)
    ]
    setting = dict(threat_of(cells).setting)
    assert setting["Moon"] == ("phase 0", "phase 1", "phase 2", "and 6 more")
    assert len(setting["Attack"][0]) < 230
    assert setting["Attack"][0].endswith(" …")
    (client,) = dict(threat_of([Cell(id="a", settings={"client": {"local": None, "loss": "mse"}})]).setting)["Client"]
    assert ["one gradient" in client, "loss mse" in client, "one-hot" in client] == [True, True, True]


@pytest.mark.parametrize("value", [None, True, 1e-9, [], {}, [[]], {"name": None}, {"a": {"b": [1, {"c": object}]}}])
def test_anything_can_be_described(value: object) -> None:
    assert isinstance(describe(value), str)


def test_the_headline_is_that_of_the_strongest_setting(
    make_run: Callable[..., Run], figures: Callable[[str], list[str]]
) -> None:
    table = cell_table(sheet_of(make_run(trials=8)))
    head, words = headline(table, lambda name: name, THINGS)
    best, weakest, baseline = (sentence for sentence in words.split(". ") if sentence)
    assert "cpl" in head
    assert "pictures" in head
    assert figures(head) == ["8", "8"]
    assert figures(best)[-3:] == ["95", "67.6", "100"]
    assert figures(weakest)[-2:] == figures(baseline) == ["0", "8"]
    assert "class mean" in baseline


def only(table: Table, keep: Callable[[Row], bool]) -> Table:
    return dataclasses.replace(table, rows=tuple(row for row in table.rows if keep(row)))


def test_a_headline_of_failure_and_one_of_nothing(
    make_run: Callable[..., Run], figures: Callable[[str], list[str]]
) -> None:
    table = cell_table(sheet_of(make_run(trials=8)))
    head, words = headline(only(table, lambda row: row.values.get("defences.0.sigma") == 0.1), str, THINGS)
    assert head.startswith("None of 8 ")
    assert figures(head) == ["8"]
    assert "Without the update" not in words
    assert headline(only(table, lambda row: row.baseline), str, THINGS)[0] == NOTHING


def test_a_single_trial_has_no_interval_to_speak_of(
    make_run: Callable[..., Run], make_cells: MakeCells, figures: Callable[[str], list[str]]
) -> None:
    run = make_run(make_cells(attacks=("cpl",), sigmas=(0.0,), baselines=()), trials=1)
    head, words = headline(cell_table(sheet_of(run)), str, THINGS)
    assert head.endswith("private picture")
    assert figures(head) == ["1", "1"]
    assert figures(words) == ["95", "20.7", "100"]
