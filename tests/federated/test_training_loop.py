"""The loop over rounds: where it ends, what it says after each, and steps as long as those without a defence."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch.testing import assert_close

from leakscope.core.tree import Tree
from leakscope.federated import run_rounds, train_by_gradients


@dataclass(frozen=True)
class Counter:
    rounds: int = 0


@pytest.mark.parametrize(("begun", "stop_at", "expected"), [(0, 9, [1, 2, 3]), (2, 9, [3]), (3, 9, []), (0, 2, [1, 2])])
def test_rounds_are_played_until_there_are_enough_or_somebody_stops(
    begun: int, stop_at: int, expected: list[int]
) -> None:
    heard: list[int] = []

    def play(state: Counter) -> tuple[Counter, int]:
        return replace(state, rounds=state.rounds + 1), state.rounds + 1

    def after(state: Counter, played: int) -> None:
        assert state.rounds == played
        heard.append(played)

    last = run_rounds(Counter(begun), play, 3, after=after, stop=lambda state: state.rounds >= stop_at)
    assert heard == expected
    assert last.rounds == max([begun, *expected])


def test_steps_by_gradients_are_plain_descent_and_can_keep_to_given_lengths() -> None:
    targets = torch.tensor([[1.0, 2.0], [3.0, 6.0]])

    def answer(weights: Tree, number: int) -> Tree:
        assert number >= 0
        return {"w": weights["w"] - targets}

    first: Tree = {"w": torch.zeros(2), "private": torch.ones(1)}
    plain = train_by_gradients(first, answer, 3, rate=0.5)
    w = torch.zeros(2)
    for length in plain.lengths:
        gradient = (w - targets).mean(0)
        assert_close(length, float(gradient.norm()))
        w = w - 0.5 * gradient
    assert_close(plain.weights["w"], w)
    assert plain.weights["private"] is first["private"]
    scaled = train_by_gradients(first, lambda w, n: {"w": 7 * answer(w, n)["w"]}, 3, rate=0.5, lengths=plain.lengths)
    assert_close(scaled.weights["w"], plain.weights["w"], rtol=1e-5, atol=1e-6)
    assert scaled.lengths == pytest.approx([7 * length for length in plain.lengths], rel=1e-5)
