"""A full disk ends with one clear line, a run that holds whole chunks alone, and one that goes on when there is room."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from leakscope.core.errors import InputError
from leakscope.store import DiskFullError, Run

NOTHING = "nothing of this"  # chunk was kept


@pytest.mark.slow
def test_on_a_small_disk_that_really_fills_up(tmp_path: Path, sweep: SimpleNamespace) -> None:
    disk, program = tmp_path / "disk", Path(__file__).with_name("fills_disk.py")
    disk.mkdir()
    inside = 'mount -t tmpfs -o size=2m none "$1" || exit 77; exec "$2" "$3" "$1" "$4"'
    command = ["unshare", "-rm", "sh", "-c", inside, "sh", str(disk), sys.executable, str(program), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("mounts are forbidden here")
    assert done.returncode == 0, done.stderr
    *told, same = [json.loads(line) for line in done.stdout.splitlines()]
    lost = {"pictures": NOTHING, "records": NOTHING}
    for what, kind, said, stored, wrong in told[:6]:
        where = {"export": disk, "create": disk / "another"}.get(what, disk / "run")
        kept = lost.get(what, "out.csv was not written" if what == "export" else "nothing was changed")
        assert (what, kind) == (what, "DiskFullError")
        assert re.match(f"disk full .*{re.escape(str(where))}: {kept}", said)
        assert (stored, wrong) == (told[0][3], [])
    assert [line[0] for line in told] == [
        *("pictures", "records", "renew", "plan", "export", "create", "closed", "open to write", "freed")
    ]
    for _, _, _, stored, wrong in told[6:8]:  # not a byte left: sqlite has no room for the memory its readers share
        assert stored == told[0][3] or (
            len(wrong) == 1 and re.match(f"{disk}/run/records.sqlite cannot.*full", wrong[0])
        )
    assert told[8] == ["freed", "none", "", told[0][3] + 2, []]
    assert same is True, "after going on, the run must equal one that never met a full disk"


def test_when_the_database_cannot_grow(run: Run, sweep: SimpleNamespace) -> None:
    with run.writing() as writer:
        writer._connection.execute("PRAGMA max_page_count = 1")
        with pytest.raises(DiskFullError) as error:
            sweep.fill(writer, range(100))
        assert re.match(f"disk full .*{run.directory}: {NOTHING}", str(error.value))
        landed = len(run.chunks())
        assert 2 <= landed < 100
        assert len(run.done()) == 3 * landed
        assert len(list((run.directory / "tensors").iterdir())) == landed
    with run.writing() as writer:
        assert writer.verify() == []
        sweep.fill(writer, range(100))
    assert len(run.done()) == 300


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("name", ["fsync", "replace"])
def test_when_the_file_system_has_no_room_for_the_pictures(
    run: Run, sweep: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, number: int, name: str
) -> None:
    before = sweep.content(run)

    def full(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with run.writing() as writer:
        with monkeypatch.context() as patch:
            patch.setattr(os, name, full)
            with pytest.raises(DiskFullError, match=NOTHING):
                writer.land(sweep.make_landing(2))
        assert sweep.content(run) == before
        writer.land(sweep.make_landing(2))
    assert len(run.done()) == 9


def test_any_other_trouble_of_the_disk_is_one_line_too(
    run: Run, sweep: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "replace", broken)
    with run.writing() as writer, pytest.raises(InputError) as error:
        writer.land(sweep.make_landing(2))
    assert not isinstance(error.value, DiskFullError)
    assert re.match(rf"cannot write {run.directory} \(Input/output error\): {NOTHING}", str(error.value))
