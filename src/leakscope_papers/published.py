"""The printed numbers of a paper from `<paper>/published/*.yaml`: values with their place, doubts, claims."""

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
    """One printed number: its place (axis -> value), its measure, the value (None if the source lost it)."""

    where: Mapping[str, Plain]
    measure: str
    value: float | None
    unit: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """A table or figure of a paper. `doubts` are contradictions and ambiguities, `claims` testable sentences."""

    rows: tuple[PrintedRow, ...] = ()
    numbers: str = ""
    again: str = ""  # the item that prints these numbers too, so that they count once
    paper: str
    item: str
    title: str
    doubts: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()
    source: str
    setting: str

    @property
    def measures(self) -> tuple[str, ...]:
        """Return the printed measures, in order of appearance."""
        return tuple(dict.fromkeys(row.measure for row in self.rows))


def printed_files() -> dict[str, Path]:
    """Return name -> file of everything stored, such as `cpl-table-2`."""
    return dict(sorted(paper_files("published").items()))


@functools.cache
def read_printed(name: str) -> Printed:
    """Return the printed numbers of an item."""
    return read_file(lookup(printed_files(), name, "published item")).read(Printed)
