"""How long a run takes: its work, at the rates of recorded runs on such a device.

Seconds = a calls + b operations + c (`leakscope_papers.loads`), with a, b and c fitted to the recorded runs of all papers. If a run of
the part itself is recorded, the estimate is scaled to its seconds, else to those of runs with the same networks and attacks.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from leakscope_papers.items import Item, Part, choose_items, home_of
from leakscope_papers.loads import PROGRAM_LOADS, Load, load_of_cells
from leakscope_papers.naming import setting_at
from leakscope_papers.planned import Settings, trials_of
from leakscope_papers.records import Recorded, read_recorded, recorded_file
from leakscope_papers.scales import rows_at, scale_of, scenario_at, settings_at

Kind = tuple[str, ...]  # network and attack, or program
Rates = tuple[float, float, float]  # seconds a call, an operation and a part
RECORDED, OTHERS, OPERATIONS = "recorded", "other runs", "operations"
FEWEST = 4  # recorded runs to fit rates to
USUAL: Mapping[bool, Rates] = {
    True: (2e-4, 7e-13, 1e-2),
    False: (2e-5, 5e-11, 2e-2),
}  # on a GPU or one core, for fewer runs


@dataclass(frozen=True, slots=True)
class Spent:
    """What a run of a part took: seconds, device, work, and the kinds of its attacks."""

    item: str
    part: str
    seconds: float
    device: str
    load: Load = field(default_factory=Load)
    kinds: frozenset[Kind] = frozenset()

    @property
    def on_gpu(self) -> bool:
        """Return whether it ran on a GPU."""
        return self.device != "cpu"


@dataclass(frozen=True, slots=True)
class Guess:
    """The seconds that a part will take, and what they are estimated from: `RECORDED`, `OTHERS` or `OPERATIONS`."""

    seconds: float
    source: str


def seconds_of(item: Item, part: Part, scale: str, *, gpu: bool, most: int | None = None) -> Guess:
    """Return how long a part takes with at most `most` trials a cell."""
    owner, home = home_of(item, part)
    load, kinds = planned_load(owner, home, scale, most=most)
    runs = [run for run in recorded_runs() if run.on_gpu == gpu]
    rates = rates_of(runs, gpu=gpu)
    own = [run for run in runs if (run.item, run.part) == (owner.name, home.name)][-1:]
    paper = owner.name.partition("-")[0]
    alike = [run for run in runs if run.item.startswith(f"{paper}-") and run.kinds & kinds]
    known = frozenset[Kind]().union(*(run.kinds for run in alike))
    based, source = (own, RECORDED) if own else (alike, OTHERS) if alike and kinds <= known else ([], OPERATIONS)
    factor = statistics.median(run.seconds / seconds_at(rates, run.load) for run in based) if based else 1.0
    return Guess(factor * seconds_at(rates, load), source)


def seconds_at(rates: Rates, load: Load) -> float:
    """Return the seconds of a load at these rates."""
    return sum(rate * amount for rate, amount in zip(rates, _amounts(load), strict=True))


def rates_of(runs: Iterable[Spent], *, gpu: bool) -> Rates:
    """Return the rates that fit recorded runs best, by relative error and none negative; `USUAL` ones for fewer than `FEWEST` runs."""
    import numpy as np
    from scipy.optimize import nnls

    known = [run for run in runs if run.seconds > 0]
    if len(known) < FEWEST:
        return USUAL[gpu]
    shares = np.array([[amount / run.seconds for amount in _amounts(run.load)] for run in known])
    scale = np.maximum(shares.max(0), 1e-300)  # amounts differ by many powers of ten
    fitted, _ = nnls(shares / scale, np.ones(len(known)))
    a, b, c = (float(rate) for rate in fitted / scale)
    return (a, b, c)


def _amounts(load: Load) -> tuple[float, float, float]:
    return load.calls, load.operations, 1.0


def planned_load(item: Item, part: Part, scale: str, *, most: int | None = None) -> tuple[Load, frozenset[Kind]]:
    """Return the work of a part at a scale with at most `most` trials a cell, and its kinds."""
    if part.program:
        return _program_load(part.program, settings_at(item, part, scale)), frozenset({(part.program,)})
    cells = {cell.id: cell.settings for cell in scenario_at(item, part, scale, most=most).cells() if not cell.baseline}
    loads = [(each, trials_of(each), _share(item, part, each)) for each in cells.values()]
    return load_of_cells(loads), frozenset(map(kind_of, cells.values()))


def _program_load(program: str, settings: Settings) -> Load:
    return PROGRAM_LOADS[program](settings) if program in PROGRAM_LOADS else Load()


def kind_of(settings: Settings) -> Kind:
    """Return the network and the attack of a cell."""
    return str(setting_at(settings, "model.name")), str(setting_at(settings, "attack.name"))


# -- recorded runs


@functools.cache
def recorded_runs() -> tuple[Spent, ...]:
    """Return the recorded runs of all items with their seconds, each once: shared rows belong to their owner."""
    return tuple(run for item, recorded in _recordings() for run in _runs_of(item, recorded))


@functools.cache
def _recordings() -> tuple[tuple[Item, Recorded], ...]:
    """Return the recorded rows of all items at scales whose numbers count."""
    found = [(item, scale, recorded_file(item.name, scale)) for item in choose_items(["all"]) for scale in item.scales]
    counted = [(item, scale, path) for item, scale, path in found if not scale_of(item, scale).stand_in]
    return tuple((item, read_recorded(path, item.name, scale)) for item, scale, path in counted if path.is_file())


def _runs_of(item: Item, recorded: Recorded) -> Iterable[Spent]:
    """Yield the runs of an item that had their device to themselves: the source of a row names what ran `beside` it."""
    parts = {part.name: part for part in item.parts if not part.same_as}
    runs: dict[tuple[str, str, str, str], dict[str, tuple[Settings, int, float]]] = {}
    for row in recorded.rows:
        source = row.source
        if row.part in parts and "seconds" in source and "beside" not in source and row.settings:
            key = (row.part, source["seconds"], source["device"], f"{source.get('date')} {source.get('command')}")
            settings = recorded.settings[row.settings]
            share = _used(settings, row.trials, row.outcomes, _iterations(row.values))
            runs.setdefault(key, {})[row.cell] = settings, row.trials, share  # a cell may have several readings
    for (name, seconds, device, _), cells in runs.items():
        part = parts[name]
        if part.program:
            share = len(cells) / max(len(cells), len(rows_at(item, part, recorded.scale)))
            settings = next(iter(cells.values()))[0]
            load, kinds = _program_load(part.program, settings).times(share), frozenset[Kind]({(part.program,)})
        else:
            load = load_of_cells(cells.values())
            kinds = frozenset[Kind](kind_of(settings) for settings, _, _ in cells.values())
        yield Spent(item.name, name, float(seconds), device, load, kinds)


def _iterations(values: Mapping[str, object]) -> float:
    mean = getattr(values.get("iterations_mean"), "estimate", None)
    return mean.value if mean is not None and math.isfinite(mean.value) else 0.0


def _used(settings: Settings, trials: int, outcomes: Mapping[str, int], mean: float) -> float:
    """Return the share of the allowed iterations that attacks used: those that did not converge count in full."""
    most = setting_at(settings, "attack.iterations")
    converged = outcomes.get("converged", 0) / trials if trials else 0.0
    return 1 - converged + converged * min(1.0, mean / most) if isinstance(most, int) and most > 0 else 1.0


@functools.cache
def _shares() -> Mapping[tuple[str, ...], float]:
    """Return by (item, part, attack) and by (network, attack) the share of iterations that recorded attacks used."""
    used: dict[tuple[str, ...], list[float]] = {}
    for item, recorded in _recordings():
        for row in recorded.rows:
            if row.settings and row.outcomes:
                settings = recorded.settings[row.settings]
                share = _used(settings, row.trials, row.outcomes, _iterations(row.values))
                keys: tuple[Kind, Kind] = ((item.name, row.part, kind_of(settings)[1]), kind_of(settings))
                for key in keys:
                    used.setdefault(key, []).append(share)
    return {key: statistics.fmean(shares) for key, shares in used.items()}


def _share(item: Item, part: Part, settings: Settings) -> float:
    known, kind = _shares(), kind_of(settings)
    return known.get((item.name, part.name, kind[1]), known.get(kind, 1.0))
