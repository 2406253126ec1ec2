"""Programs: how an item measures what is no attack of a scenario, such as the share of a gradient in a plane.

A program is `(settings, keep, say, device) -> None`. `settings` is what the item's file says at a scale, as plain data. It asks
`keep.done` for every row BEFORE it loads or computes anything, and hands each row to `keep.add` as soon as it has it, so that a
stopped program goes on where it was, and its rows can be listed without work. `say` shows a line.

Nothing is imported before it runs: the table holds places, `module:function`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, cast

from leakscope.core.registry import lookup
from leakscope.experiments.papers.programs.rows import Keep, Place, PlannedRows

Program: TypeAlias = Callable[[Mapping[str, Any], Keep, Callable[[str], None], str], None]
HERE = __name__
PROGRAMS: dict[str, str] = {
    "ats_attacks": f"{HERE}.ats:attacks",
    "ats_correlation": f"{HERE}.ats:correlation",
    "ats_curves": f"{HERE}.ats_scores:curves",
    "ats_operations": f"{HERE}.ats_scores:operations",
    "ats_random": f"{HERE}.ats_scores:random_policies",
    "federation": f"{HERE}.federation:accuracy",
    "sme_lines": f"{HERE}.sme:lines",
    "sme_trained": f"{HERE}.sme:trained",
    "sme_costs": f"{HERE}.sme_costs:costs",
    "spn_curves": f"{HERE}.spn:curves",
    "spn_cosines": f"{HERE}.spn:cosines",
    "spn_strengths": f"{HERE}.spn_federations:strengths",
    "spn_federations": f"{HERE}.spn_federations:federations",
}


def find_program(name: str) -> Program:
    """Return a program by its name; an unknown one raises an error that lists the near names."""
    module, _, function = lookup(PROGRAMS, name, "program").partition(":")
    return cast(Program, getattr(importlib.import_module(module), function))


def planned_rows(name: str, settings: Mapping[str, Any]) -> dict[str, Place]:
    """Return key -> place of the rows that a program would make with these settings; nothing is computed."""
    rows = PlannedRows()
    find_program(name)(settings, rows, lambda _: None, "cpu")
    return rows.places
