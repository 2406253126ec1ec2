"""How long a run takes: from the seconds recorded with the rows of earlier runs, of the same part where there are any."""

from __future__ import annotations

import functools
import statistics
from dataclasses import dataclass

from leakscope_papers.items import Item, Part, choose_items, home_of
from leakscope_papers.planned import trials_of
from leakscope_papers.records import read_recorded, recorded_file
from leakscope_papers.scales import rows_at, scale_of, scenario_at

LANES = 256  # trials of a cell that a GPU attacks in the time of one: its steps are bound by latency below


@dataclass(frozen=True, slots=True)
class Spent:
    """What a run of a part took: its trials and those of its largest cell (of a program: rows, 1), seconds, device."""

    item: str
    part: str
    trials: int
    of_cell: int
    seconds: float
    device: str
    of_program: bool

    @property
    def on_gpu(self) -> bool:
        """Return whether it ran on a GPU."""
        return self.device != "cpu"


@functools.cache
def recorded_runs() -> tuple[Spent, ...]:
    """Return the recorded runs of all items with their seconds, each run once: shared rows belong to their owner."""
    runs: dict[tuple[str, str, str], Spent] = {}
    for item in choose_items(["all"]):
        owned = {part.name: bool(part.program) for part in item.parts if not part.same_as}
        for scale in item.scales:
            path = recorded_file(item.name, scale)
            if not path.is_file() or scale_of(item, scale).stand_in:
                continue
            for row in read_recorded(path, item.name, scale).rows:
                if row.part in owned and "seconds" in row.source:
                    key = (item.name, row.part, f"{row.source.get('date')} {row.source.get('command')}")
                    of_cell = 1 if owned[row.part] else max(row.trials, runs[key].of_cell if key in runs else 0)
                    seconds, trials, device = (row.source[name] for name in ("seconds", "trials", "device"))
                    runs[key] = Spent(*key[:2], int(trials), of_cell, float(seconds), device, owned[row.part])
    return tuple(runs.values())


@dataclass(frozen=True, slots=True)
class Guess:
    """The seconds that a part will take, and the runs that they are reckoned from."""

    seconds: float
    source: str


def seconds_of(item: Item, part: Part, scale: str, *, gpu: bool, most: int | None = None) -> Guess | None:
    """Return how long a part takes with at most `most` trials a cell; None if no run of its paper is recorded on such a device.

    From the run of the part with the most similar number of trials, else the median over its item's or its paper's runs: in
    proportion to the cells, and to the trials of a cell from LANES on (on a CPU from the first).
    """
    owner, home = home_of(item, part)
    trials, of_cell = planned_size(owner, home, scale, most)
    runs = [run for run in recorded_runs() if run.on_gpu == gpu and run.of_program == bool(home.program)]
    own = [run for run in runs if (run.item, run.part) == (owner.name, home.name)]
    paper = f"{owner.name.partition('-')[0]}-"
    for source, alike in (
        ("a recorded run of this part", sorted(own, key=lambda run: abs(run.trials - trials))[:1]),
        (f"other parts of {owner.name}", [run for run in runs if run.item == owner.name]),
        (f"other items of {paper[:-1]}", [run for run in runs if run.item.startswith(paper)]),
    ):
        if alike:
            least = LANES if gpu and not home.program else 1
            wide = max(of_cell, least)
            every = [
                run.seconds * (trials / of_cell * wide) / (run.trials / run.of_cell * max(run.of_cell, least))
                for run in alike
            ]
            return Guess(statistics.median(every), source)
    return None


def planned_size(item: Item, part: Part, scale: str, most: int | None = None) -> tuple[int, int]:
    """Return the trials of a part at a scale, at most `most` a cell, and those of its largest cell; of a program: its rows, 1."""
    if part.program:
        return len(rows_at(item, part, scale)), 1
    cells = {cell.id: cell.settings for cell in scenario_at(item, part, scale, most=most).cells() if not cell.baseline}
    sizes = [trials_of(settings) for settings in cells.values()]
    return sum(sizes), max(sizes)
