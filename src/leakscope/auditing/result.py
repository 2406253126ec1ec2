"""The result of an audit: a value that prints as text. `audit_text` has the text of its parts, `audit_record` its record for JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leakscope.auditing.attack_runs import FAILED, INTERRUPTED
from leakscope.auditing.attempts import MEANING, CutShort
from leakscope.auditing.audit_text import advice_lines, labels_words, percent, run_lines, unscored_lines
from leakscope.auditing.descriptions import client_facts, known_facts, sent_part
from leakscope.auditing.static.inspection import Inspection
from leakscope.auditing.suite import TARGETS, Untested, is_informed
from leakscope.auditing.verdict import (
    LEAKING,
    RULES,
    TEXT_RULES,
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

if TYPE_CHECKING:
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
        attacks = ", ".join(f"{run.name} {percent(run.summary.content.value)}" for run in self.runs[:SHOWN_RUNS])
        attacks = attacks if self.text is None else f"{self.text.attack} {percent(self.text.sentences.value)}"
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


def _of_content(limits: Mapping[str, float]) -> dict[str, float]:
    """Return the limits on content: what a dishonest server reads of labels is not measured."""
    return {name: limit for name, limit in limits.items() if name != "labels"}


def audit_text(audit: Audit) -> str:
    """Return the audit as text: grade, evidence, advice, and what was not tested."""
    lines = [f"{audit.name}: grade {audit.grade}: {headline(audit)}"]
    lines += [f"  {doubt}" for doubt in doubt_lines(audit)]
    if audit.static is not None:
        lines += ["  before any attack:", *(f"    {line}" for line in audit.static.shown())]
    if audit.worst is not None and audit.measures.asr is not None:
        asr = audit.measures.asr
        lines.append(
            f"  {audit.worst.name} recovered {audit.recovered} of {asr.n} examples ({percent(asr.value)}, "
            f"95 % interval {percent(asr.low)} to {percent(asr.high)})"
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
    lines += run_lines("attacks", audit.runs) + run_lines("without the update", audit.nulls)
    lines += unscored_lines(audit.unscored)
    if audit.dishonest is not None:
        lines += [f"  {DISHONEST}: {audit.dishonest.headline}", *(f"    {line}" for line in audit.dishonest.lines)]
    lines += advice_lines(audit.advice)
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


def rule_of(audit: Audit) -> str:
    """Return the rule of the grade."""
    return RULES[audit.grade] if audit.text is None else TEXT_RULES[audit.grade]


def headline(audit: Audit) -> str:
    """Return the rule of the grade, what ran how far if that decided it, and the labels that were read."""
    words = [rule_of(audit)]
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
        others = " for the others" if any(words.endswith(FAILED) for words in audit.unfinished) else ""
        advice.append(f"about {math.ceil(needed):g} minutes would be enough{others}")
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
