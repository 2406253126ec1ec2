"""Property inference: does the batch behind an update have a property unrelated to the task?

Melis et al. 2019, "Exploiting unintended feature leakage in collaborative learning", IEEE S&P, section 5: the attacker computes
updates at the same weights from data with and without the property, trains a classifier on them, and applies it to the client's
update. The classifier is logistic regression on standardised update coordinates,

    min_w,b  |w|^2 / 2 + strength * sum_i log(1 + exp(-s_i (w . z_i + b))),     s_i = +1 or -1,

the same as `sklearn.linear_model.LogisticRegression(C=strength)`; Melis et al. use that and random forests. The best w is in the
span of the z_i, so there are n unknowns instead of one per coordinate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from leakscope.core.errors import InputError
from leakscope.core.short_repr import short_repr
from leakscope.metrics import Estimate, estimate_rate

Vector = npt.NDArray[np.float64]
FLAT = 1e-12  # a coordinate with less than this share of the largest spread is constant


@dataclass(frozen=True, slots=True)
class PropertyClassifier:
    """Scores an update: above 0 it has the property. Standardises by the updates it was fitted to."""

    mean: Tensor
    scale: Tensor
    weight: Tensor
    bias: float

    __repr__ = short_repr

    def scores(self, update: Mapping[str, Tensor]) -> Tensor:
        """Return `w . z + b` for each of T updates."""
        x = features(update)
        if x.shape[1] != len(self.mean):
            raise InputError(f"the classifier knows updates of {len(self.mean)} numbers, got {x.shape[1]}")
        return ((x - self.mean) * self.scale) @ self.weight + self.bias


@dataclass(frozen=True, slots=True)
class PropertyInference:
    """The accuracy at score 0 with its interval, area under the ROC curve, base rate, n."""

    accuracy: Estimate
    auc: float
    base: float
    n: int


def features(update: Mapping[str, Tensor]) -> Tensor:
    """Return T updates as rows, in float64; parameters in the order of their names."""
    if not update:
        raise InputError("an update without parameters has no features")
    rows = torch.cat([update[name].flatten(1).double() for name in sorted(update)], dim=1)
    if not bool(rows.isfinite().all()):
        raise InputError("updates hold NaN or infinity")
    return rows


def fit_property(update: Mapping[str, Tensor], has: Tensor, *, strength: float = 1.0) -> PropertyClassifier:
    """Return the classifier fitted to T updates (leading T) with or without the property (T booleans, or 0 and 1)."""
    return fit_properties(update, [has], strength=strength)[0]


def fit_properties(
    update: Mapping[str, Tensor], each: Sequence[Tensor], *, strength: float = 1.0
) -> list[PropertyClassifier]:
    """Return one classifier for each property, fitted to the same T updates: they share the decomposition, which costs most."""
    x, signs = features(update), [_signs(update, has) for has in each]
    if not strength > 0:
        raise InputError(f"strength must be above 0, got {strength}")
    mean, deviation = x.mean(0), x.std(0, unbiased=False)
    scale = torch.where(deviation > FLAT * deviation.max(), 1 / deviation.clamp_min(torch.finfo(x.dtype).tiny), 0.0)
    axes, lengths, span = torch.linalg.svd((x - mean) * scale, full_matrices=False)
    weights = [_logistic(axes * lengths, sign, strength) for sign in signs]
    return [PropertyClassifier(mean, scale, span.T @ w[:-1], float(w[-1])) for w in weights]


def _logistic(inside: Tensor, sign: Tensor, strength: float) -> Tensor:
    """Return the weights in coordinates of the span, and the bias."""
    from scipy.optimize import minimize

    def value(w: Tensor) -> Tensor:
        margin = sign * (inside @ w[:-1] + w[-1])
        return w[:-1].square().sum() / 2 + strength * torch.nn.functional.softplus(-margin).sum()

    def both(flat: Vector) -> tuple[float, Vector]:
        slope, worth = torch.func.grad_and_value(value)(torch.as_tensor(flat, dtype=torch.float64))
        return float(worth), slope.numpy()

    start = np.zeros(inside.shape[1] + 1)
    optimum = minimize(both, start, jac=True, method="L-BFGS-B", options={"maxiter": 5000, "ftol": 1e-14, "gtol": 1e-9})
    return torch.as_tensor(optimum.x, dtype=torch.float64)


def infer_property(classifier: PropertyClassifier, update: Mapping[str, Tensor], has: Tensor) -> PropertyInference:
    """Return how well the classifier separates updates with the property from others."""
    scores, sign = classifier.scores(update), _signs(update, has)
    right = ((scores > 0) == (sign > 0))[:, None]
    return PropertyInference(
        accuracy=estimate_rate(right, torch.ones_like(right)),
        auc=area_under_curve(scores, sign > 0),
        base=float((sign > 0).double().mean()),
        n=len(scores),
    )


def area_under_curve(scores: Tensor, positive: Tensor) -> float:
    """Return the share of pairs (one with, one without) that the scores order correctly; ties count a half.

    >>> area_under_curve(torch.tensor([0.1, 0.9, 0.5]), torch.tensor([False, True, False]))
    1.0
    """
    above = _flags("positive", positive, len(scores), "scores")
    high, low = scores[above], scores[~above]
    if not len(high) or not len(low):
        raise InputError("the area under the curve needs scores of both kinds")
    order = high[:, None] - low[None]
    return float(((order > 0).double() + (order == 0).double() / 2).mean())


def _signs(update: Mapping[str, Tensor], has: Tensor) -> Tensor:
    flags = _flags("has", has, len(next(iter(update.values()))), "updates")
    if bool(flags.all()) or not bool(flags.any()):
        raise InputError("property inference needs updates with and without the property")
    return torch.where(flags, 1.0, -1.0).double()


def _flags(name: str, given: object, number: int, of: str) -> Tensor:
    """Return one boolean per item; 0 and 1 are accepted."""
    if not isinstance(given, Tensor):
        raise InputError(f"{name} must be a tensor with one boolean for each of {number} {of}, got {given!r:.80}")
    if given.shape != (number,):
        raise InputError(f"{name} must be one boolean for each of {number} {of}, got {tuple(given.shape)}")
    other = given[(given != 0) & (given != 1)]
    if len(other):
        raise InputError(f"{name} must hold booleans, or 0 and 1, got {other[0].item()}")
    return given.bool()
