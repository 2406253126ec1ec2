"""What makes a trial the same trial: the hash of everything that determines its result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

RESULTS = 1  # raised whenever a change of leakscope changes what a trial gives
BESIDE = ("name", "trials", "seeds", "baselines")


def cell_id(settings: Mapping[str, Any]) -> str:
    """Return the id of a cell: all its settings but titles, and but how many trials and seeds it has."""
    kept = {key: value for key, value in settings.items() if key not in BESIDE}
    attack = {key: value for key, value in kept["attack"].items() if key != "label"}
    return _hash({"results": RESULTS, **kept, "attack": attack})


def trial_id(cell: str, data: str, items: Sequence[int], seed: int) -> str:
    """Return the id of a trial: its cell, the fingerprint of its data set, which examples it holds, its seed."""
    return hashlib.sha256(f"{cell}:{data}:{','.join(map(str, items))}:{seed}".encode()).hexdigest()[:24]


def _hash(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
