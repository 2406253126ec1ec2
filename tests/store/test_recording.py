"""`leakscope.capture` writes what the recorders write; the examples that call it run, and their captures can be audited."""

from __future__ import annotations

import copy
import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from leakscope import InputError, Shares, audit_captures, capture
from leakscope.auditing import suite
from leakscope.store.captures import Capture, read_capture, read_captures
from leakscope.store.recorder import Recorder, Recording

EXAMPLES = Path(__file__).parents[2] / "examples" / "recording"


def net(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("as_modules", [True, False])
def test_the_files_are_those_of_a_recorder(tmp_path: Path, as_modules: bool) -> None:
    before, after = net(0), net(1)
    told = {"lr": 0.1, "epochs": 2}
    path = capture(
        before if as_modules else before.state_dict(),
        after if as_modules else after.state_dict(),
        directory=tmp_path / "one",
        round=3,
        client=7,
        samples=20,
        partition=2,
        config=told,
    )
    same = Capture(
        round=3, client="7", before=before.state_dict(), sent=after.state_dict(), examples=20, partition=2, config=told
    )
    assert Recorder(Recording(directory=tmp_path / "other")).record(same)
    assert files(tmp_path / "one") == files(tmp_path / "other")
    assert read_capture(path).examples == 20


def test_a_gradient_is_a_capture_of_its_own_kind(tmp_path: Path) -> None:
    module = net(0)
    module(torch.rand(5, 4)).sum().backward()
    gradient = {name: value.grad for name, value in module.named_parameters() if value.grad is not None}
    path = capture(module, gradient, directory=str(tmp_path), round=1, client="a", shares=Shares.GRADIENT)
    written = read_capture(path)
    assert written.shares == "gradient"
    assert all(torch.equal(written.sent[name], value) for name, value in gradient.items())
    assert (written.examples, written.partition, written.config) == (None, None, {})


def test_a_sparse_gradient_is_written_as_the_dense_one(tmp_path: Path) -> None:
    embedding = nn.Embedding(6, 3, sparse=True)
    embedding(torch.tensor([1, 4, 4])).sum().backward()  # type: ignore[no-untyped-call]
    assert embedding.weight.grad is not None
    gradient = {"weight": embedding.weight.grad}
    assert gradient["weight"].is_sparse
    path = capture(embedding, gradient, directory=tmp_path, round=1, client=1, shares=Shares.GRADIENT)
    assert torch.equal(read_capture(path).sent["weight"], gradient["weight"].to_dense())


def test_weights_that_were_trained_in_place_are_refused(tmp_path: Path) -> None:
    module = net(0)
    before = module.state_dict()  # not a copy: training changes it too
    with pytest.raises(InputError, match="before"):
        capture(before, module, directory=tmp_path, round=1, client=1)
    assert capture(copy.deepcopy(before), module, directory=tmp_path, round=1, client=1).exists()


@pytest.mark.parametrize(
    "changed",
    [
        {"client": "a/b"},
        {"round": -1},
        {"samples": -1},
        {"after": {"0.weight": torch.zeros(2)}},
        {"after": {"0.weight": [1.0]}},
        {"after": {"0.weight": torch.full((3, 4), torch.nan)}},
        {"after": {}},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_what_is_no_update_is_refused_and_leaves_no_capture(tmp_path: Path, changed: dict[str, Any]) -> None:
    settings = {"before": net(0), "after": net(1), "directory": tmp_path, "round": 1, "client": 1} | changed
    with pytest.raises(InputError):
        capture(**settings)
    assert not list(tmp_path.glob("*.json"))


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setattr(suite, "PUBLISHED", dict.fromkeys(suite.PUBLISHED, 1) | {"cpl": 1, "ig": 1, "sme": 1})
    return importlib.import_module("loop")


def test_the_hand_written_loop_records_what_can_be_audited(
    loop: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "ROUNDS", 2)
    with torch.random.fork_rng():
        loop.main(str(tmp_path))
    captures = read_captures(tmp_path)
    assert [(c.round, c.partition, c.examples) for c in captures] == [(r, p, 8) for r in (1, 2) for p in range(4)]
    mean = torch.stack([c.sent["0.weight"] for c in captures[:4]]).mean(0)
    assert torch.equal(captures[4].before["0.weight"], mean)
    result = audit_captures(tmp_path, loop.build(), minutes=1, clients=2)
    assert result.measures.asr is not None
    assert result.measures.asr.n == 16


@pytest.mark.slow
def test_two_processes_of_torch_distributed_record_what_can_be_audited(loop: Any, tmp_path: Path) -> None:
    program = [sys.executable, str(EXAMPLES / "distributed.py"), str(tmp_path)]
    done = subprocess.run(program, check=False, capture_output=True, text=True, timeout=300, env=os.environ)
    assert done.returncode == 0, done.stderr[-2000:]
    captures = read_captures(tmp_path)
    assert [(c.round, c.partition) for c in captures] == [(r, p) for r in (1, 2, 3) for p in (0, 1)]
    with torch.random.fork_rng():
        network = loop.build_network()  # the processes begin with these weights and do what one process does
        loop.train(network, 1)
        assert torch.allclose(captures[1].sent["0.weight"], network.state_dict()["0.weight"], atol=1e-6)
        result = audit_captures(tmp_path, loop.build(), minutes=1, clients=2)
    assert result.measures.asr is not None
    assert result.measures.asr.n == 16
