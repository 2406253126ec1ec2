"""Devices by name, or where the weights lie."""

from __future__ import annotations

import pytest
import torch

from leakscope.core.devices import find_device, runs_on
from leakscope.core.errors import InputError
from leakscope.models import from_module


def test_without_a_name_it_is_where_the_values_lie() -> None:
    assert find_device(None, [torch.zeros(1)]) == torch.device("cpu")
    with pytest.raises(InputError, match=r"several devices \(cpu, meta\)"):
        find_device(None, [torch.zeros(1), torch.zeros(1, device="meta")])


@pytest.mark.parametrize(("number", "expected"), [(0, "cpu"), (2, "cuda")])
def test_auto_is_cuda_where_there_is_one(number: int, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: number > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: number)
    assert str(find_device("auto")) == expected
    assert str(find_device("cpu")) == "cpu"
    with pytest.raises(InputError, match="cuda:2"):
        find_device("cuda:2")


@pytest.mark.parametrize("name", ["tpu", "meta", "cuda:x", ""])
def test_an_unknown_device_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"auto, cpu, cuda.*{name!r}"):
        find_device(name)


class Constant(torch.nn.Module):
    """A layer whose constant is no buffer: moving the module leaves it behind."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = torch.nn.Linear(4, 3)
        self.scale = torch.ones(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dense(x * self.scale)  # type: ignore[no-any-return]


def test_a_model_that_cannot_run_on_a_device_says_why() -> None:
    plain, stuck = (from_module(m, input_shape=(4,)) for m in (torch.nn.Linear(4, 3), Constant()))
    meta, inputs = torch.device("meta"), torch.rand(2, 4)
    moved = runs_on(plain, meta, inputs)
    assert not isinstance(moved, str)
    assert {value.device.type for value in moved.parameters.values()} == {"meta"}
    reason = runs_on(stuck, meta, inputs)
    assert isinstance(reason, str)
    assert "device" in reason
    assert runs_on(stuck, torch.device("cpu"), inputs) is stuck
