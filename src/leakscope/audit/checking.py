"""Numbers that users and captures tell, checked once: the number, or one line that says what it must be."""

from __future__ import annotations

import math
import operator

from leakscope.core.errors import InputError

MOST = 2**31 - 1


def whole_number(value: object, what: str, low: int, high: int) -> int:
    """Return a whole number in low..high; a truth value is none.

    >>> whole_number(3.0, "examples", 1, 8)
    3
    """
    try:
        found = int(value) if isinstance(value, float) and value.is_integer() else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        found = None
    if found is None or isinstance(value, bool):
        raise InputError(f"{what} must be a whole number, got {_shown(value)}")
    if not low <= found <= high:
        raise InputError(f"{what} must lie in {low}..{_power(high)}, got {_shown(found)}")
    return found


def positive_number(value: object, what: str, high: float) -> float:
    """Return a number in (0, high]; a truth value is none.

    >>> positive_number(2, "minutes", 60.0)
    2.0
    """
    try:
        found = math.nan if isinstance(value, bool | str | bytes) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not 0 < found <= high:
        raise InputError(f"{what} must be a number in (0, {high:g}], got {_shown(value)}")
    return found


def check_numbers(clients: object, seed: object) -> tuple[int, int]:
    """Return how many clients are attacked, and the seed, as whole numbers."""
    return whole_number(clients, "clients", 1, MOST), whole_number(seed, "seed", 0, MOST)


def spoken(value: object) -> object:
    """Return the number that a text writes out; anything else as it is."""
    if not isinstance(value, str):
        return value
    try:
        return int(value)
    except ValueError:
        pass
    try:
        return float(value)
    except ValueError:
        return value


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 40 else f"{shown[:37]}..."


def _power(high: int) -> str:
    return "2**31 - 1" if high == MOST else f"{high}"
