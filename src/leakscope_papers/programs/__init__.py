"""Programs: how an item measures what is no attack of a scenario, such as the share of a gradient in a plane.

A program is `(settings, keep, say, device) -> None`. `settings` is what the item's file says at a scale, as plain data. It asks
`keep.done` for every row BEFORE it loads or computes anything, and hands each row to `keep.add` as soon as it has it, so that a
stopped program goes on where it was, and its rows can be listed without work. `say` shows a line.

Nothing is imported before it runs: the table holds places, `module:function`.
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
    """Return a program by its name or its place (`package.module:function`); an unknown name raises an error with the near ones."""
    module, _, function = (name if ":" in name else lookup(PROGRAMS, name, "program")).partition(":")
    return cast(Program, getattr(importlib.import_module(module), function))


def planned_rows(name: str, settings: Mapping[str, object]) -> dict[str, Place]:
    """Return key -> place of the rows that a program would make with these settings; nothing is computed."""
    rows = PlannedRows()
    find_program(name)(settings, rows, lambda _: None, "cpu")
    return rows.places
