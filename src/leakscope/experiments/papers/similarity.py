"""The similarity loss of a cell is 1 - cos; the mismatch of an attack that compares otherwise (DLFA) is no such number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leakscope.attacks.objectives import Match, cosine
from leakscope.experiments.papers.measures import Value
from leakscope.experiments.scenario.pieces import KINDS

ABOUT = ("similarity_loss", "similarity_loss_error")


def without_other_distances(values: Mapping[str, Value], settings: Mapping[str, Any]) -> dict[str, Value]:
    """Return the measures of a cell; those of the similarity loss only where its attack matches by the cosine."""
    objective = getattr(KINDS["attack"].build(settings["attack"]), "objective", None)
    by_cosine = isinstance(objective, Match) and objective.distance is cosine
    return {name: value for name, value in values.items() if by_cosine or name not in ABOUT}
