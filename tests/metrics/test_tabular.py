"""Decoded rows against true ones: the rule of a match, and rates with intervals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from leakscope.core.errors import InputError
from leakscope.data import Category, Encoding, Number
from leakscope.metrics.interval import estimate_rate, wilson
from leakscope.metrics.tabular import TOLERANCE, matches, score_rows

ENCODING = Encoding(
    (
        Number("age", 17, 90, whole=True),
        Category("work", ("?", "private", "state")),
        Number("share", -1.5, 2.5),
        Number("same", 3, 3),
    )
)
SPANS = {"age": 73.0, "share": 4.0, "same": 0.0}
ROWS = st.fixed_dictionaries(
    {
        "age": st.integers(17, 90),
        "work": st.sampled_from(["?", "private", "state"]),
        "share": st.floats(-1.5, 2.5),
        "same": st.just(3.0),
    }
)


def encoded(rows: list[Any]) -> Tensor:
    return torch.from_numpy(ENCODING.encode(rows))


def slow(truth: dict[str, Any], guess: dict[str, Any], tolerance: float) -> dict[str, bool]:
    """The rule, written out for these columns."""
    return {
        "age": abs(truth["age"] - guess["age"]) <= 73 * tolerance + 1e-4,
        "work": truth["work"] == guess["work"],
        "share": abs(truth["share"] - guess["share"]) <= 4 * tolerance + 1e-5,
        "same": True,
    }


@settings(deadline=None)
@given(pairs=st.lists(st.tuples(ROWS, ROWS), min_size=1, max_size=5), tolerance=st.sampled_from([0.0, 0.01, 0.25, 1.0]))
def test_a_match_is_the_same_word_or_a_near_number(pairs: list[tuple[Any, Any]], tolerance: float) -> None:
    truth, guess = [list(rows) for rows in zip(*pairs, strict=True)]
    edge = any(
        abs(abs(float(t[name]) - float(g[name])) - span * tolerance) < 1e-3
        for t, g in pairs
        for name, span in SPANS.items()
        if span
    )
    found = matches(truth, guess, SPANS, tolerance=tolerance).tolist()
    assert edge or found == [[slow(t, g, tolerance)[name] for name in truth[0]] for t, g in pairs]


@settings(deadline=None)
@given(rows=st.lists(ROWS, min_size=1, max_size=6), noise=st.floats(0, 0.4), seed=st.integers(0, 100))
def test_a_true_row_is_matched_whatever_small_noise_its_encoding_has(rows: list[Any], noise: float, seed: int) -> None:
    truth = encoded(rows)[None]
    words = torch.zeros_like(truth)
    words[..., 1:4] = noise * torch.rand(truth[..., 1:4].shape, generator=torch.Generator().manual_seed(seed))
    found = score_rows(truth, truth + words, ENCODING.decode, SPANS)
    assert found.row.value == 1 == found.values.value
    assert all(rate.value == 1 for rate in found.columns.values())
    assert list(found.columns) == ["age", "work", "share", "same"]


@settings(deadline=None, max_examples=50)
@given(
    values=st.lists(st.floats(-50, 50, allow_nan=False) | st.just(math.nan) | st.just(math.inf), min_size=6, max_size=6)
)
def test_any_vector_decodes_to_a_valid_row(values: list[float]) -> None:
    (row,) = ENCODING.decode(torch.tensor([values]))
    assert np.array_equal(ENCODING.encode([row]), ENCODING.encode(ENCODING.decode(ENCODING.encode([row]))))
    assert isinstance(row["age"], int)
    assert 17 <= row["age"] <= 90
    assert row["work"] in ("?", "private", "state")
    assert -1.5 <= float(row["share"]) <= 2.5


def test_rates_are_those_of_the_rule_and_intervals_those_of_the_room() -> None:
    truth = encoded([{"age": 30 + i, "work": "state", "share": 0.5, "same": 3.0} for i in range(8)]).reshape(4, 2, -1)
    guess = truth.clone()
    guess[0, 0, 0] += 0.5  # one age wrong
    guess[3, :, 1:4] = torch.tensor([0.0, 1.0, 0.0])  # both words of one trial wrong
    found = score_rows(truth, guess, ENCODING.decode, SPANS)
    assert found.columns["age"].value == pytest.approx(7 / 8)
    assert found.columns["work"].value == pytest.approx(6 / 8)
    assert found.row.value == pytest.approx(5 / 8)
    assert found.values.value == pytest.approx(29 / 32)
    assert (found.row.n, found.row.trials, found.values.n) == (8, 4, 32)
    hit = torch.tensor([[False, True], [True, True], [True, True], [False, False]])
    assert found.row == estimate_rate(hit, torch.ones(4, 2, dtype=torch.bool))
    assert found.mse.value == pytest.approx(float((truth - guess).square().mean()), rel=1e-6)
    assert found.tolerance == TOLERANCE


def test_single_rows_have_wilsons_interval_and_padding_does_not_count() -> None:
    truth = encoded([{"age": 40, "work": "state", "share": 0.5, "same": 3.0}] * 6).reshape(3, 2, -1)
    guess = truth.clone()
    guess[1:, :, 0] = 0.0
    scored = torch.tensor([[True, False]] * 3)
    found = score_rows(truth, guess, ENCODING.decode, SPANS, scored=scored)
    rate = found.columns["age"]
    assert rate.value == pytest.approx(1 / 3)
    assert rate.n == 3
    assert (rate.low, rate.high) == pytest.approx(wilson(1 / 3, 3), abs=0.02)


def test_tolerance_0_asks_for_the_same_number_and_what_is_not_finite_is_a_bad_row() -> None:
    rows = [{"age": 40, "work": "state", "share": 0.5, "same": 3.0}]
    truth = encoded(rows)[None]
    close = truth + 1e-3
    assert score_rows(truth, close, ENCODING.decode, SPANS).columns["share"].value == 1
    assert score_rows(truth, close, ENCODING.decode, SPANS, tolerance=0).columns["share"].value == 0
    assert score_rows(truth, truth.clone(), ENCODING.decode, SPANS, tolerance=0).row.value == 1
    broken = score_rows(truth, torch.full_like(truth, math.nan), ENCODING.decode, SPANS)
    assert math.isfinite(broken.mse.value)
    assert broken.row.value == 0


@pytest.mark.parametrize("tolerance", [-0.1, 1.1, math.nan])
def test_a_tolerance_outside_the_range_is_refused(tolerance: float) -> None:
    with pytest.raises(InputError, match=r"tolerance must\b"):
        matches([{"age": 1}], [{"age": 1}], {"age": 1.0}, tolerance=tolerance)


def test_rows_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="one decoded row"):
        matches([{"age": 1}], [], {})
    with pytest.raises(InputError, match="T x N"):
        score_rows(torch.zeros(2, 6), torch.zeros(2, 6), ENCODING.decode, SPANS)
