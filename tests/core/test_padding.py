"""Which examples are real: known inside the call alone, also under vmap, and apart in every thread."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor

from leakscope.core.padding import counting, real_examples


def test_the_mask_is_there_inside_and_gone_outside() -> None:
    first, second = torch.tensor([True]), torch.tensor([False])
    assert real_examples() is None
    with counting(first):
        assert real_examples() is first
        with counting(second):
            assert real_examples() is second
        assert real_examples() is first
    assert real_examples() is None


def test_it_is_gone_after_an_error_too() -> None:
    with pytest.raises(RuntimeError, match="inside"), counting(torch.tensor([True])):
        raise RuntimeError("inside")
    assert real_examples() is None


def test_under_vmap_every_trial_has_its_own() -> None:
    def real(mask: Tensor) -> Tensor:
        with counting(mask):
            found = real_examples()
        assert found is not None
        return found.sum()

    mask = torch.tensor([[True, False], [True, True]])
    assert torch.func.vmap(real)(mask).tolist() == [1, 2]


def test_threads_do_not_see_each_other() -> None:
    seen: list[object] = []
    with counting(torch.tensor([True])):
        thread = threading.Thread(target=lambda: seen.append(real_examples()))
        thread.start()
        thread.join()
    assert seen == [None]
