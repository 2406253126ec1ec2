"""Metrics that need public examples or the network, asked for in a scenario."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from leakscope.core import random
from leakscope.data import load
from leakscope.metrics import METRICS, Context, ContextMetric, arrange, clean
from leakscope.models import Uniform, build, draw_parameters, features_of
from leakscope.play.baselines import public_part
from leakscope.scenario import Problem
from leakscope.scenario.problems import ScenarioError
from leakscope.store import Run
from leakscope.sweep.driver import unfold
from sweeper import small, sweep

CONTEXT = [name for name, metric in METRICS.items() if isinstance(metric, ContextMetric)]
NETWORK = [name for name in CONTEXT if METRICS[name].network]  # type: ignore[union-attr]
ONE_CELL = {"attacks": [{"name": "dlg", "iterations": 1}], "defences": [], "seeds": [0], "grid": {}}


def test_a_scenario_stores_their_means_and_a_baseline_those_that_need_no_network(tmp_path: Path) -> None:
    asked = {"metrics": [*CONTEXT, "ms_ssim", "cw_ssim"], "data": {"name": "digits", "samples": 2}}
    sweep(tmp_path / "r", small(**asked, **ONE_CELL))
    run = Run.open(tmp_path / "r")
    cells = {cell.id: cell for cell in run.cells()}
    public, public_labels = public_part(load("digits"), "test")
    for record in run.records():
        stored = {name for name in record.learned if name in METRICS}
        baseline = cells[record.cell].baseline
        assert stored == {"ms_ssim", "cw_ssim", *CONTEXT} - set(NETWORK if baseline else ())
        kept = run.tensors(record.trial)
        guess = arrange(clean(kept["inputs"])[None], kept["pairing"][None].long())
        labels = torch.tensor([[sample.label for sample in record.samples]])
        model = build("mlp", (1, 8, 8), 10, {"hidden": [16]})
        drawn = draw_parameters(model, Uniform(0.3), random.key([record.seed]))
        read = features_of(model, {name: value[0] for name, value in drawn.items()})

        def features(trial: int, inputs: Tensor, read: Callable[[Tensor], Tensor] = read) -> Tensor:
            return read(inputs)

        seen = Context(labels, public, public_labels, features)
        for name in stored - {"ms_ssim", "cw_ssim"}:
            value = METRICS[name].function(kept["truth"][None], guess, seen)  # type: ignore[call-arg]
            assert_close(record.learned[name], float(value.double().mean()))


@pytest.mark.slow
def test_how_trials_are_cut_into_chunks_does_not_change_them(tmp_path: Path) -> None:
    asked = {**ONE_CELL, "metrics": CONTEXT, "grid": {"data.part": ["train", "test"]}}
    for width in (2, 6):
        sweep(tmp_path / str(width), small(**asked, precision={"form": "native", "chunk": width}))
    assert measured(tmp_path / "2") == measured(tmp_path / "6")


def measured(directory: Path) -> dict[tuple[str, int], dict[str, float]]:
    """Return the stored metrics of every trial by its part and number."""
    run = Run.open(directory)
    parts = {cell.id: str(cell.axes) for cell in run.cells()}
    return {(parts[record.cell], record.number): dict(record.learned) for record in run.records()}


@pytest.mark.parametrize("metric", ["rdlv", "ms_ssim"])
def test_a_metric_of_images_is_refused_for_a_table(metric: str) -> None:
    assert [problem.path for problem in problems(data="breast_cancer", metrics=[metric])] == [("metrics", 0)]


def test_a_class_without_public_examples_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = load("digits")
    labels = type(data).labels

    def lacking(self: object, part: str, places: slice) -> torch.Tensor:
        found = labels(data, part, places)  # type: ignore[arg-type]
        return found.where(found != 3, 4) if part == "train" else found

    monkeypatch.setattr(type(data), "labels", lacking)
    assert [problem.path for problem in problems(metrics=["mse", "iip_pixels"])] == [("metrics", 1)]
    assert problems(metrics=["mse"]) == ()


def problems(**changed: object) -> tuple[Problem, ...]:
    try:
        unfold(small(**changed))
    except ScenarioError as error:
        return tuple(error.problems)
    return ()
