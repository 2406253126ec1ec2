"""The Flower federation of a GPT with adapters: what its server records is audited, and gives the clients' sentences."""

from __future__ import annotations

import importlib
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from flower_grid import make_grid

from leakscope.auditing.capture_audit import audit_captures
from leakscope.store.captures import read_captures
from leakscope.store.recorder import Recording

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower_text"
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
torch.set_num_threads(1)


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("flwr")
    monkeypatch.syspath_prepend(str(EXAMPLE))
    return importlib.import_module("sonnets_federation.task")


def settings() -> dict[str, Any]:
    text = (EXAMPLE / "pyproject.toml").read_text("utf-8")
    return dict(tomllib.loads(text)["tool"]["flwr"]["app"]["config"])


def test_the_settings_are_those_of_the_audit(task: Any) -> None:
    given = settings()
    assert (given["local-epochs"], given["learning-rate"]) == (task.EPOCHS, task.RATE)


def test_recorded_adapters_give_the_sentences_of_the_clients(task: Any, tmp_path: Path) -> None:
    flwr = importlib.import_module("flwr.app")
    client = importlib.import_module("sonnets_federation.client_app")
    module = importlib.import_module("flwr.serverapp.strategy")
    record = importlib.import_module("leakscope.integrations.flower").record
    strategy = record(module.FedAvg(min_available_nodes=2), Recording(directory=tmp_path))
    grid = make_grid(client.app, task.CLIENTS, settings())
    start = flwr.ArrayRecord(task.trained(task.network()))
    result = strategy.start(grid=grid, initial_arrays=start, num_rounds=2)
    assert grid.failed == 0
    assert 0 <= result.evaluate_metrics_clientapp[2]["accuracy"] <= 1
    captures = read_captures(tmp_path)
    assert len(captures) == 2 * task.CLIENTS
    assert all("inner" in name or "outer" in name for capture in captures for name in capture.sent)

    target = importlib.import_module("sonnets_federation.audit").build()
    made = audit_captures(tmp_path, target, clients=2 * task.CLIENTS, progress=False)
    assert made.text is not None
    assert made.grade == "F"
    assert made.text.sentences.n == task.CLIENTS * task.EXAMPLES
    assert made.text.bag is None
    assert made.text.rouge1.value > made.text.null_rouge1 + 0.3
    assert made.text.budget == 2 * task.RANK >= made.text.tokens
