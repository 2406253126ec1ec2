"""Numbers as text: no false precision, and never 100 % for something less."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leakscope.metrics.interval import Estimate

MISSING = "n/a"
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def percent(share: float) -> str:
    """Return a share as a percentage with at most one decimal.

    >>> percent(31 / 32), percent(1.0), percent(0.9999), percent(0.0002), percent(0.0)
    ('96.9 %', '100 %', 'over 99.9 %', 'under 0.1 %', '0 %')
    """
    if not math.isfinite(share):
        return MISSING
    if 0.9995 <= share < 1:
        return "over 99.9 %"
    if 0 < share < 0.0005:
        return "under 0.1 %"
    return f"{_one_decimal(100 * share)} %"


def percent_interval(estimate: Estimate) -> str:
    """Return the 95 % interval of a rate, such as "84.3 to 99.4 %"; empty if undefined."""
    if not (math.isfinite(estimate.low) and math.isfinite(estimate.high)):
        return ""
    return f"{_one_decimal(100 * estimate.low)} to {_one_decimal(100 * estimate.high)} %"


def number(value: float) -> str:
    """Return a number with three significant digits, small and large ones as powers of ten.

    >>> number(0.0123456), number(3.14e-7), number(0.0), number(218.4), number(1e-15), number(float("nan"))
    ('0.0123', '3.14 × 10⁻⁷', '0', '218', '10⁻¹⁵', 'not finite')
    """
    if not math.isfinite(value):
        return "not finite"
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e5:
        digits = max(0, 2 - math.floor(math.log10(abs(value))))
        return f"{value:,.{min(digits, 4)}f}"
    mantissa, exponent = f"{value:.2e}".split("e")
    power = "10" + str(int(exponent)).translate(_RAISED)
    mantissa = mantissa.rstrip("0").rstrip(".")
    return power if mantissa == "1" else f"{mantissa} × {power}"


def decibels(value: float) -> str:
    """Return a PSNR as text; that of an exact copy is infinite.

    >>> decibels(21.345), decibels(math.inf)
    ('21.3 dB', 'infinite')
    """
    return "infinite" if value == math.inf else f"{number(value)} dB"


def short(value: float) -> str:
    """Return a number without trailing zeros, for a tick or a setting.

    >>> short(0.30000000000000004), short(25.0), short(1e-4), short(-0.5), short(120000.0)
    ('0.3', '25', '0.0001', '-0.5', '120,000')
    """
    return f"{round(value, 12):,.6g}" if 1e-4 <= abs(value) < 1e6 or value == 0 else number(value)


def power_of_ten(value: float) -> str:
    """Return a power of ten as text, written out from 0.01 to 1000.

    >>> power_of_ten(1e-5), power_of_ten(0.1), power_of_ten(1000.0)
    ('10⁻⁵', '0.1', '1,000')
    """
    exponent = round(math.log10(value))
    return f"{10.0**exponent:,g}" if -2 <= exponent <= 3 else "10" + str(exponent).translate(_RAISED)


def number_interval(estimate: Estimate) -> str:
    """Return the 95 % interval of a mean, such as "0.0021 to 0.0043"; empty if undefined."""
    if not (math.isfinite(estimate.low) and math.isfinite(estimate.high)):
        return ""
    return f"{number(estimate.low)} to {number(estimate.high)}"


def _one_decimal(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
