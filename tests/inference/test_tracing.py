"""Tracing: the search against the obvious loop, the shares against counting, what is refused."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from leakscope.core.errors import InputError
from leakscope.inference import tracing
from leakscope.inference.tracing import nearest, partition, spread, trace, trace_each


def obvious(queries: Tensor, reconstructions: Tensor) -> Tensor:
    """Algorithm 6 as printed: one query and one reconstruction at a time."""
    found = []
    for query in queries.double():
        best, at = float("inf"), -1
        for number, one in enumerate(reconstructions.double()):
            apart = float((query - one).square().mean())
            if apart < best:
                best, at = apart, number
        found.append(at)
    return torch.tensor(found)


def draw(seed: int, *shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 12), st.integers(1, 12), st.integers(1, 6), st.integers(0, 10**6), st.sampled_from([1, 300, 10**6]),
    st.sampled_from([None, 1, 8]),
)  # fmt: skip
def test_the_search_is_the_obvious_loop(
    many: int, few: int, size: int, seed: int, memory: int, levels: int | None
) -> None:
    """With few grey levels many distances are equal, and the first of them must win."""
    queries, found = draw(seed, many, 1, size, 2), draw(seed + 1, few, 1, size, 2)
    if levels is not None:
        queries, found = (queries * levels).round() / levels, (found * levels).round() / levels
    assert torch.equal(nearest(queries, found, memory=memory), obvious(queries, found))


@pytest.mark.parametrize("gap", [1e-3, 1e-6, 1e-7])
def test_it_is_exact_where_products_alone_would_round(gap: float) -> None:
    """Reconstructions far from 0 that differ in the last digits: sums of squares lose what differences keep."""
    base = 1000 + draw(0, 1, 3, 8, 8).double()
    found = torch.cat([base + gap * (k + 1) * (-1) ** k for k in range(6)])
    assert torch.equal(nearest(base, found), obvious(base, found))
    assert int(nearest(base, found)[0]) == 0


def test_pictures_in_float32_and_reconstructions_out_of_the_box() -> None:
    queries, found = draw(0, 60, 3, 8, 8), draw(1, 25, 3, 8, 8)
    found[3] *= 50
    found[4] = torch.nan
    found[5, 0, 0, 0] = torch.inf
    found[6:10] = queries[20:24]
    made = nearest(queries, found)
    assert torch.equal(made, obvious(queries, torch.nan_to_num(found, nan=1e6, posinf=1e6)))
    assert made[20:24].tolist() == [6, 7, 8, 9]
    assert nearest(queries, torch.full_like(found, torch.nan)).unique().tolist() == [-1]


BAD = {
    "one diverged": lambda found: torch.cat([found[:3], 1e5 * found[3:4], found[4:]]),
    "all diverged": lambda found: 1e5 * found,
    "a third grey": lambda found: torch.where((torch.arange(len(found)) % 3 == 0)[:, None, None, None], 0.5, found),
    "all grey": lambda found: torch.full_like(found, 0.5),
    "all grey but nan": lambda found: torch.cat([found[:2] * torch.nan, torch.full_like(found[2:], 0.5)]),
}


@pytest.mark.parametrize("bad", list(BAD))
def test_bad_guesses_cost_no_more_than_good_ones(bad: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only pairs that rounding could confuse are settled from differences; here there are none."""
    settled: list[int] = []
    honest = tracing._settled

    def counting(block: Tensor, found: Tensor, close: Tensor, memory: int) -> Tensor:
        settled.append(int(close.sum()))
        return honest(block, found, close, memory)

    monkeypatch.setattr(tracing, "_settled", counting)
    queries = draw(0, 60, 3, 8, 8)
    found = BAD[bad](queries[spread(20, 60)] + 0.3 * draw(1, 20, 3, 8, 8))
    assert torch.equal(nearest(queries, found), obvious(queries, found))
    assert sum(settled) == 0


def test_a_guess_whose_squares_overflow_is_nobodys_nearest() -> None:
    queries, found = draw(0, 9, 4).double(), draw(1, 5, 4).double()
    found[0], found[2] = 1e200, 1e308
    assert torch.equal(nearest(queries, found), obvious(queries, found))
    assert nearest(queries, found[:1]).unique().tolist() == [-1]


def test_owners_come_in_equal_parts_and_sources_are_spread() -> None:
    assert torch.bincount(partition(1000, 10)).tolist() == [100] * 10
    assert torch.bincount(partition(10, 3)).tolist() == [4, 3, 3]
    owner = partition(50_000, 10)[spread(1000, 50_000)]
    assert torch.bincount(owner).tolist() == [100] * 10


def test_the_shares_are_those_one_counts() -> None:
    queries, source = draw(3, 40, 1, 4, 4), spread(8, 40)
    found = queries[source] + 0.3 * draw(4, 8, 1, 4, 4)
    made = trace(queries, found, source, participants=4)
    owner = torch.arange(40) // 10
    wrong = [int(owner[source[k]]) != int(owner[q]) for q, k in enumerate(obvious(queries, found).tolist())]
    assert made.all.value == pytest.approx(sum(wrong) / 40)
    assert made.reconstructed.value == pytest.approx(sum(wrong[int(q)] for q in source) / 8)
    assert (made.all.n, made.reconstructed.n, made.chance, made.participants) == (40, 8, 0.75, 4)


def test_perfect_reconstructions_trace_their_queries_and_say_little_of_the_others() -> None:
    queries, source = draw(5, 400, 1, 6, 6), spread(40, 400)
    made = trace(queries, queries[source], source, participants=10)
    assert made.reconstructed.value == 0
    assert 0.6 < made.all.value < 0.9  # noise has no neighbours: chance, less the 40 that are known
    blind = trace(queries, torch.full((40, 1, 6, 6), torch.nan), source, participants=10)
    assert blind.all.value == blind.reconstructed.value == 1


def test_numbers_by_reconstruction_have_the_share_as_mean_and_the_error_between_clusters() -> None:
    queries, source = draw(8, 60, 1, 4, 4), spread(12, 60)
    found = queries[source] + 0.4 * draw(9, 12, 1, 4, 4)
    made = trace(queries, found, source, participants=4)
    place, wrong = nearest(queries, found), (made.owner != partition(60, 4)).double()
    members = [(place == k).nonzero()[:, 0] for k in range(12)]
    sums = torch.stack([(wrong[own] - wrong.mean()).sum() for own in members])
    assert made.all_by.mean() == pytest.approx(made.all.value)
    assert made.reconstructed_by.mean() == pytest.approx(made.reconstructed.value)
    assert made.all_by.var() / 12 == pytest.approx(float(12 / 11 * sums.square().sum() / 60**2))


def test_one_reconstruction_nearest_to_all_says_chance_without_a_doubt() -> None:
    """Shares by participant are 0 and 1 then, but tied: in every draw they have this mean."""
    queries, source = draw(10, 100, 1, 4, 4), spread(10, 100)
    found = torch.full((10, 1, 4, 4), 9.0)
    found[3] = 0.5
    made = trace(queries, found, source, participants=10)
    assert made.all.value == made.chance
    assert_close(made.all_by, torch.full((10,), 0.9, dtype=torch.float64))
    assert_close(made.reconstructed_by, torch.full((10,), 0.9, dtype=torch.float64))


@pytest.mark.slow
def test_the_error_between_clusters_is_that_of_drawing_anew() -> None:
    """Reconstructions of pure noise: the spread of the share over 40 draws, and what each draw says of its own error."""
    queries, source = draw(11, 1000, 1, 6, 6) * draw(12, 1000, 1, 1, 1), spread(50, 1000)
    made = [trace(queries, draw(100 + k, 50, 1, 6, 6), source, participants=10).all_by for k in range(40)]
    spread_of = torch.stack([one.mean() for one in made]).std()
    told = torch.stack([one.std() / 50**0.5 for one in made]).mean()
    assert 0.6 < told / spread_of < 1.6


def test_many_numbers_of_participants_share_one_search() -> None:
    queries, source = draw(6, 60, 1, 4, 4), spread(12, 60)
    found = queries[source] + 0.2 * draw(7, 12, 1, 4, 4)
    swept = trace_each(queries, found, source, [2, 5, 12])
    for made, number in zip(swept, (2, 5, 12), strict=True):
        alone = trace(queries, found, source, participants=number)
        assert (made.all, made.reconstructed, made.chance) == (alone.all, alone.reconstructed, 1 - 1 / number)


@pytest.mark.parametrize(
    ("queries", "found", "source", "participants", "message"),
    [
        (4, 3, [0, 1, 2], 5, "5 participants .*got 3"),
        (4, 3, [0, 1, 9], 2, r"source .*\(0 .. 3\)"),
        (4, 3, [0, 1], 2, "source must name"),
        (4, 3, [0, 1, 2], 1, "participants .*got 1"),
        (20, 5, [0, 1, 2, 3, 4], 5, "got 5 of 2"),
        (3, 9, [0, 1, 2] * 3, 5, r"participants .*got 5"),
        (4, 0, [], 2, "one query"),
    ],
)
def test_what_makes_no_sense_is_refused(
    queries: int, found: int, source: list[int], participants: int, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        trace(draw(0, queries, 2), draw(1, found, 2), torch.tensor(source).long(), participants=participants)


@pytest.mark.parametrize("participants", [2.5, 2.0, "2", True, None])
def test_participants_are_whole_numbers(participants: object) -> None:
    with pytest.raises(InputError, match=r"participants must\b"):
        trace(draw(0, 6, 2), draw(1, 4, 2), torch.arange(4), participants=participants)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"participants must\b"):
        partition(6, participants)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("source", "kind"),
    [([0, 1, 2, 3], "list"), (torch.arange(4.0), "torch.float32"), (torch.ones(4, dtype=torch.bool), "torch.bool")],
)
def test_a_source_is_a_tensor_of_whole_numbers(source: object, kind: str) -> None:
    with pytest.raises(InputError, match=f"source .*got {kind}"):
        trace(draw(0, 6, 2), draw(1, 4, 2), source, participants=2)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [torch.uint8, torch.int32])
def test_a_source_may_be_of_any_whole_kind(kind: torch.dtype) -> None:
    queries, source = draw(0, 6, 2), torch.tensor([0, 1, 3, 5])
    made, wide = (trace(queries, queries[source], s, participants=2) for s in (source.to(kind), source))
    assert (made.all, made.reconstructed) == (wide.all, wide.reconstructed)


def test_shapes_and_nan_are_refused() -> None:
    with pytest.raises(InputError, match="one shape"):
        nearest(draw(0, 2, 3), draw(0, 2, 4))
    with pytest.raises(InputError, match="queries hold NaN"):
        nearest(torch.full((2, 3), torch.nan), draw(0, 2, 3))
    with pytest.raises(InputError, match=r"1 \.\. 5, got 6"):
        spread(6, 5)
