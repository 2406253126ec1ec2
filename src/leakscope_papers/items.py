"""An item: one table or figure of a paper as an experiment, joining the printed numbers with the scenarios that measure them.

`<paper>/items/<item>.yaml` (see docs/reference/paper-items.md) defines the parts to run (scenarios or programs), what a scale
changes, the names of cells in the paper's words (`where`), the readings of the paper and the attackers, and the tests of claims.
Only programs contain code for a specific paper.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path

from leakscope.core.errors import InputError
from leakscope.core.record import Plain
from leakscope.core.registry import lookup
from leakscope_papers.files import file_dataclass, natural, read_file
from leakscope_papers.plots import Plot, check_plot
from leakscope_papers.published import Printed, read_printed
from leakscope_papers.registry import paper_files, papers

Conditions = Mapping[str, Plain | list[Plain]]


@file_dataclass
class Rule:
    """How a setting becomes a word of the paper: the value at `path`, translated by `words` (paper's word -> ours)."""

    path: str
    words: Mapping[str, Plain | list[Plain]] = field(default_factory=dict)
    otherwise: Plain = None  # for values that `words` does not contain; by default they are kept
    strict: bool = False  # such values put the cell outside the item instead
    times: int = 1  # factor of a number: local steps are epochs times batches


Where = Mapping[str, Rule | Plain]


@file_dataclass
class Part:
    """One scenario of an item, or a `program` (`leakscope_papers.programs`) whose settings `scenario` holds."""

    name: str
    scenario: Mapping[str, object] = field(default_factory=dict)
    program: str = ""
    joins: bool = False  # its numbers are added to the cells of other parts at the same place, such as an accuracy
    same_as: str = ""  # use the run of another item's part ("item/part")
    note: str = ""  # how its numbers were measured differently from the paper's
    where: Where = field(default_factory=dict)


@file_dataclass
class Scale:
    """What a scale changes: in all parts, in single parts, and which parts it leaves out."""

    change: Mapping[str, object] = field(default_factory=dict)
    parts: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    leave_out: tuple[str, ...] = ()
    stand_in: str = ""  # why its numbers are not compared with the paper's, such as other data
    note: str = ""


@file_dataclass
class Reading:
    """An interpretation of the paper: the cells with these settings (`only`) of these parts (all if none is named)."""

    label: str = ""
    only: Conditions = field(default_factory=dict)
    parts: tuple[str, ...] = ()
    where: Where = field(default_factory=dict)


@file_dataclass
class Check:
    """One test of a claim on measured cells; see `cases`. Exactly one of `than`, `than_measure`, `value` and `along` is given."""

    measure: str
    must_be: str
    where: Conditions = field(default_factory=dict)
    of: Conditions = field(default_factory=dict)
    than: Conditions | None = None
    than_measure: str = ""
    minus: Conditions | None = None  # test the gap to the cell with these settings instead of the measure
    times: float = 1.0
    by: float = 0.0
    value: float | None = None
    along: str = ""
    ignoring: tuple[str, ...] = ()


@file_dataclass
class Claim:
    """A printed claim (`says`, verbatim) and how it is tested, or why it `cannot` be."""

    says: str
    checks: tuple[Check, ...] = ()
    cannot: str = ""
    likely: str = ""  # our explanation if it does not hold


@file_dataclass
class Reason:
    """The likely reason why a measure differs from print, on lines that meet `where`."""

    says: str
    measure: str = ""
    where: Conditions = field(default_factory=dict)


@file_dataclass
class Caps:
    """An axis of the paper that needs no separate run: success within a number of iterations of one long run."""

    axis: str
    at: tuple[int, ...]


@file_dataclass
class Gain:
    """A difference of cells: the `measure` of the cells `of` minus the largest of the cells `over`."""

    measure: str
    of: Conditions
    over: Conditions


@file_dataclass
class Pictures:
    """What a gallery shows: the first `trials` clients of every cell, `samples` images each, `frames` of the attack."""

    trials: int = 1
    samples: int = 1
    frames: int = 1


@file_dataclass
class Item:
    """One table or figure as an experiment."""

    name: str
    about: str
    parts: tuple[Part, ...]
    scales: Mapping[str, Scale]
    where: Where = field(default_factory=dict)
    readings: tuple[Reading, ...] = (Reading(),)
    attackers: tuple[Reading, ...] = (Reading(),)
    measures: tuple[str, ...] = ()
    gains: Mapping[str, Gain] = field(default_factory=dict)  # measures computed from several cells, by name
    absent: Mapping[str, str] = field(default_factory=dict)  # why a printed measure was not measured
    caps: Caps | None = None
    claims: tuple[Claim, ...] = ()
    reasons: tuple[Reason, ...] = ()
    pictures: Pictures | None = None
    traces: bool = False  # read the mismatch along the iterations, for measures of convergence
    plots: tuple[Plot, ...] = ()

    @property
    def printed(self) -> Printed:
        """Return the printed numbers."""
        return read_printed(self.name)

    @property
    def axes(self) -> frozenset[str]:
        """Return the axes of the item's cells."""
        rules = [self.where, *(part.where for part in self.parts), *(reading.where for reading in self.readings)]
        return frozenset(axis for where in rules for axis in where) | ({self.caps.axis} if self.caps else frozenset())


def item_files() -> dict[str, Path]:
    """Return name -> file of every item, in natural order."""
    return dict(sorted(paper_files("items").items(), key=lambda pair: natural(pair[0])))


@functools.cache
def read_item(name: str) -> Item:
    """Return an item by its name; for an unknown name the error lists similar ones."""
    path = lookup(item_files(), name, "item")
    file = read_file(path)
    item = replace(file, data={"name": name, **file.data}).read(Item)
    for number, plot in enumerate(item.plots):
        check_plot(plot, f"{path}: plots.{number}", item.axes, item.measures)
    return item


def find_part(item: Item, name: str) -> Part:
    """Return a part of an item by its name."""
    return lookup({part.name: part for part in item.parts}, name, f"part of {item.name}")


def home_of(item: Item, part: Part) -> tuple[Item, Part]:
    """Return the item and part whose run a part uses: its own, or those in `same_as`."""
    if not part.same_as:
        return item, part
    owner, _, name = part.same_as.partition("/")
    home_item = read_item(owner)
    home = find_part(home_item, name)
    if home.same_as:
        raise InputError(f"{item.name}/{part.name}: same_as {part.same_as!r} is itself no run of its own")
    return home_item, home


def choose_items(names: list[str]) -> list[Item]:
    """Return the named items; a paper's name (`cpl`) means all its items, `all` every one."""
    known = list(item_files())
    groups = {"all": known} | {paper: [n for n in known if n.startswith(f"{paper}-")] for paper in papers()}
    return [read_item(name) for name in dict.fromkeys(one for name in names for one in groups.get(name, [name]))]
