"""From a stored run to its page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np

from leakscope.core.version import __version__
from leakscope.report.gallery import class_namer, gallery_of
from leakscope.report.headline import headline
from leakscope.report.page_data import Page, Provenance
from leakscope.report.phrases import EXPORT, INPUTS, LIMITS, PICTURES, RULE
from leakscope.report.records import download_of
from leakscope.report.results import Results, StoredRun, results_of
from leakscope.report.sections import every_cell, labels_of, sections_of
from leakscope.report.sheet import Sheet
from leakscope.report.strength import strengths_of
from leakscope.report.tables import cell_table
from leakscope.report.threat import threat_of
from leakscope.report.thresholds import thresholds_of

LONGEST_PLAN = 20_000
PICTURE_RANK = 3  # N x H x W, or N x C x H x W


def page_of_run(
    run: StoredRun,
    *,
    command: str,
    title: str = "",
    class_names: Mapping[str, Sequence[str]] | None = None,
    accuracy: Mapping[str, float] | None = None,
    seed: int = 0,
) -> Page:
    """Return the page of a stored run, finished or not.

    `command` made this page. `class_names` are those of a data set, by its name. `accuracy` is that of a model trained
    under a cell's defences, by the cell's id. `seed` chooses what the gallery shows at random where it cannot show all.
    """
    results = results_of(run)
    sheet = results.sheet
    label, name, things = labels_of(sheet), class_namer(class_names or {}), _things(results)
    table = cell_table(sheet)
    head, explanation = headline(table, label, things)
    title = title or _title(sheet)
    return Page(
        title=title,
        headline=head,
        explanation=explanation,
        threat=threat_of(sheet.cells),
        rule=RULE,
        limits=LIMITS,
        provenance=_provenance(run, sheet, command),
        download=download_of(sheet, f"{_file_name(title)}.csv", EXPORT) if len(sheet) else None,
        sections=sections_of(sheet),
        every=every_cell(sheet, table),
        thresholds=thresholds_of(sheet, label),
        strengths=strengths_of(results, table, label, name, accuracy),
        gallery=gallery_of(results, label, name, things, seed=seed),
    )


def _title(sheet: Sheet) -> str:
    names = dict.fromkeys(str(cell.settings["name"]) for cell in sheet.cells if cell.settings.get("name"))
    return ", ".join(names) or "leakscope report"


def _file_name(title: str) -> str:
    kept = "".join(c if c.isalnum() else "-" for c in title)
    return "-".join(part for part in kept.split("-") if part)[:60] or "records"


def _things(results: Results) -> tuple[str, str]:
    """Return the noun for what was attacked, one and many: pictures if the first stored truth is one."""
    if not len(results.sheet):
        return INPUTS
    truth = results.tensors(0).get("truth")
    return PICTURES if truth is not None and truth.ndim >= PICTURE_RANK else INPUTS


def _provenance(run: StoredRun, sheet: Sheet, command: str) -> Provenance:
    facts = run.facts()
    shown = [(_heading(name), str(value)) for name, value in facts.items() if name != "command"]
    beside = ", baselines included" if sheet.baseline.any() else ""
    shown.append(("Trials", f"{int(sheet.first.sum()):,} in {len(sheet.cells):,} cells{beside}"))
    shown.append(("Seeds", seeds_in_words(sheet)))
    shown.append(("This page", f"{command} (leakscope {__version__})"))
    plans = "\n".join(json.dumps(plan, default=str) for plan in run.plans())
    if len(plans) > LONGEST_PLAN:
        plans = plans[:LONGEST_PLAN] + f"\n… {len(plans) - LONGEST_PLAN:,} more characters, in the run's directory"
    return Provenance(command=facts.get("command", command), facts=tuple(shown), scenario=run.scenario(), plan=plans)


def seeds_in_words(sheet: Sheet) -> str:
    """Return the seeds of all trials: from the least to the greatest, and how many."""
    seeds = np.unique(sheet.columns["seed"])
    if len(seeds) < 2:
        return ", ".join(str(seed) for seed in seeds) or "none yet"
    return f"{seeds[0]} to {seeds[-1]}, {len(seeds):,} of them"


def _heading(name: str) -> str:
    words = name.replace("_", " ").strip()
    return words[:1].upper() + words[1:]
