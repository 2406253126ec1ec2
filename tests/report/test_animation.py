"""A film starts at the start, ends at the result, and skips what its trial never reached."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from leakscope.report.films import TRACE_POINTS, courses, film, thin, timeline, trace


def stored(snapshots_at: list[int]) -> dict[str, Tensor]:
    """Return a trial of two 1 x 2 x 2 samples; snapshot s of sample n is 10 n + s everywhere, start 255, result 0.5."""
    shots = len(snapshots_at)
    numbers = 10 * torch.arange(2)[None] + torch.arange(shots)[:, None]
    return {
        "inputs": torch.full((2, 1, 2, 2), 0.5),
        "start": torch.full((2, 1, 2, 2), 255, dtype=torch.uint8),
        "snapshots": numbers[..., None, None, None].expand(shots, 2, 1, 2, 2).to(torch.uint8),
        "snapshots_at": torch.tensor(snapshots_at),
    }


def test_film_keeps_the_snapshots_between_start_and_end() -> None:
    frames, at = film(stored([0, 3, 9, -1]), 1, 9)
    assert at == (0, 3, 9)
    assert (255 * frames[:, 0, 0, 0]).tolist() == [255, 11, 127.5]
    frames, at = film(stored([0, 3, 9, 27]), 0, 30)
    assert at == (0, 3, 9, 27, 30)
    assert (255 * frames[:, 0, 0, 0]).round().tolist() == [255, 1, 2, 3, 128]


def test_film_of_a_trial_that_never_moved() -> None:
    _, at = film(stored([-1, -1]), 0, 0)
    assert at == (0, 0)


def test_film_of_what_was_stored() -> None:
    only = {"inputs": torch.zeros(1, 5)}
    frames, at = film(only, 0, 7)
    assert (tuple(frames.shape), at) == ((1, 5), (7,))
    assert trace(only) == ((), ())


def test_a_trace_is_what_was_reached_thinned_with_both_ends() -> None:
    values = torch.arange(300.0)
    at = torch.where(torch.arange(300) < 200, torch.arange(300), -1)
    seen, steps = trace({"trace": values, "trace_at": at})
    assert len(seen) == len(steps) == TRACE_POINTS
    assert (steps[0], steps[-1], seen[-1]) == (0, 199, 199.0)
    assert all(value == step for value, step in zip(seen, steps, strict=True))


def test_a_course_keeps_step_with_the_trace() -> None:
    at = torch.where(torch.arange(300) < 200, torch.arange(300), -1)
    tensors = {"trace": torch.arange(300.0), "trace_at": at, "course.alpha": 2 * torch.arange(300.0)}
    seen, _ = trace(tensors)
    assert courses(tensors) == {"alpha": tuple(2 * value for value in seen)}
    assert courses({"trace": at, "trace_at": at}) == {}


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
    assert thin([], 3) == []
