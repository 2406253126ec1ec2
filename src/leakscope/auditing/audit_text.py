"""The parts of an audit as text: labels, attacks, guesses, advice; terminal and pages share it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from leakscope.core.plugins import registered

if TYPE_CHECKING:
    from torch import Tensor

    from leakscope.auditing.advice import Advice
    from leakscope.auditing.attack_runs import LabelReading
    from leakscope.auditing.attempts import UnscoredRun
    from leakscope.play import AttackResult

SHOWN_REMEDIES = 5


def labels_words(read: LabelReading) -> str:
    """Return the share of labels read off the update with its interval and n, beside that of guessing."""
    ends = (
        "" if read.low is None or read.high is None else f"95 % interval {percent(read.low)} to {percent(read.high)}, "
    )
    sure = "" if read.sure is None else f"; sure for {percent(read.sure)} of clients"
    return f"{percent(read.share)} read off the update ({ends}n = {read.n}; guessing: {percent(read.guessing)}{sure})"


def run_lines(title: str, runs: Sequence[AttackResult]) -> list[str]:
    """Return what attacks recovered, a line each under a title."""
    if not runs:
        return []
    wide = max(len(run.name) for run in runs)
    return [f"  {title}:"] + [
        f"    {run.name:<{wide}}  recovered {percent(run.summary.content.value):>6}  "
        f"PSNR {run.summary.means['psnr'].value:5.1f} dB  "
        f"{''.join(f'{name} {mean:.3g}  ' for name, mean in metrics_of(run).items() if mean is not None)}{run.note}".rstrip()
        for run in runs
    ]


def _mean(values: Tensor) -> str:
    mean = float(values.double().mean())
    return "  n/a" if math.isnan(mean) else f"{mean:5.3f}"


def unscored_lines(runs: Sequence[UnscoredRun]) -> list[str]:
    """Return mismatch and structure of reconstructions whose truth is not known."""
    if not runs:
        return []
    wide = max(len(run.name) for run in runs)
    return ["  guesses (mismatch left of the start; structure: 1 is noise, pictures lie below):"] + [
        f"    {run.name:<{wide}}  mismatch {_mean(run.left)}  structure {_mean(run.structure)}  {run.note}"
        for run in runs
    ]


def advice_lines(advice: Advice | None) -> list[str]:
    """Return which remedies would help, which would not, and which were not tried."""
    if advice is None:
        return []
    if advice.remedies:
        lines = [f"  what would help, ranked {advice.ranking}:"]
    else:
        lines = [f"  what would help: no remedy was shown to ({advice.ranking})"]
    lines += [f"    {line}" for line in helping_lines(advice)[:SHOWN_REMEDIES]]
    left = len(advice.remedies) - SHOWN_REMEDIES
    if left > 0:
        lines.append(f"    and {left} more, on the page")
    return [*lines, *(f"    {line}" for line in (*not_shown_lines(advice), *not_tried_lines(advice)))]


def helping_lines(advice: Advice) -> list[str]:
    """Return the remedies that were shown to help, best first, a line each: leakage left, accuracy cost, attack."""
    lines = []
    for remedy in advice.remedies:
        cost = "" if remedy.lost is None else f", accuracy {round(-100 * remedy.lost):+d} points"
        lines.append(
            f"{remedy.words}: recovered {percent(remedy.recovered)}, PSNR {remedy.psnr:.1f} dB{cost} "
            f"(against {remedy.confirmed})"
        )
    return lines


def not_tried_lines(advice: Advice) -> list[str]:
    """Return the remedies that were not tried, one line per reason."""
    reasons = Counter(reason for _, reason in advice.skipped)
    return [f"not tried ({number}): {_names(advice.skipped, why)}: {why}" for why, number in reasons.items()]


def not_shown_lines(advice: Advice) -> list[str]:
    """Return the remedies not shown to help, one line per finding and attack."""
    apart: dict[tuple[str, str], list[str]] = {}
    for remedy in (*advice.useless, *advice.unproven):
        apart.setdefault((remedy.finding.value, remedy.met), []).append(remedy.words)
    return [
        f"{finding} ({len(names)}): {', '.join(names)}{f' [against {met}]' if met else ''}"
        for (finding, met), names in apart.items()
    ]


def _names(named: Sequence[tuple[str, str]], reason: str) -> str:
    return ", ".join(name for name, why in named if why == reason)


def metrics_of(run: AttackResult) -> dict[str, float | None]:
    """Return the mean of each registered metric over the clients."""
    learned = run.reconstruction.learned
    return {name: plain_number(float(learned[name].mean())) for name in registered("metric") if name in learned}


def plain_number(value: float | None) -> float | None:
    """Return a number that JSON can hold: None for NaN and infinity."""
    return None if value is None or not math.isfinite(value) else value


def percent(share: float) -> str:
    """Return a share as text."""
    return "n/a" if math.isnan(share) else f"{100 * share:.0f} %"
