"""What clients keep to themselves: in one folder that its owner alone can read, in no other file, and enough to go on."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from leakscope.core.errors import InputError
from leakscope.core.tree import flat_names
from leakscope.experiments.scenario import ScenarioError, scenario_of
from leakscope.experiments.sweep.driver import unfold
from leakscope.experiments.training import Point, run_training, training_of
from leakscope.experiments.training import run as run_module
from leakscope.experiments.training.world import make_world
from leakscope.federated import State, begin, pack, play_round

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
    world = make_world(training_of(told))
    found = [begin(world.federation, world.trained, world.holdings.clients, weights=world.weights)]
    for _ in range(told["rounds"]):
        found.append(play_round(world.federation, world.trained, world.holdings, found[-1])[0])
    return found


def needles(state: State) -> set[bytes]:
    """Return the bytes of every row that a client keeps to itself, in both precisions; rows of zeros say nothing."""
    kept = [value.flatten(0, -2) if value.ndim > 1 else value[None] for value in flat_names(_kept(state)).values()]
    rows: list[Tensor] = [row for value in kept for row in value if row.abs().sum() > 0 and row.numel() >= 4]
    return {row.to(kind).numpy().tobytes() for row in rows for kind in (torch.float32, torch.float64)}


def _kept(state: State) -> object:
    return state.private, state.memory


def holding(found: dict[str, bytes], sought: set[bytes]) -> list[str]:
    return [name for name, content in found.items() if any(needle in content for needle in sought)]


def test_no_file_outside_the_private_folder_holds_what_clients_keep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "SAVE_EVERY", 0.0)
    told = small()
    played = states(told)
    sought = set().union(*(needles(state) for state in played))
    assert len(sought) > 100
    seen: list[str] = []

    def look(point: Point) -> None:
        found = files(tmp_path)
        seen.extend(holding({name: text for name, text in found.items() if not name.startswith("private/")}, sought))
        assert holding(found, needles(played[point.round])) == [f"private/round-{point.round:05}.safetensors"]

    run_training(training_of(told), tmp_path, tell=look)
    assert seen == []
    assert [name for name in files(tmp_path) if name.startswith("private/")] == [
        "private/.gitignore",
        "private/round-00003.safetensors",
    ]


def test_the_search_finds_what_is_there(tmp_path: Path) -> None:
    state = states(small(rounds=1, checkpoints=[]))[-1]
    everything = {name: value.numpy().tobytes() for name, value in flat_names(_kept(state)).items()}
    (tmp_path / "leak").write_bytes(b"before" + b"".join(everything.values()))
    (tmp_path / "server").write_bytes(pack(state, {}))
    assert holding(files(tmp_path), needles(state)) == ["leak"]


def test_only_the_owner_can_read_the_private_folder(tmp_path: Path) -> None:
    run_training(training_of(small(rounds=1, checkpoints=[])), tmp_path)
    folder = tmp_path / "private"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert (folder / ".gitignore").read_text() == "*\n"


def test_clients_that_keep_nothing_leave_no_private_folder(tmp_path: Path) -> None:
    run_training(training_of(small(rounds=1, checkpoints=[], client={"local": LOCAL}, defences=[])), tmp_path)
    assert not (tmp_path / "private").exists()


class CutError(Exception):
    """Stands for a kill."""


@pytest.mark.parametrize("moment", ["before the state", "after the state"])
def test_a_training_cut_between_its_two_files_goes_on_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    monkeypatch.setattr(run_module, "SAVE_EVERY", 0.0)
    told = small()
    run_training(training_of(told), tmp_path / "whole")
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
            run_training(training_of(told), tmp_path / "cut")
    assert len(list((tmp_path / "cut" / "private").glob("round-*"))) == 2
    run_training(training_of(told), tmp_path / "cut")
    assert files(tmp_path / "cut") == files(tmp_path / "whole")


def test_a_state_without_its_private_file_is_told(tmp_path: Path) -> None:
    told = small(rounds=1, checkpoints=[])
    run_training(training_of(told), tmp_path)
    file = tmp_path / "private" / "round-00001.safetensors"
    file.rename(file.with_name("round-00007.safetensors"))
    with pytest.raises(InputError, match="does not hold round 1, where the state stands"):
        run_training(training_of({**told, "rounds": 2}), tmp_path)
    file.with_name("round-00007.safetensors").unlink()
    with pytest.raises(InputError, match="its private file is not there"):
        run_training(training_of({**told, "rounds": 2}), tmp_path)


def test_too_few_codes_are_refused_where_they_stand(tmp_path: Path) -> None:
    bad = small(client={"local": LOCAL, "on_model": {"alpha2": 0.1, "bits": 2}})
    with pytest.raises(ScenarioError, match=r"client\.on_model\.bits: more classes than codes"):
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
    with pytest.raises(ScenarioError, match=r"more classes than codes: Polarisation\.bits = 2"):
        unfold(scenario)
