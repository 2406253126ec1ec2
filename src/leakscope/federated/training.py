"""Federated training: the loop over rounds, and its two common uses.

`train_federation` plays the rounds of a `Federation`. In `train_by_gradients` every client sends one gradient and the server
takes steps of given lengths, so that defences are comparable although they change the length of updates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from leakscope.core.model import Model
from leakscope.core.short_repr import short_repr
from leakscope.core.tree import TINY, Tree, norm, scale, subtract
from leakscope.federated.federation import Federation, State, begin
from leakscope.federated.holdings import Holdings
from leakscope.federated.rounds import NATIVE, Form, Played, play_round
from leakscope.federated.traced import forget


class CountsRounds(Protocol):
    """A state that knows the number of rounds played."""

    @property
    def rounds(self) -> int:
        """Return the number of rounds so far."""


S = TypeVar("S", bound=CountsRounds)
R = TypeVar("R")


def run_rounds(
    state: S,
    play: Callable[[S], tuple[S, R]],
    rounds: int,
    *,
    after: Callable[[S, R], None] = lambda *_: None,
    stop: Callable[[S], bool] = lambda _: False,
) -> S:
    """Return the state after `rounds` rounds in all, or at `stop`; `play` gives the next state and events, passed to `after`."""
    while state.rounds < rounds and not stop(state):
        state, played = play(state)
        after(state, played)
    return state


def train_federation(
    federation: Federation,
    model: Model,
    holdings: Holdings,
    rounds: int,
    *,
    weights: Tree | None = None,
    form: Form = NATIVE,
    after: Callable[[State, Played], None] = lambda *_: None,
) -> State:
    """Return the state of a federation after so many rounds from the first; its graphs and recordings are dropped."""
    state = begin(federation, model, holdings.clients, weights=weights)
    try:
        return run_rounds(
            state, lambda now: play_round(federation, model, holdings, now, form=form), rounds, after=after
        )
    finally:
        forget()


@dataclass(frozen=True, slots=True)
class Steps:
    """Weights after some rounds of gradients, and the length of the mean update of each round."""

    weights: Tree
    lengths: tuple[float, ...] = ()

    __repr__ = short_repr

    @property
    def rounds(self) -> int:
        """Return the number of rounds so far."""
        return len(self.lengths)


def train_by_gradients(
    weights: Tree,
    answer: Callable[[Tree, int], Tree],
    rounds: int,
    *,
    rate: float,
    lengths: Sequence[float] | None = None,
) -> Steps:
    """Return the weights after rounds of w <- w - rate (l / |g|) g, g the clients' mean update, and every |g|.

    `answer(weights, round)` returns one update per client, with a leading client dimension. `lengths` are the step lengths l of
    an undefended training, as a server would tune its rate; the default l = |g| is plain gradient descent.
    """

    def play(steps: Steps) -> tuple[Steps, None]:
        mean = {name: update.mean(0) for name, update in answer(steps.weights, steps.rounds).items()}
        length = float(norm(mean))
        wanted = length if lengths is None else lengths[steps.rounds]
        moved = subtract({name: steps.weights[name] for name in mean}, scale(mean, rate * wanted / max(length, TINY)))
        return Steps({**steps.weights, **moved}, (*steps.lengths, length)), None

    return run_rounds(Steps(dict(weights)), play, rounds)
