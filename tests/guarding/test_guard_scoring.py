"""Transformed examples are paired with guesses so that as many as possible count as recovered."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from leakscope.core.types import Batch, make_batch
from leakscope.guarding.scoring import _share_as_seen


def test_a_bad_guess_does_not_hide_an_exact_one() -> None:
    batch = make_batch(torch.tensor([[[0.3], [0.6]]]), torch.zeros(1, 2, dtype=torch.int64), classes=2)

    def unchanged(batch: Batch, seeds: object) -> Batch:
        return batch

    exposure = SimpleNamespace(batch=batch, client=SimpleNamespace(transformed=unchanged))
    assert _share_as_seen(exposure, torch.tensor([[[0.3], [0.0]]])) == 0.5  # type: ignore[arg-type]
