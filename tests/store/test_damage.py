"""What a crash or a bad disk did to the files is noticed, told, and done again."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leakscope.core.errors import InputError
from leakscope.store import Run


def file_of(run: Run, chunk: str) -> Path:
    return run.directory / "tensors" / f"1-{chunk}.safetensors"


def check_that_it_is_redone(run: Run, sweep: SimpleNamespace, said: str) -> None:
    """Assert that entering drops chunk c1 alone, says so, and that landing it again makes the run whole."""
    with run.writing() as writer:
        (line,) = writer.verify()
        assert line.startswith(f"tensors/1-c1.safetensors {said}: its 3 trials")
        assert run.done() == {record.trial for record in sweep.make_landing(0).records}
        assert run.columns()["psnr"].size == 6
        assert not file_of(run, "c1").exists()
        sweep.fill(writer, range(2))
    assert len(run.done()) == 6
    with run.writing() as writer:
        assert writer.verify() == []


def test_a_whole_run_is_left_alone(run: Run, sweep: SimpleNamespace) -> None:
    before = sweep.content(run)
    with run.writing() as writer:
        assert writer.verify() == []
    assert sweep.content(run) == before


@pytest.mark.parametrize("keep", [0, 1, 8, 500, -1])
def test_a_truncated_file(run: Run, sweep: SimpleNamespace, keep: int) -> None:
    before = sweep.content(run)
    path = file_of(run, "c1")
    size = path.stat().st_size
    kept = keep % size
    path.write_bytes(path.read_bytes()[:kept])
    check_that_it_is_redone(run, sweep, f"has {kept} bytes instead of {size}")
    assert sweep.content(run) == before


def test_a_file_with_more_at_its_end(run: Run, sweep: SimpleNamespace) -> None:
    path = file_of(run, "c1")
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + b"\0")
    check_that_it_is_redone(run, sweep, f"has {size + 1} bytes instead of {size}")


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 10**9), mask=st.integers(1, 255))
def test_one_flipped_byte_anywhere(run: Run, sweep: SimpleNamespace, place: int, mask: int) -> None:
    path = file_of(run, "c1")
    data = bytearray(path.read_bytes())
    data[place % len(data)] ^= mask
    path.write_bytes(data)
    check_that_it_is_redone(run, sweep, "is not as it was written")


def test_a_missing_file_and_a_directory_in_its_place(run: Run, sweep: SimpleNamespace) -> None:
    file_of(run, "c1").unlink()
    check_that_it_is_redone(run, sweep, "is missing")


def test_all_files_gone(run: Run, sweep: SimpleNamespace) -> None:
    before = sweep.content(run)
    for path in (run.directory / "tensors").iterdir():
        path.unlink()
    (run.directory / "tensors").rmdir()
    with run.writing() as writer:
        assert len(writer.verify()) == 2
        assert run.done() == set()
        sweep.fill(writer, range(2))
    assert sweep.content(run) == before


def test_what_a_killed_writer_left_is_deleted_and_nothing_else(run: Run, sweep: SimpleNamespace) -> None:
    before = sweep.content(run)
    for name in ("tensors/1-c2.safetensors.part", "tensors/1-c2.safetensors", "scenario.yaml.part"):
        (run.directory / name).write_bytes(b"half of it")
    kept = [run.directory / "work" / "chunk.part", run.directory / "notes.part", run.directory / "my.safetensors"]
    for path in kept:
        path.write_text("not the store's")
    with run.writing() as writer:
        assert len(writer.verify()) == 3
    assert all(path.read_text() == "not the store's" for path in kept)
    assert sweep.content(run) == before


def test_reading_pictures_from_a_broken_file_says_what_to_do(run: Run, sweep: SimpleNamespace) -> None:
    trial = sweep.make_landing(1).records[0].trial
    path = file_of(run, "c1")
    path.write_bytes(path.read_bytes()[:100])
    for _ in range(2):
        with pytest.raises(InputError, match=r"1-c1.safetensors cannot") as error:
            run.tensors(trial)
        assert "\n" not in str(error.value)
        path.unlink(missing_ok=True)
