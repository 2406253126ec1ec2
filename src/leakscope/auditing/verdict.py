"""The verdict of an audit: a grade by `RULES`, the worst reconstructions, and the gate for CI."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from leakscope.auditing.attack_runs import LabelReading
from leakscope.auditing.suite import TARGETS
from leakscope.auditing.target_readings import TargetError
from leakscope.core.errors import InputError
from leakscope.metrics import score
from leakscope.metrics.interval import Estimate, estimate_rate, wilson
from leakscope.metrics.success import DEFAULT_RULE
from leakscope.play import AttackResult, Exposure


class Grade(enum.StrEnum):
    """The word of an audit; its rule is `RULES[grade]`."""

    A = "A"
    B = "B"
    C = "C"
    D = "D"
    F = "F"
    INCONCLUSIVE = "inconclusive"
    UNSCORED = "unscored"
    UNTESTED = "untested"


RULES = {
    Grade.F: "the worst attack recovered at least half of the examples",
    Grade.D: "the worst attack recovered at least one example in twenty",
    Grade.C: "the worst attack recovered an example, or came 3 dB closer on average than every null baseline",
    Grade.B: "no content was recovered, but labels were inferred better than by guessing",
    Grade.A: "no attack of the suite did better than the baselines, within this budget",
    Grade.INCONCLUSIVE: "no content was recovered, but some attack of the suite did not run, or not long enough",
    Grade.UNSCORED: "the private data is not known: reconstructions are kept, but not scored",
    Grade.UNTESTED: 'no attack on the content could be run; the reasons are listed under "not tested"',
}
TEXT_RULES = RULES | {
    Grade.C: "the worst attack recovered a sentence, or came closer to the words than every null baseline",
}
LEAKING = (Grade.C, Grade.D, Grade.F)  # these stand however short the attacks were
COUNTED = (
    "a recovered example counts unless a null baseline, which sees no update, recovers it as closely (within 3 dB)"
)
HALF, TWENTIETH, CLOSER = 0.5, 0.05, 3.0  # CLOSER in dB: twice the MSE
GATES = ("asr", "psnr", "ssim", "labels")


@dataclass(frozen=True, slots=True)
class Measures:
    """The values that a gate checks, each the worst over all attacks; None: not measured."""

    asr: Estimate | None = None
    psnr: float | None = None
    ssim: float | None = None
    labels: float | None = None

    def value(self, name: str) -> float | None:
        """Return one measure as a number."""
        if name == "asr":
            return None if self.asr is None else self.asr.value
        value: float | None = getattr(self, name)
        return value


def excess(run: AttackResult, nulls: Sequence[AttackResult]) -> Tensor:
    """Return which examples an attack recovered that no null baseline recovered as closely, within 3 dB (T x N)."""
    hit = run.recovered  # an exact copy counts even if the class mean is close: it is still private
    for null in nulls:
        hit = hit & ~(null.recovered & (null.scores.mse <= run.scores.mse * 10 ** (CLOSER / 10)))
    return hit


def worst_run(runs: Sequence[AttackResult], nulls: Sequence[AttackResult]) -> AttackResult | None:
    """Return the attack that recovered most examples, then one without the targets, then the highest PSNR; None if there was none."""
    return max(runs, key=lambda run: (int(excess(run, nulls).sum()), TARGETS not in run.name, _psnr(run)), default=None)


def measure(runs: Sequence[AttackResult], nulls: Sequence[AttackResult], labels: LabelReading | None) -> Measures:
    """Return the worst value of every measure."""
    worst = worst_run(runs, nulls)
    if worst is None:
        return Measures(labels=None if labels is None else labels.share)
    ssims = [run.summary.means["ssim"].value for run in runs if "ssim" in run.summary.means]
    return Measures(
        asr=estimate_rate(excess(worst, nulls), worst.scores.scored),
        psnr=max(_psnr(run) for run in runs),
        ssim=max(ssims) if ssims else None,
        labels=None if labels is None else labels.share,
    )


def grade(
    runs: Sequence[AttackResult],
    nulls: Sequence[AttackResult],
    labels: LabelReading | None,
    values: TargetError | None = None,
    *,
    unfinished: Sequence[str] = (),  # attacks that were not run long enough, see `Suite`
    as_seen: Sequence[AsSeen] = (),
) -> Grade:
    """Return the grade; only good ones need that every attack was run long enough. A transformed image counts like its original."""
    worst = worst_run(runs, nulls)
    if worst is None:
        return Grade.INCONCLUSIVE if unfinished else Grade.UNTESTED
    share = float(excess(worst, nulls).sum()) / worst.summary.samples
    share = max(share, *(each.excess for each in as_seen)) if as_seen else share
    blind = max((_psnr(run) for run in nulls), default=-math.inf)
    if share >= HALF:
        return Grade.F
    if share >= TWENTIETH:
        return Grade.D
    if share > 0 or (nulls and max(_psnr(run) for run in runs) >= blind + CLOSER):
        return Grade.C
    if unfinished:
        return Grade.INCONCLUSIVE
    read = labels is not None and _surely(labels) > labels.guessing
    return Grade.B if read or (values is not None and values.high < values.guessing) else Grade.A


def _surely(labels: LabelReading) -> float:
    """Return the lower end of the label share's 95 % interval, which must exceed guessing; if not recorded, Wilson's."""
    return wilson(labels.share, labels.n)[0] if labels.low is None else labels.low


def _psnr(run: AttackResult) -> float:
    return run.summary.means["psnr"].value


def parse_gate(text: str) -> dict[str, float]:
    """Return the limits of `--fail-above`.

    >>> parse_gate("asr=0.05,psnr=18")
    {'asr': 0.05, 'psnr': 18.0}
    """
    limits: dict[str, float] = {}
    for part in text.split(","):
        name, equals, number = part.strip().partition("=")
        if name not in GATES or not equals:
            raise InputError(
                f"--fail-above takes limits such as asr=0.05,psnr=18 ({', '.join(GATES)}), got {part!r:.60}"
            )
        try:
            limits[name] = float(number)
        except ValueError:
            raise InputError(f"--fail-above: {name} needs a number, got {number!r:.40}") from None
        if not math.isfinite(limits[name]):
            raise InputError(f"--fail-above: {name} needs a finite number, got {number!r:.40}")
    return limits


def failures(measures: Measures, limits: Mapping[str, float]) -> list[str]:
    """Return a line for every limit that is exceeded or was not measured."""
    lines = []
    for name, limit in limits.items():
        value = measures.value(name)
        if value is None or math.isnan(value):
            lines.append(f"{name} was not measured, so the limit {limit:g} cannot be checked")
        elif value > limit:
            lines.append(f"{name} is {value:.4g}, above {limit:g}")
    return lines


class AsSeen(NamedTuple):
    """The share of images that an attack recovered in the transformed form that the network saw."""

    name: str
    recovered: Estimate
    excess: float = 0.0  # share above that of the best null baseline

    @property
    def words(self) -> str:
        """Return the number recovered, with the interval of the share."""
        rate = self.recovered
        return (
            f"as the network saw them, transformed, {self.name} recovered {round(rate.value * rate.n)} of {rate.n} pictures "
            f"(95 % interval {100 * rate.low:.0f} % to {100 * rate.high:.0f} %)"
        )


def recovered_as_seen(
    exposure: Exposure, runs: Sequence[AttackResult], nulls: Sequence[AttackResult]
) -> tuple[AsSeen, ...]:
    """Return what each attack recovered of the transformed images; () if the client does not transform them."""
    if exposure.client.on_data is None:
        return ()
    truth = exposure.client.transformed(exposure.batch, exposure.seeds)

    def recovered(run: AttackResult) -> Estimate:
        reconstruction = run.reconstruction
        guess = reconstruction.inputs if reconstruction.seen is None else reconstruction.seen
        scores = score(truth.inputs, truth.labels, guess, None, mask=truth.mask, within=DEFAULT_RULE.mse)
        return estimate_rate(DEFAULT_RULE.recovered(scores), scores.scored)

    blind = max((recovered(run).value for run in nulls), default=0.0)
    shares = {run.name: recovered(run) for run in runs}
    return tuple(AsSeen(name, share, max(0.0, share.value - blind)) for name, share in shares.items())


def most_as_seen(results: Sequence[AsSeen]) -> AsSeen | None:
    """Return the attack that recovered most of the transformed images; None if none recovered any."""
    best = max(results, key=lambda each: each.recovered.value, default=None)
    return best if best is not None and best.recovered.value > 0 else None
