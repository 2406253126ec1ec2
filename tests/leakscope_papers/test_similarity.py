"""The similarity loss is 1 - cos: the mismatch of who matches by it, a number measured at the end of who does not."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from leakscope.attacks.dlfa import dlfa
from leakscope_papers.cell_measures import SIMILARITY_MEASURES, measure_with_similarity
from leakscope_papers.items import find_part, read_item
from leakscope_papers.naming import name_cell
from leakscope_papers.scales import scenario_at
from leakscope_papers.scored import SIMILARITY, Scored, score_cells


def settings_of(part: str) -> list[dict[str, Any]]:
    item = read_item("sme-table-2")
    return [dict(c.settings) for c in scenario_at(item, find_part(item, part), "full").cells() if not c.baseline]


def scored(measured: list[float] | None) -> Scored:
    """Return two trials whose mismatches are 3 and 5."""
    none = np.full(2, np.nan)
    columns: dict[str, Any] = dict.fromkeys(("mse", "psnr", "ssim", "recovered", "label_correct"), none)
    columns |= {"trial": np.array(["a", "b"], dtype=object), "cell": np.zeros(2), "sample": np.full(2, -1)}
    columns |= {"outcome": np.array(["exhausted"] * 2, dtype=object), "iterations": np.full(2, 9)}
    columns |= {"mismatch": np.array([3.0, 5.0])} | ({} if measured is None else {SIMILARITY: np.array(measured)})
    return score_cells(columns)[0]


def test_the_column_is_that_of_the_number_dlfa_measures() -> None:
    (name,) = dlfa().measures
    assert f"learned.{name}" == SIMILARITY
    assert name == SIMILARITY_MEASURES[0]


def test_who_matches_by_the_cosine_has_its_mismatch() -> None:
    for settings in settings_of("cifar100-50"):
        values = measure_with_similarity(scored([0.1, 0.2]), settings)
        assert [values[name].estimate.value for name in SIMILARITY_MEASURES] == pytest.approx([4.0, 1.0])


def test_dlfa_has_what_it_measured_at_the_end() -> None:
    for settings in settings_of("femnist-50-dlfa"):
        values = measure_with_similarity(scored([0.1, 0.3]), settings)
        assert [values[name].estimate.value for name in SIMILARITY_MEASURES] == pytest.approx([0.2, 0.1])
        assert values["similarity_loss"].over == ""


@pytest.mark.parametrize("measured", [None, [math.nan, math.nan]])
def test_an_older_run_of_dlfa_has_no_similarity_loss(measured: list[float] | None) -> None:
    values = measure_with_similarity(scored(measured), settings_of("femnist-50-dlfa")[0])
    assert not set(SIMILARITY_MEASURES) & set(values)
    assert "psnr" in values


def test_a_run_that_was_gone_on_with_says_over_how_many_trials() -> None:
    values = measure_with_similarity(scored([math.nan, 0.3]), settings_of("femnist-50-dlfa")[0])
    assert values["similarity_loss"].estimate.value == pytest.approx(0.3)
    assert values["similarity_loss"].over.startswith("1 of 2 trials")


def test_local_steps_are_epochs_times_the_batches_of_one() -> None:
    item = read_item("sme-table-2")
    for name, batches in (("cifar100-10", 1), ("cifar100-50", 5)):
        part = find_part(item, name)
        for cell in scenario_at(item, part, "full").cells():
            where = name_cell(item, part, item.readings[0], cell.settings)
            assert where is not None
            assert where["local_steps"] == batches * int(str(where["epochs"]))
