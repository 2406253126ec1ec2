"""The 50 operations of ATS as a table: index -> (kind, magnitude).

Gao et al. 2021, "Privacy-preserving collaborative learning with automatic transformation search", from AutoAugment's CIFAR
policies.
The paper prints rounded values; these are exact: colour steps of 1/18, translations of 150/331/9 of the side, shears of 1/30,
solarize thresholds of 256/9.
"""

from __future__ import annotations

from dataclasses import dataclass

from leakscope.core.errors import InputError
from leakscope.learning.transforms import SIGNED

NOUNS = {
    "translate_x": "of the side",
    "translate_y": "of the side",
    "rotate": "degrees",
    "posterize": "bits",
    "solarize": "threshold",
}


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation: its kind and magnitude. Signed kinds draw the sign of the magnitude for each image."""

    kind: str
    magnitude: float = 0.0

    @property
    def signed(self) -> bool:
        """Return whether each image draws the sign of the magnitude."""
        return self.kind in SIGNED

    @property
    def words(self) -> str:
        """Return the operation in words.

        >>> Operation("contrast", 0.5).words, Operation("posterize", 6).words, Operation("invert").words
        ('contrast +-0.5', 'posterize 6 bits', 'invert')
        """
        if self.kind in ("invert", "autocontrast", "equalize"):
            return self.kind
        sign = "+-" if self.signed else ""
        return f"{self.kind} {sign}{self.magnitude:.4g} {NOUNS.get(self.kind, '')}".strip()


_STEP = 150 / 331 / 9

# fmt: off
OPERATIONS: tuple[Operation, ...] = tuple(Operation(*row) for row in (  # five to a line
    ("invert",), ("contrast", 6 / 18), ("rotate", 20 / 3), ("translate_x", 9 * _STEP), ("sharpness", 1 / 18),
    ("sharpness", 3 / 18), ("shear_y", 2 / 30), ("translate_y", 2 * _STEP), ("autocontrast",), ("equalize",),
    ("shear_y", 5 / 30), ("posterize", 6), ("color", 3 / 18), ("brightness", 5 / 18), ("sharpness", 9 / 18),
    ("brightness", 9 / 18), ("equalize",), ("equalize",), ("contrast", 7 / 18), ("sharpness", 5 / 18),
    ("color", 5 / 18), ("translate_x", 5 * _STEP), ("equalize",), ("autocontrast",), ("translate_y", 3 * _STEP),
    ("sharpness", 6 / 18), ("brightness", 6 / 18), ("color", 8 / 18), ("solarize", 256.0), ("invert",),
    ("equalize",), ("autocontrast",), ("equalize",), ("equalize",), ("color", 5 / 18),
    ("equalize",), ("autocontrast",), ("solarize", 256 * 5 / 9), ("brightness", 3 / 18), ("color", 0.0),
    ("solarize", 256 * 8 / 9), ("autocontrast",), ("translate_y", 3 * _STEP), ("translate_y", 3 * _STEP), ("autocontrast",),
    ("solarize", 256 * 8 / 9), ("equalize",), ("invert",), ("translate_y", 3 * _STEP), ("autocontrast",),
))
# fmt: on


def operation(index: int) -> Operation:
    """Return the operation at an index.

    >>> operation(3).kind, round(operation(3).magnitude, 4)
    ('translate_x', 0.4532)
    """
    if not 0 <= index < len(OPERATIONS):
        raise InputError(f"operation must lie in 0..{len(OPERATIONS) - 1}, got {index}")
    return OPERATIONS[index]
