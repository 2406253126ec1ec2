"""Training from a file: what it may say, every mistake with its line, and a run that goes on to the same bits."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from leakscope.core.errors import InputError
from leakscope.core.types import LocalTraining
from leakscope.data.partition import IID
from leakscope.federated import Averaging, Decay, Everyone, Share
from leakscope.federated.federation import State
from leakscope.models.checkpoint import Checkpoint
from leakscope.scenario import scenario_of
from leakscope.scenario.problems import ScenarioError
from leakscope.sweep.driver import unfold
from leakscope.training import Point, read_training, run_training, training_of
from leakscope.training import objects as forms_module
from leakscope.training import run as run_module
from leakscope.training.objects import make_objects
from leakscope.training.result import forget_older

EXAMPLES = Path(__file__).parents[2] / "examples"


def small(**changes: Any) -> dict[str, Any]:
    given = {
        "name": "small",
        "data": {"name": "digits", "examples": 120},
        "partition": {"name": "dirichlet", "clients": 6},
        "model": {"name": "mlp", "hidden": [8]},
        "client": {"local": {"epochs": 2, "batch_size": 8, "rate": 0.3}},
        "selection": {"name": "share", "share": 0.5},
        "rounds": 4,
        "checkpoints": [2],
    }
    return {**given, **changes}


def files(directory: Path) -> dict[str, bytes]:
    found = sorted(p for p in directory.rglob("*") if p.is_file() and p.name != "run.lock")
    return {str(p.relative_to(directory)): p.read_bytes() for p in found}


# -- running


def test_a_training_writes_its_curve_its_checkpoints_and_its_state(tmp_path: Path) -> None:
    told: list[Point] = []
    result = run_training(training_of(small()), tmp_path, on_round=told.append, facts={"machine": "mine"})
    assert [point.round for point in told] == [0, 1, 2, 3, 4] == [point.round for point in result.curve]
    assert [point.answered for point in told] == [0, 3, 3, 3, 3]
    assert all(point.accuracy is not None and point.n == 360 for point in told)
    assert set(files(tmp_path)) == {
        "training.yaml",
        "state.safetensors",
        "curve.csv",
        "checkpoints/round-00002.safetensors",
        "checkpoints/round-00004.safetensors",
    }
    assert len((tmp_path / "curve.csv").read_text().splitlines()) == 6
    assert run_training(training_of(small()), tmp_path, facts={"machine": "mine"}) == result
    assert sum(result.sizes) == 120
    assert not result.diverged
    assert not result.stopped


def test_the_checkpoint_is_the_model_that_the_curve_measured(tmp_path: Path) -> None:
    training = training_of(small())
    result = run_training(training, tmp_path)
    world = make_objects(training)
    model = Checkpoint(str(tmp_path), 2).load(world.used)
    x, y = (take("test", slice(None)) for take in (world.data.pictures, world.data.labels))
    output, _ = model.apply(model.parameters, model.buffers, x, torch.tensor(0))
    assert int((output.argmax(1) == y).sum()) == result.curve[2].correct


class CutError(Exception):
    """Stands for a kill."""


@pytest.mark.parametrize(
    "changes",
    [
        {},
        pytest.param({"norm": "train", "model": {"name": "resnet20", "width": 1}, "rounds": 3}, marks=pytest.mark.slow),
    ],
)
def test_a_training_that_was_cut_goes_on_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    monkeypatch.setattr(run_module, "SAVE_EVERY", 0.0)
    told = small(
        defences=[{"name": "deep_compression", "drop": 0.5}],
        precision={"form": "native"},
        data={"name": "digits", "examples": 60},
        **changes,
    )
    whole = run_training(training_of(told), tmp_path / "whole")
    for moment in (1, 2):

        def cut(point: Point, moment: int = moment) -> None:
            if point.round == moment:
                raise CutError

        with pytest.raises(CutError):
            run_training(training_of(told), tmp_path / "cut", on_round=cut)
    said: list[str] = []
    rest: list[Point] = []
    resumed = run_training(training_of(told), tmp_path / "cut", say=said.append, on_round=rest.append)
    assert [line.split()[-2:] for line in said] == [["round", "2"]]
    assert [point.round for point in rest] == list(range(3, told["rounds"] + 1))
    assert resumed.curve == whole.curve
    kept, cut_ = files(tmp_path / "whole"), files(tmp_path / "cut")
    assert kept == cut_


def test_more_rounds_go_on_where_it_ended_and_fewer_are_refused(tmp_path: Path) -> None:
    long = run_training(training_of(small()), tmp_path / "long")
    run_training(training_of(small(rounds=2)), tmp_path / "short")
    more = run_training(training_of(small(name="other title")), tmp_path / "short")
    assert more.curve == long.curve
    with pytest.raises(InputError, match="4 rounds far, 2 "):
        run_training(training_of(small(rounds=2)), tmp_path / "short")


@pytest.mark.parametrize("changes", [{"seed": 1}, {"server": {"name": "deltas", "rate": 0.5}}, {"data": "digits"}])
def test_the_directory_of_another_training_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    run_training(training_of(small(rounds=1, checkpoints=[])), tmp_path)
    before = files(tmp_path)
    with pytest.raises(InputError, match="holds another training"):
        run_training(training_of(small(**changes)), tmp_path)
    assert files(tmp_path) == before


def test_a_damaged_state_is_told(tmp_path: Path) -> None:
    run_training(training_of(small(rounds=1, checkpoints=[])), tmp_path)
    (tmp_path / "state.safetensors").write_bytes(b"half")
    with pytest.raises(InputError, match=r"readable state .*delete"):
        run_training(training_of(small()), tmp_path)


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(InputError, match=r"not empty .*thesis.tex"):
        run_training(training_of(small()), tmp_path)
    with pytest.raises(InputError, match="is a file"):
        run_training(training_of(small()), tmp_path / "thesis.tex")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_it_stops_between_rounds_when_asked(tmp_path: Path) -> None:
    asked: list[int] = []
    result = run_training(
        training_of(small()), tmp_path, on_round=lambda p: asked.append(p.round), stop=lambda: len(asked) == 3
    )
    assert (result.rounds, result.stopped) == (2, True)


def test_a_training_that_blows_up_ends_and_says_so(tmp_path: Path) -> None:
    local = {"epochs": 3, "batch_size": 4, "rate": 1e30}
    training = training_of(small(client={"local": local}))
    result = run_training(training, tmp_path)
    assert result.diverged
    assert result.curve[-1].accuracy is None, "NaN is no class"
    assert result.rounds not in result.checkpoints
    assert result.rounds < 4 or not torch.isfinite(torch.tensor(result.curve[-1].loss))
    assert run_training(training, tmp_path).diverged


def test_it_ends_as_diverged_also_where_no_accuracy_was_due(tmp_path: Path) -> None:
    local = {"epochs": 3, "batch_size": 4, "rate": 1e30}
    training = training_of(small(client={"local": local}, evaluate=50, rounds=50, checkpoints=[]))
    assert run_training(training, tmp_path).diverged


def test_a_checkpoint_that_is_missing_or_asked_for_later_is_written_or_named(tmp_path: Path) -> None:
    first = run_training(training_of(small()), tmp_path)
    file = Path(first.checkpoints[4])
    bytes_before = file.read_bytes()
    file.unlink()
    lines: list[str] = []
    again = run_training(training_of(small(checkpoints=[1, 2, 3])), tmp_path, say=lines.append)
    assert file.read_bytes() == bytes_before
    assert sorted(again.checkpoints) == [2, 4]
    assert any("rounds 1, 3 are past" in line for line in lines)


def test_accuracy_is_measured_every_so_many_rounds_and_where_it_matters(tmp_path: Path) -> None:
    result = run_training(training_of(small(rounds=5, checkpoints=[2], evaluate=3)), tmp_path)
    assert [point.round for point in result.curve if point.accuracy is not None] == [0, 2, 3, 5]


@pytest.mark.parametrize(
    "changes",
    [
        {"client": {}, "server": {"name": "fedsgd", "rate": 0.3}},
        {"server": {"name": "deltas", "rate": 0.7, "equal": True}},
        {"server": "round_robin"},
        {"selection": {"name": "everyone", "replies": 0.2}},
        {"partition": {"name": "by_class", "clients": 5, "classes": 2}},
        {"partition": {"name": "iid", "clients": 120}},
        {"defences": [{"name": "clip", "bound": 0.1}, {"name": "gaussian_noise", "sigma": 0.01}]},
        {"client": {"local": {"epochs": 1, "optimiser": "adam", "rate": 0.01, "batch_size": 500}}},
        {"client": {"local": {"epochs": 1, "rate": 0.1, "proximal": 0.5}}, "decay": {"factor": 0.5, "every": 1}},
        {"precision": {"dtype": "float64", "together": 2}},
        {"weights": {"name": "uniform", "a": 0.3}},
        {"client": {"local": {"epochs": 1, "rate": 0.1}, "on_model": {"alpha2": 0.1, "bits": 8}}},
        {"client": {"local": {"epochs": 1, "rate": 0.1}, "on_data": {"policy": "3-1-7", "flip": True}}},
    ],
)
def test_every_kind_of_federation_runs(tmp_path: Path, changes: dict[str, Any]) -> None:
    result = run_training(training_of(small(**{"rounds": 2, "checkpoints": [], **changes})), tmp_path)
    assert result.rounds == 2
    assert all(point.loss is not None and point.loss < 20 for point in result.curve)


def test_the_form_is_measured_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = small(model={"name": "lenet_dlg", "width": 2}, rounds=1, checkpoints=[])
    said: list[str] = []
    run_training(training_of(told), tmp_path, say=said.append)
    assert len(said) == 1
    timed = re.findall(r"(\w+) \d+ ms", said[0])
    assert timed == ["native", "by_client", "split", "bands", "windows"]
    assert said[0].split()[1] in timed  # convolutions <form> (...)
    monkeypatch.setattr(forms_module, "choose_form", lambda *_: pytest.fail("measured again"))
    monkeypatch.setattr(run_module, "choose_form", lambda *_: pytest.fail("measured again"))
    run_training(training_of({**told, "rounds": 2}), tmp_path)


@pytest.mark.parametrize("form", ["by_client", "split", "bands", "windows", "im2col"])
def test_forms_differ_in_rounding_only(tmp_path: Path, form: str) -> None:
    told = small(model={"name": "lenet_dlg", "width": 2}, rounds=1, checkpoints=[])
    made = {}
    for chosen in ("native", form):
        precision = {"form": chosen, "dtype": "float64"}
        run_training(training_of({**told, "precision": precision}), tmp_path / chosen)
        world = make_objects(training_of(told))
        made[chosen] = Checkpoint(str(tmp_path / chosen), 1).load(world.used).parameters
    torch.testing.assert_close(made[form], made["native"], rtol=1e-6, atol=1e-7)


@pytest.mark.real_data
def test_writers_of_mnist_are_clients(tmp_path: Path) -> None:
    told = small(
        data={"name": "mnist", "scaling": "statistics"},
        partition={"name": "by_writer", "clients": 30, "least": 10, "samples": 12},
        client={"local": {"epochs": 5, "batch_size": 4, "rate": 0.2}},
        selection={"name": "count", "number": 20},
        model={"name": "linear"},
        evaluate=4,
    )
    result = run_training(training_of(told), tmp_path)
    assert len(result.sizes) == 30
    assert all(10 <= size <= 12 for size in result.sizes)
    last = result.curve[-1].accuracy
    assert last is not None
    assert last.low > 0.2  # chance is 0.1


# -- checkpoints go on


def test_a_checkpoint_can_begin_another_training_and_an_attack(tmp_path: Path) -> None:
    first = run_training(training_of(small()), tmp_path / "first")
    weights = {"name": "checkpoint", "path": str(tmp_path / "first"), "round": 4}
    on = run_training(training_of(small(weights=weights, rounds=1, checkpoints=[])), tmp_path / "second")
    assert on.curve[0].correct == first.curve[4].correct
    data = {
        "data": "digits",
        "model": {"name": "mlp", "hidden": [8]},
        "weights": weights,
        "attack": "idlg",
        "trials": 2,
        "baselines": [],
    }
    assert len(unfold(scenario_of(data)).trials) == 2
    with pytest.raises(ScenarioError, match="another architecture"):
        unfold(scenario_of({**data, "model": {"name": "mlp", "hidden": [9]}}))


def test_a_checkpoint_is_refused_under_another_scaling_of_the_inputs(tmp_path: Path) -> None:
    scaled = {"name": "fashion_mnist", "examples": 120, "scaling": "statistics"}
    short = {"rounds": 1, "checkpoints": [], "partition": {"name": "iid", "clients": 6}}
    run_training(training_of(small(data=scaled, **short)), tmp_path / "first")
    weights = {"name": "checkpoint", "path": str(tmp_path / "first"), "round": 1}
    attacked = {
        "model": {"name": "mlp", "hidden": [8]},
        "weights": weights,
        "attack": "idlg",
        "trials": 1,
        "baselines": [],
    }
    unfold(scenario_of({**attacked, "data": {"name": "fashion_mnist", "scaling": "statistics"}}))
    said = "data.scaling statistics, .*none"
    with pytest.raises(ScenarioError, match=said):
        unfold(scenario_of({**attacked, "data": "fashion_mnist"}))
    plain = small(data={"name": "fashion_mnist", "examples": 120}, weights=weights, **short)
    with pytest.raises(InputError, match=said):
        run_training(training_of(plain), tmp_path / "second")


def test_the_state_of_a_training_is_not_taken_for_a_checkpoint(tmp_path: Path) -> None:
    run_training(training_of(small(rounds=1, checkpoints=[])), tmp_path)
    weights = {"name": "checkpoint", "path": str(tmp_path / "state.safetensors")}
    with pytest.raises(InputError, match="of a training"):
        run_training(training_of(small(weights=weights)), tmp_path / "second")


# -- the file


def test_the_papers_federations_are_what_the_papers_say() -> None:
    cpl = read_training(EXAMPLES / "train_cpl.yaml")
    assert cpl.partition == IID(clients=100)
    assert cpl.selection == Share(share=0.1)
    sme = read_training(EXAMPLES / "train_sme.yaml")
    federation = sme.federation
    assert federation.client.local == LocalTraining(epochs=10, batch_size=50, rate=0.004)
    assert federation.selection == Everyone(replies=0.1)
    assert federation.server == Averaging()
    assert sme.checkpoints == (5, 10, 20)
    assert sme.model.name == "cnn_mnist"


def test_defaults_are_filled_in_and_a_name_alone_will_do() -> None:
    told = training_of(
        {
            "data": "digits",
            "partition": {"name": "iid", "clients": 2},
            "model": "mlp",
            "client": {"local": {}},
            "rounds": 1,
        }
    )
    assert told.server == Averaging()
    assert told.norm == "eval"
    federation = told.federation
    assert (federation.selection, federation.decay) == (Share(), Decay())


BASE = """\
data: digits
partition: {name: iid, clients: 10}
model: mlp
client:
  local: {epochs: 1, rate: 0.1}
rounds: 4
"""


def mistakes(tmp_path: Path, text: str) -> str:
    path = tmp_path / "t.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        run_training(read_training(path), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    return str(error.value).replace(str(path), "t.yaml")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("rounds: 4", "round: 4"), "t.yaml:6: round: .*'round'.*'rounds'"),
        (("epochs: 1", "epoch: 1"), "t.yaml:5: client.local.epoch: .*'epoch'.*'epochs'"),
        (("epochs: 1", "epochs: 0"), "t.yaml:5: client.local.epochs: .*got 0"),
        (("rate: 0.1", "rate: 0.0"), "t.yaml:5: client.local.rate: .*got 0.0"),
        (("rate: 0.1", "rate: fast"), "t.yaml:5: client.local.rate: .*got 'fast'"),
        (("rounds: 4", "rounds: 0"), "t.yaml:6: rounds: .*got 0"),
        (("rounds: 4", "rounds: 4\ncheckpoints: [5]"), "has 4, got 5"),
        (("name: iid", "name: idd"), "t.yaml:2: partition: .*'idd'.*'iid'"),
        (("clients: 10", "client: 10"), "t.yaml:2: partition.client: .*'client'.*'clients'"),
        (("clients: 10", "clients: 5000"), "t.yaml:2: partition: IID.clients .*most 1437"),
        (
            ("name: iid, clients: 10", "name: by_writer"),
            "t.yaml:2: partition: ByWriter ",
        ),
        (
            ("rounds: 4", "rounds: 4\nselection: {name: count, number: 11}"),
            "t.yaml:7: selection.number: .*10",
        ),
        (("rounds: 4", "rounds: 4\nserver: fedsgd"), "t.yaml:7: server: fedsgd "),
        (("rounds: 4", "rounds: 4\nserver: fedsdg"), "t.yaml:7: server: .*'fedsdg'"),
        (("rounds: 4", "rounds: 4\ndecay: {factor: 2.0, every: 1}"), r"decay.factor: .*\(0, 1\]"),
        (("rounds: 4", "rounds: 4\ndefences: [{name: clip, bound: 0.0}]"), "t.yaml:7: defences.0.bound: Clip.bound"),
        (("rounds: 4", "rounds: 4\ndefences: [sign, sign]"), "t.yaml:7: defences: Sign "),
        (("model: mlp", "model: lenet_cpl\nnorm: testing"), "t.yaml:4: norm: .*got 'testing'"),
        (
            ("data: digits", "data: {name: digits, examples: 2000}"),
            "data.examples: .*1437",
        ),
        (
            ("rounds: 4", "rounds: 4\nweights: {name: checkpoint, path: none}"),
            "t.yaml:7: weights: ",
        ),
    ],
)
def test_a_mistake_is_told_with_its_line_and_nothing_is_written(
    tmp_path: Path, change: tuple[str, str], said: str
) -> None:
    assert re.search(said, mistakes(tmp_path, BASE.replace(*change)))


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    text = BASE.replace("rounds", "round").replace("epochs", "epoch").replace("iid", "idd")
    assert mistakes(tmp_path, text).count("\n") == 3  # rounds is also missing


def test_a_network_that_does_not_fit_the_data_is_told(tmp_path: Path) -> None:
    text = BASE.replace("digits", "breast_cancer").replace("model: mlp", "model: lenet_cpl")
    assert re.search(r"t\.yaml:3: model: .*\(30,\)", mistakes(tmp_path, text))


@pytest.mark.parametrize("content", [b"\xff\xfe", b"- a\n- b\n", b"", b"a: [\n"])
def test_what_is_no_training_file_is_refused_in_a_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t.yaml"
    path.write_bytes(content)
    with pytest.raises(InputError) as error:
        read_training(path)
    assert "\n" not in str(error.value)
    with pytest.raises(InputError, match=r"cannot read .*none.yaml"):
        read_training(tmp_path / "none.yaml")


def test_a_mapping_is_not_changed_by_reading_it() -> None:
    given = small()
    before = copy.deepcopy(given)
    training_of(given)
    assert given == before
    with pytest.raises(InputError, match="plain values"):
        training_of({"data": object()})


def test_a_linked_folder_of_private_heads_is_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "round-00001.safetensors").write_bytes(b"kept")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "private").symlink_to(other)
    forget_older(tmp_path / "run", cast(State, SimpleNamespace(rounds=2)))
    assert (other / "round-00001.safetensors").read_bytes() == b"kept"
