"""Statistics of many trials: rates, means and iteration counts, each with its n and its interval."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from leakscope.core.errors import InputError
from leakscope.core.types import Outcome
from leakscope.metrics.interval import POSSIBLE, PSNR_CAP, Estimate, estimate_mean, estimate_rate
from leakscope.metrics.scoring import Scores
from leakscope.metrics.success import DEFAULT_RULE, ContentRule, whole_trials

Row = dict[str, str | int | float | None]


@dataclass(frozen=True, slots=True)
class Spread:
    """A count over trials: mean, minimum, maximum and sample variance (divisor n - 1); NaN if undefined."""

    mean: Estimate
    least: float
    greatest: float
    variance: float


@dataclass(frozen=True, slots=True)
class Summary:
    """The result of many trials under one content rule.

    `content` is the share of samples recovered (ASR of content), `whole` the share of trials with every sample recovered,
    `convergence` the share of trials that converged, `label` the share of samples whose paired guess has their label, `label_set`
    the mean multiset overlap of labels (both None if none were guessed). `means` are over all samples, `means_recovered` over
    recovered samples ONLY, as papers print them, which flatters an attack that rarely succeeds. `iterations` are given over all,
    converged and whole trials.
    """

    trials: int
    samples: int
    not_finite: int
    rule: ContentRule
    outcomes: Mapping[str, int]
    content: Estimate
    whole: Estimate
    convergence: Estimate
    label: Estimate | None
    label_set: Estimate | None
    means: Mapping[str, Estimate]
    means_recovered: Mapping[str, Estimate]
    iterations: Spread
    iterations_converged: Spread
    iterations_whole: Spread

    def rows(self) -> list[Row]:
        """Return plain data, one row per number: measure, over, value, low, high, n, trials; None if undefined."""
        table = [
            _row("content rate", "all samples", self.content),
            _row("whole-trial rate", "all trials", self.whole),
            _row("convergence rate", "all trials", self.convergence),
        ]
        table += [_row("label rate", "all samples", self.label)] if self.label else []
        table += [_row("label set overlap", "all trials", self.label_set)] if self.label_set else []
        table += [_row(name, "all samples", mean) for name, mean in self.means.items()]
        table += [_row(name, "recovered samples only", mean) for name, mean in self.means_recovered.items()]
        for over, spread in (
            ("all trials", self.iterations),
            ("converged trials only", self.iterations_converged),
            ("whole trials only", self.iterations_whole),
        ):
            table += _spread_rows(over, spread)
        table += [
            _count("outcome " + name, "all trials", number, self.trials) for name, number in self.outcomes.items()
        ]
        return [*table, _count("not finite", "all samples", self.not_finite, self.trials, self.samples)]


def summarise(scores: Scores, *, outcomes: Tensor, iterations: Tensor, rule: ContentRule = DEFAULT_RULE) -> Summary:
    """Return the summary of T trials from their scores, their outcomes (T, of `Outcome`) and iteration counts (T).

    PSNR is capped at `PSNR_CAP` (100 dB, an MSE of 1e-10), so that one exact recovery does not make the mean infinite. The mean
    PSNR is the mean of dB values, not the PSNR of the mean MSE.
    """
    _check(scores, outcomes, iterations)
    recovered = rule.recovered(scores)
    whole = whole_trials(recovered, scores.scored)
    converged = (outcomes == Outcome.CONVERGED) | (outcomes == Outcome.PROVED)
    every = torch.ones_like(converged)
    kinds = {"mse": scores.mse, "psnr": scores.psnr.clamp_max(PSNR_CAP)}
    if scores.text:
        kinds = dict(scores.text)
    if bool(scores.ssim[scores.scored].isfinite().any()):
        kinds["ssim"] = scores.ssim
    label, overlap = scores.label_correct, scores.label_overlap
    return Summary(
        trials=scores.trials,
        samples=int(scores.scored.sum()),
        not_finite=int((~scores.finite & scores.scored).sum()),
        rule=rule,
        outcomes={kind.name.lower(): int((outcomes == kind).sum()) for kind in Outcome},
        content=estimate_rate(recovered, scores.scored),
        whole=estimate_rate(whole[:, None], every[:, None]),
        convergence=estimate_rate(converged[:, None], every[:, None]),
        label=None if label is None else estimate_rate(label, scores.scored),
        label_set=None if overlap is None else estimate_mean(overlap[:, None], every[:, None], within=(0.0, 1.0)),
        means={name: estimate_mean(values, scores.scored, within=POSSIBLE[name]) for name, values in kinds.items()},
        means_recovered={
            name: estimate_mean(values, recovered, within=POSSIBLE[name]) for name, values in kinds.items()
        },
        iterations=_spread(iterations, every),
        iterations_converged=_spread(iterations, converged),
        iterations_whole=_spread(iterations, whole),
    )


def _spread(count: Tensor, counted: Tensor) -> Spread:
    values = count[counted].double()
    mean = estimate_mean(count[:, None], counted[:, None], within=(0.0, math.inf))
    least, greatest = (float(values.min()), float(values.max())) if len(values) else (math.nan, math.nan)
    return Spread(mean, least, greatest, float(values.var(correction=1)) if len(values) > 1 else math.nan)


def _row(measure: str, over: str, estimate: Estimate) -> Row:
    numbers: Row = asdict(estimate)
    plain = {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in numbers.items()}
    return {"measure": measure, "over": over, **plain}


def _count(measure: str, over: str, number: float, trials: int, n: int | None = None) -> Row:
    return _row(measure, over, Estimate(number, math.nan, math.nan, trials if n is None else n, trials))


def _spread_rows(over: str, spread: Spread) -> list[Row]:
    n = spread.mean.n
    return [
        _row("iterations mean", over, spread.mean),
        _count("iterations min", over, spread.least, n),
        _count("iterations max", over, spread.greatest, n),
        _count("iterations variance", over, spread.variance, n),
    ]


def _check(scores: Scores, outcomes: Tensor, iterations: Tensor) -> None:
    if outcomes.shape != (scores.trials,) or iterations.shape != (scores.trials,):
        raise InputError(
            f"summarise needs one outcome and one iteration count a trial ({scores.trials}), "
            f"got shapes {tuple(outcomes.shape)} and {tuple(iterations.shape)}"
        )
    unknown = sorted(set(outcomes.tolist()) - {int(kind) for kind in Outcome})
    if unknown:
        known = ", ".join(f"{int(kind)} {kind.name}" for kind in Outcome)
        raise InputError(f"outcomes must be codes of Outcome ({known}), got {unknown[0]}")
