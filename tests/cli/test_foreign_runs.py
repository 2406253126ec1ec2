"""A run that somebody else made: no command follows its links, waits for its FIFOs or believes its database."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from command_line import TINY, Output, leakscope, write
from leakscope.store import Run

KEPT = b"the work of years"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a scenario and its finished run of two chunks."""
    where = tmp_path_factory.mktemp("finished")
    file = write(where / "s.yaml", TINY)
    assert leakscope("run", file, "--out", where / "r", "-q", "--engine", "serial").code == 0
    return where


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished / "r", tmp_path / "r"))


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    for name in ("1-mine.safetensors", "mine.safetensors", "1-c.safetensors.part", "mine.part", "plan.json"):
        (folder / name).write_bytes(KEPT)
    return folder


def go_on(finished: Path, run: Path) -> Output:
    return leakscope("run", finished / "s.yaml", "--out", run, "-q", "--engine", "serial")


def change(run: Path, *statements: str) -> None:
    with closing(sqlite3.connect(run / "records.sqlite", isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def forget_last_chunk(run: Path) -> str:
    """Make the last chunk missing, as if a run had been killed; return the name of its scratch directory."""
    last = str(Run(run).chunks()[-1]["chunk"])
    of_chunk = f"(SELECT id FROM chunk WHERE name = '{last}')"
    change(
        run,
        f"DELETE FROM sample WHERE record IN (SELECT id FROM record WHERE chunk = {of_chunk})",
        f"DELETE FROM record WHERE chunk = {of_chunk}",
        f"DELETE FROM chunk WHERE name = '{last}'",
    )
    return f"1-{last}"


def rewrite_plan(run: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    plan = Run(run).plans()[0]["plan"]
    assert isinstance(plan, dict)
    edit(plan)
    text = json.dumps(plan, sort_keys=True)
    with closing(sqlite3.connect(run / "records.sqlite", isolation_level=None)) as connection:
        connection.execute("UPDATE plan SET plan = ?, digest = ?", [text, hashlib.sha256(text.encode()).digest()])


def check_refused(output: Output) -> None:
    """Assert one clear line and the exit code of wrong input."""
    assert output.code == 2, output
    (line,) = output.err.splitlines()
    assert line.startswith("leakscope: ")


def check_untouched(victim: Path) -> None:
    assert {path.name for path in victim.iterdir()} == {
        "1-mine.safetensors", "mine.safetensors", "1-c.safetensors.part", "mine.part", "plan.json"
    }  # fmt: skip
    assert all(path.read_bytes() == KEPT for path in victim.iterdir())


def link_tensors(run: Path, victim: Path) -> None:
    shutil.rmtree(run / "tensors")
    (run / "tensors").symlink_to(victim)


def link_work(run: Path, victim: Path) -> None:
    (run / "work").rmdir()
    (run / "work").symlink_to(victim)


def link_scratch(run: Path, victim: Path) -> None:
    (run / "work" / forget_last_chunk(run)).symlink_to(victim)


def link_in_scratch(run: Path, victim: Path) -> None:
    scratch = run / "work" / forget_last_chunk(run)
    scratch.mkdir()
    (scratch / "plan.json.part").symlink_to(victim / "plan.json")


def hard_link_in_scratch(run: Path, victim: Path) -> None:
    scratch = run / "work" / forget_last_chunk(run)
    scratch.mkdir()
    (scratch / "plan.json.part").hardlink_to(victim / "plan.json")


def link_lock(run: Path, victim: Path) -> None:
    (run / "run.lock").unlink()
    (run / "run.lock").symlink_to(victim / "mine.part")


def hard_link_lock(run: Path, victim: Path) -> None:
    (run / "run.lock").unlink()
    (run / "run.lock").hardlink_to(victim / "mine.part")


def pipe_lock(run: Path, victim: Path) -> None:
    (run / "run.lock").unlink()
    os.mkfifo(run / "run.lock")


def link_scenario(run: Path, victim: Path) -> None:
    (run / "scenario.yaml").unlink()
    (run / "scenario.yaml").symlink_to(victim / "mine.part")


def link_log(run: Path, victim: Path) -> None:
    (run / "records.sqlite-wal").symlink_to(victim / "mine.part")


def link_database(run: Path, victim: Path) -> None:
    shutil.move(run / "records.sqlite", victim.parent / "elsewhere.sqlite")
    (run / "records.sqlite").symlink_to(victim.parent / "elsewhere.sqlite")


def plant_journal(run: Path, victim: Path) -> None:
    (run / "records.sqlite-journal").write_bytes(b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + bytes(504))


def name_chunk_outside(run: Path, victim: Path) -> None:
    change(run, f"UPDATE chunk SET name = 'x/../../../{victim.name}/mine' WHERE id = 1")


def plan_chunk_outside(run: Path, victim: Path) -> None:
    forget_last_chunk(run)
    rewrite_plan(run, lambda plan: plan["chunks"][-1].update(name=f"x/../../../{victim.name}"))


LINKED = [
    link_tensors, link_work, link_scratch, link_in_scratch, hard_link_in_scratch, link_lock, hard_link_lock, pipe_lock,
    link_scenario, link_log, link_database, plant_journal, name_chunk_outside, plan_chunk_outside,
]  # fmt: skip


@pytest.mark.parametrize("craft", LINKED, ids=lambda craft: craft.__name__)
def test_going_on_with_a_run_neither_writes_nor_deletes_outside(
    finished: Path, run: Path, victim: Path, craft: Callable[[Path, Path], None]
) -> None:
    craft(run, victim)
    check_refused(go_on(finished, run))
    check_untouched(victim)


def test_files_of_others_in_the_folder_of_tensors_stay(finished: Path, run: Path) -> None:
    for name in ("mine.safetensors", "mine.part", "model-1.safetensors"):
        (run / "tensors" / name).write_bytes(KEPT)
    (run / "tensors" / "7-left.safetensors").write_bytes(b"of a killed writer")
    assert go_on(finished, run).code == 0
    assert all((run / "tensors" / name).exists() for name in ("mine.safetensors", "mine.part", "model-1.safetensors"))
    assert not (run / "tensors" / "7-left.safetensors").exists()


def test_a_fifo_in_the_place_of_a_tensor_file_is_done_again(finished: Path, run: Path) -> None:
    path = next((run / "tensors").iterdir())
    path.unlink()
    os.mkfifo(path)
    change(run, "UPDATE chunk SET size = 0")
    check_refused(leakscope("report", run))
    assert go_on(finished, run).code == 0
    assert path.is_file()


def test_a_fifo_in_the_place_of_the_folder_of_tensors_is_refused(finished: Path, run: Path) -> None:
    shutil.rmtree(run / "tensors")
    os.mkfifo(run / "tensors")
    check_refused(leakscope("report", run))
    check_refused(go_on(finished, run))


def test_a_damaged_scratch_plan_does_not_stop_a_run(finished: Path, run: Path) -> None:
    scratch = run / "work" / forget_last_chunk(run)
    scratch.mkdir()
    (scratch / "plan.json").write_text("{")
    assert go_on(finished, run).code == 0
    assert len(Run.open(run).done()) == 2


PLANS: dict[str, Callable[[dict[str, Any]], object]] = {
    "a million threads": lambda plan: plan["chunks"][-1].update(threads=1_000_000),
    "threads as text": lambda plan: plan["chunks"][-1].update(threads="1"),
    "no trials": lambda plan: plan["chunks"][-1].update(trials=[]),
    "no chunks": lambda plan: plan.pop("chunks"),
    "chunks as numbers": lambda plan: plan.update(chunks=[1, 2]),
    "measured in words": lambda plan: plan.update(measured={"group 1": {"seconds": "long"}}),
    "endless": lambda plan: plan.update(measured={"group 1": {"seconds": float("inf")}}),
    "one name": lambda plan: [chunk.update(name="same") for chunk in plan["chunks"]],
    "one trial": lambda plan: plan["chunks"][0].update(trials=plan["chunks"][1]["trials"]),
    "an unknown form": lambda plan: plan["chunks"][-1].update(form="magic"),
    "a long name": lambda plan: plan["chunks"][-1].update(name="x" * 10_000),
}


@pytest.mark.parametrize("edit", PLANS)
def test_a_crafted_plan_is_refused(finished: Path, run: Path, edit: str) -> None:
    forget_last_chunk(run)
    rewrite_plan(run, PLANS[edit])
    check_refused(go_on(finished, run))


def test_trials_that_cannot_share_a_chunk_are_planned_anew(finished: Path, run: Path) -> None:
    forget_last_chunk(run)
    rewrite_plan(run, lambda plan: plan["chunks"][-1].update(baseline=True))
    assert go_on(finished, run).code == 0
    assert len(Run.open(run).plans()) == 2


def test_a_plan_that_does_not_match_its_digest_is_refused(finished: Path, run: Path) -> None:
    forget_last_chunk(run)
    change(run, "UPDATE plan SET plan = replace(plan, 'native', 'im2col')")
    check_refused(go_on(finished, run))


@pytest.mark.parametrize("way", ["symbolic", "pipe"])
def test_a_report_does_not_follow_a_link(run: Path, victim: Path, way: str) -> None:
    page = run / "report.html"
    page.symlink_to(victim / "mine.part") if way == "symbolic" else os.mkfifo(page)
    check_refused(leakscope("report", run))
    check_untouched(victim)


def test_a_report_is_written_whole_or_not_at_all(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert leakscope("report", run).code == 0
    before = (run / "report.html").read_bytes()

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    check_refused(leakscope("report", run))
    assert (run / "report.html").read_bytes() == before
    assert not list(run.glob("*.part"))


# -- databases

VIEW = "SELECT 1 AS id, '' AS name, '{}' AS settings, '{}' AS axes, 0 AS baseline, 0 AS place"
ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS id FROM n"
SCHEMAS = {
    "a view": ["DROP TABLE cell", f"CREATE VIEW cell AS {VIEW}"],
    "a view that never ends": ["DROP TABLE record", f"CREATE VIEW record AS {ENDLESS}"],
    "no table": ["DROP TABLE sample"],
    "a column less": ["ALTER TABLE record DROP COLUMN outcome"],
    "a trigger": ["CREATE TRIGGER t AFTER INSERT ON session BEGIN DELETE FROM record; END"],
    "a virtual table": [
        "DROP TABLE cell",
        "CREATE VIRTUAL TABLE cell USING fts5(name, settings, axes, baseline, place)",
    ],
    "a generated column": [
        "ALTER TABLE sample DROP COLUMN ssim",
        "ALTER TABLE sample ADD COLUMN ssim REAL AS (length(hex(zeroblob(mse))))",
    ],
}
COLUMNS = {
    "session": ("started", "scenario", "facts"),
    "cell": ("name", "settings", "axes", "baseline", "place"),
    "chunk": ("plan", "name", "session", "landed", "seconds", "trials", "size", "sha256"),
    "record": (
        *("trial", "cell", "chunk", "place", "number", "seed", "items", "outcome", "iterations", "evaluations"),
        *("mismatch", "label_overlap", "seconds", "version", "learned"),
    ),
    "sample": ("record", "place", "sample", "label", "guess", "mse", "psnr", "ssim", "label_correct", "recovered", "finite"),
}  # fmt: skip
VALUES = (
    "'x'",
    "x'ff'",
    "-1",
    "9223372036854775807",
    "1e308",
    "-1e999",
    "''",
    "'[]'",
    "'{\"a\": [1]}'",
    "'{\"data\": 3}'",
    "'[[[\"x\"]]]'",
)


def read_all(run: Path) -> list[Output]:
    """Return what every command that reads a run says, each within seconds."""
    began = time.monotonic()
    words: list[tuple[object, ...]] = [
        ("show", run),
        ("compare", run, run),
        ("export", run, "--to", "json"),
        ("report", run),
    ]
    outputs = [leakscope(*each) for each in words]
    assert time.monotonic() - began < 60
    return outputs


@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_crafted_schema_is_refused(finished: Path, run: Path, schema: str) -> None:
    change(run, *SCHEMAS[schema])
    for output in (*read_all(run), go_on(finished, run)):
        check_refused(output)


REFUSED = {
    "facts": "UPDATE session SET facts = 'x'",
    "no session": "DELETE FROM session",
    "settings": "UPDATE cell SET settings = '[]'",
    "axes": """UPDATE cell SET axes = '{"a": [1]}'""",
    "type": "UPDATE record SET outcome = x'ff'",
    "number": "UPDATE record SET number = 9223372036854775807",
    "real": "UPDATE sample SET mse = 'x'",
    "items": """UPDATE record SET items = '[["x"]]'""",
    "learned": """UPDATE record SET learned = '{"a": "x"}'""",
    "no such sample": "UPDATE sample SET sample = 5",
    "no such cell": "UPDATE record SET cell = 99",
    "a cell that is skipped": "UPDATE cell SET id = 99",
}


@pytest.mark.parametrize("statement", REFUSED)
def test_crafted_values_are_refused(run: Path, statement: str) -> None:
    change(run, REFUSED[statement])
    outputs = [leakscope("export", run, "--to", "json"), leakscope("report", run)]
    assert 2 in {output.code for output in outputs}
    for output in outputs:
        if output.code:
            check_refused(output)


@pytest.mark.parametrize("crafted", ["another shape", "no truth", "numbers of words", "a sample less"])
def test_crafted_tensors_end_in_a_page_or_in_one_line(run: Path, crafted: str) -> None:
    for path in (run / "tensors").iterdir():
        tensors = load_file(path)
        if crafted == "another shape":
            tensors["truth"] = torch.zeros(1, 2, 3, 4, 5, 6)
        elif crafted == "no truth":
            del tensors["truth"]
        elif crafted == "numbers of words":
            tensors = {name: value.to(torch.int8) for name, value in tensors.items()}
        else:
            tensors = {name: value[:, :0] if value.ndim > 1 else value for name, value in tensors.items()}
        save_file(tensors, path)
    output = leakscope("report", run)
    if output.code:
        check_refused(output)
    assert output.code in (0, 2)


@pytest.mark.slow
@pytest.mark.parametrize("table", COLUMNS)
def test_crafted_values_end_in_a_table_or_in_one_line(finished: Path, tmp_path: Path, table: str) -> None:
    for place, column in enumerate(COLUMNS[table]):
        for number, value in list(enumerate(VALUES))[place % 3 :: 3]:  # every value in a third of the columns
            run = Path(shutil.copytree(finished / "r", tmp_path / f"{column}{number}"))
            try:
                change(run, f"UPDATE OR IGNORE {table} SET {column} = {value}")
            except sqlite3.Error:
                continue
            for output in (*read_all(run), go_on(finished, run)):
                assert output.code in (0, 2), (column, value, output)
                assert "Traceback" not in output.err
            shutil.rmtree(run)


# -- exports


def test_an_export_writes_to_devices_and_pipes_and_replaces_plain_files_only(run: Path, tmp_path: Path) -> None:
    plain = tmp_path / "out.csv"
    plain.write_text("old")
    assert leakscope("export", run, "--out", plain).out.strip() == str(plain)
    expected = plain.read_bytes()
    (tmp_path / "null").symlink_to("/dev/null")  # a link to a character device
    output = leakscope("export", run, "--out", tmp_path / "null")
    assert (output.code, output.out) == (0, "")
    assert (tmp_path / "null").is_symlink()

    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    check_refused(leakscope("export", run, "--out", fifo))  # nobody reads
    heard: list[bytes] = []
    reader = threading.Thread(target=lambda: heard.append(fifo.read_bytes()), daemon=True)
    reader.start()
    while leakscope("export", run, "--out", fifo).code:
        time.sleep(0.05)
    reader.join(10)
    assert heard == [expected]
    assert fifo.is_fifo()


@pytest.mark.parametrize("form", ["csv", "json", "parquet"])
def test_a_dash_is_the_standard_output(run: Path, tmp_path: Path, capfdbinary: Any, form: str) -> None:
    assert leakscope("export", run, "--to", form, "--out", tmp_path / "x").code == 0
    capfdbinary.readouterr()
    assert leakscope("export", run, "--to", form, "--out", "-").code == 0
    assert capfdbinary.readouterr().out == (tmp_path / "x").read_bytes()
    (tmp_path / "stdout").symlink_to("/proc/self/fd/1")
    assert leakscope("export", run, "--to", form, "--out", tmp_path / "stdout").code == 0
    assert capfdbinary.readouterr().out == (tmp_path / "x").read_bytes()
    assert not Path("-").exists()


def test_an_export_follows_no_link(run: Path, victim: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    out.symlink_to(victim / "mine.part")
    check_refused(leakscope("export", run, "--out", out))
    out.unlink()
    out.symlink_to(tmp_path / "nowhere")
    check_refused(leakscope("export", run, "--out", out))
    out.unlink()
    Path(f"{out}.part").symlink_to(victim / "mine.part")
    assert leakscope("export", run, "--out", out).code == 0
    assert out.is_file()
    assert not out.is_symlink()
    check_untouched(victim)


def test_samples_without_their_records_are_damage(finished: Path, run: Path) -> None:
    change(run, "DELETE FROM record", "DELETE FROM chunk")
    ended = go_on(finished, run)
    assert ended.code == 2
    assert "Traceback" not in ended.err
    assert Run(run).chunks() == []
