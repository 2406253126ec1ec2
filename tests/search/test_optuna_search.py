"""Optuna over policies: with Optuna where it is installed, and with a stand-in that answers to the same calls elsewhere."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from leakscope.core.errors import InputError
from leakscope.defences.on_data import parse_policies
from leakscope.search.candidates import Candidate
from leakscope.search.optuna_search import OptunaSearch
from search_file import SMALL

FILE = f"{SMALL}method: optuna\n"


class StandIn:
    """A study that walks through the operations; it repeats itself, as samplers do."""

    def __init__(self, directions: list[str], sampler: Any) -> None:
        assert directions == ["minimize", "maximize"]
        self.told: list[tuple[Any, Any]] = []
        self.asked = 0

    def ask(self) -> Any:
        self.asked += 1
        number = self.asked // 2  # every policy twice
        values = iter((number % 50, 2 * number % 50, 7))
        return SimpleNamespace(
            suggest_categorical=lambda name, choices: choices[next(values)], suggest_int=lambda name, low, high: high
        )

    def tell(self, trial: Any, values: Any = None, state: Any = None) -> None:
        self.told.append((trial, values if state is None else state))

    def add_trial(self, trial: Any) -> None:
        self.told.append((trial, trial.values))


def stand_in() -> Any:
    return SimpleNamespace(
        samplers=SimpleNamespace(NSGAIISampler=lambda seed: seed, TPESampler=lambda seed: seed),
        logging=SimpleNamespace(set_verbosity=lambda level: None, WARNING=30),
        create_study=StandIn,
        distributions=SimpleNamespace(CategoricalDistribution=tuple, IntDistribution=lambda low, high: (low, high)),
        trial=SimpleNamespace(
            TrialState=SimpleNamespace(FAIL="fail"),
            create_trial=lambda params, distributions, values: SimpleNamespace(params=params, values=values),
        ),
    )


@pytest.fixture(params=["optuna", "stand-in"])
def study_module(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "optuna":
        pytest.importorskip("optuna", reason="Optuna (extra 'search') is not installed")
    else:
        monkeypatch.setitem(sys.modules, "optuna", stand_in())
    return str(request.param)


def test_it_asks_for_new_policies_and_hears_every_score(study_module: str) -> None:
    search = OptunaSearch(3)
    known: list[Candidate] = []
    for _ in range(4):
        asked = search.ask(3, known)
        assert len(set(asked)) == 3
        assert not {each.policy for each in known} & set(asked)
        assert all(len(parse_policies(text)[0].indices) == 3 for text in asked)
        made = [Candidate(text, 0.3, -80.0) for text in asked]
        search.tell(made)
        known += made
    assert not search.asked


def judge(policy: str) -> Candidate:
    """Return made-up scores with something to learn: low indices are private, high last ones accurate."""
    indices = [int(part) for part in policy.split("-")]
    return Candidate(policy, sum(indices) / 150, float(indices[-1]))


def walk(search: OptunaSearch, groups: int, known: list[Candidate], size: int = 10) -> list[list[Candidate]]:
    """Return the next groups that a study asks for, told as they come."""
    made = []
    for _ in range(groups):
        made.append([judge(policy) for policy in search.ask(size, known)])
        search.tell(made[-1])
        known += made[-1]
    return made


@pytest.mark.parametrize("sampler", ["nsga2", "tpe"])
@pytest.mark.parametrize("cut", [1, 5, 7])
def test_a_study_goes_on_as_if_it_had_never_been_cut(study_module: str, sampler: str, cut: int) -> None:
    whole = walk(OptunaSearch(3, sampler=sampler), 8, [])
    again, known = OptunaSearch(3, sampler=sampler), list[Candidate]()
    for group in whole[:cut]:
        again.replay(group, known)
        known += group
    assert walk(again, 8 - cut, known) == whole[cut:]


def test_a_group_that_it_would_not_ask_for_is_told_all_the_same(study_module: str) -> None:
    search = OptunaSearch(3, shortest=1, longest=3)
    earlier = [Candidate("49-49-49", 0.2, -80.0), Candidate("48", 0.4, -70.0)]
    search.replay(earlier, [])
    assert not search.asked
    assert len(search.ask(2, earlier)) == 2


def test_optuna_finds_more_than_chance_where_there_is_something_to_learn() -> None:
    """Of 200 policies the last fifty are more private than random ones (0.49, of fifty to +- 0.024): the scores reach it."""
    pytest.importorskip("optuna", reason="Optuna (extra 'search') is not installed")
    for sampler in ("nsga2", "tpe"):
        told = [each.privacy for group in walk(OptunaSearch(0, sampler=sampler), 20, []) for each in group]
        assert sum(told[-50:]) / 50 < 0.42, sampler


def test_a_search_of_optuna_is_cut_and_goes_on(study_module: str, tmp_path: Path) -> None:
    from leakscope.search.policy_search import run_search
    from leakscope.search.settings import read_search

    (tmp_path / "s.yaml").write_text(FILE, encoding="utf-8")
    said = read_search(tmp_path / "s.yaml")
    lines: list[str] = []
    cut = run_search(said, tmp_path / "r", say=lines.append, stop=lambda: any("scored" in line for line in lines))
    assert (len(cut.candidates), cut.left) == (2, 3)
    ended = run_search(said, tmp_path / "r")
    assert ended.left == 0
    assert ended.candidates[:2] == cut.candidates
    assert len({each.policy for each in ended.candidates}) == 5
    assert run_search(said, tmp_path / "r") == ended


def test_random_and_optuna_are_compared_in_one_command(study_module: str, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from leakscope.cli import app

    (tmp_path / "s.yaml").write_text(FILE, encoding="utf-8")
    out = tmp_path / "out"
    said = ["search", str(tmp_path / "s.yaml"), "--out", str(out), "--engine", "serial", "--compare"]
    told = CliRunner().invoke(app, [*said, "--json", "--quiet"])
    assert told.exit_code == 0, told.output
    both = json.loads(told.stdout)
    assert [both[name]["scored"] for name in ("random", "optuna")] == [5, 5]
    assert both["random"]["none"] == both["optuna"]["none"], "both meet the same network, pictures and draws"
    assert (out / "network").is_dir()
    assert not (out / "random" / "network").exists()
    assert "At equal cost" in (out / "report.html").read_text(encoding="utf-8")
    again = CliRunner().invoke(app, ["report", str(out)])
    assert again.exit_code == 0, again.output
    assert "At equal cost" in (out / "report.html").read_text(encoding="utf-8")


def test_without_optuna_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(InputError, match=r"leakscope\[search\]"):
        OptunaSearch(0)


def test_an_unknown_sampler_is_refused(study_module: str) -> None:
    with pytest.raises(InputError, match=r"sampler .*nsga2, tpe"):
        OptunaSearch(0, sampler="grid")
