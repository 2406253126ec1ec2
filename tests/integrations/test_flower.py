"""Recording leaves a Flower federation as it was, whatever its clients do; defences act as they do in our own clients."""

from __future__ import annotations

import importlib
import json
import os
import random
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flower_grid import make_grid
from torch import Tensor, nn

from leakscope import Decision, GuardSettings, LocalTraining, Target, capture
from leakscope.core.errors import InputError
from leakscope.core.tree import norm, subtract
from leakscope.defences import DEFENCES, Clip, DeepCompression, GaussianNoise, Sparsify
from leakscope.guarding.guard import GuardWarning
from leakscope.integrations import flower, flower_scan
from leakscope.integrations.flower import protecting, record
from leakscope.integrations.flower_guard import guarding
from leakscope.integrations.flower_scan import ScanWarning, scanning
from leakscope.models import adapt, gpt
from leakscope.scanning.findings import Test, Verdict
from leakscope.store.captures import Capture, read_captures
from leakscope.store.recorder import Recorder, Recording

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower"
SETTINGS = {
    "rounds": 2, "local-epochs": 1, "batch-size": 8, "examples": 8, "learning-rate": 0.4, "defence": "", "captures": "",
    "network": "small", "guard": "",
}  # fmt: skip

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flwr.app", None)
    with pytest.raises(InputError, match=r'pip install "leakscope\[flower\]"'):
        protecting(Clip(1.0))


def test_what_is_no_strategy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="configure_train"):
        record(object(), Recording(directory=tmp_path))


@pytest.fixture
def flwr() -> Any:
    pytest.importorskip("flwr")
    return importlib.import_module("flwr.app")


@pytest.fixture
def example(flwr: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    return importlib.import_module("digits_federation.client_app")


def net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))


def client(flwr: Any, *, mods: tuple[Any, ...] = (), trouble: Callable[[int, int, Any], None] | None = None) -> Any:
    """Return a client app that trains a small network with batch norm; `trouble(partition, round, reply)` may spoil it."""
    app = importlib.import_module("flwr.clientapp").ClientApp(mods=list(mods))

    @app.train()  # type: ignore[untyped-decorator]
    def train(message: Any, context: Any) -> Any:
        module, own = net(), int(context.node_config["partition-id"])
        module.load_state_dict(message.content["arrays"].to_torch_state_dict())
        generator = torch.Generator().manual_seed(own)
        x, y = torch.rand(6, 16, generator=generator), torch.randint(3, (6,), generator=generator)
        optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
        nn.functional.cross_entropy(module(x), y).backward()
        optimiser.step()
        metrics = flwr.MetricRecord({"num-examples": 6 + own, "partition-id": own})
        content = flwr.RecordDict({"arrays": flwr.ArrayRecord(module.state_dict()), "metrics": metrics})
        if trouble is not None:
            trouble(own, int(message.content["config"]["server-round"]), content)
        return flwr.Message(content=content, reply_to=message)

    return app


def trained(flwr: Any, strategy: Any, app: Any, *, nodes: int = 4, rounds: int = 3) -> dict[str, Tensor]:
    random.seed(7)  # Flower draws clients from Python's own generator
    made = strategy.start(
        grid=make_grid(app, nodes), initial_arrays=flwr.ArrayRecord(net().state_dict()), num_rounds=rounds
    )
    return dict(made.arrays.to_torch_state_dict())


def strategies() -> dict[str, Callable[[Any], Any]]:
    def chosen(kind: str, **settings: Any) -> Callable[[Any], Any]:
        return lambda module: getattr(module, kind)(fraction_evaluate=0.0, **settings)

    def private(module: Any) -> Any:
        return module.DifferentialPrivacyServerSideFixedClipping(module.FedAvg(fraction_evaluate=0.0), 0.0, 0.1, 4)

    return {
        "FedAvg": chosen("FedAvg"),
        "FedAdam": chosen("FedAdam"),
        "FedMedian": chosen("FedMedian"),
        "FedProx": chosen("FedProx", proximal_mu=0.1),
        "Krum, which drops clients": chosen("Krum", num_malicious_nodes=1),
        "half of the clients": chosen("FedAvg", fraction_train=0.5),
        "clipping at the server": private,
    }


@pytest.mark.parametrize("name", [name for name in strategies() if name != "half of the clients"])
def test_recording_changes_no_bit_of_the_result(flwr: Any, tmp_path: Path, name: str) -> None:
    module = importlib.import_module("flwr.serverapp.strategy")
    plain = trained(flwr, strategies()[name](module), client(flwr))
    recorder = Recorder(Recording(directory=tmp_path))
    recorded = trained(flwr, record(strategies()[name](module), recorder), client(flwr))
    assert set(plain) == set(recorded)
    assert all(torch.equal(plain[n], recorded[n]) for n in plain)
    assert recorder.written == 4 * 3
    assert not recorder.left_out


def test_captures_hold_what_the_server_saw(flwr: Any, tmp_path: Path) -> None:
    module = importlib.import_module("flwr.serverapp.strategy")
    trained(flwr, record(module.FedAvg(fraction_evaluate=0.0), Recording(directory=tmp_path)), client(flwr))
    captures = read_captures(tmp_path)
    assert [(c.round, c.partition, c.examples) for c in captures] == [
        (r, p, 6 + p) for r in (1, 2, 3) for p in range(4)
    ]
    assert captures[0].config == {"server-round": 1}
    first = net().state_dict()
    assert all(torch.equal(captures[0].before[n], first[n]) for n in first)
    for number in (1, 2):  # what is handed out is the weighted mean of what came in
        came = [c for c in captures if c.round == number]
        after = next(c.before for c in captures if c.round == number + 1)
        total = sum(c.examples or 0 for c in came)
        for name in ("1.weight", "3.bias"):
            mean = torch.stack([c.sent[name] * ((c.examples or 0) / total) for c in came]).sum(0)
            torch.testing.assert_close(mean, after[name])


def test_captures_written_by_hand_have_the_same_bytes(flwr: Any, tmp_path: Path) -> None:
    module = importlib.import_module("flwr.serverapp.strategy")
    strategy = record(module.FedAvg(fraction_evaluate=0.0), Recording(directory=tmp_path / "flower"))
    trained(flwr, strategy, client(flwr), rounds=2)
    for c in read_captures(tmp_path / "flower"):
        capture(
            {name: c.before[name] for name in net().state_dict()},  # in the model's order
            c.sent,
            directory=tmp_path / "hand",
            round=c.round,
            client=c.client,
            samples=c.examples,
            partition=c.partition,
            config=c.config,
        )
    flower_files, hand_files = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("flower", "hand")
    )
    assert len(flower_files) == 2 + 2 * 4 * 2
    assert hand_files == flower_files


def test_rounds_clients_and_disk_are_sampled(flwr: Any, tmp_path: Path) -> None:
    module = importlib.import_module("flwr.serverapp.strategy")
    settings = Recording(directory=tmp_path, every=2, clients=1)
    trained(flwr, record(strategies()["half of the clients"](module), settings), client(flwr), rounds=5)
    assert [c.round for c in read_captures(tmp_path)] == [1, 3, 5]


def test_a_client_that_fails_in_mid_round_stops_nothing(flwr: Any, tmp_path: Path) -> None:
    def trouble(partition: int, number: int, content: Any) -> None:
        if (partition, number) == (1, 2):
            raise RuntimeError("battery empty")
        if (partition, number) == (2, 2):  # a diverged client
            arrays = {
                n: flwr.Array(a.numpy() * float("nan")) if "weight" in n else a for n, a in content["arrays"].items()
            }
            content["arrays"] = flwr.ArrayRecord(arrays)

    module = importlib.import_module("flwr.serverapp.strategy")
    recorder = Recorder(Recording(directory=tmp_path))
    strategy = record(module.FedMedian(fraction_evaluate=0.0), recorder)
    with pytest.warns(UserWarning, match="NaN"):
        made = trained(flwr, strategy, client(flwr, trouble=trouble))
    assert set(made) == set(net().state_dict())
    captures = read_captures(tmp_path)
    assert recorder.written == len(captures) == 4 + 2 + 4 - (4 if torch.isnan(made["1.weight"]).any() else 0)
    assert {(c.round, c.partition) for c in captures} >= {(1, p) for p in range(4)} | {(2, 0), (2, 3)}


@pytest.mark.parametrize("lie", [float("inf"), float("nan"), -1, 0.5, 2.0**80], ids=str)
@pytest.mark.parametrize("metric", ["num-examples", "partition-id"])
def test_a_client_that_lies_about_a_number_hides_no_other(flwr: Any, tmp_path: Path, metric: str, lie: float) -> None:
    def trouble(partition: int, _: int, content: Any) -> None:
        if partition == 1:
            content["metrics"][metric] = lie

    module = importlib.import_module("flwr.serverapp.strategy")
    recorder = Recorder(Recording(directory=tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 2.0**80 is whole, and no count: that client is left out
        trained(flwr, record(module.FedAvg(fraction_evaluate=0.0), recorder), client(flwr, trouble=trouble), rounds=1)
    told = {c.client: (c.partition, c.examples) for c in read_captures(tmp_path)}
    honest = {"100": (0, 6), "102": (2, 8), "103": (3, 9)}
    liar = {"101": (1, None) if metric == "num-examples" else (None, 7)}
    assert told == (honest if lie == 2.0**80 else honest | liar)


def test_one_client_that_cannot_be_read_is_the_only_one_left_out(
    flwr: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = flower._answers

    def fails_once(given: Any, replied: Any) -> Any:
        if recorder.written == 1 and not recorder.left_out:
            raise ValueError("garbage")
        return answers(given, replied)

    monkeypatch.setattr(flower, "_answers", fails_once)
    module = importlib.import_module("flwr.serverapp.strategy")
    recorder = Recorder(Recording(directory=tmp_path))
    with pytest.warns(UserWarning, match="garbage"):
        trained(flwr, record(module.FedAvg(fraction_evaluate=0.0), recorder), client(flwr), rounds=1)
    assert (recorder.written, recorder.left_out.total()) == (3, 1)


def test_numbers_of_the_servers_configuration_that_are_not_finite_are_left_out(flwr: Any, tmp_path: Path) -> None:
    module = importlib.import_module("flwr.serverapp.strategy")
    strategy = record(module.FedAvg(fraction_evaluate=0.0), Recording(directory=tmp_path))
    told = {"lr": float("nan"), "decay": float("inf"), "rate": 0.5, "epochs": 2, "name": "inf", "shuffle": True}
    strategy.start(
        grid=make_grid(client(flwr), 2),
        initial_arrays=flwr.ArrayRecord(net().state_dict()),
        train_config=flwr.ConfigRecord(told),
        num_rounds=1,
    )
    captures = read_captures(tmp_path)
    assert len(captures) == 2
    want = {"rate": 0.5, "epochs": 2, "name": "inf", "shuffle": True, "server-round": 1}
    assert all(capture.config == want for capture in captures)


def test_a_disk_that_is_full_does_not_stop_training(flwr: Any, tmp_path: Path) -> None:
    module = importlib.import_module("flwr.serverapp.strategy")
    recorder = Recorder(Recording(directory=tmp_path, most_bytes=100))
    with pytest.warns(UserWarning, match="most_bytes"):
        trained(flwr, record(module.FedAvg(fraction_evaluate=0.0), recorder), client(flwr))
    assert recorder.written == 0
    assert recorder.left_out.total() == 12


@pytest.mark.parametrize("broken", ["_note", "_record"])
def test_a_fault_of_the_recorder_itself_is_counted_and_training_goes_on(
    flwr: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def fails(*_: Any) -> None:
        raise KeyError("a fault of ours")

    monkeypatch.setattr(flower._Watch, broken, fails)
    module = importlib.import_module("flwr.serverapp.strategy")
    recorder = Recorder(Recording(directory=tmp_path))
    with pytest.warns(UserWarning, match="fault of ours"):
        trained(flwr, record(module.FedAvg(fraction_evaluate=0.0), recorder), client(flwr), rounds=1)
    assert recorder.left_out.total() >= 1


# -- defences as mods


def sent_change(flwr: Any, mod: Any, tmp_path: Path, rounds: int = 1) -> list[dict[str, Tensor]]:
    """Return the change of the weights of client 0 in each round, as the server saw it."""
    module = importlib.import_module("flwr.serverapp.strategy")
    strategy = record(module.FedAvg(fraction_evaluate=0.0), Recording(directory=tmp_path))
    trained(flwr, strategy, client(flwr, mods=(mod,) if mod else ()), rounds=rounds)
    return [
        {n: v for n, v in subtract(c.before, c.sent).items() if v.is_floating_point()}
        for c in read_captures(tmp_path)
        if c.partition == 0
    ]


@pytest.mark.parametrize("name", sorted(DEFENCES))
def test_every_defence_on_the_update_is_a_mod(flwr: Any, tmp_path: Path, name: str) -> None:
    settings: dict[str, dict[str, Any]] = {
        "gaussian_noise": {"sigma": 0.1}, "laplace_noise": {"sigma": 0.1}, "clip": {"bound": 0.01}, "sparsify": {"drop": 0.9},
        "random_mask": {"share": 0.1}, "quantise": {"bits": 2},
    }  # fmt: skip
    defence = DEFENCES[name](**settings.get(name, {}))
    plain = sent_change(flwr, None, tmp_path / "plain")[0]
    held = sent_change(flwr, protecting(defence, seed=1), tmp_path / "held")[0]
    again = sent_change(flwr, protecting(defence, seed=1), tmp_path / "again")[0]
    assert not all(torch.allclose(held[n], plain[n]) for n in plain)
    assert all(torch.equal(held[n], again[n]) for n in held)


def test_a_clip_bounds_the_whole_change_and_keeps_its_direction(flwr: Any, tmp_path: Path) -> None:
    plain = sent_change(flwr, None, tmp_path / "plain")[0]
    held = sent_change(flwr, protecting(Clip(0.01)), tmp_path / "held")[0]
    torch.testing.assert_close(norm(held), torch.tensor(0.01), rtol=1e-3, atol=0)
    for name in plain:
        torch.testing.assert_close(held[name], plain[name] * 0.01 / norm(plain), rtol=1e-2, atol=1e-6)


def test_secret_noise_differs_in_every_run_and_round(flwr: Any, tmp_path: Path) -> None:
    one = sent_change(flwr, protecting(GaussianNoise(0.1)), tmp_path / "one", rounds=2)
    two = sent_change(flwr, protecting(GaussianNoise(0.1)), tmp_path / "two", rounds=2)
    assert not torch.allclose(one[0]["1.weight"], two[0]["1.weight"])
    seeded = sent_change(flwr, protecting(GaussianNoise(0.1), seed=5), tmp_path / "seeded", rounds=2)
    assert not torch.allclose(seeded[0]["1.weight"], seeded[1]["1.weight"], atol=0.05)


def test_a_defence_that_remembers_goes_on_in_the_next_round(flwr: Any, tmp_path: Path) -> None:
    """Over two rounds, deep compression without momentum sends what sparsifying twice loses."""
    kept = sent_change(flwr, protecting(DeepCompression(share=0.3)), tmp_path / "kept", rounds=2)
    lost = sent_change(flwr, protecting(Sparsify(share=0.3)), tmp_path / "lost", rounds=2)
    assert all(torch.allclose(kept[0][n], lost[0][n]) for n in kept[0])
    assert not all(torch.allclose(kept[1][n], lost[1][n]) for n in kept[1])


def test_what_cannot_be_protected_never_leaves(flwr: Any, tmp_path: Path) -> None:
    def spoil(_: int, __: int, content: Any) -> None:
        content["more"] = flwr.ArrayRecord([torch.zeros(3).numpy()])

    module = importlib.import_module("flwr.serverapp.strategy")
    app = client(flwr, mods=(protecting(Clip(1.0)),), trouble=spoil)
    grid = make_grid(app, 2)
    strategy = record(module.FedAvg(fraction_evaluate=0.0), Recording(directory=tmp_path / "none"))
    strategy.start(grid=grid, initial_arrays=flwr.ArrayRecord(net().state_dict()), num_rounds=1)
    assert grid.failed == 2
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("defences", [(), (Clip(1.0), Clip(2.0)), (Clip(torch.ones(3)),)])
def test_stacks_that_make_no_sense_are_refused(flwr: Any, defences: tuple[Any, ...]) -> None:
    with pytest.raises(InputError):
        protecting(*defences)


# -- the example project


def test_the_example_trains_in_process(example: Any, flwr: Any, tmp_path: Path) -> None:
    server = importlib.import_module("digits_federation.server_app")
    settings = SETTINGS | {"captures": str(tmp_path / "captures"), "defence": "noise"}
    grid = make_grid(example.app, 4, settings)
    server.app(grid, flwr.Context(1, 1, {}, flwr.RecordDict(), settings))
    assert grid.failed == 0
    captures = read_captures(tmp_path / "captures")
    assert [c.round for c in captures] == [1, 1, 2, 2]
    assert all(c.examples == 8 for c in captures)


@pytest.mark.parametrize(("network", "examples", "decision"), [("small", 1, "refuse"), ("resnet", 64, "send")])
def test_the_example_guards_its_clients(
    example: Any, flwr: Any, tmp_path: Path, network: str, examples: int, decision: str
) -> None:
    server = importlib.import_module("digits_federation.server_app")
    log = tmp_path / "guard.jsonl"
    settings = SETTINGS | {"network": network, "examples": examples, "batch-size": 64, "rounds": 2, "guard": str(log)}
    settings |= {"captures": str(tmp_path / "captures")}
    server.app(make_grid(example.app, 2, settings), flwr.Context(1, 1, {}, flwr.RecordDict(), settings))
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["decision"] for line in lines] == [decision] * 4
    assert [line["round"] for line in lines] == [1, 1, 2, 2]
    assert all(line["training_seconds"] > 0 for line in lines)
    statuses = [check["status"] for line in lines for check in line["checks"] if check["name"] == "cpl"]
    expected = ["leaked"] * 4 if decision == "refuse" else ["passed"] * 2 + ["not checked"] * 2  # within its share
    assert statuses == expected
    assert len(captured(tmp_path / "captures")) == (0 if decision == "refuse" else 4)


def guarded_captures(flwr: Any, settings: GuardSettings, directory: Path) -> list[Capture]:
    """Return what the server captured of two guarded clients in one round."""

    def own(message: Any, context: Any) -> Target:
        generator = torch.Generator().manual_seed(int(context.node_config["partition-id"]))
        x, y = torch.rand(6, 16, generator=generator), torch.randint(3, (6,), generator=generator)
        return Target(model=net(), inputs=x, labels=y, client=LocalTraining(rate=0.1))

    module = importlib.import_module("flwr.serverapp.strategy")
    strategy = record(module.FedAvg(fraction_evaluate=0.0), Recording(directory=directory))
    trained(flwr, strategy, client(flwr, mods=(guarding(own, settings, seed=1),)), nodes=2, rounds=1)
    return captured(directory)


def captured(directory: Path) -> list[Capture]:
    return list(read_captures(directory)) if any(directory.glob("*.json")) else []


def test_a_guard_that_fails_sends_nothing_or_everything_as_configured(flwr: Any, tmp_path: Path) -> None:
    assert guarded_captures(flwr, GuardSettings(seconds=1e-6), tmp_path / "closed") == []
    with pytest.warns(GuardWarning):
        captures = guarded_captures(flwr, GuardSettings(seconds=1e-6, fail_open=True), tmp_path / "open")
    assert len(captures) == 2


def test_a_guard_adds_its_defence_to_what_is_sent(flwr: Any, tmp_path: Path) -> None:
    settings = GuardSettings(
        action=Decision.DEFEND, defences=[GaussianNoise(9.0)], label_threshold=0.99, evaluations=5, seconds=600
    )
    captures = guarded_captures(flwr, settings, tmp_path)  # without noise all labels are read
    changes = [each.before["1.weight"] - each.sent["1.weight"] for each in captures]
    assert changes
    assert all(5 < float(change.std()) < 15 for change in changes)


def scanned_captures(flwr: Any, build: Callable[[Any, Any], Target], directory: Path, **settings: Any) -> list[Capture]:
    """Return what the server captured of two rounds of two clients that scan its model."""
    module = importlib.import_module("flwr.serverapp.strategy")
    strategy = record(module.FedAvg(fraction_evaluate=0.0), Recording(directory=directory))
    trained(flwr, strategy, client(flwr, mods=(scanning(build, **settings),)), nodes=2, rounds=2)
    return captured(directory)


def test_a_scan_lets_honest_rounds_pass_and_refuses_a_trap(flwr: Any, tmp_path: Path) -> None:
    def own(message: Any, context: Any) -> Target:
        generator = torch.Generator().manual_seed(0)
        return Target(model=net(), inputs=torch.rand(16, 16, generator=generator), labels=torch.arange(16) % 3)

    log = tmp_path / "scan.jsonl"
    assert len(scanned_captures(flwr, own, tmp_path / "honest", log=log)) == 4
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(line["round"], line["suspected"]) for line in lines] == [(1, False)] * 2 + [(2, False)] * 2
    verdicts = [{each["test"]: each["verdict"] for each in line["lines"]}[Test.JUMP] for line in lines]
    assert verdicts == [Verdict.NOT_TESTED] * 2 + [Verdict.USUAL] * 2  # the first round has none before it

    trap = scanning(own)
    message = flwr.Message(flwr.RecordDict(), 1, "train")
    weights = net().state_dict()
    weights["1.weight"] = torch.ones_like(weights["1.weight"])
    message.content["arrays"] = flwr.ArrayRecord(weights)
    context = flwr.Context(1, 1, {}, flwr.RecordDict(), {})
    reply = trap(message, context, lambda *_: pytest.fail("the client trained on a trap"))
    assert reply.has_error()
    assert not context.state.array_records


def test_a_scan_that_fails_refuses_or_trains_as_configured(flwr: Any, tmp_path: Path) -> None:
    def broken(message: Any, context: Any) -> Target:
        raise ValueError("no data")

    assert scanned_captures(flwr, broken, tmp_path / "closed") == []
    with pytest.warns(ScanWarning):
        assert len(scanned_captures(flwr, broken, tmp_path / "open", fail_open=True)) == 4


def test_a_scan_of_weights_that_do_not_fit_says_which_and_keeps_frozen_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower_scan, "tree_of", dict)

    def scanned(
        build: Callable[[], nn.Module], sent: dict[str, torch.Tensor], last: dict[str, torch.Tensor] | None
    ) -> Any:
        return flower_scan._scanned(lambda *_: Target(model=build()), None, None, sent, last)

    result, problem = scanned(net, nn.Linear(2, 3).state_dict(), None)
    assert result is None
    assert problem == "what the server sent is of another network: 1.weight is nothing in it and (5, 16) in the model"

    def adapted() -> nn.Module:
        torch.manual_seed(0)
        return adapt(gpt(vocabulary=20, positions=4, width=16, depth=2, classes=2), rank=2)

    sent = {name: value.detach() for name, value in adapted().named_parameters() if value.requires_grad}
    result, problem = scanned(adapted, sent, sent)
    assert problem == ""
    assert result.passed
    assert result[Test.JUMP].verdict is Verdict.USUAL


@pytest.mark.parametrize("nodes", [2, 4])
def test_the_example_learns_in_the_rounds_of_its_own_settings(
    example: Any, flwr: Any, nodes: int, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = tomllib.loads((EXAMPLE / "pyproject.toml").read_text("utf-8"))["tool"]["flwr"]["app"]["config"]
    build, server = (importlib.import_module(f"digits_federation.{name}") for name in ("audit", "server_app"))
    training = build.build().client
    told = (settings["examples"], settings["local-epochs"], settings["batch-size"], settings["learning-rate"])
    assert told == (build.EXAMPLES, training.epochs, training.batch_size, training.rate)
    server.app(make_grid(example.app, nodes, settings), flwr.Context(1, 1, {}, flwr.RecordDict(), settings))
    assert float(capsys.readouterr().out.split()[-1]) > 0.3  # guessing: 0.1


def test_what_the_example_recorded_can_be_audited(
    example: Any, flwr: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from leakscope.auditing import audit_captures, suite

    monkeypatch.setattr(suite, "PUBLISHED", dict.fromkeys(suite.PUBLISHED, 1) | {"cpl": 1, "ig": 2, "sme": 2})
    server = importlib.import_module("digits_federation.server_app")
    build = importlib.import_module("digits_federation.audit")
    settings = SETTINGS | {"captures": str(tmp_path), "rounds": 1}
    server.app(make_grid(example.app, 4, settings), flwr.Context(1, 1, {}, flwr.RecordDict(), settings))
    made = audit_captures(tmp_path, build.build(), minutes=0.01, clients=2)
    assert made.measures.asr is not None
    assert made.measures.asr.n == 16
    assert made.labels is not None
    assert made.labels.share > made.labels.guessing
    assert audit_captures(tmp_path, build.build_blind(), minutes=0.01, clients=1).grade == "unscored"


@pytest.mark.slow
def test_a_true_federation_goes_on_when_a_client_fails(flwr: Any, tmp_path: Path) -> None:
    """Flower's simulation engine with its own Ray actors; a client raises in round 2."""
    pytest.importorskip("ray")
    program = Path(__file__).parent / "flower_federation.py"
    environment = os.environ | {
        "RAY_USAGE_STATS_ENABLED": "0", "FLWR_TELEMETRY_ENABLED": "0", "PYTHONPATH": str(Path(__file__).parent),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path)],
        check=False,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads((tmp_path / "told.json").read_text())
    captures = read_captures(tmp_path / "captures")
    assert sorted((c.round, c.partition) for c in captures) == [
        (1, 0),
        (1, 1),
        (1, 2),
        (2, 0),
        (2, 2),
        (3, 0),
        (3, 1),
        (3, 2),
    ]
    assert told == {"rounds": 3, "written": 8}
