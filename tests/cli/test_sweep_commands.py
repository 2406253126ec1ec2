"""`run`, `schema`, `show`, `compare`, `export`, `report` as a user meets them: the words typed, the lines told, the exit code."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
import shlex
import sqlite3
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

from leakscope.cli import main
from leakscope.cli.run_progress import RunProgress
from leakscope.scenario.scenario import scenario_from_text
from leakscope.scenario.text import read_text
from leakscope.store import Landing, Run
from leakscope.sweep import Done
from leakscope.sweep.engines import LostChunkError, Note

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("[!t]*.yaml"))  # train_*.yaml are no scenarios
TINY: dict[str, Any] = {
    "data": "digits",
    "model": {"name": "mlp", "hidden": [16]},
    "weights": {"name": "uniform", "a": 0.3},
    "attack": {"name": "cpl", "iterations": 1},
    "defences": [{"name": "gaussian_noise", "sigma": 0}],
    "knowledge": {"defence": False},
    "trials": 2,
    "baselines": [],
    "precision": {"form": "native", "chunk": 1},
}
SWEEP: dict[str, Any] = {
    **TINY,
    "name": "two strengths",
    "baselines": ["class_mean"],
    "grid": {"defences.0.sigma": [0, 0.01]},
}


@dataclass(frozen=True, slots=True)
class Told:
    """How a command ended and what it said."""

    code: int
    out: str
    err: str


def leakscope(*words: object) -> Told:
    """Run the command line in this process, as `python -m leakscope` does in its own."""
    out, err = io.StringIO(), io.StringIO()
    before, sys.argv = sys.argv, ["leakscope", *map(str, words)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
        code = 0
    except SystemExit as ended:
        code = int(ended.code or 0)
    finally:
        sys.argv = before
    return Told(code, out.getvalue(), err.getvalue())


def write(path: Path, scenario: dict[str, Any] | str) -> Path:
    text = scenario if isinstance(scenario, str) else yaml.safe_dump(scenario, sort_keys=False, allow_unicode=True)
    path.write_text(text, encoding="utf-8")
    return path


def events(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]


def inside(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """No terminal, 100 columns, whatever the tests run in."""
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of SWEEP that is done: 2 cells of 2 trials and a baseline of 2."""
    where = tmp_path_factory.mktemp("finished")
    told = leakscope("run", write(where / "sweep.yaml", SWEEP), "--out", where / "run", "--quiet")
    assert told == Told(0, "", "")
    return where / "run"


# -- run


def test_run_makes_the_run_and_a_second_run_does_nothing(here: Path) -> None:
    write(here / "tiny.yaml", TINY)
    first = leakscope("run", "tiny.yaml")
    assert first.code == 0
    assert first.out == "runs/tiny: 2 trials, 2 of them now; leakscope show runs/tiny\n"
    assert "tiny: 2 trials; 2 chunks to run" in first.err
    assert "\x1b" not in first.err
    before = {path: path.stat().st_mtime_ns for path in (here / "runs/tiny/tensors").iterdir()}
    second = leakscope("run", "tiny.yaml")
    assert second.code == 0
    assert second.out == "runs/tiny: 2 trials, 0 of them now; leakscope show runs/tiny\n"
    assert "2 of them there already" in second.err
    assert {path: path.stat().st_mtime_ns for path in (here / "runs/tiny/tensors").iterdir()} == before
    run = Run.open(here / "runs/tiny")
    assert len(run.done()) == 2
    assert run.facts()["command"] == "leakscope run tiny.yaml"


@pytest.mark.slow
def test_lines_without_a_terminal_say_how_it_ended(here: Path) -> None:
    told = leakscope("run", write(here / "sweep.yaml", SWEEP), "--engine", "serial")
    lines = told.err.splitlines()
    assert any(line.startswith("two strengths: 6 trials; ") for line in lines)
    assert lines[-1].startswith("6/6 done, ")
    assert " converged, " in lines[-1]
    assert " diverged, " in lines[-1]
    assert "\r" not in told.err


def test_a_terminal_gets_a_live_bar(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    told = leakscope("run", write(here / "sweep.yaml", SWEEP), "--engine", "serial")
    assert told.code == 0
    assert "━" in told.err
    assert "\x1b[2K" in told.err  # lines are drawn over
    assert "6/6 done, " in told.err
    assert "g1-c1 step " in told.err


def test_quiet_says_nothing(here: Path) -> None:
    assert leakscope("run", write(here / "tiny.yaml", TINY), "--quiet") == Told(0, "", "")
    assert leakscope("run", here / "tiny.yaml", "-q") == Told(0, "", "")
    assert len(Run.open(here / "runs/tiny").done()) == 2


def test_quiet_still_tells_mistakes(here: Path) -> None:
    told = leakscope("run", write(here / "bad.yaml", {**TINY, "trials": 0}), "--quiet")
    assert (told.code, told.out) == (2, "")
    assert "trials" in told.err


@pytest.mark.slow
def test_the_json_log_tells_the_whole_story(here: Path) -> None:
    log, file = here / "log.jsonl", write(here / "sweep.yaml", SWEEP)
    leakscope("run", file, "--engine", "serial", "--log-json", log)
    told = events(log)
    landed = [event for event in told if event["event"] == "landed"]
    (planned,) = [event for event in told if event["event"] == "planned"]
    assert (planned["wanted"], planned["before"], planned["chunks"]) == (6, 0, len(landed))
    assert sum(event["trials"] for event in landed) == landed[-1]["done"] == 6
    last = told[-1]
    assert (last["event"], last["wanted"], last["before"], last["landed"], last["left"]) == ("ended", 6, 0, 6, 0)
    assert sum(last["outcomes"].values()) == 6
    assert [event["time"] for event in told] == sorted(event["time"] for event in told)
    leakscope("run", file, "--log-json", log)
    again = events(log)[len(told) :]  # added to, not overwritten
    assert [event["event"] for event in again] == ["planned", "ended"]
    assert (again[-1]["before"], again[-1]["landed"], again[-1]["left"]) == (6, 0, 0)


def test_a_log_that_cannot_be_written_any_more_does_not_end_the_run(here: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    told = leakscope("run", write(here / "tiny.yaml", TINY), "--log-json", "/dev/full")
    assert told.code == 0
    assert told.err.count("--log-json cannot be written any more") == 1
    assert "Traceback" not in told.err


def test_a_refused_run_ends_its_log_with_why(here: Path) -> None:
    (here / "taken").mkdir()
    (here / "taken/notes.txt").write_text("mine")
    told = leakscope("run", write(here / "t.yaml", TINY), "--out", "taken", "--log-json", "log.jsonl")
    assert told.code == 2
    last = events(here / "log.jsonl")[-1]
    assert last["event"] == "failed"
    assert told.err.splitlines()[-1] == f"leakscope: {last['line']}"


def test_a_dry_run_prints_the_plan_and_writes_nothing(here: Path) -> None:
    scenario = {**SWEEP, "attacks": [{"name": "cpl", "iterations": 1}, {"name": "dlg", "iterations": 1}]}
    del scenario["attack"]
    write(here / "sweep.yaml", scenario)
    told = leakscope("run", "sweep.yaml", "--dry-run", "--out", "r", "--log-json", "log.jsonl")
    assert told.code == 0
    assert told.err.startswith("measuring group 1 of ")
    assert inside(here) == ["sweep.yaml"]
    lines = told.out.splitlines()
    assert lines[0] == "two strengths: 10 trials in 5 cells, 9 chunks"
    assert "  axis attack: cpl, dlg" in lines
    assert "  axis defences.0.sigma: 0, 0.01" in lines
    assert "  group g1: 2 cells, 4 trials in 4 chunks of at most 1, form native, 1 thread each" in lines
    assert "  null baselines: class_mean: 2 trials in 1 chunk" in lines
    assert lines[-1].endswith("if none stops early; nothing was written")
    assert lines[-1].startswith(("under a second", "at most about "))


def test_a_dry_run_says_what_is_there_already(here: Path, finished: Path) -> None:
    told = leakscope("run", write(here / "s.yaml", {**SWEEP, "trials": 3}), "--dry-run", "--out", finished)
    assert f"{finished} holds 6 of these trials already" in told.out
    assert told.out.startswith("two strengths: 9 trials in 3 cells")
    assert len(Run.open(finished).done()) == 6
    assert len(Run.open(finished).plans()) == 1


def test_a_plan_of_many_groups_and_points_stays_readable(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leakscope.cli.run.MOST_LINES", 2)
    monkeypatch.setattr("leakscope.cli.run.MOST_POINTS", 3)
    file = write(here / "wide.yaml", {**TINY, "trials": 1, "grid": {"model.hidden": [[1], [2], [3], [4]]}})
    lines = leakscope("run", file, "--dry-run").out.splitlines()
    assert "  axis model.hidden: 1, 2, 3, ... (4 in all)" in lines
    assert sum(line.startswith("  group g") for line in lines) == 2
    assert "  and 2 more groups" in lines


@pytest.mark.slow
def test_a_changed_scenario_keeps_what_still_applies(here: Path) -> None:
    write(here / "s.yaml", TINY)
    leakscope("run", "s.yaml", "-q")
    write(here / "s.yaml", {**TINY, "trials": 3})
    told = leakscope("run", "s.yaml", "--engine", "serial")
    assert told.out == "runs/s: 3 trials, 1 of them now; leakscope show runs/s\n"


def test_paths_with_spaces_are_quoted_for_the_shell(here: Path) -> None:
    (here / "my runs").mkdir()
    write(here / "my runs/a scenario.yaml", TINY)
    told = leakscope("run", "my runs/a scenario.yaml", "--out", "my runs/it's", "--engine", "serial")
    assert told.out.endswith("leakscope show 'my runs/it'\"'\"'s'\n")
    command = Run.open(here / "my runs/it's").facts()["command"]
    words = ["leakscope", "run", "my runs/a scenario.yaml", "--out", "my runs/it's", "--engine", "serial"]
    assert shlex.split(command) == words


def test_a_warning_is_a_sentence_among_the_lines() -> None:
    err = io.StringIO()
    with contextlib.redirect_stderr(err), RunProgress("title"):
        warnings.warn("the loop is slow", stacklevel=1)
    assert err.getvalue() == "warning: the loop is slow\n"
    with contextlib.redirect_stderr(err), RunProgress("title", quiet=True):
        warnings.warn("the loop is slow", stacklevel=1)
    assert err.getvalue().count("\n") == 1


def test_a_lost_worker_is_told_at_once() -> None:
    err = io.StringIO()
    with contextlib.redirect_stderr(err), RunProgress("title") as progress:
        progress.noted(Note("g1-c2", note="worker lost (ended by SIGKILL); trying again, 1 of 2"))
    assert err.getvalue() == "g1-c2: worker lost (ended by SIGKILL); trying again, 1 of 2\n"


def test_a_note_that_comes_after_its_chunk_counts_nothing_twice(tmp_path: Path) -> None:
    err = io.StringIO()
    with contextlib.redirect_stderr(err), RunProgress("title", log=tmp_path / "log") as progress:
        progress.planned(4, 0, 2, 0.0)
        for chunk, landed in (("g1-c1", 2), ("g1-c2", 4)):
            progress.noted(Note(chunk, total=2, done=2, converged=2))
            landing = SimpleNamespace(chunk=chunk, records=(), seconds=0.1)
            progress.landed(cast(Landing, landing), Done(4, 0, landed, outcomes={"converged": landed}))
            progress.noted(Note(chunk, total=2, done=2, converged=2))
    assert err.getvalue().splitlines()[-1].startswith("4/4 done, 4 converged, 0 diverged")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (LostChunkError("chunk g1-c1 was given up"), "chunk g1-c1 was given up"),
        (OSError(28, "No space left on device"), "disk full while working in r"),
        (OSError(5, "Input/output error"), "Input/output error"),
    ],
)
def test_trouble_with_the_machine_is_one_line_with_the_command_to_go_on(
    here: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, words: str
) -> None:
    from leakscope.sweep import chunk

    def broken(*_: object) -> None:
        raise error

    write(here / "t.yaml", TINY)
    with monkeypatch.context() as patch:
        patch.setattr(chunk, "_attack", broken)
        told = leakscope("run", "t.yaml", "--out", "r", "--quiet", "--engine", "serial")
    assert told.code == 2
    (line,) = told.err.splitlines()
    assert words in line
    assert line.endswith("; what has landed is saved; go on with: leakscope run t.yaml --out r --engine serial")
    assert leakscope("run", "t.yaml", "--out", "r", "--engine", "serial").code == 0


# -- mistakes


BROKEN = """\
name: broken
data: {name: digitz}
model: {name: mlp, hiden: [16]}
attacks:
  - {name: cpl, iterations: one}
  - gdl
defences: [{name: gaussian_noise, sigma: -1}]
trials: 0
grid:
  defences.1.sigma: [0, 0.01]
  data.part: [tset]
colour: red
"""


def test_a_broken_scenario_tells_every_mistake_with_its_line_and_writes_nothing(here: Path) -> None:
    write(here / "broken.yaml", BROKEN)
    told = leakscope("run", "broken.yaml", "--log-json", "log.jsonl")
    assert (told.code, told.out) == (2, "")
    places = [line.split(": ")[1:3] for line in told.err.splitlines()]
    assert places == [
        ["broken.yaml:2", "data"],
        ["broken.yaml:3", "model.hiden"],
        ["broken.yaml:5", "attacks.0.iterations"],
        ["broken.yaml:6", "attacks.1"],
        ["broken.yaml:7", "defences.0.sigma"],
        ["broken.yaml:8", "trials"],
        ["broken.yaml:10", "grid.defences.1.sigma"],
        ["broken.yaml:11", "grid.data.part.0"],
        ["broken.yaml:12", "colour"],
    ]
    assert all(line.startswith("leakscope: ") for line in told.err.splitlines())
    for near in ("did you mean 'digits'", "did you mean 'hidden'", "did you mean 'dlg'"):
        assert near in told.err
    assert inside(here) == ["broken.yaml"]


def test_what_does_not_fit_the_data_is_told_with_its_line_and_writes_nothing(here: Path) -> None:
    told = leakscope("run", write(here / "big.yaml", "data: digits\nmodel: linear\nattack: cpl\ntrials: 9999\n"))
    assert told.code == 2
    assert "big.yaml:4: trials: 9,999 examples are asked for" in told.err
    assert inside(here) == ["big.yaml"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--engine", "dask"], "--engine must be one of local, serial, ray, got 'dask'"),
        (["--engine", "dask", "--dry-run"], "--engine must be one of local, serial, ray, got 'dask'"),
        (["--address", "10.0.0.1:6379"], "--address is for --engine ray, got it with --engine local"),
        (["--workers", "2", "--engine", "serial"], "--workers is for --engine local, got it with --engine serial"),
        (["--memory", "4X"], "--memory must be a size such as 500M or 4G, got '4X'"),
        (["--memory", "0"], "--memory must be a size"),
        (["--memory", "-1G"], "--memory must be a size"),
        (["--memory", "9" * 400], "--memory must be a size"),
        (["--memory", "1K"], "the memory limit is"),
        (["--device", "tpu"], "--device must be cpu or cuda, got 'tpu'"),
        (["--log-json", "no/such/log"], "--log-json no/such/log cannot be written (No such file or directory)"),
        (["--out", "t.yaml"], "t.yaml is a file; a run needs a directory"),
        (["--out", "taken"], "taken is not empty"),
    ],
    ids=lambda value: value[0] + "=" + value[1][:8] if isinstance(value, list) else "",
)
def test_a_mistake_on_the_command_line_is_one_clear_line(here: Path, words: list[str], said: str) -> None:
    write(here / "t.yaml", TINY)
    (here / "taken").mkdir()
    (here / "taken/notes.txt").write_text("mine")
    before = inside(here)
    told = leakscope("run", "t.yaml", "--quiet", *words)
    assert (told.code, told.out) == (2, "")
    (line,) = told.err.splitlines()
    assert line.startswith("leakscope: ")
    assert said in line
    assert inside(here) == before


def test_cuda_without_cuda_is_one_clear_line(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    told = leakscope("run", write(here / "t.yaml", TINY), "--device", "cuda")
    assert told.code == 2
    assert told.err == "leakscope: --device cuda: PyTorch finds no CUDA device here; --device cpu runs everywhere\n"
    assert inside(here) == ["t.yaml"]


def test_a_missing_scenario_is_one_clear_line(here: Path) -> None:
    told = leakscope("run", "missing.yaml")
    assert told == Told(2, "", "leakscope: cannot read the scenario missing.yaml (No such file or directory)\n")


@pytest.mark.parametrize("command", [["show"], ["export"], ["report"], ["serve"], ["compare", "missing"]])
@pytest.mark.parametrize(
    ("where", "said"), [("missing", "there is no such directory"), (".", "it holds no records.sqlite")]
)
def test_what_is_no_run_is_refused_by_every_command(here: Path, command: list[str], where: str, said: str) -> None:
    told = leakscope(*command, where)
    assert (told.code, told.out) == (2, "")
    (line,) = told.err.splitlines()
    assert line.startswith("leakscope: ")
    assert "is not a run" in line
    assert said in line or command[0] == "compare"
    assert inside(here) == []


def test_a_run_of_another_format_is_refused_by_name(here: Path) -> None:
    write(here / "t.yaml", TINY)
    leakscope("run", "t.yaml", "--out", "r", "-q")
    with contextlib.closing(sqlite3.connect(here / "r/records.sqlite")) as database:
        database.execute("PRAGMA user_version = 99")
        database.execute("UPDATE about SET value = '7.5.0' WHERE key = 'leakscope'")
        database.commit()
    for words in (["run", "t.yaml", "--out", "r", "-q"], ["show", "r"], ["export", "r"], ["report", "r"]):
        told = leakscope(*words)
        assert (told.code, told.out) == (2, "")
        assert "r was written by leakscope 7.5.0 in format 99" in told.err
        assert len(told.err.splitlines()) == 1


# -- what one does with a run


def test_show_has_a_row_for_every_cell(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "90")
    told = leakscope("show", finished)
    assert (told.code, told.err) == (0, "")
    head, *rows = [line.split() for line in told.out.splitlines() if line.strip() and "─" not in line]
    assert head == ["attack", "sigma", "n", "content", "conv.", "label", "MSE", "SSIM", "steps"]
    assert [row[:3] for row in rows[:2]] == [["cpl", "0", "2"], ["cpl", "0.01", "2"]]
    assert rows[2][0] == "(class"
    assert "95 % interval" in told.out


def test_show_counts_what_the_records_say(finished: Path) -> None:
    run = Run.open(finished)
    first = next(cell for cell in run.cells() if cell.axes.get("defences.0.sigma") == 0)
    records = list(run.records(cell=first.id))
    rate = sum(record.samples[0].recovered for record in records) / len(records)
    row = next(line for line in leakscope("show", finished).out.splitlines() if line.split()[:2] == ["cpl", "0"])
    assert row.split()[3:5] == [f"{100 * rate:.0f}", "%"]


@pytest.mark.slow
def test_show_by_an_axis_pools_the_others_and_says_so(here: Path) -> None:
    grid = {"defences.0.sigma": [0, 0.01], "model.hidden": [[8], [16]]}
    leakscope("run", write(here / "g.yaml", {**TINY, "grid": grid}), "-q")
    one = leakscope("show", "runs/g", "--by", "defences.0.sigma").out
    assert [line.split()[:3] for line in one.splitlines() if line.strip().startswith("cpl")] == [
        ["cpl", "0", "4"],
        ["cpl", "0.01", "4"],
    ]
    assert "pooled over model.hidden" in one
    both = leakscope("show", "runs/g", "--by", "model.hidden", "--by", "defences.0.sigma").out
    assert sum(line.strip().startswith("cpl") for line in both.splitlines()) == 4
    assert "pooled" not in both
    told = leakscope("show", "runs/g", "--by", "sigma")
    assert (told.code, told.out) == (2, "")
    assert "--by 'sigma' is no axis of this run; its axes: defences.0.sigma, model.hidden" in told.err


def test_a_wide_terminal_shows_outcomes_too(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    out = leakscope("show", finished).out
    assert "outcomes" in out
    assert "converged" in out or "exhausted" in out
    assert "exhausted" not in next(line for line in out.splitlines() if "class mean" in line)


def test_a_narrow_terminal_drops_columns_rather_than_letters(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heads = {}
    for columns in (56, 70, 90, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        out = leakscope("show", finished).out
        heads[columns] = next(line for line in out.splitlines() if "attack" in line).split()
        assert max(map(len, out.splitlines())) <= columns
        assert ("a wider terminal shows more columns" in " ".join(out.split())) == (columns < 90)
        assert {"attack", "sigma", "n", "content", "MSE"} <= set(heads[columns])
    assert len(heads[56]) < len(heads[70]) < len(heads[90]) < len(heads[200])
    monkeypatch.delenv("COLUMNS")
    piped = leakscope("show", finished).out
    assert next(line for line in piped.splitlines() if "attack" in line).split() == heads[200]


def test_show_of_a_run_in_which_nothing_landed(here: Path) -> None:
    Run.create(here / "r", "name: x\n", {"leakscope": "0"})
    assert leakscope("show", "r") == Told(0, "no trial has landed yet\n", "")


@pytest.mark.slow
def test_compare_shows_the_shared_cells_side_by_side(here: Path, finished: Path) -> None:
    other = {**SWEEP, "name": "another name", "baselines": [], "grid": {"defences.0.sigma": [0.01, 0.5]}, "trials": 3}
    leakscope("run", write(here / "o.yaml", other), "-q")
    told = leakscope("compare", finished, "runs/o")
    assert (told.code, told.err) == (0, "")
    rows = [line.split() for line in told.out.splitlines() if line.strip().startswith("cpl")]
    assert [row[:4] for row in rows] == [["cpl", "0.01", "2", "3"]]
    joined = " ".join(told.out.split())
    assert f"A is {finished}, B is runs/o" in joined or str(finished).split("/")[-1] in joined
    assert "cells in A alone: 2, in B alone: 1" in joined


def test_compare_of_runs_without_a_shared_cell_is_a_clear_line(here: Path, finished: Path) -> None:
    leakscope("run", write(here / "o.yaml", {**TINY, "model": {"name": "mlp", "hidden": [4]}}), "-q")
    told = leakscope("compare", finished, "runs/o")
    assert (told.code, told.out) == (2, "")
    assert told.err == f"leakscope: {finished} and runs/o share no cell: no settings are equal in both\n"


def test_exports_hold_a_row_for_every_sample(finished: Path, here: Path) -> None:
    trials = Run.open(finished).done()
    told = leakscope("export", finished)
    assert told == Told(0, f"{finished}/records.csv\n", "")
    with (finished / "records.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["trial"] for row in rows} == trials
    assert {row["axis.defences.0.sigma"] for row in rows if row["baseline"] == "false"} == {"0.0", "0.01"}
    leakscope("export", finished, "--to", "json", "--out", "r.json")
    assert {row["trial"] for row in json.loads((here / "r.json").read_text(encoding="utf-8"))} == trials
    parquet = pytest.importorskip("pyarrow.parquet")
    assert leakscope("export", finished, "--to", "parquet", "--out", "r.parquet").code == 0
    assert set(parquet.read_table(here / "r.parquet")["trial"].to_pylist()) == trials


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--to", "xlsx"], "unknown export format 'xlsx'"),
        (["--out", "."], "is a directory"),
        (["--out", "no/such/records.csv"], "cannot write"),
    ],
)
def test_an_export_that_cannot_be_is_one_clear_line(here: Path, finished: Path, words: list[str], said: str) -> None:
    told = leakscope("export", finished, *words)
    assert (told.code, told.out) == (2, "")
    (line,) = told.err.splitlines()
    assert said in line
    assert inside(here) == []


def test_report_writes_the_page_with_its_headline_and_command(finished: Path, here: Path) -> None:
    from leakscope.report.serving import page_of_directory

    assert leakscope("report", finished) == Told(0, f"{finished}/report.html\n", "")
    page = (finished / "report.html").read_text(encoding="utf-8")
    assert "two strengths" in page
    assert page_of_directory(finished, command="").headline in page
    leakscope("report", finished, "--out", "a page.html")
    assert (here / "a page.html").stat().st_size > 1000
    told = leakscope("report", finished, "--out", "a page.html/inside.html")
    assert (told.code, told.out) == (2, "")
    assert "--out a page.html/inside.html cannot be written" in told.err


# -- schema


def test_the_schema_is_json_and_knows_every_field(here: Path) -> None:
    told = leakscope("schema")
    assert (told.code, told.err) == (0, "")
    schema = json.loads(told.out)
    assert leakscope("schema", "--out", "schema.json") == Told(0, "", "")
    assert json.loads((here / "schema.json").read_text(encoding="utf-8")) == schema
    for path in EXAMPLES:
        assert set(yaml.safe_load(path.read_text(encoding="utf-8"))) <= set(schema["properties"]), path.name
    assert leakscope("schema", "--out", "no/such.json").code == 2


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_examples_fit_the_schema(path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(json.loads(leakscope("schema").out))
    assert not list(validator.iter_errors(read_text(path.read_text(encoding="utf-8")).data))


def test_a_broken_scenario_does_not_fit_the_schema() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(json.loads(leakscope("schema").out))
    assert not list(validator.iter_errors({**SWEEP, "data": {"name": "digits"}}))
    wrong = {
        str(error.absolute_path[0]) for error in validator.iter_errors(read_text(BROKEN).data) if error.absolute_path
    }
    assert {"model", "attacks", "trials"} <= wrong


# -- names that try to be more than names


NAMES = [
    "<script>alert(1)</script>",
    "[bold]loud[/bold] [/] [red",
    ":smile: {state} %s \\n",
    "Größe Ω 日本 🔒",
    "\x1b[2J\x1b]0;owned\x07 bell",
    "right\u202eto left",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES, ids=["html", "markup", "codes", "unicode", "escape", "bidi"])
def test_names_stay_names(here: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = {
        **TINY,
        "name": name,
        "trials": 1,
        "attacks": [{"name": "cpl", "iterations": 1, "label": name}, "analytic"],
    }
    del scenario["attack"]
    write(here / "s.yaml", scenario)
    seen = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)
    monkeypatch.setenv("COLUMNS", "200")
    dry = leakscope("run", "s.yaml", "--dry-run")
    assert dry.out.startswith(f"{seen}: 2 trials")
    assert f"  axis attack: {seen}, analytic" in dry.out
    told = leakscope("run", "s.yaml")
    assert told.code == 0
    assert f"\n{seen}: 2 trials" in f"\n{told.err}"
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert seen in leakscope("run", "s.yaml").err
    monkeypatch.delenv("FORCE_COLOR")
    for words in (["show", "runs/s"], ["compare", "runs/s", "runs/s"], ["show", "runs/s", "--by", "attack"]):
        shown = leakscope(*words)
        assert shown.code == 0
        assert seen in shown.out
        assert "\x1b" not in shown.out
    for words in (["export", "runs/s"], ["report", "runs/s"]):
        assert leakscope(*words).code == 0


def test_axes_that_look_like_markup_stay_text(here: Path) -> None:
    zipped = {"data.first": [0, 1], "attack.label": ["[bold]a", "b[/bold]"]}
    leakscope("run", write(here / "z.yaml", {**TINY, "trials": 1, "zip": zipped}), "-q")
    shown = leakscope("show", "runs/z")
    assert shown.code == 0
    assert "[bold]a" in " ".join(shown.out.split())
    assert "b[/bold]" in shown.out


# -- cold start


def test_help_imports_nothing_heavy_and_names_every_command() -> None:
    code = (
        "import sys\n"
        "from leakscope.cli import main\n"
        "sys.argv = ['leakscope', '--help']\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'numpy', 'scipy', 'pydantic', 'yaml', 'PIL', 'jinja2', 'safetensors', 'sqlite3', 'ray', 'pyarrow'}\n"
        "print('heavy:', *sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.endswith("heavy:\n")
    for command in ("run", "schema", "show", "compare", "export", "report", "serve"):
        assert f" {command} " in done.stdout


DOCUMENT = (Path(__file__).parents[2] / "docs/scenarios.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)


def test_the_document_names_every_field_and_command() -> None:
    for name in json.loads(leakscope("schema").out)["properties"]:
        assert f"| `{name}` |" in DOCUMENT, name
    for command in ("run", "schema", "show", "compare", "export", "report", "serve"):
        assert f"leakscope {command}" in DOCUMENT, command


def test_the_defaults_in_the_document_are_those_of_the_file() -> None:
    base = scenario_from_text("data: digits\nmodel: mlp\nattack: cpl\n").bases[0]
    for name in ("weights", "client", "defences", "knowledge", "trials", "seeds", "baselines", "precision"):
        (said,) = re.findall(rf"^\| `{name}` \| `(.+?)` \|", DOCUMENT, re.MULTILINE)
        assert yaml.safe_load(said) == base[name], name


def test_the_scenarios_in_the_document_are_read_and_the_broken_one_is_told_as_written(here: Path) -> None:
    told = [text for language, text in BLOCKS if language == "text"]
    for number, (language, text) in enumerate(BLOCKS):
        if language != "yaml":
            continue
        if BLOCKS[number + 1][0] == "text":
            write(here / "broken.yaml", text)
            assert leakscope("run", "broken.yaml").err == told.pop()
        else:
            assert scenario_from_text(text).cell_count >= 1
    assert not told
