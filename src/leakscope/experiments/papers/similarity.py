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
    by_cosine = matches_by_cosine(settings["attack"])
    return {name: value for name, value in values.items() if by_cosine or name not in ABOUT}


def matches_by_cosine(attack: Mapping[str, Any]) -> bool:
    """Return whether an attack compares directions, by its settings; those of an older run may name fields that are gone."""
    told = attack.get("objective")
    if isinstance(told, Mapping):
        return told.get("name") == "match" and told.get("distance") == "cosine"
    objective = getattr(KINDS["attack"].build({"name": attack["name"]}), "objective", None)
    return isinstance(objective, Match) and objective.distance is cosine
