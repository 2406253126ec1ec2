"""`leakscope search`: from a file to kept policies, cut and resumed, mistakes named."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from leakscope.cli import app
from leakscope.core.errors import InputError
from leakscope.search.policy_search import run_search
from leakscope.search.records import read_finished
from leakscope.search.settings import read_search
from leakscope.sweep.engines import processes, serial
from search_file import SMALL

RUN = CliRunner()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL, encoding="utf-8")
    return path


def test_a_search_ends_with_a_table_and_records(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = RUN.invoke(app, ["search", str(file), "--out", str(out), "--engine", "serial"])
    assert done.exit_code == 0, done.output
    assert "hybrid: " in done.stdout
    assert "none" in done.stdout
    again = RUN.invoke(app, ["search", str(file), "--out", str(out), "--engine", "serial", "--json", "--quiet"])
    page = (out / "report.html").read_text(encoding="utf-8")
    assert re.search(r"<h1[^>]*>[^<]* 5 policies", page)
    assert "data:image/png" in page
    kept = json.loads(again.stdout)
    assert kept["scored"] == 5
    assert len(kept["kept"]) == 2
    assert kept["front"]
    assert kept["area"] >= 0
    assert kept["kept"][0]["privacy"] <= kept["kept"][1]["privacy"]


def test_report_makes_the_page_of_a_search_again_without_scoring(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_search(read_search(file), out, engine=serial)
    settings, found = read_finished(out)
    assert settings == read_search(file)
    assert found == run_search(settings, out, engine=serial)
    done = RUN.invoke(app, ["report", str(out), "--out", str(tmp_path / "page.html")])
    assert done.exit_code == 0, done.output
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert found.selection.hybrid in page
    figure = RUN.invoke(app, ["report", str(out), "--figure", "policies.svg"])
    assert (figure.exit_code, (out / "policies.svg").is_file()) == (0, True)
    with pytest.raises(InputError, match="no policy search"):
        read_finished(tmp_path)


def test_a_comparison_says_at_once_that_optuna_is_missing(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    done = RUN.invoke(app, ["search", str(file), "--out", str(tmp_path / "out"), "--compare"])
    assert isinstance(done.exception, InputError)
    assert "leakscope[search]" in str(done.exception)
    assert not (tmp_path / "out").exists()


def test_a_cut_search_goes_on_to_the_same_scores(file: Path, tmp_path: Path) -> None:
    settings = read_search(file)
    whole = run_search(settings, tmp_path / "whole", engine=serial)
    lines: list[str] = []
    stop = lambda: sum("scored" in line for line in lines) >= 1  # noqa: E731
    cut = run_search(settings, tmp_path / "cut", engine=serial, say=lines.append, stop=stop)
    assert cut.left == 4
    lines.clear()
    ended = run_search(settings, tmp_path / "cut", engine=serial, say=lines.append)
    assert ended.left == 0
    assert [c.policy for c in ended.candidates] == [c.policy for c in whole.candidates]
    for one, other in zip(ended.candidates, whole.candidates, strict=True):
        assert one.privacy == pytest.approx(other.privacy, rel=1e-5)
    assert sum("scored" in line for line in lines) == 2  # the rest was scored before
    lines.clear()
    assert run_search(settings, tmp_path / "cut", say=lines.append) == ended
    assert lines == []


def test_more_candidates_go_on_and_other_settings_are_refused(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = run_search(read_search(file), out, engine=serial)
    file.write_text(SMALL.replace("candidates: 5", "candidates: 7"), encoding="utf-8")
    more = run_search(read_search(file), out, engine=serial)
    assert more.candidates[:5] == first.candidates
    assert len(more.candidates) == 7
    file.write_text(SMALL.replace("points: 3", "points: 4"), encoding="utf-8")
    with pytest.raises(InputError, match="holds another search"):
        run_search(read_search(file), out, engine=serial)


def test_policies_can_be_scored_by_an_attack(file: Path, tmp_path: Path) -> None:
    changed = SMALL.replace("candidates: 5", "candidates: 1") + "score: attack\niterations: 2\n"
    file.write_text(changed, encoding="utf-8")
    found = run_search(read_search(file), tmp_path / "out", engine=serial)
    assert 0 < found.candidates[0].privacy < 60, "decibels"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("candidates: 0", "random policies"),
        ("data: mnistt", "'mnist'"),
        ("data: breast_cancer", "holds tables"),
        ("kep: 3", "kep"),
        ("keep: many", "keep"),
        ("images: 5000", "up to number"),
        ("share: 2", "share must"),
        ("points: 1", "points .*least 2"),
        ("batches: 0", "batches .*least 1"),
    ],
)
def test_mistakes_name_the_field(line: str, words: str, file: Path, tmp_path: Path) -> None:
    key = line.split(":")[0]
    kept = "\n".join(each for each in SMALL.splitlines() if each.split(":")[0] != key)
    file.write_text(f"{kept}\n{line}\n", encoding="utf-8")
    done = RUN.invoke(app, ["search", str(file), "--out", str(tmp_path / "o")])
    assert isinstance(done.exception, InputError)
    assert re.search(words, str(done.exception))


def test_a_missing_file_gets_a_clear_line(tmp_path: Path) -> None:
    done = RUN.invoke(app, ["search", str(tmp_path / "none.yaml")])
    assert isinstance(done.exception, InputError)
    assert "cannot read" in str(done.exception)


def test_a_damaged_record_is_named(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_search(read_search(file), out, engine=serial)
    next((out / "scores").glob("*.json")).write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match="not readable"):
        run_search(read_search(file), out, engine=serial)


@pytest.mark.slow
def test_groups_may_be_scored_in_other_processes(file: Path, tmp_path: Path) -> None:
    settings = read_search(file)
    here = run_search(settings, tmp_path / "here", engine=serial)
    there = run_search(settings, tmp_path / "there", engine=processes(2))
    assert [c.policy for c in here.candidates] == [c.policy for c in there.candidates]
    for one, other in zip(here.candidates, there.candidates, strict=True):
        assert one.privacy == pytest.approx(other.privacy, rel=1e-5)
        assert one.accuracy == pytest.approx(other.accuracy, rel=1e-5)
