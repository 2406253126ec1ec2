"""The similarity loss of a cell is 1 - cos: the mismatch of attacks that match by it, what others (DLFA) measured at their end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from leakscope.attacks.distances import cosine
from leakscope.attacks.objectives import Match
from leakscope.scenario.pieces import KINDS
from leakscope_papers.measures import Value, measure
from leakscope_papers.scored import Scored

ABOUT = ("similarity_loss", "similarity_loss_error")


def measure_with_similarity(cell: Scored, settings: Mapping[str, Any]) -> dict[str, Value]:
    """Return the measures of a cell; those of the similarity loss only where its attack has one."""
    if matches_by_cosine(settings["attack"]):
        return measure(replace(cell, similarity=cell.mismatch))
    values = measure(cell)
    return values if values[ABOUT[0]].there else {name: value for name, value in values.items() if name not in ABOUT}


def matches_by_cosine(attack: Mapping[str, Any]) -> bool:
    """Return whether an attack compares directions, by its settings; those of an older run may name fields that are gone."""
    told = attack.get("objective")
    if isinstance(told, Mapping):
        return told.get("name") == "match" and told.get("distance") == "cosine"
    objective = getattr(KINDS["attack"].build({"name": attack["name"]}), "objective", None)
    return isinstance(objective, Match) and objective.distance is cosine
