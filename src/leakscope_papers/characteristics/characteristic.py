"""Privacy-preserving characteristics (PPC) and their mean (CAP): accuracy and privacy of a defence on one curve.

Fan et al. 2020, arXiv:2006.11601, definition 1 and equation 1: for each setting m of a defence, the accuracy of the model trained
with it times the distance of the attack's result from the truth, against log10(||B_I|| / ||E_B|| + 1). CAP is their mean,

    CAP = 1/n sum_m Acc(m) * dist(m),

over a grid of settings that must be stated, because CAP depends on it.

**The axis.** B_I are the bias gradients without the defence, E_B what the defence changed of them. The paper does not name the
biases or the norm. We use all biases that are sent, as one vector, the Euclidean norm, and the median over trials. For a
convolutional network the ratio is only an axis: the theory of `leakscope.analysis.linear_system` covers one dense layer and one sample.

**Regions.** Green: ratio up to 1, where the paper says that attacks are defeated. Red: "tens to thousands" (from 10 on), where
images are recovered. White is between. The two borders are ours.

**Diverged trials.** The relative error ||x* - x|| / ||x|| has no upper bound, so one diverged trial can dominate a CAP (the
paper's are 3 to 5 on MNIST). `Rule` sets the value of such a trial; report it with every CAP. An all-zero sample has no relative
error: it is left out and counted.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from leakscope.core.errors import InputError
from leakscope.core.tree import Tree
from leakscope.metrics import Estimate, arrange, clean, estimate_mean, estimate_rate, match, rmse_relative
from leakscope.metrics.interval import Z

GREEN_UP_TO = 1.0
RED_FROM = 10.0
BIAS = "bias"
ROUNDINGS = 10  # epsilons by which sums in another order may differ


class Region(enum.Enum):
    """The region of a point: perturbation above the gradient, below a tenth of it, or between."""

    GREEN = "green"
    WHITE = "white"
    RED = "red"


def region(ratio: float) -> Region:
    """Return the region of a ratio ||B_I|| / ||E_B||.

    >>> region(0.5), region(3.0), region(math.inf)
    (<Region.GREEN: 'green'>, <Region.WHITE: 'white'>, <Region.RED: 'red'>)
    """
    return Region.GREEN if ratio <= GREEN_UP_TO else Region.RED if ratio >= RED_FROM else Region.WHITE


def place(ratio: float) -> float:
    """Return the coordinate of a ratio on the axis: log10(ratio + 1).

    >>> round(place(9.0), 6)
    1.0
    """
    return math.log10(ratio + 1)


def bias_ratio(clean_update: Tree, sent: Tree, names: Sequence[str] | None = None) -> Tensor:
    """Return ||B_I|| / ||E_B|| of each trial: Euclidean norms of its bias gradients and of the defence's change to them.

    Both trees are descent directions with leading T: gradients, or weight changes (`core.types.direction`). Do not pass weights:
    they are far larger than any change, so every defence would seem to do nothing. `names` are the biases to use (default: all).

    Infinite if no bias changed beyond rounding. Defences that change only weights (`low_rank`) do not show on this axis.
    """
    chosen = [n for n in sent if n.rpartition(".")[2] == BIAS] if names is None else list(names)
    unknown = sorted(set(chosen) - set(clean_update) | set(chosen) - set(sent))
    if unknown or not chosen:
        raise InputError(
            f"bias_ratio needs the gradients of biases; missing: {', '.join(unknown) or 'no parameter is called bias'}"
        )
    _refuse_not_finite(clean_update, sent, chosen)
    whole = torch.cat([clean_update[n].flatten(1).double() for n in chosen], dim=1)
    changed = torch.cat([(sent[n] - clean_update[n]).flatten(1).double() for n in chosen], dim=1)
    size, apart = torch.linalg.vector_norm(whole, dim=1), torch.linalg.vector_norm(changed, dim=1)
    rounding = ROUNDINGS * torch.finfo(sent[chosen[0]].dtype).eps * size
    return torch.where(apart > rounding, size / apart, torch.inf)


def _refuse_not_finite(clean_update: Tree, sent: Tree, names: Sequence[str]) -> None:
    for which, update in (("clean", clean_update), ("sent", sent)):
        bad = [name for name in names if not bool(update[name].isfinite().all())]
        if bad:
            raise InputError(
                f"bias_ratio needs finite updates: the {which} update holds NaN or infinity in {', '.join(bad)}"
            )


@dataclass(frozen=True, slots=True)
class Rule:
    """How the relative error of a trial counts: of the clamped or of the raw guess, at most `cap`.

    `shown` clamps the guess to the valid box, as an attacker would, with mid-grey for NaN, so every distance is finite. Without
    it (as the paper seems to do) a guess that is not finite counts as `cap`, which is then required. NaN if the truth is 0.
    """

    shown: bool = True
    cap: float | None = None

    def __post_init__(self) -> None:
        if self.cap is not None and not 0 < self.cap < math.inf:
            raise InputError(f"Rule.cap must be in (0, inf), got {self.cap}")
        if not self.shown and self.cap is None:
            raise InputError("Rule.cap must be given where guesses count as the attack left them: they have no bound")

    def distances(self, truth: Tensor, guess: Tensor) -> tuple[Tensor, Tensor]:
        """Return (||x* - x|| / ||x|| of each sample after pairing, whether its guess was finite), T x N each, from T x N x ... inputs."""
        if truth.ndim < 3 or guess.shape != truth.shape:
            raise InputError(
                f"Rule.distances needs one guess for each sample, both T x N x ..., got {tuple(truth.shape)} "
                f"and {tuple(guess.shape)}"
            )
        shown = clean(guess)
        order = match(truth, shown, torch.ones(truth.shape[:2], dtype=torch.bool, device=truth.device))
        counted = arrange(shown if self.shown else guess, order)
        finite = arrange(guess, order).isfinite().flatten(2).all(-1)
        value = rmse_relative(truth, counted, rank=truth.ndim - 2).double()
        if self.cap is not None:
            value = torch.nan_to_num(value, nan=self.cap, posinf=self.cap).clamp_max(self.cap)
        return torch.where((truth == 0).flatten(2).all(-1), torch.nan, value), finite

    @property
    def words(self) -> str:
        """Return the rule in words, for a report."""
        kind = "clamped to the valid box, mid-grey where it is not a number" if self.shown else "as the attack left it"
        cap = "" if self.cap is None else f"; a distance above {self.cap:g} or without a value counts as {self.cap:g}"
        return f"distance of the guess {kind}{cap}; no trial is left out but samples that are zero throughout, whose error has no scale"


@dataclass(frozen=True, slots=True)
class Point:
    """One setting of a defence: its parameter, the median ratio, the accuracy, the attack's distance, diverged trials.

    `tests` is the number of test images behind the accuracy (None: exact). `left_out` samples have no distance (`Rule`).
    """

    parameter: float
    ratio: float
    accuracy: float
    distance: Estimate
    diverged: int = 0
    tests: int | None = None
    left_out: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.accuracy <= 1:
            raise InputError(f"Point.accuracy must be a share in [0, 1], got {self.accuracy}")
        if not self.ratio >= 0:
            raise InputError(f"Point.ratio must be at least 0, got {self.ratio}")
        if self.tests is not None and self.tests < 1:
            raise InputError(f"Point.tests must be at least 1, or None for a known accuracy, got {self.tests}")

    @property
    def product(self) -> float:
        """Return accuracy times distance, the calibrated performance."""
        return self.accuracy * self.distance.value

    @property
    def half(self) -> float:
        """Return half the 95 % interval of the product, from the distance's interval and the accuracy's binomial spread."""
        apart = self.accuracy * (self.distance.high - self.distance.low) / 2
        if self.tests is None:
            return apart
        return math.hypot(apart, self.distance.value * Z * math.sqrt(self.accuracy * (1 - self.accuracy) / self.tests))

    @property
    def region(self) -> Region:
        """Return the region of the point."""
        return region(self.ratio)


def measured(
    parameter: float,
    ratio: Tensor,
    accuracy: float,
    distance: Tensor,
    finite: Tensor | None = None,
    *,
    tests: int | None = None,
) -> Point:
    """Return the point of T trials: `ratio` T, `distance` T x N (or T), `finite` likewise; the accuracy is over `tests`.

    Boolean distances (a wrong label or owner) become a share with Wilson's interval. NaN is left out; infinity is refused.
    """
    each = distance.reshape(len(distance), -1)
    counted = ~each.isnan()
    if bool(each.isinf().any()):
        raise InputError(
            "a distance is infinite: Rule(cap=...) says what a diverged trial counts, such as Rule(cap=10.0)"
        )
    if not bool(counted.any()):
        raise InputError("no sample has a distance: the relative error of an all-zero sample is not defined")
    share = each.dtype == torch.bool
    estimate = estimate_rate(each, counted) if share else estimate_mean(each.double().nan_to_num(nan=0.0), counted)
    lost = 0 if finite is None else int((~finite.reshape(len(finite), -1).all(1)).sum())
    void = int((~counted).sum())
    return Point(parameter, float(ratio.double().median()), accuracy, estimate, lost, tests, void)


@dataclass(frozen=True, slots=True)
class Characteristic:
    """The curve of one defence against one attack; `distance` names the measure, `rule` the treatment of diverged trials.

    `chance` is the distance of random guessing, such as 1 - 1/N for tracing among N; None if undefined.
    """

    defence: str
    attack: str
    distance: str
    points: tuple[Point, ...]
    rule: str = ""
    chance: float | None = None

    def __post_init__(self) -> None:
        if not self.points:
            raise InputError(
                f"the characteristic of {self.defence!r} has no point: CAP is a mean over a grid of settings"
            )
        if self.chance is not None and not 0 <= self.chance < math.inf:
            raise InputError(f"Characteristic.chance must be a distance in [0, inf) or None, got {self.chance}")

    @property
    def cap(self) -> Estimate:
        """Return the calibrated averaged performance (equation 1) with the interval of its products (`Point.half`), cut at 0.

        Settings count as independent. `n` is the number of samples, `trials` that of settings.
        """
        number = len(self.points)
        value = sum(point.product for point in self.points) / number
        half = math.hypot(*(point.half for point in self.points)) / number
        return Estimate(value, max(0.0, value - half), value + half, sum(p.distance.n for p in self.points), number)

    @property
    def grid(self) -> tuple[float, ...]:
        """Return the settings of the mean."""
        return tuple(point.parameter for point in self.points)

    @property
    def diverged(self) -> int:
        """Return the number of trials that diverged, over all settings."""
        return sum(point.diverged for point in self.points)

    @property
    def left_out(self) -> int:
        """Return the number of samples without a distance, over all settings."""
        return sum(point.left_out for point in self.points)

    def plain(self) -> dict[str, object]:
        """Return everything as JSON data, with CAP, products and regions; infinite ratios and undefined interval ends are null."""
        rows = [
            _finite(asdict(p))
            | {"distance": _finite(asdict(p.distance)), "product": p.product, "region": p.region.value}
            for p in self.points
        ]
        return {
            "defence": self.defence,
            "attack": self.attack,
            "distance": self.distance,
            "rule": self.rule,
            "chance": self.chance,
            "cap": _finite(asdict(self.cap)),
            "points": rows,
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Example:
    """One private image (C x H x W in [0, 1]) and its reconstruction, with defence, ratio and distance."""

    truth: Tensor
    guess: Tensor
    defence: str
    region: Region
    ratio: float
    distance: float


def _finite(numbers: Mapping[str, object]) -> dict[str, object]:
    return {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in numbers.items()}
