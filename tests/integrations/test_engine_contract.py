"""Every engine keeps the same laws: a map in any order, stopping, failing, telling, and the same bits."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import engine_work
import pytest
import torch
from engine_work import Chunk

from leakscope.core.errors import InputError
from leakscope.sweep.engines import Engine, Needs, Note, serial

WORKERS = 2


def chunks(number: int, folder: Path | str = "") -> list[tuple[Chunk, Needs]]:
    return [(Chunk(f"c{i}", i, str(folder)), Needs()) for i in range(number)]


def begun(folder: Path) -> Counter[str]:
    return Counter(path.name.split("-")[0] for path in folder.iterdir())


def test_a_map_that_loses_and_repeats_nothing(engine: Engine) -> None:
    before, heard = torch.get_num_threads(), []
    given = [(Chunk(f"c{i}", i), Needs(threads=1 + i % 2)) for i in range(12)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        made = list(engine(engine_work.describe, given, on_note=heard.append))
    assert Counter(chunk for chunk, _ in made) == Counter(chunk for chunk, _ in given)
    assert all(result["square"] == chunk.number**2 for chunk, result in made)
    assert all(result["threads"] == 1 + chunk.number % 2 for chunk, result in made)
    assert torch.get_num_threads() == before
    assert sum("the work warns" in str(w.message) for w in caught) == 1
    if engine is serial:
        assert [note.done for note in heard] == [1, 4] * 12
    else:
        assert all(result["pid"] != os.getpid() for _, result in made)
        assert {result["omp"] for _, result in made} <= {"1", "2"}


def test_nothing_to_do_is_done_at_once(engine: Engine) -> None:
    assert list(engine(engine_work.linger, [])) == []


class Endless:
    """Chunks without end, and how many were drawn."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.drawn = str(folder), 0

    def __iter__(self) -> Iterator[tuple[Chunk, Needs]]:
        while True:
            self.drawn += 1
            yield Chunk(f"c{self.drawn}", self.drawn, self.folder), Needs()


def test_stop_starts_nothing_new_and_finishes_what_is_in_hand(engine: Engine, tmp_path: Path) -> None:
    landed: list[str] = []
    given = Endless(tmp_path)
    for chunk, _ in engine(engine_work.linger, given, stop=lambda: len(landed) >= 3):
        landed.append(chunk.name)
        assert given.drawn <= len(landed) + WORKERS + 1, "no more is drawn than there is room for, and one ahead"
    assert begun(tmp_path) == Counter(landed)
    assert 3 <= len(landed) <= 3 + WORKERS


def test_stopped_before_it_began(engine: Engine, tmp_path: Path) -> None:
    assert list(engine(engine_work.linger, chunks(3, tmp_path), stop=lambda: True)) == []
    assert not begun(tmp_path)


def test_an_error_in_the_work_is_raised_as_itself_after_what_is_in_hand(engine: Engine, tmp_path: Path) -> None:
    landed: list[str] = []
    with pytest.raises(InputError) as caught:
        landed.extend(chunk.name for chunk, _ in engine(engine_work.refuse, Endless(tmp_path)))
    assert re.fullmatch(r"Chunk\.number .* 2", str(caught.value))
    assert any("in chunk c2" in note for note in caught.value.__notes__)
    assert begun(tmp_path) == Counter([*landed, "c2"])


@pytest.fixture(scope="module")
def reference() -> dict[str, dict[str, torch.Tensor]]:
    return {chunk.name: result for chunk, result in serial(engine_work.attack, chunks(2))}


@pytest.mark.slow
def test_the_bits_of_an_attack_do_not_depend_on_the_engine(
    engine: Engine, reference: dict[str, dict[str, torch.Tensor]]
) -> None:
    heard: list[Note] = []
    made = {chunk.name: result for chunk, result in engine(engine_work.attack, chunks(2), on_note=heard.append)}
    assert made.keys() == reference.keys()
    for name, result in reference.items():
        assert made[name].keys() == result.keys()
        for field, value in result.items():
            assert made[name][field].numpy().tobytes() == value.numpy().tobytes(), f"{name}.{field}"
            made[name][field].numpy()[...] = 0  # and what comes back may be written to
    assert {(note.chunk, note.total) for note in heard} <= {("c0", 4), ("c1", 4)}
    assert heard or engine is not serial


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["processes", "ray"], indirect=True)
def test_a_worker_killed_in_mid_run_costs_nobody_a_result(engine: Engine, tmp_path: Path) -> None:
    given = [(Chunk("victim" if i == 1 else f"c{i}", i, str(tmp_path)), Needs()) for i in range(8)]
    killer = threading.Thread(target=kill_first, args=(tmp_path,), daemon=True)
    killer.start()
    heard: list[Note] = []
    made = list(engine(engine_work.hang_once, given, on_note=heard.append))
    assert Counter(chunk for chunk, _ in made) == Counter(chunk for chunk, _ in given)
    assert all(result == chunk.number for chunk, result in made)
    assert begun(tmp_path) == {"victim": 2}
    assert any(note.chunk == "victim" and "worker lost" in note.note for note in heard)


def kill_first(folder: Path) -> None:
    """Kill the process of the first chunk that writes its number down."""
    while not (told := [path.read_text() for path in folder.iterdir()]) or not told[0]:
        time.sleep(0.05)
    os.kill(int(told[0]), signal.SIGKILL)
