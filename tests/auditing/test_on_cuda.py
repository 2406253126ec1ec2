"""Audits, peeks and frontiers on a CUDA device: everything is attacked there, and the truth meets it on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import leakscope
from leakscope.auditing.audit_record import audit_record
from leakscope.defences import Clip
from leakscope.studies.frontier import FrontierSettings, measure_frontier

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def network(dense: bool) -> nn.Module:
    torch.manual_seed(0)
    if dense:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4))
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.Tanh(), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(512, 4)
    ).eval()


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("named", [True, False])
def test_an_audit_runs_where_the_weights_lie_or_where_it_is_told(dense: bool, named: bool) -> None:
    model, inputs = network(dense), torch.rand(40, 1, 8, 8)
    model = model if named else model.cuda()
    device = "cuda" if named else None
    labels = torch.arange(40) % 4
    made = leakscope.audit(model, "cross_entropy", inputs, labels, minutes=0.2, clients=3, device=device)
    assert made.exposure is not None
    assert made.exposure.device.type == "cuda"
    assert str(audit_record(made)["device"]).startswith("cuda")
    assert made.worst is not None
    assert made.worst.reconstruction.inputs.device.type == "cpu"
    assert not [item for item in made.untested if "device" in item.why.lower()]


def test_an_audit_of_a_defended_client_runs_there_too() -> None:
    made = leakscope.audit(
        network(False).cuda(), "cross_entropy", torch.rand(40, 1, 8, 8), torch.arange(40) % 4, minutes=0.2, clients=3,
        examples=2, defences=[Clip(0.5)],
    )  # fmt: skip
    assert made.exposure is not None
    assert made.exposure.device.type == "cuda"
    assert not [item for item in made.untested if "device" in item.why.lower()]


@pytest.mark.parametrize("on_card", [True, False])
def test_a_peek_runs_where_the_weights_lie(on_card: bool) -> None:
    model, x, y = network(False), torch.rand(2, 1, 8, 8), torch.tensor([1, 2])
    if on_card:
        made = leakscope.peek(model.cuda(), x.cuda(), y.cuda(), iterations=5)
    else:
        made = leakscope.peek(model, x, y, iterations=5, device="cuda")
    assert made.shown.exposure.device.type == "cuda"
    assert made.inputs.device.type == "cpu"


def test_a_frontier_runs_there() -> None:
    settings = FrontierSettings(clients=16, rounds=3, iterations=4, attacked=4, multipliers=(0.1,))
    assert len(measure_frontier(settings, device="cuda").points) > 8
