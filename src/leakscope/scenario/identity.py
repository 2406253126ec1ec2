"""What makes a trial the same trial: the hash of everything that determines its result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from leakscope.core.errors import InputError
from leakscope.models.checkpoint import Checkpoint

RESULTS = 2  # raised whenever a change of leakscope changes what a trial gives
BESIDE = ("name", "trials", "seeds", "baselines")
# Fields that came after the first trials were stored, at the value that changes nothing: left out, so that ids stay.
LATER: Mapping[str, Mapping[str, Any]] = {
    "data": {"mix": "given", "size": None},
    "client": {"on_model": None, "on_data": None},
    "knowledge": {"dropout": False},
    "model": {"batch_statistics": False},
}
LATER_OF_ATTACKS: Mapping[str, Any] = {"alpha_every": 1, "film_end": False}

OF_MATCHES_AT_FIRST = {"masked": False, "clipped": False, "rounded": False, "slack": None, "unit": 1.0}
LATER_OF_NOISE = ("gaussian_noise", "laplace_noise")  # which got `each`


def cell_id(settings: Mapping[str, Any]) -> str:
    """Return the id of a cell: all its settings but titles, and but how many trials and seeds it has."""
    kept = {key: value for key, value in settings.items() if key not in BESIDE}
    attack = {
        key: _match_as_before(value)
        for key, value in kept["attack"].items()
        if key != "label" and (key not in LATER_OF_ATTACKS or value != LATER_OF_ATTACKS[key])
    }
    return _hash(
        {"results": RESULTS, **kept, "attack": attack}
        | _as_before(kept)
        | _defences_as_before(kept)
        | _by_content(kept)
        | _told_of_noise(kept)
        | _told_of_coordinates(kept)
    )


def _as_before(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of the settings that have later fields, without those that are at the value that changes nothing."""
    there = {part: later for part, later in LATER.items() if part in settings}
    return {
        part: {
            key: _local_as_before(value) if key == "local" else value
            for key, value in settings[part].items()
            if key not in later or value != later[key]
        }
        for part, later in there.items()
    }


def _defences_as_before(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defences without the `each` of noise that has one level for all tensors, as it had at first."""
    if "defences" not in settings:
        return {}
    made = [
        {k: v for k, v in each.items() if k != "each" or v or each["name"] not in LATER_OF_NOISE}
        for each in settings["defences"]
    ]
    return {"defences": made}


def _local_as_before(local: Any) -> Any:
    """Return the local training without a proximal term of 0, which came later too."""
    return {k: v for k, v in local.items() if k != "proximal" or v} if isinstance(local, Mapping) else local


def _match_as_before(piece: Any) -> Any:
    """Return a Match, or the one inside an objective, with the fields it had at first."""
    if not isinstance(piece, Mapping) or "name" not in piece:
        return piece
    if piece["name"] != "match":
        return {key: _match_as_before(value) for key, value in piece.items()}
    return {**piece, **OF_MATCHES_AT_FIRST}


def _told_of_noise(settings: Mapping[str, Any]) -> dict[str, int]:
    """Return what sets apart trials of attackers told of noise, whose loss was scaled by it before: results differ."""
    noisy = any(defence["name"].endswith("_noise") for defence in settings.get("defences", ()))
    distance = (settings["attack"].get("objective") or {}).get("distance", "squared_l2")
    told = noisy and settings["knowledge"]["defence"] and distance in ("squared_l2", "l2")
    never = settings["attack"].get("threshold") == 0  # who never stops stopped at the noise all the same
    return {"told_of_noise": 3 if never else 2} if told else {}


def _told_of_coordinates(settings: Mapping[str, Any]) -> dict[str, int]:
    """Return what sets apart trials of attackers told of dropped or rounded coordinates, who used it otherwise before."""
    names = {defence["name"] for defence in settings.get("defences", ())}
    if not names or not settings["knowledge"]["defence"]:
        return {}
    if settings["attack"]["name"] in ("analytic", "linear_system"):  # which did not use it
        return {"told_of_coordinates": 2} if names & {"sparsify", "random_mask", "deep_compression"} else {}
    if names & {"quantise", "sign"}:  # whose scale came from all trials of a batch, and outweighed priors
        return {"told_of_coordinates": 3}
    return {"told_of_coordinates": 2} if "sparsify" in names else {}


def pinned(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a cell's settings with the content of its checkpoint, if it has one: the SHA-256 of the file it names now.

    A file that cannot be read is left for the check of what does not fit together to tell.
    """
    weights = settings["weights"]
    if weights["name"] != "checkpoint" or weights["sha256"]:
        return dict(settings)
    try:
        digest = Checkpoint(weights["path"], weights["round"]).digest()
    except InputError:
        return dict(settings)
    return {**settings, "weights": {**weights, "sha256": digest}}


def _by_content(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the weights without the place of a checkpoint whose content is known: the same file elsewhere is the same."""
    weights = settings.get("weights", {})
    if not weights.get("sha256"):
        return {}
    return {"weights": {key: value for key, value in weights.items() if key not in ("path", "round")}}


def trial_id(cell: str, data: str, items: Sequence[int], seed: int) -> str:
    """Return the id of a trial: its cell, the fingerprint of its data set, which examples it holds, its seed."""
    return hashlib.sha256(f"{cell}:{data}:{','.join(map(str, items))}:{seed}".encode()).hexdigest()[:24]


def _hash(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
