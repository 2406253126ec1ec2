"""`paper list`, `paper run`, `paper report` as a user meets them."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_line import Output, leakscope
from leakscope.data import Dataset, write_leaf
from leakscope.store import Run
from leakscope_papers.items import item_files, read_item
from leakscope_papers.results import result_of
from leakscope_papers.sme import costs as sme_costs

QUICK = ("mixing-figure-1", "--only", "mse")  # uses the run of table 1


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Output]:
    """Return a directory with one item run at scale smoke, and what the command said."""
    out = tmp_path_factory.mktemp("papers")
    return out, leakscope("paper", "run", *QUICK, "--out", out, "--engine", "serial")


def test_list_names_every_item_with_its_scales(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    told = leakscope("paper", "list")
    assert told.code == 0
    assert all(name in told.out for name in item_files())
    assert all(scale in told.out for scale in ("smoke", "small", "full"))


def test_run_makes_the_run_of_the_owner_and_says_what_next(made: tuple[Path, Output]) -> None:
    out, told = made
    assert told.code == 0, told.err
    directory = out / "mixing-table-1" / "smoke" / "mse"
    assert f"{directory}: 12 trials, 12 " in told.out  # 2 clients in 4 cells and 2 baselines
    assert f"leakscope paper report {out}" in told.out
    facts = Run.open(directory).facts()
    command = (
        "paper",
        "run",
        "mixing-figure-1",
        "--scale",
        "smoke",
        "--out",
        out,
        "--engine",
        "serial",
        "--only",
        "mse",
    )
    assert facts["command"] == f"leakscope {' '.join(map(str, command))}"


def test_run_again_does_nothing_and_another_item_shares_the_run(made: tuple[Path, Output]) -> None:
    out, _ = made
    before = Run.open(out / "mixing-table-1" / "smoke" / "mse").done()
    told = leakscope("paper", "run", "mixing-table-1", *QUICK, "--out", out, "--engine", "serial")
    assert (told.code, told.out.count("12 trials, 0 ")) == (0, 1)
    assert Run.open(out / "mixing-table-1" / "smoke" / "mse").done() == before
    result = result_of(read_item("mixing-table-1"), "smoke", out)
    assert result is not None
    assert {cell.trials for cell in result.cells} == {2}
    assert result.missing == ("cross_entropy",)


def test_dry_run_writes_nothing(tmp_path: Path) -> None:
    told = leakscope("paper", "run", "cpl-table-2", "cpl-table-7", "--out", tmp_path / "new", "--dry-run")
    assert told.code == 0
    assert f"{tmp_path / 'new' / 'cpl-table-7' / 'smoke' / 'mnist'}: 12 cells" in told.out
    assert not (tmp_path / "new").exists()


def test_report_writes_the_page(made: tuple[Path, Output]) -> None:
    out, _ = made
    told = leakscope("paper", "report", out)
    assert told.code == 0, told.err
    assert told.out.split() == [str(out / "papers.html")]
    page = (out / "papers.html").read_text("utf-8")
    assert all(f'id="{name}"' in page for name in ("mixing-figure-1", "mixing-table-1"))


def test_record_writes_the_rows_and_a_report_reads_them(made: tuple[Path, Output], tmp_path: Path) -> None:
    out, _ = made
    told = leakscope("paper", "record", out, "--out", tmp_path)
    assert told.code == 0, told.err
    path = tmp_path / "mixing-table-1.smoke.json"
    assert f"{path}: " in told.out
    data = json.loads(path.read_text("utf-8"))
    assert {row["n"] for row in data["rows"]} == {2}
    assert data["sources"][0]["command"].startswith("leakscope paper run")
    assert leakscope("paper", "report", tmp_path).code == 0
    assert 'id="mixing-table-1"' in (tmp_path / "papers.html").read_text("utf-8")
    assert int(data["sources"][0]["trials"]) == 12
    again = leakscope("paper", "record", out, "--out", tmp_path)
    assert again.out == told.out
    assert json.loads(path.read_text("utf-8")) == data
    elsewhere = leakscope("paper", "record", tmp_path, "--out", tmp_path / "papers")  # rows alone, without the runs
    assert elsewhere.code == 0, elsewhere.err
    assert json.loads((tmp_path / "papers" / path.name).read_text("utf-8")) == data


def test_the_rows_of_a_run_are_recorded_without_its_tensor_files(made: tuple[Path, Output], tmp_path: Path) -> None:
    out, _ = made
    assert leakscope("paper", "record", out, "--out", tmp_path / "whole").code == 0
    database = tmp_path / "mixing-table-1" / "smoke" / "mse" / "records.sqlite"
    database.parent.mkdir(parents=True)
    shutil.copy(out / database.relative_to(tmp_path), database)
    told = leakscope("paper", "record", tmp_path, "--out", tmp_path / "rows")
    assert told.code == 0, told.err
    name = "mixing-table-1.smoke.json"
    assert (tmp_path / "rows" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert (tmp_path / "whole" / "mixing-figure-1.smoke.json").is_file()
    assert not (tmp_path / "rows" / "mixing-figure-1.smoke.json").exists()  # its measures are read from traces


def test_fewer_trials_a_cell_are_a_part_of_the_run_that_the_whole_command_goes_on_with(tmp_path: Path) -> None:
    words = ("paper", "run", "mixing-figure-1", "--only", "mse", "--out", tmp_path, "--engine", "serial")
    first = leakscope(*words, "--trials", "1")
    assert first.code == 0, first.err
    directory = tmp_path / "mixing-table-1" / "smoke" / "mse"
    assert f"{directory}: 6 trials, 6 " in first.out
    assert "--trials 1" in Run.open(directory).facts()["command"]
    assert f"{directory}: 12 trials, 6 " in leakscope(*words).out
    told = leakscope("paper", "run", "spn-figure-4", "--trials", "1", "--out", tmp_path)
    assert "left out, because a program has no trials" in told.err


def test_a_report_of_what_is_recorded_needs_no_runs(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    told = leakscope("paper", "report", "--recorded", "--only", "sme-table-7", "--out", page)
    assert told.code == 0, told.err
    text = page.read_text("utf-8")
    assert "earlier setting: EMNIST" in text
    assert "settings not recorded" in text


def test_status_counts_recorded_rows_of_planned_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    told = leakscope("paper", "status", "--only", "sme-figure-6", "--only", "sme-figure-14")
    assert told.code == 0, told.err
    assert re.search(r"sme-figure-6 +0/4 +4/12 +0/12 .*cifar100-dlfa", told.out)
    assert "small: 6 rows" in told.out


def test_report_of_one_item_and_scale(made: tuple[Path, Output], tmp_path: Path) -> None:
    out, _ = made
    page = tmp_path / "page.html"
    told = leakscope("paper", "report", out, "--scale", "smoke", "--only", "mixing-table-1", "--out", page)
    assert told.code == 0, told.err
    assert 'id="mixing-table-1"' in page.read_text("utf-8")
    assert 'id="mixing-figure-1"' not in page.read_text("utf-8")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "cpl-tabel-2"), "unknown item 'cpl-tabel-2'.*'cpl-table-2'"),
        (("run", "cpl-table-2", "--scale", "smal"), "unknown --scale 'smal'.*'small'"),
        (("run", "cpl-table-2", "--only", "mnits"), "unknown part .*'mnits'.*'mnist'"),
        (("run", "cpl-table-2", "--engine", "fast"), "--engine .*got 'fast'"),
        (("run", "cpl-table-2", "--device", "gpu"), "--device .*got 'gpu'"),
        (("run", "cpl-table-2", "--memory", "much"), "--memory .*got 'much'"),
        (("report", "--scale", "tiny"), "unknown --scale 'tiny'"),
        (("report", "--only", "cpl-tabel-2"), "unknown item 'cpl-tabel-2'"),
        (("run", "sme-table-2", "--data", "femnist"), "--data must be NAME=PATH"),
        (("run", "sme-table-2", "--data", "femist=x"), "unknown data set with a stand-in 'femist'.*'femnist'"),
        (("run", "sme-table-2", "--data", "femnist=no/folder"), "the copy of femnist"),
        (("run", "sme-table-2", "--data", "femnist=."), "--data: no part of these items runs on femnist"),
        (("record", "--scale", "tiny"), "unknown --scale 'tiny'"),
        (("render", "cpk"), "unknown paper .*'cpk'.*'cpl'"),
    ],
)
def test_mistakes_end_with_one_line(
    words: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told = leakscope("paper", *words)
    assert told.code == 2
    assert re.match(f"leakscope: {said}", told.err)
    assert len(told.err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_missing_data_says_which_and_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("LEAKSCOPE_DATA", "LEAKSCOPE_CACHE"):
        monkeypatch.setenv(variable, str(tmp_path))
    told = leakscope("paper", "run", "cpl-table-2", "--scale", "small", "--only", "mnist", "--out", tmp_path / "out")
    assert told.code == 2
    assert re.match("leakscope: cpl-table-2 .*'mnist'", told.err)
    assert "data fetch mnist" in told.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("there", [True, False])
def test_a_report_over_nothing_says_what_to_run_first(tmp_path: Path, there: bool) -> None:
    out = tmp_path if there else tmp_path / "no"
    told = leakscope("paper", "report", out)
    assert told.code == 2
    assert told.err.startswith(f"leakscope: {out} ")
    assert told.err.endswith(f"--scale smoke --out {out}\n")


def test_a_program_is_run_listed_and_gone_on_with_like_a_scenario(tmp_path: Path) -> None:
    words = ("paper", "run", "sme-table-3", "--out", tmp_path)
    directory = tmp_path / "sme-table-3" / "smoke" / "costs"
    assert re.fullmatch(f"{directory}: 6 rows .*sme_costs; .*\n", leakscope(*words, "--dry-run").out)
    assert not directory.exists()
    told = leakscope(*words)
    assert told.code == 0, told.err
    assert f"{directory}: 6 rows, 6 " in told.out
    assert "(1 of 1): 6 rows" in told.err
    assert "  6 of 6: mlp" in told.err
    assert f"{directory}: 6 rows, 0 " in leakscope(*words).out
    assert leakscope(*words, "--quiet").err == ""
    assert leakscope("paper", "report", tmp_path).code == 0
    assert "seconds an iteration" in (tmp_path / "papers.html").read_text("utf-8")


def test_a_program_that_is_stopped_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = sme_costs.measure

    def stopped(settings: Any, network: Any, epochs: int, device: str) -> dict[str, dict[str, list[float]]]:
        if epochs == 2:
            raise KeyboardInterrupt
        return measured(settings, network, epochs, device)

    monkeypatch.setattr(sme_costs, "measure", stopped)
    told = leakscope("paper", "run", "sme-table-3", "--out", tmp_path)
    assert told.code == 130
    again = ("paper", "run", "sme-table-3", "--scale", "smoke", "--out", str(tmp_path))
    assert told.err.splitlines()[-1].endswith(f": leakscope {' '.join(again)}")
    monkeypatch.undo()
    assert "6 rows, 3 " in leakscope(*again).out


@pytest.mark.slow
@pytest.mark.parametrize("paper", ["ats", "cpl", "mixing", "sme", "spn"])
def test_every_item_runs_at_scale_smoke_and_is_on_the_page(paper: str, tmp_path: Path) -> None:
    items = [name for name in item_files() if name.startswith(f"{paper}-")]
    told = leakscope("paper", "run", *items, "--out", tmp_path, "--engine", "serial", "--quiet")
    assert told.code == 0, told.err
    assert leakscope("paper", "report", tmp_path).code == 0
    page = (tmp_path / "papers.html").read_text("utf-8")
    for name in items:
        assert f'id="{name}"' in page
        result = result_of(read_item(name), "smoke", tmp_path)
        assert result is not None
        assert result.cells or result.item.caps  # two steps are under the first cap
        assert not result.missing


def test_a_users_own_copy_is_used_by_the_run_and_named_in_the_command(tmp_path: Path) -> None:
    write_leaf(letters_of_writers(), tmp_path / "leaf")
    words = ("sme-table-2", "--scale", "small", "--only", "femnist-10", "--data", f"femnist={tmp_path / 'leaf'}")
    told = leakscope("paper", "run", *words, "--out", tmp_path / "out", "--dry-run")
    assert told.code == 0, told.err
    assert "LEAKSCOPE_DATA_FEMNIST" not in os.environ
    few = leakscope("paper", "run", *words, "--out", tmp_path / "out", "--engine", "serial")
    assert few.code == 2  # 3 writers with 10 examples, 8 clients
    assert "3" in few.err


def letters_of_writers() -> Dataset:
    x = np.zeros((40, 1, 28, 28), np.uint8)
    y, groups = np.arange(40) % 62, np.repeat(np.arange(4), [12, 12, 12, 4])
    return Dataset(
        name="toy", kind="image", x_train=x, y_train=y, x_test=x[:4], y_test=y[:4],
        class_names=tuple(map(str, range(62))), groups_train=groups, groups_test=groups[:4],
    )  # fmt: skip
