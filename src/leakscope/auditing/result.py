"""The result of an audit: a value, its text for the terminal, its record for JSON."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leakscope.auditing.attack_runs import INTERRUPTED
from leakscope.auditing.attempts import MEANING, CutShort
from leakscope.auditing.descriptions import client_facts, known_facts, sent_part
from leakscope.auditing.inspection import Inspection
from leakscope.auditing.suite import TARGETS, Untested, is_informed
from leakscope.auditing.verdict import (
    LEAKING,
    RULES,
    AsSeen,
    Grade,
    Measures,
    excess,
    failures,
    grade,
    most_as_seen,
    worst_run,
)
from leakscope.core.pages import notebook_html, write_page
from leakscope.core.plugins import registered

if TYPE_CHECKING:
    from torch import Tensor

    from leakscope.auditing.advice import Advice
    from leakscope.auditing.attack_runs import LabelReading
    from leakscope.auditing.attempts import UnscoredRun
    from leakscope.auditing.dishonest_server import Dishonest
    from leakscope.auditing.target_readings import TargetError
    from leakscope.auditing.tokens.remedies import TextRemedy
    from leakscope.play import AttackResult, Exposure
    from leakscope.play.text_leak import TextLeak

TEXT_REMEDIES = "remedies that the attacker knows, the most effective first; their cost in accuracy was not measured"
GIVEN = "attacker who is given the private labels or masks"
DISHONEST = "if the server is dishonest and chooses the weights that clients get"
SHOWN_REMEDIES = 5
SHOWN_WORST = 3
SHOWN_RUNS = 12
MAY_FALL = (Grade.A, Grade.B, Grade.C, Grade.D)  # longer attacks may make these worse


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Audit:
    """The result of an audit. Prints as text; `failures(limits)` is the gate."""

    name: str
    grade: Grade
    minutes: float
    seconds: float
    seed: int
    measures: Measures = field(default_factory=Measures)
    runs: tuple[AttackResult, ...] = ()
    nulls: tuple[AttackResult, ...] = ()  # baselines without the update
    labels: LabelReading | None = None  # under a caller's own loss: classes or labels that an attack recovered
    target_error: TargetError | None = None  # of numbers that an attack recovered
    untested: tuple[Untested, ...] = ()  # what was left out and why
    advice: Advice | None = None
    notes: tuple[str, ...] = ()
    exposure: Exposure | None = None  # None if nothing could be run or scored
    unscored: tuple[UnscoredRun, ...] = ()  # attacks on captures without the truth
    short: tuple[CutShort, ...] = ()  # attacks that the time cut short
    unfinished: tuple[str, ...] = ()  # attacks without which no good grade is given and no gate passed
    interrupted: bool = False  # by Ctrl-C; attacks that had not ended are missing
    minutes_needed: float | None = None  # that would do for those; None: not known, or all had enough
    as_seen: tuple[AsSeen, ...] = ()  # images recovered in the transformed form that the network saw
    static: Inspection | None = None  # what the model showed before any attack
    text: TextLeak | None = None  # what came back of sentences of a token model
    text_remedies: tuple[TextRemedy, ...] = ()
    dishonest: Dishonest | None = None  # what a malicious server got; None: the server is only curious

    @property
    def worst(self) -> AttackResult | None:
        """Return the attack that recovered most; None if none could be run."""
        return worst_run(self.runs, self.nulls)

    @property
    def recovered(self) -> int:
        """Return how many examples the worst attack recovered that no null baseline recovered as closely."""
        if self.text is not None:
            return round(self.text.sentences.value * self.text.sentences.n)
        return 0 if self.worst is None else int(excess(self.worst, self.nulls).sum())

    @property
    def recovered_without_targets(self) -> int:
        """Return how many examples the worst of the attacks recovered that are not given the targets of a caller's own loss."""
        return max((int(excess(run, self.nulls).sum()) for run in self.runs if TARGETS not in run.name), default=0)

    @property
    def needs_targets(self) -> bool:
        """Return whether the grade counts attackers who are given the private targets: others alone would not have it."""
        others = [run for run in self.runs if TARGETS not in run.name]
        more = self.labels, self.target_error
        without = grade(others, self.nulls, *more, unfinished=self.unfinished, as_seen=self.as_seen)
        return self.grade in LEAKING and without != self.grade and len(others) < len(self.runs)

    def failures(self, limits: Mapping[str, float]) -> list[str]:
        """Return a line for every limit that is exceeded or was not measured; empty means the gate is passed."""
        lines, best = failures(self.measures, limits), most_as_seen(self.as_seen)
        if best is not None and best.recovered.value > limits.get("asr", math.inf):  # transformed, but readable
            share, limit = best.recovered.value, limits["asr"]
            lines.append(f"asr of transformed pictures, as the network saw them, is {share:.4g}, above {limit:g}")
        if self.dishonest is not None:
            lines += [f"{line} (a dishonest server)" for line in failures(self.dishonest.measures, _of_content(limits))]
            if limits and self.dishonest.unfinished:
                lines.append(
                    f"not run long enough to pass: {', '.join(self.dishonest.unfinished)} (a dishonest server)"
                )
        if limits and self.unfinished:
            lines.append(f"the attacks were not run long enough to pass: {unfinished_words(self)}")
        return lines

    _repr_html_ = notebook_html
    write = write_page

    def __repr__(self) -> str:
        attacks = ", ".join(f"{run.name} {_percent(run.summary.content.value)}" for run in self.runs[:SHOWN_RUNS])
        attacks = attacks if self.text is None else f"{self.text.attack} {_percent(self.text.sentences.value)}"
        return f"Audit of {self.name}: grade {self.grade}: {headline(self)}\n  recovered by {attacks or 'no attack'}"

    @property
    def proved(self) -> int:
        """Return the largest number of examples that an exact attack certified by the update alone."""
        return max(
            (int(run.reconstruction.proved.sum()) for run in self.runs if run.reconstruction.proved is not None),
            default=0,
        )

    def __str__(self) -> str:
        return audit_text(self)


def audit_text(audit: Audit) -> str:
    """Return the audit as text: grade, evidence, advice, and what was not tested."""
    lines = [f"{audit.name}: grade {audit.grade}: {headline(audit)}"]
    lines += [f"  {doubt}" for doubt in doubt_lines(audit)]
    if audit.static is not None:
        lines += ["  before any attack:", *(f"    {line}" for line in audit.static.shown())]
    if audit.worst is not None and audit.measures.asr is not None:
        asr = audit.measures.asr
        lines.append(
            f"  {audit.worst.name} recovered {audit.recovered} of {asr.n} examples ({_percent(asr.value)}, "
            f"95 % interval {_percent(asr.low)} to {_percent(asr.high)})"
        )
        lines += [f"    worst: {line}" for line in worst_lines(audit)]
    if audit.text is not None:
        lines += [f"  {line}" for line in (*audit.text.score_lines, *audit.text.update_lines, *audit.text.shown_lines)]
    if audit.proved:
        lines.append(
            f"  {audit.proved} examples are proved: each explains its part of the update to rounding, with its label"
        )
    if facts := audit_client(audit):
        lines += ["  the client:", *(f"    {what}: {words}" for what, words in facts)]
    if known := audit_known(audit):
        lines += [
            "  attackers who know the defences know:",
            *(f"    of {what}: {words}" for what, words in known),
        ]
    lines += _runs("attacks", audit.runs) + _runs("without the update", audit.nulls)
    lines += _unscored(audit)
    if audit.dishonest is not None:
        lines += [f"  {DISHONEST}: {audit.dishonest.headline}", *(f"    {line}" for line in audit.dishonest.lines)]
    lines += _advice(audit)
    if audit.text_remedies:
        lines += [f"  {TEXT_REMEDIES}:", *(f"    {remedy.words}" for remedy in audit.text_remedies)]
    if audit.short:
        lines.append(f"  not tested long enough ({MEANING}):")
        lines += [f"    {cut.name}: {cut.words}" for cut in audit.short]
    if audit.untested:
        lines.append("  not tested:")
        lines += [f"    {item.what}: {item.why}" for item in audit.untested]
    lines += [f"  note: {note}" for note in audit.notes]
    lines.append(
        f"  {audit.seconds:.0f} s of {audit.minutes:g} min; seed {audit.seed}; a grade speaks of what was tried, not more"
    )
    return "\n".join(lines)


def headline(audit: Audit) -> str:
    """Return the rule of the grade, what ran how far if that decided it, and the labels that were read."""
    words = [RULES[audit.grade]]
    if audit.needs_targets:
        words = [f"{RULES[audit.grade].replace('the worst attack', f'an {GIVEN}')}; {without_targets(audit)}"]
    if audit.grade is Grade.INCONCLUSIVE:
        words.append(unfinished_words(audit))
    if audit.labels is not None:
        words.append(f"labels: {labels_words(audit.labels)}")
    if (values := audit.target_error) is not None:
        words.append(
            f"targets: {values.attack} recovered them with a mean error of {values.value:.3g} (n = {values.n}; guessing: "
            f"{values.guessing:.3g})"
        )
    return "; ".join(words)


def without_targets(audit: Audit) -> str:
    """Return what attackers recovered who are not given the private targets."""
    total = 0 if audit.worst is None else audit.worst.summary.samples
    return f"without them {audit.recovered_without_targets} of {total} were recovered"


def unfinished_words(audit: Audit) -> str:
    """Return which attacks were not run long enough, and how many minutes would be enough, if any."""
    needed, left_out = audit.minutes_needed, [item for item in audit.untested if item.left_out]
    advice = ["run the whole suite"] if left_out else []
    if audit.interrupted:
        advice.append("run it again")
    elif needed is not None:
        advice.append(f"about {math.ceil(needed):g} minutes would be enough")
    elif audit.short:
        advice.append("give it more minutes")
    return "; ".join([", ".join(audit.unfinished), *advice])


def doubt_lines(audit: Audit) -> list[str]:
    """Return why the grade may be too good: the audit was interrupted, attacks were cut short or left out, images are transformed."""
    lines = [f"{INTERRUPTED}: attacks that had not ended are missing"] if audit.interrupted else []
    if (best := most_as_seen(audit.as_seen)) is not None:
        lines.append(f"{best.words}: the grade counts them")
    if audit.grade not in MAY_FALL:
        return lines
    if left_out := [item.what for item in audit.untested if item.left_out]:
        lines.append(f"left out of the suite: {', '.join(left_out)}: with them the grade may be worse")
    if audit.short:
        attacks = len({run.name for run in audit.runs} | {cut.name for cut in audit.short})
        lines.append(
            f"{len(audit.short)} of {attacks} attacks had fewer iterations than their authors run: with more minutes the grade "
            "may be worse"
        )
    return lines


def worst_lines(audit: Audit) -> list[str]:
    """Return the closest reconstructions of the worst attack, a line each."""
    if audit.worst is None or audit.exposure is None:
        return []
    scores, labels = audit.worst.scores, audit.exposure.batch.labels
    places = [(t, s) for t in range(scores.trials) for s in range(labels.shape[1]) if bool(scores.scored[t, s])]
    places.sort(key=lambda place: float(scores.mse[place]))
    classes = audit.exposure.batch.targets is None
    return [
        f"client {t}, example {s}{f' (class {int(labels[t, s])})' if classes else ''}: MSE {float(scores.mse[t, s]):.2g}, "
        f"PSNR {float(scores.psnr[t, s]):.1f} dB"
        for t, s in places[:SHOWN_WORST]
    ]


def labels_words(read: LabelReading) -> str:
    """Return the share of labels read off the update with its interval and n, beside that of guessing."""
    ends = (
        ""
        if read.low is None or read.high is None
        else f"95 % interval {_percent(read.low)} to {_percent(read.high)}, "
    )
    sure = "" if read.sure is None else f"; sure for {_percent(read.sure)} of clients"
    return f"{_percent(read.share)} read off the update ({ends}n = {read.n}; guessing: {_percent(read.guessing)}{sure})"


def _runs(title: str, runs: tuple[AttackResult, ...]) -> list[str]:
    if not runs:
        return []
    wide = max(len(run.name) for run in runs)
    return [f"  {title}:"] + [
        f"    {run.name:<{wide}}  recovered {_percent(run.summary.content.value):>6}  "
        f"PSNR {run.summary.means['psnr'].value:5.1f} dB  "
        f"{''.join(f'{name} {mean:.3g}  ' for name, mean in metrics_of(run).items() if mean is not None)}{run.note}".rstrip()
        for run in runs
    ]


def _unscored(audit: Audit) -> list[str]:
    """Return mismatch and structure of reconstructions whose truth is not known."""
    if not audit.unscored:
        return []
    wide = max(len(run.name) for run in audit.unscored)
    return ["  guesses (mismatch left of the start; structure: 1 is noise, pictures lie below):"] + [
        f"    {run.name:<{wide}}  mismatch {_mean(run.left)}  structure {_mean(run.structure)}  {run.note}"
        for run in audit.unscored
    ]


def _mean(values: Tensor) -> str:
    mean = float(values.double().mean())
    return "  n/a" if math.isnan(mean) else f"{mean:5.3f}"


def _advice(audit: Audit) -> list[str]:
    advice = audit.advice
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
            f"{remedy.words}: recovered {_percent(remedy.recovered)}, PSNR {remedy.psnr:.1f} dB{cost} "
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


def audit_client(audit: Audit) -> tuple[tuple[str, str], ...]:
    """Return (topic, words) of the simulated or captured client; () if there is none."""
    exposure = audit.exposure
    if exposure is None:
        return ()
    return (*client_facts(exposure.client, exposure.batch.samples), ("sent of the model", sent_part(exposure).words))


def audit_known(audit: Audit) -> tuple[tuple[str, str], ...]:
    """Return (defence, facts) that informed attackers of this audit knew; () if none was run and scored."""
    if audit.exposure is None or not any(is_informed(run.name) for run in audit.runs):
        return ()
    return known_facts(audit.exposure)


def _names(named: Sequence[tuple[str, str]], reason: str) -> str:
    return ", ".join(name for name, why in named if why == reason)


def metrics_of(run: AttackResult) -> dict[str, float | None]:
    """Return the mean of each registered metric over the clients."""
    learned = run.reconstruction.learned
    return {name: plain_number(float(learned[name].mean())) for name in registered("metric") if name in learned}


def plain_number(value: float | None) -> float | None:
    """Return a number that JSON can hold: None for NaN and infinity."""
    return None if value is None or not math.isfinite(value) else value


def _of_content(limits: Mapping[str, float]) -> dict[str, float]:
    """Return the limits on content: what a dishonest server reads of labels is not measured."""
    return {name: limit for name, limit in limits.items() if name != "labels"}


def _percent(share: float) -> str:
    return "n/a" if math.isnan(share) else f"{100 * share:.0f} %"
