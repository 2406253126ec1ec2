"""What clients keep to themselves: private heads in no file unless asked for, and then, as all else that is theirs, in one folder
that its owner alone can read, enough to go on.
"""

from __future__ import annotations

import re
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from leakscope.core.errors import InputError
from leakscope.core.tree import flat_names
from leakscope.federated import State, begin, pack, play_round
from leakscope.learning.polarisation import CODES
from leakscope.report.training_page import write_training
from leakscope.scenario import ScenarioError, scenario_of
from leakscope.sweep.driver import unfold
from leakscope.training import Point, run_training, training_of
from leakscope.training import run as run_module
from leakscope.training.objects import make_objects

LOCAL = {"epochs": 1, "batch_size": 8, "rate": 0.3}


def small(**changes: Any) -> dict[str, Any]:
    given = {
        "data": {"name": "digits", "examples": 60},
        "partition": {"name": "iid", "clients": 3},
        "model": {"name": "mlp", "hidden": [8]},
        "client": {"local": LOCAL, "on_model": {"alpha2": 0.1, "bits": 8}},
        "defences": [{"name": "deep_compression", "drop": 0.5}],
        "selection": {"name": "everyone"},
        "precision": {"form": "native"},
        "rounds": 3,
        "checkpoints": [1, 2],
    }
    return {**given, **changes}


def files(directory: Path) -> dict[str, bytes]:
    found = sorted(path for path in directory.rglob("*") if path.is_file() and path.name != "run.lock")
    return {str(path.relative_to(directory)): path.read_bytes() for path in found}


def states(told: dict[str, Any]) -> list[State]:
    """Return the states of a training from its first to its last round, played beside it."""
    world = make_objects(training_of(told))
    found = [begin(world.federation, world.trained, world.holdings.clients, weights=world.weights)]
    for _ in range(told["rounds"]):
        found.append(play_round(world.federation, world.trained, world.holdings, found[-1])[0])
    return found


def needles(state: State) -> set[bytes]:
    """Return the bytes of every row that a client keeps to itself, in both precisions; rows of zeros say nothing.

    Codes also as int8 and as packed bits.
    """
    kept = [value.flatten(0, -2) if value.ndim > 1 else value[None] for value in flat_names(_kept(state)).values()]
    rows: list[Tensor] = [row for value in kept for row in value if row.abs().sum() > 0 and row.numel() >= 4]
    found = {row.to(kind).numpy().tobytes() for row in rows for kind in (torch.float32, torch.float64)}
    codes = [own.flatten() for own in state.private.get(CODES, torch.empty(0))]
    found |= {own.to(torch.int8).numpy().tobytes() for own in codes}
    return found | {np.packbits(own.numpy() > 0).tobytes() for own in codes}


def _kept(state: State) -> object:
    return state.private, state.memory


def holding(found: dict[str, bytes], sought: set[bytes]) -> list[str]:
    return [name for name, content in found.items() if any(needle in content for needle in sought)]


MEMORY_ALONE = {"client": {"local": LOCAL}}


@pytest.mark.parametrize("changes", [{}, {"defences": []}], ids=["heads and residuals", "heads"])
def test_by_default_no_file_at_all_holds_what_clients_with_private_heads_keep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    monkeypatch.setattr(run_module, "SAVE_EVERY", 0.0)
    told = small(rounds=2, checkpoints=[1], **changes)
    sought = set().union(*(needles(state) for state in states(told)))
    assert len(sought) > 50
    seen: list[str] = []
    result = run_training(training_of(told), tmp_path, on_round=lambda _: seen.extend(holding(files(tmp_path), sought)))
    write_training(result, tmp_path / "index.html", command="leakscope train t.yaml")
    assert seen == holding(files(tmp_path), sought) == []
    assert not (tmp_path / "private").exists()
    assert {"state.safetensors", "index.html", "checkpoints/round-00002.safetensors"} <= files(tmp_path).keys()


@pytest.mark.parametrize(("changes", "keep"), [({}, True), (MEMORY_ALONE, False)], ids=["asked for", "no heads"])
def test_no_file_outside_the_private_folder_holds_what_clients_keep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], keep: bool
) -> None:
    monkeypatch.setattr(run_module, "SAVE_EVERY", 0.0)
    told = small(rounds=2, checkpoints=[1], **changes)
    played = states(told)
    sought = set().union(*(needles(state) for state in played))
    assert len(sought) > 50
    seen: list[str] = []

    def look(point: Point) -> None:
        found = files(tmp_path)
        seen.extend(holding({name: text for name, text in found.items() if not name.startswith("private/")}, sought))
        here = needles(played[point.round])
        assert holding(found, here) == ([f"private/round-{point.round:05}.safetensors"] if here else [])

    run_training(training_of(told), tmp_path, keep_private=keep, on_round=look)
    assert seen == []
    assert [name for name in files(tmp_path) if name.startswith("private/")] == [
        "private/.gitignore",
        "private/round-00002.safetensors",
    ]


def test_the_search_finds_what_is_there(tmp_path: Path) -> None:
    state = states(small(rounds=1, checkpoints=[]))[-1]
    everything = {name: value.numpy().tobytes() for name, value in flat_names(_kept(state)).items()}
    (tmp_path / "leak").write_bytes(b"before" + b"".join(everything.values()))
    (tmp_path / "server").write_bytes(pack(state, {}))
    assert holding(files(tmp_path), needles(state)) == ["leak"]


def test_only_the_owner_can_read_the_private_folder(tmp_path: Path) -> None:
    run_training(training_of(small(rounds=1, checkpoints=[])), tmp_path, keep_private=True)
    folder = tmp_path / "private"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert (folder / ".gitignore").read_text() == "*\n"


def test_clients_that_keep_nothing_leave_no_private_folder(tmp_path: Path) -> None:
    run_training(training_of(small(rounds=1, checkpoints=[], client={"local": LOCAL}, defences=[])), tmp_path)
    assert not (tmp_path / "private").exists()


class CutError(Exception):
    """Stands for a kill."""


@pytest.mark.parametrize(("changes", "keep"), [({}, True), (MEMORY_ALONE, False)], ids=["heads kept", "no heads"])
@pytest.mark.parametrize("moment", ["before the state", "after the state"])
def test_a_training_cut_between_its_two_files_goes_on_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, changes: dict[str, Any], keep: bool
) -> None:
    monkeypatch.setattr(run_module, "SAVE_EVERY", 0.0)
    told = small(**changes)
    run_training(training_of(told), tmp_path / "whole", keep_private=keep)
    name = "pack" if moment == "before the state" else "forget_older"
    genuine = getattr(run_module, name)

    def cut(*given: Any) -> Any:
        state = next(each for each in given if isinstance(each, State))
        if state.rounds == 2:
            raise CutError
        return genuine(*given)

    with monkeypatch.context() as patched:
        patched.setattr(run_module, name, cut)
        with pytest.raises(CutError):
            run_training(training_of(told), tmp_path / "cut", keep_private=keep)
    assert len(list((tmp_path / "cut" / "private").glob("round-*"))) == 2
    run_training(training_of(told), tmp_path / "cut", keep_private=keep)
    assert files(tmp_path / "cut") == files(tmp_path / "whole")


def stopped_after(told: dict[str, Any], directory: Path, rounds: int, *, keep: bool = False) -> list[str]:
    """Train until so many rounds are done, and return what was said."""
    told_of: list[Point] = []
    said: list[str] = []
    made = run_training(
        training_of(told),
        directory,
        keep_private=keep,
        on_round=told_of.append,
        say=said.append,
        stop=lambda: told_of[-1].round >= rounds,
    )
    assert made.stopped
    assert made.resumable == (keep or rounds == 0)
    return said


def test_heads_that_are_not_written_are_named_once_at_the_beginning(tmp_path: Path) -> None:
    told = small(rounds=1, checkpoints=[])
    said: dict[str, list[str]] = {"default": [], "kept": [], "no heads": []}
    run_training(training_of(told), tmp_path / "default", say=said["default"].append)
    run_training(training_of(told), tmp_path / "kept", keep_private=True, say=said["kept"].append)
    run_training(training_of({**told, **MEMORY_ALONE}), tmp_path / "no heads", say=said["no heads"].append)
    assert (said["kept"], said["no heads"]) == ([], [])
    (notice,) = said["default"]
    assert re.search(f"--keep-private .*{tmp_path / 'default' / 'private'}", notice)


def test_a_cut_training_whose_heads_were_not_kept_is_refused_with_both_ways_out(tmp_path: Path) -> None:
    told = small()
    stopped_after(told, tmp_path, 2)
    before = files(tmp_path)
    for keep in (False, True):
        with pytest.raises(InputError, match=r"round 2 of 3 ") as caught:
            run_training(training_of(told), tmp_path, keep_private=keep)
        assert re.search("--out.*--keep-private", str(caught.value))
        assert "\n" not in str(caught.value)
    assert files(tmp_path) == before


@pytest.mark.parametrize("keep", [False, True])
def test_before_the_first_round_ends_nothing_is_lost(tmp_path: Path, keep: bool) -> None:
    told = small(rounds=1, checkpoints=[])
    run_training(training_of(told), tmp_path / "whole", keep_private=keep)
    stopped_after(told, tmp_path / "cut", 0)
    run_training(training_of(told), tmp_path / "cut", keep_private=keep)
    assert files(tmp_path / "cut") == files(tmp_path / "whole")


def test_a_training_that_is_over_needs_no_heads(tmp_path: Path) -> None:
    told = small(rounds=2, checkpoints=[])
    first = run_training(training_of(told), tmp_path)
    before = files(tmp_path)
    (tmp_path / "checkpoints" / "round-00002.safetensors").unlink()
    said: list[str] = []
    again = run_training(training_of(told), tmp_path, say=said.append)
    assert (again.curve, again.checkpoints, again.stopped) == (first.curve, first.checkpoints, False)
    assert files(tmp_path) == before
    assert [line.split()[-2:] for line in said] == [["round", "2"]]


def test_kept_heads_are_gone_on_with_only_when_asked_to_keep_them(tmp_path: Path) -> None:
    told = small(rounds=2, checkpoints=[])
    run_training(training_of(told), tmp_path / "whole", keep_private=True)
    stopped_after(told, tmp_path / "cut", 1, keep=True)
    with pytest.raises(InputError, match=r"--keep-private.* --out"):
        run_training(training_of(told), tmp_path / "cut")
    (tmp_path / "copy").mkdir()
    (tmp_path / "cut" / "private").rename(
        tmp_path / "copy" / "private"
    )  # its state is gone: a training from the beginning
    with pytest.raises(InputError, match="contains private heads"):
        run_training(training_of(told), tmp_path / "copy")
    (tmp_path / "copy" / "private").rename(tmp_path / "cut" / "private")
    run_training(training_of(told), tmp_path / "cut", keep_private=True)
    assert files(tmp_path / "cut") == files(tmp_path / "whole")
    run_training(training_of(told), tmp_path / "cut")
    assert files(tmp_path / "cut") == files(tmp_path / "whole")


def test_a_state_without_its_private_file_is_told(tmp_path: Path) -> None:
    told = small(rounds=1, checkpoints=[], **MEMORY_ALONE)
    run_training(training_of(told), tmp_path)
    file = tmp_path / "private" / "round-00001.safetensors"
    file.rename(file.with_name("round-00007.safetensors"))
    with pytest.raises(InputError, match="hold round 1"):
        run_training(training_of({**told, "rounds": 2}), tmp_path)
    file.with_name("round-00007.safetensors").unlink()
    with pytest.raises(InputError, match="private file is"):
        run_training(training_of({**told, "rounds": 2}), tmp_path)


def test_too_few_codes_are_refused_where_they_stand(tmp_path: Path) -> None:
    bad = small(client={"local": LOCAL, "on_model": {"alpha2": 0.1, "bits": 2}})
    with pytest.raises(ScenarioError, match=r"client\.on_model\.bits: .*codes"):
        run_training(training_of(bad), tmp_path / "t")
    assert not (tmp_path / "t").exists()
    scenario = scenario_of(
        {
            "name": "few codes",
            "data": "digits",
            "model": {"name": "mlp", "hidden": [8]},
            "trials": 1,
            "client": {"on_model": {"bits": 4}},
            "attacks": [{"name": "dlg"}],
            "grid": {"client.on_model.bits": [4, 2]},
        }
    )
    with pytest.raises(ScenarioError, match=r"codes: Polarisation\.bits = 2"):
        unfold(scenario)
