"""How long a run takes: from the seconds recorded with the rows of earlier runs of the same network and attack."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from leakscope_papers.items import Item, Part, choose_items, home_of
from leakscope_papers.naming import setting_at
from leakscope_papers.planned import Settings, trials_of
from leakscope_papers.records import Recorded, read_recorded, recorded_file
from leakscope_papers.scales import rows_at, scale_of, scenario_at

LANES = 256  # trials of a cell that a GPU attacks in the time of one: its steps are bound by latency below
Kind = tuple[str, ...]  # network and attack, or item and program


@dataclass(slots=True)
class Spent:
    """What a run of a part took: seconds, device, and its work by kind (see `work_of`)."""

    item: str
    part: str
    seconds: float
    device: str
    work: dict[Kind, float] = field(default_factory=dict)

    @property
    def on_gpu(self) -> bool:
        """Return whether it ran on a GPU."""
        return self.device != "cpu"


@dataclass(frozen=True, slots=True)
class Guess:
    """The seconds that a part will take, and the runs that they are reckoned from."""

    seconds: float
    source: str


@functools.cache
def recorded_runs() -> tuple[Spent, ...]:
    """Return the recorded runs of all items with their seconds, each once: shared rows belong to their owner."""
    runs: list[Spent] = []
    for item in choose_items(["all"]):
        for scale in item.scales:
            path = recorded_file(item.name, scale)
            if path.is_file() and not scale_of(item, scale).stand_in:
                runs += _runs_of(item, read_recorded(path, item.name, scale))
    return tuple(runs)


def _runs_of(item: Item, recorded: Recorded) -> Iterable[Spent]:
    programs = {part.name: part.program for part in item.parts if not part.same_as}
    runs: dict[tuple[str, str], Spent] = {}
    cells: set[tuple[str, str, str]] = set()
    for row in recorded.rows:
        source = row.source
        if row.part not in programs or "seconds" not in source or not row.settings:
            continue
        key = (row.part, f"{source.get('date')} {source.get('command')}")
        run = runs.setdefault(key, Spent(item.name, row.part, float(source["seconds"]), source["device"]))
        if (*key, row.cell) in cells:  # under another reading
            continue
        cells.add((*key, row.cell))
        program = programs[row.part]
        settings = recorded.settings[row.settings]
        kind = (item.name, program) if program else kind_of(settings)
        work = 1.0 if program else work_of(settings, row.trials, gpu=run.on_gpu)
        run.work[kind] = run.work.get(kind, 0.0) + work
    return runs.values()


def kind_of(settings: Settings) -> Kind:
    """Return the network and the attack of a cell."""
    return str(setting_at(settings, "model.name")), str(setting_at(settings, "attack.name"))


def work_of(settings: Settings, trials: int, *, gpu: bool) -> float:
    """Return the most evaluations of a cell one after the other, times its trials; on a GPU times LANES if they are fewer."""
    steps = [setting_at(settings, path) for path in ("attack.iterations", "attack.optimiser.inner")]
    most = [step for step in steps if isinstance(step, int) and step > 0]
    return float(functools.reduce(lambda a, b: a * b, most, max(trials, LANES if gpu else 1)))


def seconds_of(item: Item, part: Part, scale: str, *, gpu: bool, most: int | None = None) -> Guess | None:
    """Return how long a part takes with at most `most` trials a cell; None if no run with its networks and attacks is recorded.

    In proportion to the work of the last recorded run of the part if there is one on such a device, else to that of all runs of the paper
    with the same networks and attacks (their median).
    """
    owner, home = home_of(item, part)
    work = planned_work(owner, home, scale, gpu=gpu, most=most)
    runs = [run for run in recorded_runs() if run.on_gpu == gpu and set(run.work) & set(work)]
    own = [run for run in runs if (run.item, run.part) == (owner.name, home.name)][-1:]
    paper = f"{owner.name.partition('-')[0]}-"
    if own:
        return Guess(own[0].seconds / sum(own[0].work.values()) * sum(work.values()), "a recorded run of this part")
    alike = [run for run in runs if run.item.startswith(paper)]
    if not set(work) <= {kind for run in alike for kind in run.work}:
        return None
    return Guess(sum(amount * _rate(alike, kind) for kind, amount in work.items()), f"other runs of {paper[:-1]}")


def _rate(runs: Iterable[Spent], kind: Kind) -> float:
    return statistics.median(run.seconds / sum(run.work.values()) for run in runs if kind in run.work)


def planned_work(item: Item, part: Part, scale: str, *, gpu: bool, most: int | None = None) -> Mapping[Kind, float]:
    """Return the work of a part at a scale by kind, with at most `most` trials a cell."""
    if part.program:
        return {(item.name, part.program): float(len(rows_at(item, part, scale)))}
    work: dict[Kind, float] = {}
    cells = {cell.id: cell.settings for cell in scenario_at(item, part, scale, most=most).cells() if not cell.baseline}
    for settings in cells.values():
        kind = kind_of(settings)
        work[kind] = work.get(kind, 0.0) + work_of(settings, trials_of(settings), gpu=gpu)
    return work
