"""The page of an audit: the grade, every attack and null baseline, advice, and what was not tested."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from leakscope.auditing import COUNTED, RULES, Audit
from leakscope.auditing.advice import tried
from leakscope.auditing.attempts import MEANING
from leakscope.auditing.audit_text import helping_lines, labels_words, not_shown_lines, not_tried_lines
from leakscope.auditing.descriptions import exposure_threat_model
from leakscope.auditing.remedies import Finding as RemedyFinding
from leakscope.auditing.result import (
    DISHONEST,
    GIVEN,
    TEXT_REMEDIES,
    audit_client,
    audit_known,
    doubt_lines,
    headline,
    without_targets,
    worst_lines,
)
from leakscope.auditing.suite import INFORMED, TARGETS, is_informed
from leakscope.auditing.verdict import Grade
from leakscope.core.record import Cell
from leakscope.core.threat_models import in_letters
from leakscope.core.tree import take
from leakscope.core.types import direction
from leakscope.metrics.scoring import arrange
from leakscope.play import Exposure
from leakscope.play.exposure import is_defended
from leakscope.report.attack_page import AttackCell, attack_cell, results_of_attacks
from leakscope.report.cells import ATTACK
from leakscope.report.gallery import Spot, gallery_of
from leakscope.report.page_data import Exact, Finding, Page, Pair, Provenance, StaticRow, Threat
from leakscope.report.pictures import drawable
from leakscope.report.sections import labels_of, sections_of
from leakscope.report.sheet import Results
from leakscope.report.sources import RULE, Facts, download_of, input_nouns, machine_facts, seeds_text
from leakscope.report.threat import ALWAYS_HIDDEN, ALWAYS_KNOWN, FACTS

REMEDY = "remedy"
MOST_PAIRS = 8
SENTENCE_RULE = (
    "A sentence counts as recovered if all its tokens were recovered in order, up to a last one that a causal language model gives no "
    "gradient, and no null baseline guessed it."
)


def page_of_audit(audit: Audit, *, command: str, title: str = "leakscope audit") -> Page:
    """Return the page of an audit; it has no images if nothing could be run or scored."""
    exposure = audit.exposure
    results = None if exposure is None or not audit.runs else _results(audit, exposure)
    base = Page(
        title=title,
        headline=_headline(audit),
        explanation=_explanation(audit),
        static=_static(audit),
        findings=_findings(audit),
        text=audit.text,
        threat=_threat(audit),
        rule=RULE if audit.text is None else SENTENCE_RULE,
        limits=_limits(audit),
        provenance=Provenance(command=command, facts=_facts(audit, results)),
    )
    if results is None or exposure is None:
        return base
    sheet = results.sheet
    nouns = input_nouns(exposure.batch.inputs.shape[2:], smallest=3)  # two dimensions: sequences
    update = direction(exposure.observation.rounds[0], exposure.observation.shares)
    return replace(
        base,
        download=download_of(sheet, "leakscope-audit.csv", ""),
        sections=sections_of(sheet),
        update={name: value[0] for name, value in update.items()},
        exact=_algebra(audit, exposure),
        gallery=gallery_of(results, labels_of(sheet), _name, nouns),
    )


def _name(_: Cell, number: int, spot: Spot | None) -> str:
    return f"class {number}" if spot is None else f"client {spot[0]}, example {spot[1]} (class {number})"


def _headline(audit: Audit) -> str:
    if audit.measures.asr is None or audit.grade is Grade.INCONCLUSIVE:
        return f"Grade: {audit.grade}. {_sentence(headline(audit))}"
    read = ""
    if audit.labels is not None:
        read = f"; labels: {100 * audit.labels.share:.0f} % (guessing: {100 * audit.labels.guessing:.0f} %)"
    given = f" by an {GIVEN}; {without_targets(audit)}" if audit.needs_targets else ""
    return (
        f"Grade {audit.grade}: {audit.recovered} of {audit.measures.asr.n} private examples of {audit.name} were recovered "
        f"from updates{given}{read}"
    )


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:] + "."


def _explanation(audit: Audit) -> str:
    parts = [f"The rule of this grade: {RULES[audit.grade]}.", *([_sentence(COUNTED)] if audit.nulls else [])]
    parts += [_sentence(doubt) for doubt in doubt_lines(audit)]
    if audit.worst is not None and audit.measures.asr is not None:
        asr = audit.measures.asr
        parts.append(
            f"The attack that did most: {audit.worst.name} ({100 * asr.value:.0f} %, 95 % interval "
            f"{100 * asr.low:.0f} to {100 * asr.high:.0f} %, n = {asr.n})."
        )
    if audit.labels is not None:
        parts.append(f"Labels: {labels_words(audit.labels)}.")
    if audit.dishonest is not None:
        parts.append(f"{_sentence(DISHONEST)[:-1]}: {audit.dishonest.headline}.")
    if audit.advice is not None and audit.advice.remedies:
        best = audit.advice.remedies[0]
        cost = "" if best.lost is None else f" and costs {100 * best.lost:.0f} points of accuracy"
        parts.append(f"What would help most: {best.words}, which leaves {100 * best.recovered:.0f} % recovered{cost}.")
    return " ".join(parts)


def _static(audit: Audit) -> tuple[StaticRow, ...]:
    """Return what the model showed before any attack."""
    ran = {run.name.split(",")[0] for run in audit.runs}
    return tuple(
        StaticRow(
            topic=line.topic,
            words=line.finding,
            severity=line.severity,
            decided_by=tuple((name, name in ran) for name in line.decided_by),
            page=line.page,
        )
        for line in (() if audit.static is None else audit.static.lines)
    )


def _findings(audit: Audit) -> tuple[Finding, ...]:
    """Return the worst examples, the attacks that were cut short, and the finding on every remedy."""
    findings = []
    if worst := worst_lines(audit):
        findings.append(Finding(title="The worst", words="", lines=tuple(_sentence(line) for line in worst)))
    if audit.short:
        lines = tuple(f"{cut.name}: {cut.words}" for cut in audit.short)
        findings.append(Finding(title="Not tested long enough", words=_sentence(MEANING), lines=lines))
    if (server := audit.dishonest) is not None:
        words = (
            f"{_sentence(server.headline)} {in_letters({server.threat_model})} It had {server.public} public examples."
        )
        findings.append(Finding(title="A dishonest server", words=words, lines=server.lines))
    if audit.text is not None:
        findings.append(Finding(title="What the update shows of the text", words="", lines=audit.text.update_lines))
    if remedies := tuple(remedy.words for remedy in audit.text_remedies):
        findings.append(Finding(title="What would help", words=_sentence(TEXT_REMEDIES), lines=remedies))
    if (advice := audit.advice) is not None:
        helping = helping_lines(advice)
        words = f"Ranked {advice.ranking}." if helping else f"No remedy was shown to help ({advice.ranking})."
        lines = (*helping, *not_shown_lines(advice), *not_tried_lines(advice))
        findings.append(Finding(title="What would help", words=words, lines=lines))
    return tuple(findings)


def _limits(audit: Audit) -> str:
    left_out = "; ".join(f"{item.what} ({item.why})" for item in audit.untested)
    parts = [
        f"Not tested: {left_out}." if left_out else "",
        f"Not tested long enough: {'; '.join(cut.name for cut in audit.short)}." if audit.short else "",
        f"The audit was given {audit.minutes:g} minutes; an attacker has as long as it likes. It looked at one set of weights "
        "and one sample. An example that was not recovered may not be safe.",
        " ".join(_sentence(note) for note in audit.notes),
    ]
    return " ".join(part for part in parts if part)


def _threat(audit: Audit) -> Threat:
    exposure = audit.exposure
    if exposure is None:
        return Threat(words="Nothing was scored, for the reason given at the end of this page.", known=ALWAYS_KNOWN)
    letters = {exposure_threat_model(exposure)}
    examples = f"{exposure.batch.samples} example{'' if exposure.batch.samples == 1 else 's'}"
    return Threat(
        words=f"The attacker knows the network, its weights, the loss and how many examples were used. {in_letters(letters)}",
        setting=(
            ("clients", (f"{exposure.batch.trials}, with {examples} each",)),
            *((what, (words,)) for what, words in audit_client(audit)),
            *((run.name, (run.note,)) for run in audit.runs),
        ),
        known=(*ALWAYS_KNOWN, *([] if exposure.knowledge.local is None else [FACTS["local"]]), *_known(audit)),
        hidden=(*ALWAYS_HIDDEN, FACTS["labels"], *_hidden(audit, exposure)),
    )


def _known(audit: Audit) -> list[str]:
    """Return what only some attackers know: facts of the defences, a line each, and of the remedies."""
    lines = []
    if informed := ", ".join(run.name for run in audit.runs if TARGETS in run.name):
        lines.append(f"only attackers who know the targets ({informed}): an upper bound for the others")
    if audit.advice is not None and tried(audit.advice):
        lines.append("only where a remedy was tried: the labels, and the same facts of the remedy as of a defence")
    if facts := audit_known(audit):
        who = ", ".join(run.name.removesuffix(f", {INFORMED}") for run in audit.runs if is_informed(run.name))
        lines.append(f"only attackers who know the defences ({who}): the facts that follow")
        lines += [f"of {what}: {words}" for what, words in facts]
    return lines


def _hidden(audit: Audit, exposure: Exposure) -> list[str]:
    """Return what attackers do not know of the defences, if there are any."""
    if not is_defended(exposure.client):
        return []
    others = " (attackers who do not know the defences)" if audit_known(audit) else ""
    return [f"that the client defends itself, and how{others}"]


def _facts(audit: Audit, results: Results | None) -> Facts:
    return (
        *machine_facts(),
        ("Budget", f"{audit.minutes:g} minutes, {audit.seconds:.0f} s used"),
        ("Seeds", str(audit.seed) if results is None else seeds_text(results.sheet)),
    )


def _results(audit: Audit, exposure: Exposure) -> Results:
    """Return the audit as results of a sweep: one cell per attack, null baseline and remedy."""
    return results_of_attacks(_cells(audit, exposure), exposure.seeds)


def _cells(audit: Audit, exposure: Exposure) -> Iterator[AttackCell]:
    for number, run in enumerate(audit.runs):
        yield attack_cell(f"attack-{number}", run, exposure.batch)
    for number, run in enumerate(audit.nulls):
        yield attack_cell(f"null-{number}", run, exposure.batch, baseline=True)
    for number, remedy in enumerate(tried(audit.advice) if audit.advice else ()):
        lost = "" if remedy.lost is None else f", accuracy {round(-100 * remedy.lost):+d} points"
        finding = "" if remedy.finding is RemedyFinding.HELPS else f": {remedy.finding.value}"
        axes = {REMEDY: f"{remedy.name}, {remedy.strength}{lost}{finding}"}
        settings = {ATTACK: {"name": f"{remedy.run.name}, knows the defence"}}
        attacked = remedy.batch or take(exposure.batch, slice(0, remedy.run.reconstruction.trials))
        cell = Cell(id=f"remedy-{number}", settings=settings, axes=axes)
        yield AttackCell(cell, remedy.run, attacked, images=False)


def _algebra(audit: Audit, exposure: Exposure) -> Exact | None:
    """Return what the analytic attack recovered, closest first; its informed variant if there is one."""
    named = {run.name: run for run in audit.runs}
    run = named.get(f"analytic, {INFORMED}", named.get("analytic"))
    if run is None:
        return None
    scores, guesses = run.scores, arrange(run.reconstruction.inputs, run.scores.pairing)
    places = [(t, s) for t in range(scores.trials) for s in range(guesses.shape[1]) if bool(scores.scored[t, s])]
    places.sort(key=lambda place: float(scores.mse[place]))
    pairs = tuple(
        Pair(
            truth=drawable(exposure.batch.inputs[place]),
            recovered=drawable(guesses[place].clamp(0, 1)),
            label=f"client {place[0]}, example {place[1]}"
            + (f" (class {int(exposure.batch.labels[place])})" if exposure.batch.targets is None else ""),
            mse=float(scores.mse[place]),
        )
        for place in places[:MOST_PAIRS]
    )
    return Exact(note="The first layer is dense with a bias: its gradients give the input by a division.", pairs=pairs)
