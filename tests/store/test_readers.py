"""Reading while another writes, and where nobody can write."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from types import SimpleNamespace

import pytest

from leakscope.core.errors import InputError
from leakscope.store import Run


def test_readers_see_whole_chunks_while_a_writer_lands_them(run: Run, sweep: SimpleNamespace) -> None:
    counts: list[set[int]] = [set() for _ in range(3)]
    stop, faults = threading.Event(), []

    def read(seen: set[int]) -> None:
        try:
            while not stop.is_set():
                columns = Run.open(run.directory).columns(names=["trial", "seed"])
                trials = len(set(columns["trial"]))
                assert trials % sweep.PER_CHUNK == 0
                assert len(columns["seed"]) == 2 * trials
                seen.add(trials)
        except BaseException as error:
            faults.append(error)

    readers = [threading.Thread(target=read, args=(seen,)) for seen in counts]
    for reader in readers:
        reader.start()
    for start in range(2, 32, 10):
        with run.writing() as writer:
            sweep.fill(writer, range(start + 10))
    stop.set()
    for reader in readers:
        reader.join()
    assert faults == []
    assert all(len(seen) > 2 for seen in counts), counts
    assert len(run.done()) == 32 * sweep.PER_CHUNK


def test_one_reading_sees_one_moment(run: Run, sweep: SimpleNamespace) -> None:
    slow = run.records()
    first = next(slow)
    with run.writing() as writer:
        sweep.fill(writer, range(5))
        assert len(list(run.records())) == 15
        assert len([first, *slow]) == 6


def test_reading_leaves_the_run_as_it_is(run: Run, sweep: SimpleNamespace) -> None:
    before = {path.name: path.read_bytes() for path in run.directory.iterdir() if path.is_file()}
    sweep.content(run)
    after = {path.name: path.read_bytes() for path in run.directory.iterdir() if path.is_file()}
    assert {name: after[name] for name in before} == before
    assert set(after) - set(before) <= {"records.sqlite-wal", "records.sqlite-shm"}


READ = """
import sys
from pathlib import Path
from leakscope.core.errors import InputError
from leakscope.store import Run
run = Run.open(Path(sys.argv[1]))
print(len(run.done()), run.columns()["psnr"].size, run.scenario() == "changed")
try:
    with run.writing():
        print("written")
except InputError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize("left", ["nothing", "an empty log", "a log", "a log and its memory"])
def test_a_run_on_a_read_only_disk_can_be_read(run: Run, sweep: SimpleNamespace, left: str) -> None:
    if left == "an empty log":
        run.done()
    elif left != "nothing":  # the copy of a run whose writer is killed: its last chunks are in the log alone
        copy = run.directory.with_name("archive")
        with run.writing() as writer:
            writer.renew("changed", [sweep.make_cell(i) for i in range(4)], {})
            shutil.copytree(run.directory, copy)
        run = Run(copy)
        if left == "a log":
            (copy / "records.sqlite-shm").unlink()
        assert (copy / "records.sqlite-wal").stat().st_size
    inside = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && exec "$2" -c "$3" "$1"'
    command = ["unshare", "-rm", "sh", "-c", inside, "sh", str(run.directory), sys.executable, READ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "Operation not permitted" in done.stderr or "mount:" in done.stderr or "unshare:" in done.stderr:
        pytest.skip("mounts are forbidden here")
    numbers, refusal = done.stdout.splitlines()
    assert numbers == f"6 12 {left.startswith('a log')}"
    assert refusal.startswith(f"cannot write {run.directory} (Read-only")


def test_values_are_checked_where_they_are_read(run: Run, sweep: SimpleNamespace) -> None:
    """Opening a run reads no row of a trial, so that it takes as long for 20,000 trials as for two."""
    first, second = (cell.id for cell in run.cells(current=False)[:2])
    with closing(sqlite3.connect(run.directory / "records.sqlite", isolation_level=None)) as connection:
        chosen = "SELECT record.id FROM record JOIN cell ON cell.id = record.cell WHERE cell.name = ?"
        connection.execute(f"UPDATE sample SET mse = 'x' WHERE record IN ({chosen})", [second])
    opened = Run.open(run.directory)
    assert len(opened.columns(cells=[first])["mse"])
    assert list(opened.records(cell=first))
    for read in (lambda: opened.columns(cells=[second]), lambda: list(opened.records()), opened.columns):
        with pytest.raises(InputError):
            read()
