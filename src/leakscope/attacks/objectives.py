"""What an attack minimises: a distance between the simulated and the observed update.

Wrappers (`defended`, `units`, `OnSimulated`) hold another objective as `inner`; the innermost one compares.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from leakscope.attacks.distances import Distance, power_of, sees_scale, squared_l2
from leakscope.attacks.view import Objective, View
from leakscope.core.errors import InputError
from leakscope.core.tree import Tree
from leakscope.core.types import Knowledge, LocalTraining, Shares

T = TypeVar("T")
DEFENCE_FACTS = frozenset({"mask", "largest", "largest_each", "bound", "bound_each", "bits", "sigma", "sigma_each"})


@dataclass(frozen=True, slots=True)
class Match:
    """`gain * distance(c simulated, c observed)`, with a factor c per tensor: `weights` by name, 1 for names not listed."""

    distance: Distance = squared_l2
    weights: tuple[tuple[str, float], ...] = ()
    gain: float = 1.0

    needs: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        check_gain("Match.gain", self.gain)

    @property
    def sees_length(self) -> bool:
        """Return whether the value depends on the length of an update."""
        return sees_scale(self.distance)

    def __call__(self, view: View) -> Tensor:
        """Return the mismatch of one trial in one round."""
        return self.against(view, (view.observed,))[0]

    def against(self, view: View, targets: Sequence[Tree]) -> list[Tensor]:
        """Return the mismatch to each of several updates."""
        simulated = self.weighed(view.simulated.update)
        return [self.gain * self.distance(simulated, self.weighed(target)) for target in targets]

    def weighed(self, update: Tree) -> Tree:
        """Return an update times the factor of each tensor."""
        if not self.weights:
            return update
        factors = dict(self.weights)
        unknown = sorted(set(factors) - set(update))
        if unknown:
            raise InputError(f"Match.weights names no parameter of the update: {', '.join(unknown)}")
        return {name: value * factors.get(name, 1.0) for name, value in update.items()}


# -- what the engine and `aware` ask of an objective


@runtime_checkable
class Compares(Protocol):
    """An objective that compares the two updates of a view, so that a wrapper may change them first."""

    @property
    def sees_length(self) -> bool:
        """Return whether the value depends on the length of an update."""

    def __call__(self, view: View) -> Tensor:
        """Return the value that is minimised."""


@runtime_checkable
class Explains(Protocol):
    """An objective that knows how much of its value is not an error of the guess, such as added noise."""

    def __call__(self, view: View) -> Tensor:
        """Return the value that is minimised."""

    def explained(self, view: View) -> Tensor:
        """Return the value at which the update is explained."""


def reported(objective: Objective, view: View, value: Tensor) -> Tensor:
    """Return the mismatch for display, stopping and the choice among restarts: the value over the explained value.

    The optimiser minimises the value itself: L-BFGS has absolute tolerances and would fail in the small unit of weak noise.
    """
    return value / objective.explained(view) if isinstance(objective, Explains) else value


def against(objective: Objective, view: View, targets: Sequence[Tree]) -> list[Tensor]:
    """Return the value against each of several updates; the simulated one is prepared once if the objective supports it."""
    together: Callable[[View, Sequence[Tree]], list[Tensor]] | None = getattr(objective, "against", None)
    return together(view, targets) if together else [objective(replace(view, observed=target)) for target in targets]


def links(objective: Objective) -> Iterator[Objective]:
    """Yield an objective and all that it wraps, the outermost first."""
    link: Objective | None = objective
    while link is not None:
        yield link
        link = getattr(link, "inner", None)


def find_link(objective: Objective, kind: type[T]) -> T | None:
    """Return the outermost objective of a kind in the chain, or None."""
    return next((link for link in links(objective) if isinstance(link, kind)), None)


def innermost(objective: Objective) -> Objective:
    """Return the objective inside all wrappers, which compares."""
    *_, last = links(objective)
    return last


def wrap_innermost(objective: Objective, wrap: Callable[[Objective], Objective]) -> Objective:
    """Return the objective with its innermost one wrapped."""
    inner = getattr(objective, "inner", None)
    if inner is None:
        return wrap(objective)
    outer: Objective = objective
    wrapped: Objective = replace(outer, inner=wrap_innermost(inner, wrap))  # type: ignore[type-var]
    return wrapped


def compares_lengths(objective: Objective) -> bool:
    """Return whether the innermost objective depends on the length of an update."""
    comparison = innermost(objective)
    return isinstance(comparison, Compares) and comparison.sees_length


def distance_of(objective: Objective) -> Distance | None:
    """Return the distance of the innermost `Match`, or None if something else compares."""
    comparison = innermost(objective)
    return comparison.distance if isinstance(comparison, Match) else None


def power_in_length(objective: Objective) -> int:
    """Return the power of an update's length that the value grows with; 0 for directions and signs."""
    distance = distance_of(objective)
    return 0 if distance is None else power_of(distance)


def facts_needed(objective: Objective) -> frozenset[str] | None:
    """Return the fields of Knowledge that an objective reads; None if an objective in its chain does not declare `needs`."""
    needs = [getattr(link, "needs", None) for link in links(objective)]
    return None if None in needs else frozenset(name for names in needs if names for name in names)


def without_unneeded(objective: Objective, knowledge: Knowledge) -> Knowledge:
    """Return Knowledge without the facts about defences that the objective does not read."""
    needed = facts_needed(objective)
    if needed is None:
        return knowledge
    unneeded: dict[str, object] = {f.name: f.default for f in fields(Knowledge) if f.name in DEFENCE_FACTS - needed}
    return replace(knowledge, **unneeded)  # type: ignore[arg-type]


# -- the length of an update


def local_steps(local: LocalTraining, knowledge: Knowledge) -> Tensor | int:
    """Return the number of local steps of the client of ONE trial, from its number of examples if known."""
    if knowledge.present is None or local.batch_size is None:
        return local.steps(knowledge.samples)
    return local.epochs * -(-knowledge.present.sum(-1).clamp_min(1) // local.batch_size)


def update_length(knowledge: Knowledge) -> Tensor | float:
    """Return how many gradients, times the rate, the update of ONE trial sums up (`LocalTraining.length`)."""
    local = knowledge.local
    if local is None:
        raise InputError("the length of an update needs Knowledge.local (epochs, batch size, rate), which is not known")
    steps, m = local_steps(local, knowledge), local.momentum
    if isinstance(steps, int):
        return float(local.length([knowledge.samples]))
    many = steps.double()
    return local.rate * (many - m * (1 - m**many) / (1 - m)) / (1 - m)


def length_in(view: View) -> Tensor | float:
    """Return `update_length` in the dtype of the update."""
    length = update_length(view.knowledge)
    return length if isinstance(length, float) else length.to(dtype_of(view))


def unit_of(view: View) -> Tensor | float:
    """Return the factor from the compared update to the sent one, the unit of bounds and noise: its length if compared as a gradient."""
    divided = view.shares is Shares.GRADIENT and view.knowledge.local is not None
    return length_in(view) if divided else 1.0


def dtype_of(view: View) -> torch.dtype:
    """Return the dtype of the observed update."""
    return next(iter(view.observed.values())).dtype


def check_gain(field: str, gain: float) -> None:
    """Raise for a gain that is not positive and finite."""
    if not 0 < gain < math.inf:
        raise InputError(f"{field} must be in (0, inf), got {gain}")
