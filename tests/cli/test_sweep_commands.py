"""`run`, `schema`, `show`, `compare`, `export`, `report` as a user meets them: the words typed, the lines printed, the exit code."""

from __future__ import annotations

import contextlib
import csv
import errno
import io
import json
import os
import re
import shlex
import sqlite3
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

from command_line import TINY, Output, events, leakscope, numbers_in, write
from leakscope.cli.progress import RunProgress
from leakscope.cli.results import MORE, NO_TRIAL
from leakscope.scenario.scenario import scenario_from_text
from leakscope.scenario.text import read_text
from leakscope.store import Landing, Run
from leakscope.sweep import Done
from leakscope.sweep.engines import LostChunkError, Note

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("[!t]*.yaml"))  # train_*.yaml are no scenarios
SWEEP: dict[str, Any] = {
    **TINY,
    "attack": {"name": "cpl", "iterations": 1},
    "name": "two strengths",
    "baselines": ["class_mean"],
    "grid": {"defences.0.sigma": [0, 0.01]},
}
SPACES = "my runs/it's"
SLOW = "the loop is slow"
LOST = "worker lost (ended by SIGKILL); trying again, 1 of 2"


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
    output = leakscope("run", write(where / "sweep.yaml", SWEEP), "--out", where / "run", "--quiet")
    assert output == Output(0, "", "")
    return where / "run"


# -- run


def test_run_makes_the_run_and_a_second_run_does_nothing(here: Path) -> None:
    write(here / "tiny.yaml", TINY)
    first = leakscope("run", "tiny.yaml")
    assert first.code == 0
    assert first.out.startswith("runs/tiny: ")
    assert first.out.endswith("leakscope show runs/tiny\n")
    assert numbers_in(first.out) == [2, 2]  # trials, now
    assert [numbers_in(line)[:2] for line in first.err.splitlines() if line.startswith("tiny: ")] == [
        [2, 2]
    ]  # and chunks
    assert "\x1b" not in first.err
    before = {path: path.stat().st_mtime_ns for path in (here / "runs/tiny/tensors").iterdir()}
    second = leakscope("run", "tiny.yaml")
    assert second.code == 0
    assert numbers_in(second.out) == [2, 0]
    stored = [numbers_in(line)[:3] for line in second.err.splitlines() if line.startswith("tiny: ")]
    assert stored == [[2, 2, 0]]  # trials, stored already, chunks
    assert {path: path.stat().st_mtime_ns for path in (here / "runs/tiny/tensors").iterdir()} == before
    run = Run.open(here / "runs/tiny")
    assert len(run.done()) == 2
    assert run.facts()["command"] == "leakscope run tiny.yaml"


@pytest.mark.slow
def test_lines_without_a_terminal_say_how_it_ended(here: Path) -> None:
    output = leakscope("run", write(here / "sweep.yaml", SWEEP), "--engine", "serial")
    lines = output.err.splitlines()
    assert [numbers_in(line)[0] for line in lines if line.startswith(f"{SWEEP['name']}: ")] == [6]
    assert lines[-1].startswith("6/6 done, ")
    assert " converged, " in lines[-1]
    assert " diverged, " in lines[-1]
    assert "\r" not in output.err


def test_a_terminal_gets_a_live_bar(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    output = leakscope("run", write(here / "sweep.yaml", SWEEP), "--engine", "serial")
    assert output.code == 0
    assert "━" in output.err
    assert "\x1b[2K" in output.err  # lines are drawn over
    assert "6/6 done, " in output.err
    assert "g1-c1 step " in output.err


def test_quiet_says_nothing(here: Path) -> None:
    assert leakscope("run", write(here / "tiny.yaml", TINY), "--quiet") == Output(0, "", "")
    assert leakscope("run", here / "tiny.yaml", "-q") == Output(0, "", "")
    assert len(Run.open(here / "runs/tiny").done()) == 2


def test_quiet_still_tells_mistakes(here: Path) -> None:
    output = leakscope("run", write(here / "bad.yaml", {**TINY, "trials": 0}), "--quiet")
    assert (output.code, output.out) == (2, "")
    assert "trials" in output.err


@pytest.mark.slow
def test_the_json_log_tells_the_whole_story(here: Path) -> None:
    log, file = here / "log.jsonl", write(here / "sweep.yaml", SWEEP)
    leakscope("run", file, "--engine", "serial", "--log-json", log)
    output = events(log)
    landed = [event for event in output if event["event"] == "landed"]
    (planned,) = [event for event in output if event["event"] == "planned"]
    assert (planned["wanted"], planned["before"], planned["chunks"]) == (6, 0, len(landed))
    assert sum(event["trials"] for event in landed) == landed[-1]["done"] == 6
    last = output[-1]
    assert (last["event"], last["wanted"], last["before"], last["landed"], last["left"]) == ("ended", 6, 0, 6, 0)
    assert sum(last["outcomes"].values()) == 6
    assert [event["time"] for event in output] == sorted(event["time"] for event in output)
    leakscope("run", file, "--log-json", log)
    again = events(log)[len(output) :]  # added to, not overwritten
    assert [event["event"] for event in again] == ["planned", "ended"]
    assert (again[-1]["before"], again[-1]["landed"], again[-1]["left"]) == (6, 0, 0)


def test_a_log_that_cannot_be_written_any_more_does_not_end_the_run(here: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    output = leakscope("run", write(here / "tiny.yaml", TINY), "--log-json", "/dev/full")
    assert output.code == 0
    assert output.err.count("--log-json") == 1
    assert "Traceback" not in output.err


def test_a_refused_run_ends_its_log_with_why(here: Path) -> None:
    (here / "taken").mkdir()
    (here / "taken/notes.txt").write_text("mine")
    output = leakscope("run", write(here / "t.yaml", TINY), "--out", "taken", "--log-json", "log.jsonl")
    assert output.code == 2
    last = events(here / "log.jsonl")[-1]
    assert last["event"] == "failed"
    assert output.err.splitlines()[-1] == f"leakscope: {last['line']}"


def test_a_dry_run_prints_the_plan_and_writes_nothing(here: Path) -> None:
    scenario = {**SWEEP, "attacks": [{"name": "cpl", "iterations": 1}, {"name": "dlg", "iterations": 1}]}
    del scenario["attack"]
    write(here / "sweep.yaml", scenario)
    output = leakscope("run", "sweep.yaml", "--dry-run", "--out", "r", "--log-json", "log.jsonl")
    assert output.code == 0
    assert output.err.startswith("measuring")
    assert inside(here) == ["sweep.yaml"]
    lines = output.out.splitlines()
    assert numbers_in(lines[0]) == [10, 5, 9]  # trials, cells, chunks
    axes = dict(line.removeprefix("  axis ").split(": ") for line in lines if line.startswith("  axis "))
    assert axes == {"attack": "cpl, dlg", "defences.0.sigma": "0, 0.01"}
    group = next(line for line in lines if line.startswith("  group g1: "))
    assert numbers_in(group.partition(": ")[2]) == [2, 4, 4, 1, 1]  # cells, trials, chunks, at most, threads
    assert "form native" in group
    baselines = next(line for line in lines if "class_mean" in line)
    assert numbers_in(baselines) == [2, 1]  # trials, chunks
    assert lines[-1].startswith(("under a second", "at most about "))


def test_a_dry_run_says_what_is_there_already(here: Path, finished: Path) -> None:
    output = leakscope("run", write(here / "s.yaml", {**SWEEP, "trials": 3}), "--dry-run", "--out", finished)
    stored = next(line for line in output.out.splitlines() if line.startswith(f"{finished} "))
    assert numbers_in(stored.removeprefix(str(finished))) == [6]
    assert numbers_in(output.out.splitlines()[0])[:2] == [9, 3]  # trials, cells
    assert len(Run.open(finished).done()) == 6
    assert len(Run.open(finished).plans()) == 1


def test_a_plan_of_many_groups_and_points_stays_readable(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leakscope.cli.run.MOST_LINES", 2)
    monkeypatch.setattr("leakscope.cli.run.MOST_POINTS", 3)
    file = write(here / "wide.yaml", {**TINY, "trials": 1, "grid": {"model.hidden": [[1], [2], [3], [4]]}})
    lines = leakscope("run", file, "--dry-run").out.splitlines()
    assert [numbers_in(line) for line in lines if line.startswith("  axis model.hidden: ")] == [[1, 2, 3, 4]]
    assert sum(line.startswith("  group g") for line in lines) == 2
    assert [numbers_in(line) for line in lines if line.startswith("  and ")] == [[2]]


@pytest.mark.slow
def test_a_changed_scenario_keeps_what_still_applies(here: Path) -> None:
    write(here / "s.yaml", TINY)
    leakscope("run", "s.yaml", "-q")
    write(here / "s.yaml", {**TINY, "trials": 3})
    output = leakscope("run", "s.yaml", "--engine", "serial")
    assert numbers_in(output.out) == [3, 1]  # trials, now


def test_paths_with_spaces_are_quoted_for_the_shell(here: Path) -> None:
    (here / "my runs").mkdir()
    write(here / "my runs/a scenario.yaml", TINY)
    output = leakscope("run", "my runs/a scenario.yaml", "--out", SPACES, "--engine", "serial")
    assert output.out.endswith(f"leakscope show {shlex.quote(SPACES)}\n")
    command = Run.open(here / SPACES).facts()["command"]
    words = ["leakscope", "run", "my runs/a scenario.yaml", "--out", SPACES, "--engine", "serial"]
    assert shlex.split(command) == words


def test_a_warning_is_a_sentence_among_the_lines() -> None:
    err = io.StringIO()
    with contextlib.redirect_stderr(err), RunProgress("title"):
        warnings.warn(SLOW, stacklevel=1)
    assert err.getvalue() == f"warning: {SLOW}\n"
    with contextlib.redirect_stderr(err), RunProgress("title", quiet=True):
        warnings.warn(SLOW, stacklevel=1)
    assert err.getvalue().count("\n") == 1


def test_a_lost_worker_is_told_at_once() -> None:
    err = io.StringIO()
    with contextlib.redirect_stderr(err), RunProgress("title") as progress:
        progress.noted(Note("g1-c2", note=LOST))
    assert err.getvalue() == f"g1-c2: {LOST}\n"


def test_a_note_that_comes_after_its_chunk_counts_nothing_twice(tmp_path: Path) -> None:
    err = io.StringIO()
    with contextlib.redirect_stderr(err), RunProgress("title", log=tmp_path / "log") as progress:
        progress.planned(4, 0, 2, 0.0)
        for chunk, landed in (("g1-c1", 2), ("g1-c2", 4)):
            progress.noted(Note(chunk, total=2, done=2, converged=2))
            landing = SimpleNamespace(chunk=chunk, records=(), seconds=0.1)
            progress.landed(cast(Landing, landing), Done(Run(tmp_path), 4, 0, landed, outcomes={"converged": landed}))
            progress.noted(Note(chunk, total=2, done=2, converged=2))
    assert numbers_in(err.getvalue().splitlines()[-1])[:4] == [4, 4, 4, 0]  # done, wanted, converged, diverged


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (LostChunkError("chunk g1-c1 was given up"), "chunk g1-c1 "),
        (OSError(28, "No space left on device"), "disk full .* r"),
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
        patch.setattr(chunk, "_attacked", broken)
        output = leakscope("run", "t.yaml", "--out", "r", "--quiet", "--engine", "serial")
    assert output.code == 2
    (line,) = output.err.splitlines()
    assert re.search(words, line)
    again = ("run", "t.yaml", "--out", "r", "--engine", "serial")
    assert line.endswith(f": leakscope {' '.join(again)}")
    assert leakscope(*again).code == 0


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
    output = leakscope("run", "broken.yaml", "--log-json", "log.jsonl")
    assert (output.code, output.out) == (2, "")
    places = [line.split(": ")[1:3] for line in output.err.splitlines()]
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
    assert all(line.startswith("leakscope: ") for line in output.err.splitlines())
    for near in ("'digits'", "'hidden'", "'dlg'"):
        assert near in output.err
    assert inside(here) == ["broken.yaml"]


def test_what_does_not_fit_the_data_is_told_with_its_line_and_writes_nothing(here: Path) -> None:
    output = leakscope("run", write(here / "big.yaml", "data: digits\nmodel: linear\nattack: cpl\ntrials: 9999\n"))
    assert output.code == 2
    assert "big.yaml:4: trials: 9,999 " in output.err
    assert inside(here) == ["big.yaml"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--engine", "dask"], "--engine .*got 'dask'"),
        (["--engine", "dask", "--dry-run"], "--engine .*got 'dask'"),
        (["--address", "10.0.0.1:6379"], "--address .*--engine local"),
        (["--workers", "2", "--engine", "serial"], "--workers .*--engine serial"),
        (["--memory", "4X"], "--memory .*got '4X'"),
        (["--memory", "0"], "--memory must"),
        (["--memory", "-1G"], "--memory must"),
        (["--memory", "9" * 400], "--memory must"),
        (["--memory", "1K"], "--memory must"),
        (["--device", "tpu"], "--device .*got 'tpu'"),
        (["--log-json", "no/such/log"], "--log-json no/such/log "),
        (["--out", "t.yaml"], "t.yaml is a"),
        (["--out", "taken"], "taken is not"),
    ],
    ids=lambda value: value[0] + "=" + value[1][:8] if isinstance(value, list) else "",
)
def test_a_mistake_on_the_command_line_is_one_clear_line(here: Path, words: list[str], said: str) -> None:
    write(here / "t.yaml", TINY)
    (here / "taken").mkdir()
    (here / "taken/notes.txt").write_text("mine")
    before = inside(here)
    output = leakscope("run", "t.yaml", "--quiet", *words)
    assert (output.code, output.out) == (2, "")
    (line,) = output.err.splitlines()
    assert line.startswith("leakscope: ")
    assert re.search(said, line)
    assert inside(here) == before


def test_cuda_without_cuda_is_one_clear_line(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    output = leakscope("run", write(here / "t.yaml", TINY), "--device", "cuda")
    assert output.code == 2
    (line,) = output.err.splitlines()
    assert line.startswith("leakscope: --device 'cuda': ")
    assert "cpu" in line
    assert inside(here) == ["t.yaml"]


def test_a_missing_scenario_is_one_clear_line(here: Path) -> None:
    output = leakscope("run", "missing.yaml")
    assert (output.code, output.out) == (2, "")
    (line,) = output.err.splitlines()
    assert line.startswith("leakscope: ")
    assert line.endswith(f"missing.yaml ({os.strerror(errno.ENOENT)})")


@pytest.mark.parametrize("command", [["show"], ["export"], ["report"], ["serve"], ["compare", "missing"]])
@pytest.mark.parametrize(("where", "said"), [("missing", "no such directory"), (".", "holds no records.sqlite")])
def test_what_is_no_run_is_refused_by_every_command(here: Path, command: list[str], where: str, said: str) -> None:
    output = leakscope(*command, where)
    assert (output.code, output.out) == (2, "")
    (line,) = output.err.splitlines()
    assert line.startswith("leakscope: ")
    assert "not a run" in line
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
        output = leakscope(*words)
        assert (output.code, output.out) == (2, "")
        assert re.search(r"\br .* 7\.5\.0 .* 99\b", output.err)
        assert len(output.err.splitlines()) == 1


# -- what one does with a run


def test_show_has_a_row_for_every_cell(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "90")
    output = leakscope("show", finished)
    assert (output.code, output.err) == (0, "")
    head, *rows = [line.split() for line in output.out.splitlines() if line.strip() and "─" not in line]
    assert head == ["attack", "sigma", "n", "content", "conv.", "label", "MSE", "SSIM", "steps"]
    assert [row[:3] for row in rows[:2]] == [["cpl", "0", "2"], ["cpl", "0.01", "2"]]
    assert rows[2][0] == "(class"
    assert "95 % interval" in output.out


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
    output = leakscope("show", "runs/g", "--by", "sigma")
    assert (output.code, output.out) == (2, "")
    assert re.search(r"'sigma' .*defences\.0\.sigma, model\.hidden", output.err)


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
        assert (MORE in " ".join(out.split())) == (columns < 90)
        assert {"attack", "sigma", "n", "content", "MSE"} <= set(heads[columns])
    assert len(heads[56]) < len(heads[70]) < len(heads[90]) < len(heads[200])
    monkeypatch.delenv("COLUMNS")
    piped = leakscope("show", finished).out
    assert next(line for line in piped.splitlines() if "attack" in line).split() == heads[200]


def test_show_of_a_run_in_which_nothing_landed(here: Path) -> None:
    Run.create(here / "r", "name: x\n", {"leakscope": "0"})
    assert leakscope("show", "r") == Output(0, f"{NO_TRIAL}\n", "")


@pytest.mark.slow
def test_compare_shows_the_shared_cells_side_by_side(here: Path, finished: Path) -> None:
    other = {**SWEEP, "name": "another name", "baselines": [], "grid": {"defences.0.sigma": [0.01, 0.5]}, "trials": 3}
    leakscope("run", write(here / "o.yaml", other), "-q")
    output = leakscope("compare", finished, "runs/o")
    assert (output.code, output.err) == (0, "")
    rows = [line.split() for line in output.out.splitlines() if line.strip().startswith("cpl")]
    assert [row[:4] for row in rows] == [["cpl", "0.01", "2", "3"]]
    joined = " ".join(output.out.split())
    assert "B is runs/o" in joined or str(finished).split("/")[-1] in joined
    assert re.findall(r"([AB]) alone: (\d+)", joined) == [("A", "2"), ("B", "1")]


def test_compare_of_runs_without_a_shared_cell_is_a_clear_line(here: Path, finished: Path) -> None:
    leakscope("run", write(here / "o.yaml", {**TINY, "model": {"name": "mlp", "hidden": [4]}}), "-q")
    output = leakscope("compare", finished, "runs/o")
    assert (output.code, output.out) == (2, "")
    (line,) = output.err.splitlines()
    assert line.startswith(f"leakscope: {finished} and runs/o ")


def test_exports_hold_a_row_for_every_sample(finished: Path, here: Path) -> None:
    trials = Run.open(finished).done()
    output = leakscope("export", finished)
    assert output == Output(0, f"{finished}/records.csv\n", "")
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
        (["--to", "xlsx"], "export format 'xlsx'"),
        (["--out", "."], "is a directory"),
        (["--out", "no/such/records.csv"], "cannot write"),
    ],
)
def test_an_export_that_cannot_be_is_one_clear_line(here: Path, finished: Path, words: list[str], said: str) -> None:
    output = leakscope("export", finished, *words)
    assert (output.code, output.out) == (2, "")
    (line,) = output.err.splitlines()
    assert said in line
    assert inside(here) == []


def test_report_writes_the_page_with_its_headline_and_command(finished: Path, here: Path) -> None:
    from leakscope.report.serving import page_of_directory

    assert leakscope("report", finished) == Output(0, f"{finished}/report.html\n", "")
    page = (finished / "report.html").read_text(encoding="utf-8")
    assert "two strengths" in page
    assert page_of_directory(finished, command="").headline in page
    leakscope("report", finished, "--out", "a page.html")
    assert (here / "a page.html").stat().st_size > 1000
    output = leakscope("report", finished, "--out", "a page.html/inside.html")
    assert (output.code, output.out) == (2, "")
    assert "--out a page.html/inside.html " in output.err


# -- schema


def test_the_schema_is_json_and_knows_every_field(here: Path) -> None:
    output = leakscope("schema")
    assert (output.code, output.err) == (0, "")
    schema = json.loads(output.out)
    assert leakscope("schema", "--out", "schema.json") == Output(0, "", "")
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
    output = leakscope("run", "s.yaml")
    assert output.code == 0
    assert f"\n{seen}: 2 trials" in f"\n{output.err}"
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


DOCUMENT = (Path(__file__).parents[2] / "docs/reference/scenario.md").read_text(encoding="utf-8")
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
    output = [text for language, text in BLOCKS if language == "text"]
    for number, (language, text) in enumerate(BLOCKS):
        if language != "yaml":
            continue
        if BLOCKS[number + 1][0] == "text":
            write(here / "broken.yaml", text)
            assert leakscope("run", "broken.yaml").err == output.pop()
        else:
            assert scenario_from_text(text).cell_count >= 1
    assert not output
