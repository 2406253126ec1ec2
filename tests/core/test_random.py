"""Random numbers from keys: known answers, independence of the batch, and the right distributions."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from leakscope.core.random import (
    _AT_ONCE,
    fold,
    fold_each,
    key,
    normal,
    normals,
    permutation,
    philox,
    uniform,
    uniforms,
)

Draw = Callable[[Tensor], Tensor]

DRAWS: dict[str, Draw] = {
    "uniform": lambda k: uniform(k, (3, 5)),
    "normal": lambda k: normal(k, (3, 5)),
    "permutation": lambda k: permutation(k, 15),
}
SEEDS = st.integers(0, 2**63 - 1)


def words(text: str) -> tuple[Tensor, ...]:
    return tuple(torch.tensor(int(word, 16)) for word in text.split())


@pytest.mark.parametrize(
    ("counter", "secret", "answer"),
    [
        ("0 0 0 0", "0 0", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff " * 4, "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            "243f6a88 85a308d3 13198a2e 03707344",
            "a4093822 299f31d0",
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
    ids=["zeros", "ones", "pi"],
)
def test_philox_known_answers(counter: str, secret: str, answer: str) -> None:
    """The vectors that come with Random123, the authors' own code."""
    c0, c1, c2, c3 = words(counter)
    k0, k1 = words(secret)
    assert [int(word) for word in philox((c0, c1, c2, c3), k0, k1)] == [int(word) for word in words(answer)]


def test_first_words_of_a_draw_are_philox_of_the_key() -> None:
    """Key 0 draws the blocks of counters 0, 1, ...: the top 24 bits of the first known answer come out first."""
    known = [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert uniform(key(0), (4,)).tolist() == [(word >> 8) / 2**24 for word in known]


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_vmap_equals_a_batch_equals_a_loop(draw: Draw) -> None:
    keys = key([0, 1, 7, 2**40 + 3, 2**63 - 1])
    loop = torch.stack([draw(k) for k in keys])
    assert torch.equal(draw(keys), loop)
    assert torch.equal(torch.func.vmap(draw)(keys), loop)
    assert torch.equal(draw(keys.reshape(5, 1)).squeeze(1), loop)


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
@settings(deadline=None, max_examples=20)
@given(seed=SEEDS, neighbours=st.lists(SEEDS, max_size=4))
def test_neighbours_do_not_matter(draw: Draw, seed: int, neighbours: list[int]) -> None:
    assert torch.equal(draw(key([*neighbours, seed]))[-1], draw(key(seed)))


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_draws_leave_the_global_generator_alone(draw: Draw) -> None:
    before = torch.get_rng_state()
    first = draw(key(3))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)
    assert torch.equal(draw(key(3)), first)
    torch.set_rng_state(before)


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_seeds_and_purposes_and_counters_differ(draw: Draw) -> None:
    k = key(5)
    keys = [key(6), fold(k, "start"), fold(k, "noise"), fold(k, 0), fold(k, 1), fold(fold(k, 0), 1), fold(k, 2**32), k]
    drawn = [tuple(draw(each).flatten().tolist()) for each in keys]
    assert len(set(drawn)) == len(keys)


def test_high_and_low_halves_of_a_seed_both_count() -> None:
    keys = [0, 1, 2**31, 2**32, 2**32 + 1, 2**62]
    assert len({float(uniform(key(s), (1,))) for s in keys}) == len(keys)


def test_fold_is_a_pure_key_and_takes_one_counter_per_key() -> None:
    keys = key([3, 4, 5])
    folded = fold(keys, torch.tensor([10, 11, 12]))
    assert torch.equal(folded, torch.stack([fold(key(s), c) for s, c in ((3, 10), (4, 11), (5, 12))]))
    assert folded.dtype == torch.int64
    assert bool((folded >= 0).all())
    assert torch.equal(torch.func.vmap(lambda k: fold(k, "mask"))(keys), fold(keys, "mask"))


def test_folding_many_counters_gives_distinct_keys() -> None:
    assert len(set(fold(key(0), torch.arange(20_000)).tolist())) == 20_000


def test_a_text_and_its_number_are_different_purposes() -> None:
    import zlib

    assert int(fold(key(1), "noise")) != int(fold(key(1), zlib.crc32(b"noise")))


@pytest.mark.parametrize("draw", [uniform, normal])
def test_float32_and_float64_draw_the_same(draw: Callable[..., Tensor]) -> None:
    wide, narrow = draw(key(11), (4096,), torch.float64), draw(key(11), (4096,), torch.float32)
    assert wide.dtype == torch.float64
    assert narrow.dtype == torch.float32
    assert torch.equal(wide.float(), narrow)


def test_uniform_stays_in_the_half_open_box_in_both_dtypes() -> None:
    for dtype in (torch.float32, torch.float64):
        drawn = uniform(key(1), (200_000,), dtype)
        assert float(drawn.min()) >= 0
        assert float(drawn.max()) < 1


def test_shapes() -> None:
    assert normal(key([0, 1]), (3, 0)).shape == (2, 3, 0)
    assert uniform(key([0, 1]), (2, 3, 4)).shape == (2, 2, 3, 4)
    assert permutation(key([0, 1, 2]), 1).tolist() == [[0], [0], [0]]


@pytest.mark.parametrize("draw", [uniform, normal])
def test_one_key_draws_one_number(draw: Callable[..., Tensor]) -> None:
    assert draw(key(4), ()).shape == ()
    assert torch.equal(torch.func.vmap(lambda k: draw(k, ()))(key([4, 5])), draw(key([4, 5]), ()))


@pytest.mark.parametrize("seed", [0, 1, 2**50])
def test_uniform_and_normal_follow_their_laws(seed: int) -> None:
    from scipy import stats

    assert stats.kstest(uniform(key(seed), (50_000,), torch.float64).numpy(), "uniform").pvalue > 1e-3
    assert stats.kstest(normal(key(seed), (50_000,), torch.float64).numpy(), "norm").pvalue > 1e-3


def test_draws_of_consecutive_seeds_follow_the_law_too() -> None:
    """Weak keys would show here: the first number of each of 50,000 neighbouring seeds."""
    from scipy import stats

    keys = key(range(50_000))
    assert stats.kstest(uniform(keys, (1,), torch.float64).flatten().numpy(), "uniform").pvalue > 1e-3
    assert stats.kstest(normal(fold(keys, "x"), (1,), torch.float64).flatten().numpy(), "norm").pvalue > 1e-3


def test_numbers_of_one_draw_are_uncorrelated() -> None:
    drawn = normal(key(range(4000)), (12,), torch.float64)
    correlation = torch.corrcoef(drawn.T) - torch.eye(12, dtype=torch.float64)
    assert float(correlation.abs().max()) < 5 / math.sqrt(4000)


@settings(deadline=None, max_examples=30)
@given(seed=SEEDS, length=st.integers(1, 200))
def test_permutation_is_a_permutation(seed: int, length: int) -> None:
    assert sorted(permutation(key(seed), length).tolist()) == list(range(length))


def test_every_order_is_equally_likely() -> None:
    from scipy import stats

    orders = permutation(key(range(24_000)), 4)
    code = (orders * torch.tensor([64, 16, 4, 1])).sum(-1)
    counts = torch.unique(code, return_counts=True)[1]
    assert len(counts) == 24
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3


@pytest.mark.parametrize("bad", [-1, 2**63])
def test_a_seed_outside_the_range_is_refused(bad: int) -> None:
    with pytest.raises(ValueError, match=rf"seed .*{bad}"):
        key([0, bad])


SHAPES = st.lists(st.lists(st.integers(0, 5), max_size=3).map(tuple), min_size=1, max_size=6)


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(seed=SEEDS, shapes=SHAPES)
def test_many_tensors_at_once_are_those_drawn_one_by_one(seed: int, shapes: list[tuple[int, ...]]) -> None:
    named = {f"layer{number}.weight": shape for number, shape in enumerate(shapes)}
    for k in (key(seed), key([seed, 3])):
        for dtype in (torch.float32, torch.float64):
            for many, one in ((uniforms, uniform), (normals, normal)):
                made = many(k, named, dtype)
                assert list(made) == list(named)
                for name, shape in named.items():
                    assert torch.equal(made[name], one(fold(k, name), shape, dtype))
        assert torch.equal(fold_each(k, list(named)), torch.stack([fold(k, name) for name in named], dim=-1))


def test_what_is_too_large_to_be_drawn_together_has_the_same_bits() -> None:
    named = {"a": (3,), "b": (_AT_ONCE + 5,), "c": (_AT_ONCE // 2,), "d": (7, 2)}
    made = torch.func.vmap(lambda k: normals(k, named))(key([1, 2]))
    for name, shape in named.items():
        assert torch.equal(made[name], normal(fold(key([1, 2]), name), shape))
