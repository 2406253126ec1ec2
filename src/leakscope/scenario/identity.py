"""Ids of cells and trials: hashes of everything that determines a result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from leakscope.core.errors import InputError
from leakscope.models.checkpoint import Checkpoint

RESULTS = 7  # increased when a change of leakscope changes trial results
BESIDE = ("name", "trials", "seeds", "baselines")
ADDED: dict[str, dict[str, object]] = {  # settings younger than stored runs: at these values a cell keeps its id
    "data": {"length": None, "words": None, "shortest": None},
    "client": {"sends_buffers": False, "norm": None, "aggregate": 1, "censor": 0},
    "knowledge": {"norm": None},
    "attack": {"bn": 0.0, "position": 0.0},
}


def cell_id(settings: Mapping[str, Any]) -> str:
    """Return the id of a cell: a hash of its settings without titles and the numbers of trials and seeds."""
    parts = {key: value for key, value in settings.items() if key not in BESIDE}
    attack = {key: value for key, value in parts["attack"].items() if key != "label"}
    return _hash({"results": RESULTS, **parts, "attack": attack} | _by_content(parts))


def pinned(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a cell's settings, without `ADDED` ones and an empty list of metrics, with the SHA-256 of its checkpoint.

    An unreadable checkpoint is reported by a later check.
    """
    settings = {key: older(key, value) for key, value in settings.items() if value or key != "metrics"}
    weights = settings["weights"]
    if weights["name"] != "checkpoint" or weights["sha256"]:
        return settings
    try:
        digest = Checkpoint(weights["path"], weights["round"]).digest()
    except InputError:
        return settings
    return {**settings, "weights": {**weights, "sha256": digest}}


def older(field: str, value: Any) -> Any:
    """Return a field of a cell or training without the settings in `ADDED` that have their default."""
    added = ADDED.get(field, {})
    return {key: each for key, each in value.items() if key not in added or each != added[key]} if added else value


def _by_content(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the weights without the path of a checkpoint whose hash is known, so that a moved file keeps its id."""
    weights = settings.get("weights", {})
    if not weights.get("sha256"):
        return {}
    return {"weights": {key: value for key, value in weights.items() if key not in ("path", "round")}}


def trial_id(cell: str, data: str, items: Sequence[int], seed: int) -> str:
    """Return the id of a trial: a hash of its cell, its data set's fingerprint, its examples and its seed."""
    return hashlib.sha256(f"{cell}:{data}:{','.join(map(str, items))}:{seed}".encode()).hexdigest()[:24]


def _hash(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
