"""A film starts at the start, ends at the result, and skips what its trial never reached."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from leakscope.core.types import Outcome, Reconstruction
from leakscope.report.films import film, timeline


def reconstruction(iterations: list[int], snapshots_at: list[list[int]]) -> Reconstruction:
    """Return trials of two 1 x 2 x 2 samples; snapshot s of sample n of trial t is 100 t + 10 n + s everywhere."""
    trials, shots = len(iterations), len(snapshots_at[0])
    numbers = (
        100.0 * torch.arange(trials)[:, None, None] + 10 * torch.arange(2)[None, None] + torch.arange(shots)[:, None]
    )
    snapshots = numbers[..., None, None, None].expand(trials, shots, 2, 1, 2, 2)
    at = torch.tensor(snapshots_at)
    whole = torch.zeros(trials, 2, 1, 2, 2)
    return Reconstruction(
        inputs=whole + 7,
        labels=torch.zeros(trials, 2, dtype=torch.int64),
        start=whole - 7,
        mismatch=torch.zeros(trials),
        iterations=torch.tensor(iterations),
        evaluations=torch.tensor(iterations),
        outcome=torch.full((trials,), int(Outcome.CONVERGED)),
        trace=torch.zeros(trials, 1),
        trace_at=torch.zeros(trials, 1, dtype=torch.int64),
        snapshots=torch.where((at >= 0)[..., None, None, None, None], snapshots, torch.nan),
        snapshots_at=at,
    )


def test_film_keeps_the_snapshots_between_start_and_end() -> None:
    made = reconstruction([9, 30], [[0, 3, 9, -1], [0, 3, 9, 27]])
    frames, at = film(made, 0, 1)
    assert at == (0, 3, 9)
    assert frames[:, 0, 0, 0].tolist() == [-7, 11, 7]
    frames, at = film(made, 1, 0)
    assert at == (0, 3, 9, 27, 30)
    assert frames[:, 0, 0, 0].tolist() == [-7, 101, 102, 103, 7]


def test_film_of_a_trial_that_never_moved() -> None:
    frames, at = film(reconstruction([0], [[-1, -1]]), 0, 0)
    assert at == (0, 0)
    assert frames[:, 0, 0, 0].tolist() == [-7, 7]


@given(st.lists(st.lists(st.integers(0, 5000), min_size=1), min_size=1), st.integers(2, 20))
def test_timeline_is_some_of_the_known_steps_in_order_with_both_ends(films: list[list[int]], positions: int) -> None:
    known = sorted({at for film_at in films for at in film_at})
    stops = timeline(films, positions=positions)
    assert stops == sorted(set(stops))
    assert set(stops) <= set(known)
    assert (stops[0], stops[-1]) == (known[0], known[-1])
    assert len(stops) == min(positions, len(known))


def test_timeline_of_nothing() -> None:
    assert timeline([]) == []
