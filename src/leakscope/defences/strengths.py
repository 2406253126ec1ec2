"""The two strengths at which an audit tries a defence, as in `sigma: float = field(default=0.0, metadata=tried(1, 10))`."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace


class Unit(enum.Enum):
    """The unit of a strength, relative to the update so that it means the same for every model."""

    ONE = "one"  # no unit
    COORDINATE = "coordinate"  # root mean square of a coordinate
    LENGTH = "length"  # norm of the update


TRIED = "leakscope.tried"  # the key of a field's metadata


@dataclass(frozen=True, slots=True)
class Strengths:
    """Two strengths of one setting, the weaker first."""

    setting: str
    weak: float
    strong: float
    unit: Unit = Unit.ONE


def tried(weak: float, strong: float, *, unit: Unit = Unit.ONE) -> Mapping[str, Strengths]:
    """Return the `field(metadata=...)` of a setting that an audit tries at these strengths."""
    return {TRIED: Strengths("", weak, strong, unit)}


def strengths_of(kind: object) -> Strengths | None:
    """Return the strengths at which a defence is tried, None if it declares none.

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
