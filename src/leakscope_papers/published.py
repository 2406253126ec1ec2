"""What a paper prints, read from `<paper>/published/*.yaml`: values with their place, doubts, claims. Nothing here is measured by us."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from leakscope.core.record import Plain
from leakscope.core.registry import lookup
from leakscope_papers.files import read_file
from leakscope_papers.registry import paper_files


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedRow:
    """One printed number: where it stands (axis -> value), what it measures, the value (None where the source lost it)."""

    where: Mapping[str, Plain]
    measure: str
    value: float | None
    unit: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """A table or figure of a paper. `doubts` are contradictions and open readings, `claims` sentences that can be tested."""

    rows: tuple[PrintedRow, ...] = ()
    numbers: str = ""
    paper: str
    item: str
    title: str
    doubts: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()
    source: str
    setting: str

    @property
    def measures(self) -> tuple[str, ...]:
        """Return the measures that are printed, in the order they first appear."""
        return tuple(dict.fromkeys(row.measure for row in self.rows))


def printed_files() -> dict[str, Path]:
    """Return name -> file of everything stored, such as `cpl-table-2`."""
    return dict(sorted(paper_files("published").items()))


@functools.cache
def read_printed(name: str) -> Printed:
    """Return what the paper prints for an item."""
    return read_file(lookup(printed_files(), name, "published item")).read(Printed)
