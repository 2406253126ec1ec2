"""When the content of a private sample counts as recovered, and how that depends on the threshold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from leakscope.core.errors import InputError
from leakscope.metrics.interval import Estimate, estimate_rate
from leakscope.metrics.scoring import Scores


@dataclass(frozen=True, slots=True)
class ContentRule:
    """A sample is recovered if its MSE is at most `mse` and, for an image, its SSIM at least `ssim`.

    The defaults are a convention for "the same image". MSE 0.01 is a PSNR of 20 dB, noise of a tenth of the range: visible, but
    it hides nothing. MSE alone would accept a flat grey guess for a low-contrast image; SSIM 0.6 also requires edges in place.
    The pair separates successes from failures in CPL's Table 7(b), four data sets under compression, exactly as its authors do
    (closest: MSE 0.0088, SSIM 0.93 a success; MSE 0.0096, SSIM 0.52 a failure); its Table 6(a) counts worse images as successes.
    Tables use the MSE alone; columns that are mostly zero make that easy, so compare with the null baseline.
    `ContentRule(ssim=-1)` uses MSE alone and `ContentRule(mse=1)` SSIM alone.
    """

    mse: float = 0.01
    ssim: float = 0.6

    def __post_init__(self) -> None:
        if not 0 <= self.mse <= 1:
            raise InputError(f"ContentRule.mse must be in [0, 1], got {self.mse}")
        if not -1 <= self.ssim <= 1:
            raise InputError(f"ContentRule.ssim must be in [-1, 1], got {self.ssim}")

    def recovered(self, scores: Scores) -> Tensor:
        """Return T x N: whether each sample's content was recovered, a sentence word for word; never for a guess with a NaN or infinity."""
        if scores.exact is not None:
            return scores.exact & scores.finite & scores.scored
        alike = (scores.ssim >= self.ssim) | scores.ssim.isnan()
        return (scores.mse <= self.mse) & alike & scores.finite & scores.scored


DEFAULT_RULE = ContentRule()


def whole_trials(recovered: Tensor, scored: Tensor) -> Tensor:
    """Return T: whether every sample of a trial was recovered (both arguments T x N)."""
    return (recovered | ~scored).all(1)


def curve(scores: Scores, thresholds: Sequence[ContentRule]) -> tuple[Estimate, ...]:
    """Return the rate of recovered samples under each rule, to show the dependence on the convention."""
    return tuple(estimate_rate(rule.recovered(scores), scores.scored) for rule in thresholds)
