"""The scales smoke, small and full: an item's scenarios at one size, and the directories of their runs.

`smoke` tests in seconds that an item runs, on bundled data; `small` has at least twenty images a cell of the real sets; `full` is
the paper's size. The item's file says what a scale changes.
"""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

from leakscope.core.errors import InputError
from leakscope.core.registry import lookup
from leakscope.data import load, locate, own_copy
from leakscope_papers.items import Item, Part, Scale, home_of

if TYPE_CHECKING:
    from leakscope.scenario import Scenario
    from leakscope_papers.programs.rows import Place

SCALES = ("smoke", "small", "full")
FEMNIST = "femnist"
STAND_INS = {"emnist_byclass", "emnist_as_femnist"}  # in the place of FEMNIST
BY_WRITER = {"name": "by_writer"}


def scale_of(item: Item, scale: str) -> Scale:
    """Return what a scale changes in an item."""
    lookup(dict.fromkeys(SCALES), scale, "scale")
    return lookup(dict(item.scales), scale, f"scale of {item.name}")


def parts_at(item: Item, scale: str) -> list[Part]:
    """Return the parts of an item that a scale runs, including those shared with other items."""
    chosen = scale_of(item, scale)
    shared = [part for part in item.parts if part.name not in chosen.leave_out]
    return [
        part for part in shared if home_of(item, part)[1].name not in scale_of(home_of(item, part)[0], scale).leave_out
    ]


def settings_at(item: Item, part: Part, scale: str, *, own: bool | None = None) -> dict[str, object]:
    """Return the scenario of a part at a scale, or the settings of its program, as plain data.

    With `own`, a user's FEMNIST replaces its stand-in (`on_own_copy`); by default where $LEAKSCOPE_DATA_FEMNIST names one.
    """
    owner, home = home_of(item, part)
    chosen = scale_of(owner, scale)
    settings = {"name": f"{owner.name}, {home.name}, {scale}", **copy.deepcopy(dict(home.scenario))}
    for change in (chosen.change, chosen.parts.get(home.name, {})):
        settings = merged(settings, change)
    chosen_own = own_copy(FEMNIST) is not None if own is None else own
    return on_own_copy(settings) if chosen_own else settings


def on_own_copy(settings: Mapping[str, object]) -> dict[str, object]:
    """Return the settings of a part with the user's FEMNIST in place of its stand-in: clients are writers, the ink is FEMNIST's own.

    >>> on_own_copy({"data": {"name": "emnist_as_femnist", "order": "shuffled"}})["data"]
    {'name': 'femnist', 'order': 'writers'}
    """
    if not set(data_sets(settings)) & STAND_INS:
        return dict(settings)
    data = settings["data"]
    change: dict[str, object] = {"data": {"name": FEMNIST}}
    if isinstance(data, Mapping) and data.get("order") == "shuffled":
        change["data"] = {"name": FEMNIST, "order": "writers"}
    change |= {key: value for key, value in (("inks", ["dark"]), ("ink", "dark")) if key in settings}
    changed = merged(settings, change)
    federation = changed.get("federation")
    return changed | ({"federation": {**federation, "partition": BY_WRITER}} if isinstance(federation, Mapping) else {})


def note_of(part: Part, settings: Mapping[str, object]) -> str:
    """Return how a run differs from the paper's: the part's note, which describes the stand-in, unless it ran on the user's copy."""
    return "on the user's own FEMNIST" if FEMNIST in data_sets(settings) else part.note


def scenario_at(item: Item, part: Part, scale: str, *, own: bool | None = None, most: int | None = None) -> Scenario:
    """Return the checked scenario of a part at a scale, with at most `most` trials a cell; `own` as in `settings_at`."""
    from leakscope.scenario import ScenarioError

    settings = settings_at(item, part, scale, own=own)
    try:
        return _scenario(json.dumps(settings if most is None else with_fewer_trials(settings, most)))
    except ScenarioError as error:
        raise InputError(f"{item.name}, part {part.name}, scale {scale}: {str(error).splitlines()[0]}") from None


def with_fewer_trials(settings: Mapping[str, object], most: int) -> dict[str, object]:
    """Return a scenario with at most `most` trials a cell: the first seeds, of the first of them the first clients.

    The trials are among those of the whole scenario, so a later run of it in the same directory adds the others.

    >>> with_fewer_trials({"trials": 100, "seeds": [0, 1, 2]}, 250), with_fewer_trials({"trials": 100, "seeds": [0, 1]}, 50)
    ({'trials': 100, 'seeds': [0, 1]}, {'trials': 50, 'seeds': [0]})
    """
    clients, seeds = cast(int, settings["trials"]), cast("list[int]", settings.get("seeds", [0]))
    return {**settings, "trials": min(clients, most), "seeds": seeds[: max(1, most // clients)]}


@functools.lru_cache(maxsize=512)
def _scenario(text: str) -> Scenario:
    """Return a scenario from its settings as JSON, cached because items share parts."""
    from leakscope.scenario import scenario_of

    return scenario_of(json.loads(text))


def rows_at(item: Item, part: Part, scale: str) -> Mapping[str, Place]:
    """Return key -> place of the rows that the program of a part makes at a scale; nothing is computed."""
    return _rows(home_of(item, part)[1].program, json.dumps(settings_at(item, part, scale)))


@functools.lru_cache(maxsize=512)
def _rows(program: str, text: str) -> Mapping[str, Place]:
    from leakscope_papers.programs import planned_rows

    return planned_rows(program, json.loads(text))


def merged(settings: Mapping[str, object], change: Mapping[str, object]) -> dict[str, object]:
    """Return settings with a change: mappings are merged, other values replaced, null removes a key.

    >>> merged({"data": "mnist", "grid": {"a": [1, 2], "b": [3]}}, {"data": {"name": "digits"}, "grid": {"a": [1], "b": None}})
    {'data': {'name': 'digits'}, 'grid': {'a': [1]}}
    """
    changed = dict(settings)
    for key, value in change.items():
        if value is None:
            changed.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(inner := changed.get(key), Mapping):
            changed[key] = merged(inner, value)
        else:
            changed[key] = copy.deepcopy(value)
    return changed


def run_directory(out: Path, item: Item, part: Part, scale: str) -> Path:
    """Return the directory of a part's run, OUT/item/scale/part; for a shared run that of its owner."""
    owner, home = home_of(item, part)
    return out / owner.name / scale / home.name


def data_sets(settings: Mapping[str, object]) -> list[str]:
    """Return the data sets of a scenario, in `data` and on axes; a program may name several in `data`."""
    names: list[str] = []
    zipped = settings.get("zip", {})
    axes = [settings.get("grid", {}), *(zipped if isinstance(zipped, list) else [zipped])]
    varied = [
        value
        for axis in axes
        if isinstance(axis, Mapping)
        for path in ("data", "data.name")
        for value in axis.get(path, ())
    ]
    named = settings.get("data")
    for data in varied or (named if isinstance(named, list) else [named]):
        name = data.get("name") if isinstance(data, Mapping) else data
        if isinstance(name, str):
            names.append(name)
    return list(dict.fromkeys(names))


def check_data(items: Iterable[Item], scale: str, only: Iterable[str] = ()) -> None:
    """Raise an error that names every missing data set of a scale, and how to get it."""
    wanted: dict[str, str] = {}
    for item in items:
        for part in parts_at(item, scale):
            if not only or part.name in only:
                for name in data_sets(settings_at(item, part, scale)):
                    wanted.setdefault(name, item.name)
    missing = []
    for name, item_name in wanted.items():
        if locate(name) is None:
            try:
                load(name)
            except InputError as error:
                missing.append(f"{item_name} at scale {scale}: {error}")
    if missing:
        raise InputError("\n".join(missing))
