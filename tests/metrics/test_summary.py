"""The summary: every number against counting by hand, and rows that are plain data."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest
import torch
from scipy import stats

from leakscope.core.errors import InputError
from leakscope.core.types import Outcome
from leakscope.metrics import PSNR_CAP, ContentRule, Scores, Summary, score, summarise, wilson

MSE = torch.tensor([[1e-4, 2e-4], [0.005, 0.3], [0.5, 0.4], [0.0, 0.002]], dtype=torch.float64)
SSIM = torch.tensor([[0.99, 0.98], [0.9, 0.1], [0.0, 0.05], [1.0, 0.95]], dtype=torch.float64)
CORRECT = torch.tensor([[True, True], [True, True], [False, True], [True, True]])
EVERY = torch.ones(4, 2, dtype=torch.bool)
OUTCOMES = torch.tensor([Outcome.CONVERGED, Outcome.EXHAUSTED, Outcome.DIVERGED, Outcome.CONVERGED])
ITERATIONS = torch.tensor([10, 300, 50, 20])
FINITE = torch.tensor([[True, True], [True, True], [False, True], [True, True]])


def example(correct: torch.Tensor | None = CORRECT) -> Scores:
    overlap = None if correct is None else correct.double().mean(1)
    order = torch.arange(2).expand(4, 2)
    return Scores(MSE, -10 * MSE.log10(), SSIM, correct, overlap, order, EVERY, FINITE)


def summary() -> Summary:
    return summarise(example(), outcomes=OUTCOMES, iterations=ITERATIONS)


def test_rates() -> None:
    found = summary()
    assert (found.trials, found.samples, found.not_finite) == (4, 8, 1)
    assert found.content.value == 5 / 8
    assert (found.content.n, found.content.trials) == (8, 4)
    assert (found.whole.value, found.whole.n) == (2 / 4, 4)
    assert (found.convergence.value, found.convergence.n) == (2 / 4, 4)
    assert (found.convergence.low, found.convergence.high) == pytest.approx(wilson(0.5, 4))
    assert found.label is not None
    assert found.label_set is not None
    assert found.label.value == 7 / 8
    assert found.label_set.value == 7 / 8
    assert found.outcomes == {"running": 0, "converged": 2, "exhausted": 1, "stalled": 0, "diverged": 1, "proved": 0}


def test_means_over_all_and_over_recovered_only() -> None:
    found = summary()
    kept = ContentRule().recovered(example())
    assert found.means["mse"].value == pytest.approx(float(MSE.mean()))
    assert found.means["ssim"].value == pytest.approx(float(SSIM.mean()))
    assert found.means_recovered["mse"].value == pytest.approx(float(MSE[kept].mean()))
    assert found.means_recovered["ssim"].value == pytest.approx(float(SSIM[kept].mean()))
    assert (found.means["mse"].n, found.means_recovered["mse"].n) == (8, 5)
    limits = stats.ttest_1samp(MSE.mean(1).numpy(), 0.0).confidence_interval(0.95)
    assert (found.means["mse"].low, found.means["mse"].high) == pytest.approx((max(limits.low, 0.0), limits.high))


def test_an_exact_recovery_counts_as_the_cap() -> None:
    decibels = (-10 * MSE.log10()).clamp_max(PSNR_CAP)
    assert PSNR_CAP == 100.0
    assert summary().means["psnr"].value == pytest.approx(float(decibels.mean()))
    assert math.isfinite(summary().means_recovered["psnr"].high)


def test_iterations() -> None:
    found = summary()
    for spread, kept in (
        (found.iterations, [10.0, 300.0, 50.0, 20.0]),
        (found.iterations_converged, [10.0, 20.0]),
        (found.iterations_whole, [10.0, 20.0]),
    ):
        assert spread.mean.value == pytest.approx(sum(kept) / len(kept))
        assert (spread.least, spread.greatest, spread.mean.n) == (min(kept), max(kept), len(kept))
        assert spread.variance == pytest.approx(float(stats.tvar(kept)))
        limits = stats.ttest_1samp(kept, 0.0).confidence_interval(0.95)
        assert (spread.mean.low, spread.mean.high) == pytest.approx((max(limits.low, 0.0), limits.high))


def test_rows_are_plain_uniform_and_say_over_what() -> None:
    rows = summary().rows()
    assert json.loads(json.dumps(rows, allow_nan=False)) == rows
    assert {tuple(row) for row in rows} == {("measure", "over", "value", "low", "high", "n", "trials")}
    names = [(row["measure"], row["over"]) for row in rows]
    assert len(set(names)) == len(names)
    assert ("mse", "all samples") in names
    assert ("mse", "recovered samples only") in names
    assert ("iterations mean", "converged trials only") in names
    by_name = {(row["measure"], row["over"]): row["value"] for row in rows}
    assert by_name["content rate", "all samples"] == 5 / 8
    assert by_name["iterations max", "all trials"] == 300
    assert by_name["outcome diverged", "all trials"] == 1
    assert by_name["not finite", "all samples"] == 1


def test_no_success_is_said_with_none_not_with_a_number() -> None:
    rule = ContentRule(mse=0, ssim=1)
    found = summarise(example(), outcomes=torch.full((4,), Outcome.EXHAUSTED), iterations=ITERATIONS, rule=rule)
    assert found.rule == rule
    assert found.convergence.value == 0
    assert found.convergence.high == pytest.approx(wilson(0, 4)[1])
    by_name = {(row["measure"], row["over"]): row for row in found.rows()}
    assert by_name["iterations mean", "converged trials only"]["value"] is None
    assert by_name["iterations variance", "converged trials only"]["value"] is None
    assert by_name["iterations mean", "converged trials only"]["n"] == 0
    assert by_name["mse", "recovered samples only"]["low"] is None


def test_attacks_without_labels_and_tables_without_ssim_leave_no_row() -> None:
    draw = torch.Generator().manual_seed(0)
    truth, guess = torch.rand(6, 2, 14, generator=draw), torch.rand(6, 2, 14, generator=draw)
    scores = score(truth, torch.zeros(6, 2).long(), guess, None)
    found = summarise(scores, outcomes=torch.ones(6).long(), iterations=torch.arange(6))
    assert found.label is None
    assert found.label_set is None
    assert set(found.means) == {"mse", "psnr"}
    assert not any("label" in str(row["measure"]) or row["measure"] == "ssim" for row in found.rows())


def test_padding_is_not_counted() -> None:
    draw = torch.Generator().manual_seed(0)
    truth = torch.rand(3, 4, 1, 12, 12, generator=draw)
    mask = torch.tensor([[True, True, False, False], [True] * 4, [True, False, False, False]])
    labels = torch.arange(4).expand(3, 4)
    scores = score(truth, labels, truth, labels, mask=mask)
    found = summarise(scores, outcomes=torch.ones(3).long(), iterations=torch.arange(3))
    assert found.label is not None
    assert (found.samples, found.content.n, found.label.n, found.means["ssim"].n) == (7, 7, 7, 7)
    assert (found.content.value, found.whole.value, found.label.value) == (1, 1, 1)


@pytest.mark.parametrize(
    ("outcomes", "iterations", "rule"),
    [
        (torch.ones(3).long(), ITERATIONS, "one outcome"),
        (OUTCOMES, torch.ones(4, 1), "one iteration count"),
        (torch.tensor([1, 1, 9, 1]), ITERATIONS, "got 9"),
    ],
)
def test_what_does_not_fit_is_refused(outcomes: torch.Tensor, iterations: torch.Tensor, rule: str) -> None:
    with pytest.raises(InputError, match=rule):
        summarise(example(), outcomes=outcomes, iterations=iterations)


def test_the_room_opens_without_scipy() -> None:
    code = "import sys; sys.modules['scipy'] = None; import leakscope.metrics"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
