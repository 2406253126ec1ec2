"""At which two strengths an audit tries a defence, said where the defence declares the setting.

    sigma: float = field(default=0.0, metadata=tried(1, 10, unit=Unit.COORDINATE))

Units are those of the update at hand, so that a strength means the same for every model.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace


class Unit(enum.Enum):
    """What one unit of a strength is: nothing in particular, the root mean square of a coordinate, the update's length."""

    ONE = "one"
    COORDINATE = "coordinate"
    LENGTH = "length"


TRIED = "leakscope.tried"  # the key of a field's metadata


@dataclass(frozen=True, slots=True)
class Strengths:
    """Two strengths of one setting, the weaker first."""

    setting: str
    weak: float
    strong: float
    unit: Unit = Unit.ONE


def tried(weak: float, strong: float, *, unit: Unit = Unit.ONE) -> Mapping[str, Strengths]:
    """Return what a setting's `field(metadata=...)` takes: the strengths at which the defence is tried."""
    return {TRIED: Strengths("", weak, strong, unit)}


def strengths_of(kind: object) -> Strengths | None:
    """Return at which strengths a defence is tried, None for one that has no strength.

    >>> from leakscope.defences import Clip, Sign
    >>> strengths_of(Clip)
    Strengths(setting='bound', weak=0.5, strong=0.05, unit=<Unit.LENGTH: 'length'>)
    >>> strengths_of(Sign)
    """
    for setting in fields(kind) if is_dataclass(kind) else ():
        if TRIED in setting.metadata:
            tried_at: Strengths = setting.metadata[TRIED]
            return replace(tried_at, setting=setting.name)
    return None
