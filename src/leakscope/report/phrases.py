"""Words that every page says the same way."""

from __future__ import annotations

from leakscope.metrics.success import DEFAULT_RULE

RULE = (
    f"An input counts as recovered when its MSE is at most {DEFAULT_RULE.mse:g} and, for a picture, its SSIM at least "
    f"{DEFAULT_RULE.ssim:g} against the truth, after pairing by MSE. Convergence is the attack's own notion: its mismatch "
    "fell under its threshold. The attack never sees the truth."
)
LIMITS = (
    "These numbers hold for this data, this network with these weights, and these attacks with these many steps. An input that "
    "did not come back is not thereby safe: a stronger or better informed attack may exist. What counts as recovered is a "
    "convention; the scores of every trial are in the records."
)
EXPORT = "use leakscope export RUN --to csv"
PICTURES, INPUTS = ("picture", "pictures"), ("input", "inputs")
