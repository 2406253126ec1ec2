"""SME's alpha on its way through a sweep: kept in records, its course in the tensors, a column of the shown table."""

from __future__ import annotations

import contextlib
import sys

import pytest
import torch

from leakscope.cli import main
from leakscope.scenario import scenario_of
from leakscope.store import Run
from sweeper import sweep

SCENARIO = scenario_of(
    {
        "data": {"name": "digits", "samples": 2},
        "model": {"name": "mlp", "hidden": [16]},
        "client": {"local": {"epochs": 2, "batch_size": 2, "rate": 0.1}},
        "knowledge": {"labels": True, "local": False},
        "attacks": [{"name": "sme", "iterations": 3}, {"name": "ig_update", "iterations": 3}],
        "trials": 2,
        "baselines": ["class_mean"],
        "precision": {"form": "native"},
    }
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    directory = tmp_path_factory.mktemp("runs") / "sme"
    assert sweep(directory, SCENARIO).left == 0
    return Run.open(directory)


def test_records_hold_alpha_and_tensors_its_course(run: Run) -> None:
    cells = {cell.id: cell.settings["attack"]["name"] for cell in run.cells()}  # type: ignore[index]
    for record in run.records():
        tensors = run.tensors(record.trial)
        if cells[record.cell] != "sme":
            assert record.learned == {}
            assert not any(name.startswith("course.") for name in tensors)
            continue
        assert 0 < record.learned["alpha"] < 1
        course = tensors["course.alpha"]
        assert course.shape == tensors["trace"].shape
        assert float(course[0]) == 0.5
        assert float(course[-1]) == pytest.approx(record.learned["alpha"])
        assert torch.equal(course.isnan(), tensors["trace_at"] < 0)


def test_show_has_alpha_for_the_attack_that_learns_it(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "argv", ["leakscope", "show", str(run.directory)])
    with contextlib.suppress(SystemExit):
        main()
    head, *rows = [line for line in capsys.readouterr().out.splitlines() if line.strip() and "─" not in line]
    place = slice(head.index("alpha"), head.index("alpha") + len("alpha"))
    told = {row.split()[0]: row[place].strip() for row in rows}
    mean = [record.learned["alpha"] for record in run.records() if record.learned]
    assert told["sme"] == f"{sum(mean) / len(mean):.3f}"
    assert told["ig_update"] == told["(class"] == ""
