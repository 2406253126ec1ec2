"""Clip: the norm is capped, the direction kept, a short update left alone."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from leakscope.core import random
from leakscope.core.tree import Tree, dot, norm
from leakscope.defences import Clip

KEY = random.key(0)


@st.composite
def updates(draw: st.DrawFn) -> Tree:
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    size = 10.0 ** draw(st.integers(-6, 6))
    shapes = {"w": (3, 4), "b": (4,), "t": ()}
    return {n: size * torch.randn(s, generator=generator, dtype=torch.float64) for n, s in shapes.items()}


@settings(deadline=None, max_examples=60)
@given(update=updates(), bound=st.floats(1e-5, 1e5))
def test_clip_caps_the_norm_and_keeps_the_direction(update: Tree, bound: float) -> None:
    made = Clip(bound).protect_update(update, KEY)
    assert_close(norm(made), norm(update).clamp_max(bound), rtol=1e-12, atol=0)
    cosine = dot(made, update) / (norm(made) * norm(update))
    assert_close(cosine, torch.tensor(1.0, dtype=torch.float64), rtol=1e-12, atol=0)


@settings(deadline=None, max_examples=60)
@given(update=updates(), bound=st.floats(1e-5, 1e5))
def test_clip_of_each_tensor_is_a_clip_of_every_tensor_alone(update: Tree, bound: float) -> None:
    made = Clip(bound, each=True).protect_update(update, KEY)
    for name, value in update.items():
        expected = value * min(1.0, bound / float(value.norm()))
        assert_close(made[name], expected, rtol=1e-12, atol=0)


@settings(deadline=None, max_examples=30)
@given(update=updates(), slack=st.floats(1.0001, 1e6))
def test_an_update_below_the_bound_stays_bit_for_bit(update: Tree, slack: float) -> None:
    for each in (False, True):
        made = Clip(float(norm(update)) * slack, each=each).protect_update(update, KEY)
        assert_close(made, update, rtol=0, atol=0)


@settings(deadline=None, max_examples=30)
@given(update=updates(), bound=st.floats(1e-5, 1e5))
def test_clipping_again_changes_nothing(update: Tree, bound: float) -> None:
    once = Clip(bound).protect_update(update, KEY)
    assert_close(Clip(bound).protect_update(once, KEY), once, rtol=1e-12, atol=0)


def test_each_tensor_by_itself_is_not_the_whole_update() -> None:
    update = {"long": torch.tensor([30.0, 40.0]), "short": torch.tensor([0.3, 0.4])}
    whole, each = (Clip(1.0, each=e).protect_update(update, KEY) for e in (False, True))
    assert_close(each["short"], update["short"], rtol=0, atol=0)
    assert_close(each["long"], torch.tensor([0.6, 0.8]))
    assert_close(whole["short"], update["short"] / float(norm(update)))
