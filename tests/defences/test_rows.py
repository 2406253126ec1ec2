"""DropRows sends some rows of the named tensors and everything else."""

from __future__ import annotations

import pytest
import torch

from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.defences import DropRows

UPDATE = {"embedding.weight": torch.ones(2000, 3), "head.weight": torch.ones(4, 3)}


def test_rows_are_dropped_whole_and_other_tensors_stay() -> None:
    sent = DropRows(("embedding.weight",), drop=0.25).protect_update(UPDATE, random.key(0))
    rows = sent["embedding.weight"]
    assert torch.equal(rows.amin(1), rows.amax(1))
    assert float(rows.mean()) == pytest.approx(0.75, abs=0.05)
    assert torch.equal(sent["head.weight"], UPDATE["head.weight"])
    again = DropRows(("embedding.weight",), drop=0.25).protect_update(UPDATE, random.key(1))
    assert not torch.equal(rows, again["embedding.weight"])


def test_all_rows_can_be_dropped() -> None:
    sent = DropRows(("embedding.weight",), drop=1.0).protect_update(UPDATE, random.key(0))
    assert not bool(sent["embedding.weight"].any())


@pytest.mark.parametrize(("tensors", "drop"), [((), 0.5), (("a",), 0.0), (("a",), 1.5)])
def test_settings_without_effect_are_refused(tensors: tuple[str, ...], drop: float) -> None:
    with pytest.raises(InputError):
        DropRows(tensors, drop)


def test_a_tensor_that_the_update_does_not_have_is_refused() -> None:
    with pytest.raises(InputError):
        DropRows(("position.weight",)).protect_update(UPDATE, random.key(0))
