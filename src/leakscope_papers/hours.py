"""Hours on one H200 that each part takes at full scale, estimated once with the data sets at hand and stored.

Estimates count the examples of these data sets, and pages must not depend on the machine that writes them.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from pathlib import Path

from leakscope_papers.items import Item, choose_items, find_part, home_of
from leakscope_papers.scales import SCALES, check_data, parts_at

HOURS = Path(__file__).with_name("hours.json")
FULL = SCALES[-1]


def write_hours() -> None:
    """Estimate every part of every item and store the hours; raises where a data set is missing."""
    from leakscope_papers.estimates import seconds_of

    items = [item for item in choose_items(["all"]) if FULL in item.scales]
    check_data(items, FULL)
    parts = [(item, part) for item in items for part in parts_at(item, FULL)]
    homes = {_key(item, part.name): home_of(item, part) for item, part in parts}
    hours = {key: float(f"{seconds_of(*home, FULL, gpu=True).seconds / 3600:.2g}") for key, home in homes.items()}
    HOURS.write_text(json.dumps(hours, indent=0, sort_keys=True) + "\n", "utf-8")


def hours_of(item: Item, parts: Iterable[str]) -> float:
    """Return the hours of some parts of an item; a run that several of them use counts once, one that is not stored takes none."""
    return sum(_stored().get(key, 0.0) for key in {_key(item, name) for name in parts})


@functools.cache
def _stored() -> dict[str, float]:
    stored: dict[str, float] = json.loads(HOURS.read_text("utf-8"))
    return stored


def _key(item: Item, name: str) -> str:
    owner, home = home_of(item, find_part(item, name))
    return f"{owner.name}/{home.name}"
