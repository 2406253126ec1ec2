"""Devices by name, or where the weights lie."""

from __future__ import annotations

import pytest
import torch

from leakscope.core.devices import find_device
from leakscope.core.errors import InputError


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
