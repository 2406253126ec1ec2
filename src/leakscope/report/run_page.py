"""The page of a stored run; its headline says how much the strongest attack recovered, and the baselines without the update."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from leakscope.core.version import __version__
from leakscope.report.cells import ATTACK, axis_value_text, holds_text
from leakscope.report.gallery import class_namer, gallery_of
from leakscope.report.numbers import percent_interval
from leakscope.report.page_data import Page, Provenance
from leakscope.report.sections import Label, every_cell, labels_of, sections_of, thresholds_of
from leakscope.report.sheet import Results, Sheet, results_of
from leakscope.report.sources import (
    EXPORT,
    INPUTS,
    LIMITS,
    RULE,
    SENTENCES,
    TEXT_RULE,
    download_of,
    input_nouns,
    seeds_text,
)
from leakscope.report.strengths import strengths_of
from leakscope.report.tables import Row, Table, cell_table
from leakscope.report.threat import threat_of

if TYPE_CHECKING:
    from leakscope.store import Run

LONGEST_PLAN = 20_000
NOTHING = "No trial of this run has finished yet"


def page_of_run(
    run: Run,
    *,
    command: str,  # that created the page
    title: str = "",
    class_names: Mapping[str, Sequence[str]] | None = None,  # by name of the data set
    accuracy: Mapping[str, float] | None = None,  # of a model trained under a cell's defences, by cell id
    seed: int = 0,  # of the gallery's random selection
) -> Page:
    """Return the page of a stored run, finished or not."""
    results = results_of(run)
    sheet = results.sheet
    text = holds_text(sheet.cells)
    label, name = labels_of(sheet), class_namer(class_names or {})
    nouns = SENTENCES if text else _nouns(results)
    table = cell_table(sheet)
    head, explanation = headline(table, label, nouns)
    title = title or _title(sheet)
    return Page(
        title=title,
        headline=head,
        explanation=explanation,
        threat=threat_of(sheet.cells),
        rule=TEXT_RULE if text else RULE,
        limits=LIMITS,
        provenance=_provenance(run, sheet, command),
        download=download_of(sheet, f"{_file_name(title)}.csv", EXPORT) if len(sheet) else None,
        sections=sections_of(sheet),
        every=every_cell(sheet, table),
        thresholds=thresholds_of(sheet, label),
        strengths=() if text else strengths_of(results, table, label, name, accuracy),
        gallery=None if text else gallery_of(results, label, name, nouns, seed=seed),
    )


def _title(sheet: Sheet) -> str:
    names = dict.fromkeys(str(name) for cell in sheet.cells if (name := cell.settings.get("name")))
    return ", ".join(names) or "leakscope report"


def _file_name(title: str) -> str:
    words = "".join(c if c.isalnum() else "-" for c in title)
    return "-".join(part for part in words.split("-") if part)[:60] or "records"


def _nouns(results: Results) -> tuple[str, str]:
    """Return the noun for what was attacked, singular and plural: images if the first stored truth is one."""
    truth = results.tensors(0).get("truth") if len(results.sheet) else None
    return INPUTS if truth is None else input_nouns(truth.shape[1:])


def _provenance(run: Run, sheet: Sheet, command: str) -> Provenance:
    facts = run.facts()
    shown = [(_heading(name), str(value)) for name, value in facts.items() if name != "command"]
    baselines = ", baselines included" if sheet.baseline.any() else ""
    shown.append(("Trials", f"{int(sheet.first.sum()):,} in {len(sheet.cells):,} cells{baselines}"))
    shown.append(("Seeds", seeds_text(sheet)))
    shown.append(("This page", f"{command} (leakscope {__version__})"))
    plans = "\n".join(json.dumps(plan, default=str) for plan in run.plans())
    if len(plans) > LONGEST_PLAN:
        plans = plans[:LONGEST_PLAN] + f"\n… {len(plans) - LONGEST_PLAN:,} more characters, in the run's directory"
    return Provenance(command=facts.get("command", command), facts=tuple(shown), scenario=run.scenario(), plan=plans)


def _heading(name: str) -> str:
    words = name.replace("_", " ").strip()
    return words[:1].upper() + words[1:]


def headline(table: Table, label: Label, nouns: tuple[str, str]) -> tuple[str, str]:
    """Return the headline and the sentences under it, from the table of all cells."""
    attacks = [row for row in table.rows if not row.baseline and row.samples]
    if not attacks:
        return NOTHING, "The page fills as chunks of trials land."
    best = max(attacks, key=_rank if all(not row.content.value for row in attacks) else _content)
    head = f"From the update alone, {best.attack} recovered {_share(best, nouns)}"
    if not best.content.value:
        head = f"None of {best.samples:,} private {nouns[1]} was recovered, even by the strongest attack of this run"
    sentences = [_where(best, label, attacks)]
    if len(attacks) > 1:
        sentences.append(_worst(min(attacks, key=_rank), best, label))
    sentences.append(_without([row for row in table.rows if row.baseline and row.samples], nouns))
    return head, " ".join(sentence for sentence in sentences if sentence)


def _content(row: Row) -> float:
    return row.content.value


def _rank(row: Row) -> tuple[float, float]:
    """Return what ranks a row among others: the content recovered, then the mean MSE, of sentences ROUGE-1."""
    return row.content.value, row.learned["rouge1"].value if "rouge1" in row.learned else -row.mse.value


def _hits(row: Row) -> int:
    return round(row.content.value * row.content.n)


def _share(row: Row, nouns: tuple[str, str]) -> str:
    return f"{_hits(row):,} of {row.samples:,} private {nouns[row.samples > 1]}"


def _place(row: Row, label: Label) -> str:
    return ", ".join(f"{label(name)} {axis_value_text(value)}" for name, value in row.values.items() if name != ATTACK)


def _where(best: Row, label: Label, attacks: Sequence[Row]) -> str:
    interval = percent_interval(best.content)
    precision = f"95 % interval {interval}" if interval else "one trial, so no interval"
    if len(attacks) == 1:
        return f"{precision[0].upper()}{precision[1:]}."
    place = _place(best, label)
    setting = f" ({place})" if place else ""
    equals = sum(row.content.value == best.content.value for row in attacks)
    if equals > 1 and best.content.value:
        return f"The same in {equals} of {len(attacks)} settings, the first of them{setting or ' here'}; {precision}."
    return f"That is the strongest of {len(attacks)} settings{setting}; {precision}."


def _worst(row: Row, best: Row, label: Label) -> str:
    place = _place(row, label)
    attack = row.attack if row.attack != best.attack else ""
    where = ", ".join(part for part in (attack, place) if part)
    return f"In the weakest setting ({where}) it was {_hits(row):,} of {row.samples:,}." if where else ""


def _without(baselines: list[Row], nouns: tuple[str, str]) -> str:
    if not baselines:
        return ""
    best = max(baselines, key=_rank)
    return f"Without the update, the best baseline ({best.attack}) came to {_share(best, nouns)}."
