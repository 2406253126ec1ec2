"""The filter of NVFlare records what the server sees and passes it on unchanged; a job carries it as plain JSON."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from leakscope import InputError, Recording, audit_captures, capture
from leakscope.auditing import suite
from leakscope.integrations.nvflare import UpdateRecorder, file_name, record
from leakscope.store.captures import CLIENT, read_captures

EXAMPLE = Path(__file__).parents[2] / "examples" / "nvflare"
BEFORE = {"a.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "a.bias": np.zeros(2, np.float32)}
AFTER = {name: value + np.float32(0.5) for name, value in BEFORE.items()}


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvflare.job_config.api", None)
    monkeypatch.setitem(sys.modules, "nvflare.apis.fl_constant", None)
    with pytest.raises(InputError, match=r'pip install "leakscope\[nvflare\]"'):
        record(object(), Recording(directory=Path("captures")))
    with pytest.raises(InputError, match=r'pip install "leakscope\[nvflare\]"'):
        UpdateRecorder("captures")


@pytest.mark.parametrize("name", ["site-1", "clinic.example.org", "a b", "ä" * 80, ""])
def test_every_client_gets_a_file_name_of_its_own(name: str) -> None:
    assert CLIENT.fullmatch(file_name(name))
    assert (file_name(name) == name) == (name == "site-1")
    assert file_name(name) != file_name(name + "?")


@pytest.fixture
def flare() -> Any:
    pytest.importorskip("nvflare")
    return SimpleNamespace(
        **{
            name: getattr(importlib.import_module(f"nvflare.{module}"), name)
            for module, name in (
                ("apis.dxo", "DXO"),
                ("apis.event_type", "EventType"),
                ("apis.fl_constant", "FLContextKey"),
                ("apis.fl_constant", "ReservedKey"),
                ("apis.fl_constant", "ReturnCode"),
                ("apis.fl_context", "FLContext"),
                ("job_config.api", "FedJob"),
            )
        }
    )


class Server:
    """The part of a server around the filter: hands tasks out and receives results."""

    def __init__(self, flare: Any, filter_: UpdateRecorder, clients: int = 3) -> None:
        self.flare, self.filter = flare, filter_
        self.engine = SimpleNamespace(get_clients=lambda: [SimpleNamespace(name=f"site-{n}") for n in range(clients)])

    def context(self, client: str, task: str) -> Any:
        context, peer = self.flare.FLContext(), self.flare.FLContext()
        peer.set_prop(self.flare.ReservedKey.IDENTITY_NAME, client, private=False, sticky=False)
        context.set_peer_context(peer)
        context.set_prop(self.flare.ReservedKey.ENGINE, self.engine, private=True, sticky=False)
        context.set_prop(self.flare.FLContextKey.TASK_ID, task, private=True, sticky=False)
        return context

    def hand_out(self, client: str, number: int, *, task: str = "t", meta: dict[str, Any] | None = None) -> None:
        context = self.context(client, task)
        data = self.flare.DXO("WEIGHTS", dict(BEFORE), meta or {}).to_shareable()
        data.set_header("current_round", number)
        context.set_prop(self.flare.FLContextKey.TASK_DATA, data, private=True, sticky=False)
        self.filter.handle_event(self.flare.EventType.AFTER_TASK_DATA_FILTER, context)

    def receive(
        self,
        client: str,
        arrays: dict[str, Any],
        *,
        task: str = "t",
        kind: str = "WEIGHTS",
        meta: dict[str, Any] | None = None,
        code: str | None = None,
    ) -> None:
        result = self.flare.DXO(kind, arrays, meta or {}).to_shareable()
        if code is not None:
            result.set_return_code(code)
        copied = {name: np.asarray(value).copy() for name, value in arrays.items()}
        assert self.filter.process(result, self.context(client, task)) is result
        assert result["DXO"]["data"] is arrays
        assert all(np.array_equal(arrays[name], copied[name], equal_nan=True) for name in copied)


def test_captures_have_the_bytes_of_those_written_by_hand(flare: Any, tmp_path: Path) -> None:
    server = Server(flare, UpdateRecorder(str(tmp_path / "nvflare")))
    for client in ("site-0", "site-1"):
        server.hand_out(client, 0, meta={"lr": 0.1, "names": ["x"]})
    for partition, client in enumerate(("site-0", "site-1")):
        server.receive(client, dict(AFTER), meta={"num-examples": 8, "partition-id": partition, "NUM_STEPS": 3})
        capture(
            {name: torch.tensor(value) for name, value in BEFORE.items()},
            {name: torch.tensor(value) for name, value in AFTER.items()},
            directory=tmp_path / "hand",
            round=0,
            client=client,
            samples=8,
            partition=partition,
            config={"lr": 0.1},
        )
    written, by_hand = ({p.name: p.read_bytes() for p in (tmp_path / n).iterdir()} for n in ("nvflare", "hand"))
    assert written == by_hand
    assert len(written) == 1 + 2 * 2


@pytest.mark.parametrize("as_tensors", [True, False])
def test_a_change_of_weights_is_recorded_as_the_weights_it_makes(flare: Any, tmp_path: Path, as_tensors: bool) -> None:
    server = Server(flare, UpdateRecorder(str(tmp_path)))
    server.hand_out("site-0", 3)
    change: dict[str, Any] = {name: np.full_like(value, 0.5) for name, value in BEFORE.items()}
    if as_tensors:
        change = {name: torch.tensor(value) for name, value in change.items()}
    server.receive("site-0", change, kind="WEIGHT_DIFF")
    (only,) = read_captures(tmp_path)
    assert (only.round, only.shares, only.examples) == (3, "weights", None)
    assert all(torch.equal(only.sent[name], torch.tensor(value)) for name, value in AFTER.items())


def test_what_cannot_be_recorded_stops_nothing(flare: Any, tmp_path: Path) -> None:
    updates = UpdateRecorder(str(tmp_path))
    server = Server(flare, updates)
    server.hand_out("site-0", 0)
    with pytest.warns(UserWarning, match="NaN"):
        server.receive("site-0", {name: value * np.float32("nan") for name, value in AFTER.items()})
    for client, settings in (
        ("site-0", {"code": flare.ReturnCode.EXECUTION_EXCEPTION}),  # a client that failed
        ("site-1", {"task": "another"}),  # a late answer to an earlier task
        ("site-2", {"kind": "METRICS"}),
    ):
        server.hand_out(client, 0)
        server.receive(client, dict(AFTER), **settings)
    server.receive("site-7", dict(AFTER))  # a client that received nothing
    server.hand_out("site-0", 0)
    server.receive("site-0", {"other": AFTER["a.bias"]})
    server.hand_out("site-0", 1)
    server.receive("site-0", dict(AFTER))
    assert [c.round for c in read_captures(tmp_path)] == [1]
    assert updates._recorder.left_out.total() == 3


def test_rounds_and_clients_are_sampled(flare: Any, tmp_path: Path) -> None:
    server = Server(flare, UpdateRecorder(str(tmp_path), every=2, clients=1))
    for number in range(4):
        for client in ("site-0", "site-1", "site-2"):
            server.hand_out(client, number)
            server.receive(client, dict(AFTER))
    assert [c.round for c in read_captures(tmp_path)] == [0, 2]


def test_a_job_names_the_filter_and_carries_no_copy_of_the_library(flare: Any, tmp_path: Path) -> None:
    job = flare.FedJob(name="job", min_clients=1)
    executor = importlib.import_module("nvflare.app_common.np.np_trainer").NPTrainer()
    controller = importlib.import_module("nvflare.app_common.workflows.fedavg").FedAvg(num_clients=1, num_rounds=1)
    job.to_server(controller)
    job.to_clients(executor)
    assert record(job, Recording(directory=tmp_path / "captures", every=3, clients=2, seed=5)) is job
    job.export_job(str(tmp_path))
    (path,) = (tmp_path / "job").rglob("config_fed_server.json")
    (chain,) = json.loads(path.read_text())["task_result_filters"]
    assert chain["tasks"] == ["train"]
    assert [(each["path"], each["args"]) for each in chain["filters"]] == [
        (
            "leakscope.integrations.nvflare.UpdateRecorder",
            {"directory": str(tmp_path / "captures"), "every": 3, "clients": 2, "seed": 5},
        )
    ]
    assert not list((tmp_path / "job").rglob("leakscope"))


def test_what_is_no_job_is_refused(flare: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="object"):
        record(object(), Recording(directory=tmp_path))


@pytest.mark.slow
def test_the_simulator_records_what_can_be_audited(flare: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = [sys.executable, "job.py", str(tmp_path / "captures"), str(tmp_path / "workspace")]
    done = subprocess.run(
        program, check=False, cwd=EXAMPLE, env=os.environ, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    captures = read_captures(tmp_path / "captures")
    assert [(c.round, c.client, c.partition, c.examples) for c in captures] == [
        (number, f"site-{partition + 1}", partition, 8) for number in (0, 1) for partition in (0, 1)
    ]
    mean = torch.stack([c.sent["layers.0.weight"] for c in captures[:2]]).mean(0)
    torch.testing.assert_close(captures[2].before["layers.0.weight"], mean)
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.setattr(suite, "PUBLISHED", dict.fromkeys(suite.PUBLISHED, 1) | {"cpl": 1, "ig": 1, "sme": 1})
    result = audit_captures(tmp_path / "captures", importlib.import_module("digits").build(), minutes=1, clients=2)
    assert result.measures.asr is not None
    assert result.measures.asr.n == 16
