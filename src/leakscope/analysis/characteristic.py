"""Privacy-preserving characteristics (PPC) and their mean (CAP): what a defence costs and what it buys, on one curve.

Fan et al. 2020, arXiv:2006.11601, definition 1 and equation 1: for each setting m of a defence, the accuracy of the model trained
under it times the distance of the attack's result from the truth, against log10(||B_I|| / ||E_B|| + 1); CAP is their mean

    CAP = 1/n sum_m Acc(m) * dist(m),

over a grid that must be stated: it depends on which settings were chosen. Any defence can be put on a curve, because all that
is asked of it is what it made of an update.

**The axis.** B_I are the bias gradients of one loss without the defence, E_B what the defence changed of them (noise,
coordinates left out, a private loss). The paper does not say which biases and which norm. Here: all biases that are sent, as
one vector, Euclidean norm, and the median over trials. For a convolutional network this ratio is an axis and no more: the
linear system of `linear_system` is that of one dense layer and one sample.

**Regions.** Green: ||E_B|| is at least ||B_I|| (ratio up to 1), where the paper says that attacks are defeated. Red: the ratio is
in the "tens to thousands" (from 10 on), where pictures are recovered. White is between. The two borders are ours.

**Diverged trials.** The relative error ||x* - x|| / ||x|| has no upper bound, so one diverged trial can carry a whole CAP (and
the paper's are 3 to 5 on MNIST). `Rule` says what such a trial counts; it belongs beside every CAP. A sample that is zero
throughout has no relative error, whatever is guessed: it is left out, and counted.
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
ROUNDINGS = 10  # relative steps of the dtype by which sums in another order may differ


class Region(enum.Enum):
    """Where a point lies: perturbation above the gradient, below a tenth of it, or between."""

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
    """Return where a ratio is drawn: log10(ratio + 1).

    >>> round(place(9.0), 6)
    1.0
    """
    return math.log10(ratio + 1)


def around_median(values: Tensor) -> Tensor:
    """Return T numbers with the median of T values as their mean, and its standard error as that of the mean.

    A median moves with a value only by the side on which it lies: m + c sign(x - m), with c such that c / sqrt(T) is what the
    order statistics say of the median's error, (x_u - x_l) / 2z for the ranks T/2 +- z sqrt(T)/2. For tables that take means.
    An infinite median is given as it is.

    >>> around_median(torch.tensor([1.0, 2.0, 3.0, 100.0])).mean()
    tensor(2., dtype=torch.float64)
    """
    x = values.double()
    number, ordered, middle = len(x), x.sort().values, x.median()
    if not bool(middle.isfinite()):
        return torch.full_like(x, float(middle))
    reach = Z * math.sqrt(number) / 2
    low = max(0, math.floor(number / 2 - reach))
    high = min(number - 1, math.ceil(number / 2 + reach) - 1)
    ends = ordered[[low, high]].clamp_max(float(ordered[ordered.isfinite()].max()))
    side = torch.sign(torch.arange(number, dtype=torch.float64) - (number - 1) / 2)  # by rank: as many above as below
    return (middle + (ends[1] - ends[0]) / (2 * Z) * math.sqrt(number) * side)[x.argsort().argsort()]


def bias_ratio(clean_update: Tree, sent: Tree, names: Sequence[str] | None = None) -> Tensor:
    """Return ||B_I|| / ||E_B|| of each trial: Euclidean norms of its bias gradients and of what the defence changed of them.

    Both trees are directions of descent and lead with T: gradients as they are sent, and for a client that shares weights the
    change of them (`core.types.direction`). Weights themselves are far larger than what a defence changes of them and would pass
    for a defence that does nothing. `names` are the biases to count; left out, every parameter that is sent and called bias.

    Infinite where no bias was changed beyond rounding: a second head of weight 0 adds up the same gradient in another order. That is
    also so of a defence that changes weights alone (`low_rank`): this axis does not see it.
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
    """What the relative error of a trial counts: of the guess as it can be shown, or as the attack left it, at most `cap`.

    `shown` clamps the guess to the box of valid inputs, as an attacker would, and puts mid-grey where it is not a number: no
    trial is left out because of its guess, and every distance is finite. Without it (as the paper seems to) a guess that is
    not finite counts as `cap`, which must then be given. NaN, which `measured` leaves out and counts, where the truth is zero.
    """

    shown: bool = True
    cap: float | None = None

    def __post_init__(self) -> None:
        if self.cap is not None and not 0 < self.cap < math.inf:
            raise InputError(f"Rule.cap must be in (0, inf), got {self.cap}")
        if not self.shown and self.cap is None:
            raise InputError("Rule.cap must be given where guesses count as the attack left them: they have no bound")

    def distances(self, truth: Tensor, guess: Tensor) -> tuple[Tensor, Tensor]:
        """Return (||x* - x|| / ||x|| of each sample after pairing, whether its guess was finite), T x N each.

        Truth and guess are T x N x ... of one shape: one guess for each sample.
        """
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
    """One setting of a defence: its parameter, the median ratio, the accuracy under it, the attack's distance, diverged trials.

    `tests` is the number of test pictures that the accuracy is a share of; None takes the accuracy as known. `left_out` samples
    have no distance (`Rule`).
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
        """Return half the 95 % interval of the product: that of the distance, and the accuracy's binomial spread."""
        apart = self.accuracy * (self.distance.high - self.distance.low) / 2
        if self.tests is None:
            return apart
        return math.hypot(apart, self.distance.value * Z * math.sqrt(self.accuracy * (1 - self.accuracy) / self.tests))

    @property
    def region(self) -> Region:
        """Return the region it lies in."""
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

    A distance of booleans (a label or an owner is wrong) is a share, with Wilson's interval. One that is NaN is left out. An
    infinite one is refused: it has no mean, and what a diverged trial counts is for the `Rule` to say.
    """
    each = distance.reshape(len(distance), -1)
    counted = ~each.isnan()
    if bool(each.isinf().any()):
        raise InputError(
            "a distance is infinite: Rule(cap=...) says what a diverged trial counts, such as Rule(cap=10.0)"
        )
    if not bool(counted.any()):
        raise InputError("no sample has a distance: of samples that are zero throughout there is no relative error")
    share = each.dtype == torch.bool
    estimate = estimate_rate(each, counted) if share else estimate_mean(each.double().nan_to_num(nan=0.0), counted)
    lost = 0 if finite is None else int((~finite.reshape(len(finite), -1).all(1)).sum())
    void = int((~counted).sum())
    return Point(parameter, float(ratio.double().median()), accuracy, estimate, lost, tests, void)


@dataclass(frozen=True, slots=True)
class Characteristic:
    """The curve of one defence against one attack; `distance` names the measure, `rule` what diverged trials count.

    `chance` is the distance of one who guesses, such as 1 - 1/N of tracing among N; None where there is no such thing.
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
        """Return the calibrated averaged performance (equation 1) with the interval of its products (`Point.half`), from 0 on.

        Different settings count as independent. An accuracy whose number of test pictures is not told counts as known. `n` is
        the number of samples, `trials` that of settings.
        """
        number = len(self.points)
        value = sum(point.product for point in self.points) / number
        half = math.hypot(*(point.half for point in self.points)) / number
        return Estimate(value, max(0.0, value - half), value + half, sum(p.distance.n for p in self.points), number)

    @property
    def grid(self) -> tuple[float, ...]:
        """Return the settings that the mean is taken over."""
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
        """Return everything as JSON data, with CAP, products and regions written out.

        An infinite ratio is null, and so is an end of an interval that does not exist (of one trial).
        """
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
    """One private picture (C x H x W in [0, 1]) and what was rebuilt of it, under which defence, at which ratio and distance."""

    truth: Tensor
    guess: Tensor
    defence: str
    region: Region
    ratio: float
    distance: float


def _finite(numbers: Mapping[str, object]) -> dict[str, object]:
    return {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in numbers.items()}
