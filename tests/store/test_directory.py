"""Making and opening: what is no run is refused by name, what is half a run is taken over, what is old is migrated."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from leakscope.core.errors import InputError
from leakscope.store import Run, directory, schema


def change(run: Run, *statements: str) -> None:
    with closing(sqlite3.connect(run.directory / "records.sqlite", isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def test_a_new_run_holds_what_the_page_says(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "deep" / "run", "name: x", {"a": "b"})
    assert {path.name for path in run.directory.iterdir()} == {
        "scenario.yaml",
        "records.sqlite",
        "tensors",
        "work",
        "run.lock",
    }
    assert run.work.is_dir()
    assert (run.cells(), run.plans(), run.chunks(), run.done(), list(run.records())) == ([], [], [], set(), [])
    assert run.columns()["psnr"].size == 0
    assert Run.open(run.directory) == run


def test_the_database_waits_for_the_disk_and_lets_readers_in(run: Run) -> None:
    with run.writing() as writer:
        (mode,) = writer._connection.execute("PRAGMA journal_mode").fetchone()
        (synchronous,) = writer._connection.execute("PRAGMA synchronous").fetchone()
    assert (mode, synchronous) == ("wal", 2)


def test_a_second_creation_and_a_directory_of_something_else_are_refused(run: Run, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds a run"):
        Run.create(run.directory, "", {})
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match=r"not empty .*thesis.tex"):
        Run.create(other, "", {})
    assert [path.name for path in other.iterdir()] == ["thesis.tex"]
    with pytest.raises(InputError, match=r"thesis.tex is a"):
        Run.create(other / "thesis.tex", "", {})


def test_a_scenario_that_lies_there_already_must_be_the_one_given(tmp_path: Path) -> None:
    (tmp_path / "scenario.yaml").write_text("name: mine")
    with pytest.raises(InputError, match="not empty"):
        Run.create(tmp_path, "name: yours", {})
    assert Run.create(tmp_path, "name: mine", {}).scenario() == "name: mine"


def test_half_a_creation_is_taken_over_but_not_the_pictures_of_a_lost_run(tmp_path: Path) -> None:
    for name in ("tensors", "work"):
        (tmp_path / name).mkdir()
    (tmp_path / "run.lock").touch()
    (tmp_path / "records.sqlite.part").write_bytes(b"SQLite format 3\0 and no more")
    (tmp_path / "records.sqlite.part-wal").write_bytes(b"junk")
    assert Run.create(tmp_path, "x", {}).scenario() == "x"
    assert not list(tmp_path.glob("*.part*"))
    for path in tmp_path.glob("records.sqlite*"):
        path.unlink()
    (tmp_path / "tensors" / "1-c0.safetensors").write_bytes(b"a picture")
    with pytest.raises(InputError, match="it holds tensors"):
        Run.create(tmp_path, "x", {})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "by leakscope"),
        (b"certainly no database, but long enough to be one" * 100, "cannot be read"),
        (b"SQLite format 3\0" + b"\xff" * 5000, "cannot be read"),
    ],
)
def test_a_broken_database_is_refused_by_name(run: Run, content: bytes, said: str) -> None:
    (run.directory / "records.sqlite").write_bytes(content)
    for name in ("-wal", "-shm"):
        (run.directory / f"records.sqlite{name}").unlink(missing_ok=True)
    with pytest.raises(InputError, match=said) as error:
        Run.open(run.directory)
    assert str(run.directory) in str(error.value)
    assert "\n" not in str(error.value)
    with pytest.raises(InputError), run.writing():
        pass


def test_a_damaged_page_is_noticed_before_anyone_writes(run: Run, sweep: SimpleNamespace) -> None:
    path = run.directory / "records.sqlite"
    whole = path.read_bytes()
    assert len(whole) > 8 * 4096
    path.write_bytes(whole[:4096] + b"\xa5" * (len(whole) - 4096))
    with pytest.raises(InputError, match=r"records\.sqlite|is malformed") as error, run.writing():
        pass
    assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="cannot be read"):
        run.columns()


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    assert not Run.exists(tmp_path)
    with pytest.raises(InputError, match=r"holds no records\.sqlite"):
        Run.open(tmp_path)
    with pytest.raises(InputError, match="no such directory"):
        Run.open(tmp_path / "nowhere")
    with closing(sqlite3.connect(tmp_path / "records.sqlite")) as connection:
        connection.execute("CREATE TABLE record (a)")
    with pytest.raises(InputError, match="by leakscope"):
        Run.open(tmp_path)


def test_a_run_of_a_newer_leakscope_is_refused_by_name(run: Run) -> None:
    change(run, "PRAGMA user_version = 7", "UPDATE about SET value = '9.3.0' WHERE key = 'leakscope'")
    with pytest.raises(InputError, match=r"9\.3\.0 in format 7; .*update"):
        Run.open(run.directory)


MADE_UP_VERSION_0 = (
    "ALTER TABLE record RENAME COLUMN evaluations TO calls",
    "ALTER TABLE chunk DROP COLUMN seconds",
    "PRAGMA user_version = 0",
    "UPDATE about SET value = '0.0.7' WHERE key = 'leakscope'",
)


def from_version_0(connection: sqlite3.Connection) -> None:
    connection.execute("ALTER TABLE record RENAME COLUMN calls TO evaluations")
    connection.execute("ALTER TABLE chunk ADD COLUMN seconds REAL NOT NULL DEFAULT 0")


def test_a_run_of_an_older_format_is_migrated(
    run: Run, sweep: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [repr(record) for record in run.records()]
    change(run, *MADE_UP_VERSION_0)
    monkeypatch.setitem(schema.MIGRATIONS, 0, from_version_0)
    opened = Run.open(run.directory)
    assert [repr(record) for record in opened.records()] == before
    with opened.writing() as writer:
        assert writer.verify() == []
        writer.land(sweep.make_landing(2))
    monkeypatch.delitem(schema.MIGRATIONS, 0)
    assert len(Run.open(run.directory).done()) == 9


def test_a_run_of_an_older_format_without_a_way_here_is_refused_by_name(run: Run) -> None:
    change(run, *MADE_UP_VERSION_0)
    with pytest.raises(InputError, match=r"0\.0\.7 in format 0, "):
        Run.open(run.directory)


def test_a_migration_that_fails_leaves_the_run_as_it_was(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(connection: sqlite3.Connection) -> None:
        from_version_0(connection)
        raise OSError(28, "No space left on device")

    change(run, *MADE_UP_VERSION_0)
    monkeypatch.setitem(schema.MIGRATIONS, 0, fails)
    with pytest.raises(InputError, match=r"full .*old format"):
        Run.open(run.directory)
    monkeypatch.setitem(directory.MIGRATIONS, 0, from_version_0)
    assert len(Run.open(run.directory).done()) == 6


def test_a_run_that_is_being_written_is_not_migrated(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(schema.MIGRATIONS, 0, from_version_0)
    with run.writing():
        change(run, *MADE_UP_VERSION_0)
        with pytest.raises(InputError, match="written by process"):
            Run.open(run.directory)
