"""Policies: one to three operations in a row, written `3-1-7`. In a hybrid `3-1-7+43-18-18` each image draws one of the policies."""

from __future__ import annotations

import re
from dataclasses import dataclass

from leakscope.core.errors import InputError
from leakscope.defences.on_data.operations import OPERATIONS, Operation, operation

LONGEST = 3
NONE = "none"
FORM = "must be 'none', one to three indices such as '3-1-7', or several such joined by '+'"


@dataclass(frozen=True, slots=True)
class Policy:
    """Operation indices in order; all of them are applied."""

    indices: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.indices) <= LONGEST:
            raise InputError(f"policy must have one to {LONGEST} operations, got {len(self.indices)} in {str(self)!r}")
        for index in self.indices:
            if not 0 <= index < len(OPERATIONS):
                raise InputError(
                    f"policy must name operations in 0..{len(OPERATIONS) - 1}, got {index} in {str(self)!r}"
                )

    def __str__(self) -> str:
        return "-".join(map(str, self.indices))

    @property
    def operations(self) -> tuple[Operation, ...]:
        """Return the operations at the indices."""
        return tuple(operation(index) for index in self.indices)


def parse_policies(text: str | int) -> tuple[Policy, ...]:
    """Return the policies of a text, from which each image draws one; () for 'none'.

    >>> [str(policy) for policy in parse_policies("3-1-7+43-18-18")], parse_policies("none")
    (['3-1-7', '43-18-18'], ())
    """
    words = str(text).strip().lower()
    if words == NONE:
        return ()
    parts = [part.strip() for part in words.split("+")]
    if not all(re.fullmatch(r"[0-9]{1,6}(-[0-9]{1,6})*", part) for part in parts):
        raise InputError(f"policy {FORM}, got {text!r}")
    return tuple(Policy(tuple(int(index) for index in part.split("-"))) for part in parts)
