"""An item: one table or figure of a paper as an experiment. It joins what is printed with the scenarios that measure it.

The file `<paper>/items/<item>.yaml` says what is run (parts, each a scenario as in docs/scenarios.md, or a program with its settings), what
a scale changes, how a cell of ours is named in the words of the paper (`where`), which readings of the paper and which attackers
are told apart, and how the printed claims are tested. Nothing in the code but the programs knows a paper. docs/papers.md
describes the file.
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
    """How a setting of ours becomes a word of the paper: the value at `path`, translated by `words` (paper's word -> ours).

    A value that `words` does not name is kept as it is, or becomes `otherwise` where that is given, or (`strict`) puts the cell
    outside the item. `times` multiplies a number: local steps are epochs times the batches of one.
    """

    path: str
    words: Mapping[str, Plain | list[Plain]] = field(default_factory=dict)
    otherwise: Plain = None
    strict: bool = False
    times: int = 1


Where = Mapping[str, Rule | Plain]


@file_dataclass
class Part:
    """One scenario of an item; `same_as` takes that of another item ("item/part") and its run instead.

    With `program` it is a program (`leakscope_papers.programs`), and `scenario` holds its settings. `note` stands beside
    its numbers: how they were measured otherwise than the paper's, such as on another network. The numbers of a part that
    `joins` are those of a place, such as the accuracy under a defence: they stand with the cells of the other parts there.
    """

    name: str
    scenario: Mapping[str, object] = field(default_factory=dict)
    program: str = ""
    joins: bool = False
    same_as: str = ""
    note: str = ""
    where: Where = field(default_factory=dict)


@file_dataclass
class Scale:
    """What a scale changes: in all parts, in single parts, and which parts it leaves out.

    `stand_in` says why its numbers are not compared with the paper's, such as other data.
    """

    change: Mapping[str, object] = field(default_factory=dict)
    parts: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    leave_out: tuple[str, ...] = ()
    stand_in: str = ""
    note: str = ""


@file_dataclass
class Reading:
    """A way to understand the paper: the cells with these settings (`only`) of these parts (all if none is named).

    `where` adds rules that name them, such as what a printed strength means.
    """

    label: str = ""
    only: Conditions = field(default_factory=dict)
    parts: tuple[str, ...] = ()
    where: Where = field(default_factory=dict)


@file_dataclass
class Check:
    """One test of a claim on measured cells; see `claims`. Exactly one of `than`, `than_measure`, `value` and `along` is given.

    With `minus` the gap to the cell with these settings is tested in the place of the measure itself.
    """

    measure: str
    must_be: str
    where: Conditions = field(default_factory=dict)
    of: Conditions = field(default_factory=dict)
    than: Conditions | None = None
    than_measure: str = ""
    minus: Conditions | None = None
    times: float = 1.0
    by: float = 0.0
    value: float | None = None
    along: str = ""
    ignoring: tuple[str, ...] = ()


@file_dataclass
class Claim:
    """A printed claim (`says`, to the letter) and how it is tested, or why it `cannot` be.

    `likely` is our reason where it does not hold as it is.
    """

    says: str
    checks: tuple[Check, ...] = ()
    cannot: str = ""
    likely: str = ""


@file_dataclass
class Reason:
    """The likely reason why a measure differs from print, where the line is one of these (`where`)."""

    says: str
    measure: str = ""
    where: Conditions = field(default_factory=dict)


@file_dataclass
class Caps:
    """An axis of the paper that needs no run of its own: success within so many iterations of one long run."""

    axis: str
    at: tuple[int, ...]


@file_dataclass
class Gain:
    """A number made from cells side by side: the `measure` of the cells `of`, less the greatest of those it is `over`."""

    measure: str
    of: Conditions
    over: Conditions


@file_dataclass
class Pictures:
    """What a gallery shows: the first `trials` clients of every cell, `samples` pictures each, `frames` on the way."""

    trials: int = 1
    samples: int = 1
    frames: int = 1


@file_dataclass
class Item:
    """One table or figure as an experiment. `absent` says for a printed measure why we have no number for it.

    `gains` are measures made from cells side by side, by name. `traces` reads the mismatch of every trial along its iterations, which
    measures of convergence need.
    """

    name: str
    about: str
    parts: tuple[Part, ...]
    scales: Mapping[str, Scale]
    where: Where = field(default_factory=dict)
    readings: tuple[Reading, ...] = (Reading(),)
    attackers: tuple[Reading, ...] = (Reading(),)
    measures: tuple[str, ...] = ()
    gains: Mapping[str, Gain] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)
    caps: Caps | None = None
    claims: tuple[Claim, ...] = ()
    reasons: tuple[Reason, ...] = ()
    pictures: Pictures | None = None
    traces: bool = False
    plots: tuple[Plot, ...] = ()

    @property
    def printed(self) -> Printed:
        """Return what the paper prints."""
        return read_printed(self.name)

    @property
    def axes(self) -> frozenset[str]:
        """Return the axes that a cell of the item can have a place on."""
        rules = [self.where, *(part.where for part in self.parts), *(reading.where for reading in self.readings)]
        return frozenset(axis for where in rules for axis in where) | ({self.caps.axis} if self.caps else frozenset())


def item_files() -> dict[str, Path]:
    """Return name -> file of every item, in the order people count."""
    return dict(sorted(paper_files("items").items(), key=lambda pair: natural(pair[0])))


@functools.cache
def read_item(name: str) -> Item:
    """Return an item by its name; an unknown one raises an error that lists the near names."""
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
    """Return the item and part whose run a part uses: its own, or the one it names in `same_as`."""
    if not part.same_as:
        return item, part
    owner, _, name = part.same_as.partition("/")
    home_item = read_item(owner)
    home = find_part(home_item, name)
    if home.same_as:
        raise InputError(f"{item.name}/{part.name}: same_as {part.same_as!r} is itself no run of its own")
    return home_item, home


def choose_items(names: list[str]) -> list[Item]:
    """Return the named items; a paper's name (`cpl`) stands for all of its items, `all` for every one."""
    known = list(item_files())
    groups = {"all": known} | {paper: [n for n in known if n.startswith(f"{paper}-")] for paper in papers()}
    return [read_item(name) for name in dict.fromkeys(one for name in names for one in groups.get(name, [name]))]
