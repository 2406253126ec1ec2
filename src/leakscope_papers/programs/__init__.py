"""Programs measure what no scenario attack does, such as the share of a gradient in a plane.

A program is `(settings, keep, say, device) -> None`; `settings` are those of the item's file at a scale. It calls `keep.done` for
every row BEFORE it loads or computes anything, and `keep.add` as soon as a row is ready, so that it can be resumed and its rows
listed without work. The table holds `module:function` names, so that nothing is imported before it runs.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TypeAlias, cast

from leakscope.core.registry import lookup
from leakscope_papers.programs.rows import Keep, Place, PlannedRows, Say

Program: TypeAlias = Callable[[Mapping[str, object], Keep, Say, str], None]
PROGRAMS: dict[str, str] = {
    "ats_attacks": "leakscope_papers.ats.attacks:attacks",
    "ats_correlation": "leakscope_papers.ats.attacks:correlation",
    "ats_curves": "leakscope_papers.ats.scores:curves",
    "ats_operations": "leakscope_papers.ats.scores:operations",
    "ats_random": "leakscope_papers.ats.scores:random_policies",
    "cpl_melis": "leakscope_papers.cpl.melis:melis",
    "federation": "leakscope_papers.cpl.federation:accuracy",
    "sme_lines": "leakscope_papers.sme.analyses:lines",
    "sme_trained": "leakscope_papers.sme.analyses:trained",
    "sme_costs": "leakscope_papers.sme.costs:costs",
    "spn_curves": "leakscope_papers.spn.curves:curves",
    "spn_cosines": "leakscope_papers.spn.curves:cosines",
    "spn_strengths": "leakscope_papers.spn.federations:strengths",
    "spn_federations": "leakscope_papers.spn.federations:federations",
}


def find_program(name: str) -> Program:
    """Return a program by its name or `package.module:function`; for an unknown name the error lists similar ones."""
    module, _, function = (name if ":" in name else lookup(PROGRAMS, name, "program")).partition(":")
    return cast(Program, getattr(importlib.import_module(module), function))


def planned_rows(name: str, settings: Mapping[str, object]) -> dict[str, Place]:
    """Return key -> place of the rows that a program would make with these settings; nothing is computed."""
    rows = PlannedRows()
    find_program(name)(settings, rows, lambda _: None, "cpu")
    return rows.places
