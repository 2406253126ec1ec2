"""The changes at the end of attacks as a distribution: a share that only rises, and ends where the measures say."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from leakscope_papers.cell_measures import CHANGES, IMAGE_CHANGES, RECOVERED, recovery_curves, trace_curves
from leakscope_papers.measures import MEASURES
from leakscope_papers.scored import Scored


def scored(trace: torch.Tensor | None, stalled: list[bool]) -> Scored:
    t = len(stalled)
    ones, no = torch.ones(t, 1), torch.zeros(t, dtype=torch.bool)
    at = None if trace is None else torch.arange(trace.shape[1]).expand(trace.shape)
    return Scored(
        ids=("a",) * t, converged=no, stalled=torch.tensor(stalled), iterations=torch.full((t,), 9.0), scored=ones > 0, mse=ones,
        ssim=ones, recovered=ones > 2, label=ones, psnr=ones, mismatch=torch.ones(t), trace=trace, trace_at=at,
    )  # fmt: skip


def test_the_share_rises_with_the_bound_and_is_that_of_the_points() -> None:
    trace = torch.tensor([[1.0, 1.1, 1.1, 1.1], [1.0, 2.0, 4.0, 8.0], [1.0, 0.5, 0.5005, 0.5005]], dtype=torch.float64)
    cell = scored(trace, [False, False, False])
    curve = trace_curves(cell)[CHANGES]
    for y in curve.y:
        assert all(b >= a for a, b in zip(y, y[1:], strict=False))  # noqa: RUF007  pairs of a short tuple
    at = {x: [y[i] for y in curve.y] for i, x in enumerate(curve.x)}
    assert at[-8.0] == pytest.approx([2 / 3, 0.0, 1 / 3])  # no change at all
    assert at[-3.0] == pytest.approx([2 / 3, 0.0, 2 / 3])  # 0.0005 of 0.5005
    assert at[1.0] == [1.0, 1.0, 1.0]
    steady = MEASURES["steady_share"](cell, cell.converged).estimate.value
    assert sum(at[-6.0]) / 3 == pytest.approx(steady)


def test_what_stalled_counts_as_resting_and_what_has_no_point_is_left_out() -> None:
    trace = torch.tensor([[1.0, 2.0, 4.0], [1e-9, 1e-9, 1e-9]], dtype=torch.float64)
    curve = trace_curves(scored(trace, [True, False]))[CHANGES]
    assert curve.y == ((1.0,) * len(curve.x),)
    assert trace_curves(scored(None, [False])) == {}
    below = scored(trace, [False, False])
    assert trace_curves(replace(below, trace=torch.full_like(trace, math.nan))) == {}


def test_the_image_mse_has_a_curve_of_its_own() -> None:
    trace = torch.tensor([[1.0, 1.0, 1.0]], dtype=torch.float64)
    cell = scored(trace, [False])
    assert IMAGE_CHANGES not in trace_curves(cell)
    found = trace_curves(replace(cell, image_mse=torch.tensor([[4.0, 2.0, 1.0]]), image_mse_at=cell.trace_at))
    assert found[CHANGES] == trace_curves(cell)[CHANGES]
    assert dict(zip(found[IMAGE_CHANGES].x, found[IMAGE_CHANGES].y[0], strict=True))[-0.25] == 0.0
    assert found[IMAGE_CHANGES].y[0][-1] == 1.0


def test_recovery_over_thresholds_is_the_share_of_each_attack_and_skips_padding() -> None:
    cell = replace(
        scored(None, [False, False]),
        mse=torch.tensor([[1e-5, 1e-2], [math.nan, 0.0]]),
        scored=torch.tensor([[True, True], [True, False]]),
    )
    curve = recovery_curves(cell)[RECOVERED]
    at = dict(zip((round(x, 2) for x in curve.x), zip(*curve.y, strict=True), strict=True))
    assert at[-6.0] == (0.0, 0.0)
    assert at[-4.0] == (0.5, 0.0)
    assert at[-1.0] == at[0.0] == (1.0, 0.0)
    assert recovery_curves(replace(cell, scored=torch.zeros(2, 2, dtype=torch.bool))) == {}
