"""Which trials share a chunk, and how each chunk is run. Made once when a run starts, then followed to the letter.

Trials of the same shape go together: images, seeds, weights, defences and strengths differ inside a chunk. What must be
equal is what the attack's program is made of: network, sample count, attack (but for strengths), knowledge, dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from leakscope.core.record import Cell
from leakscope.defences import Defence
from leakscope.scenario.cell import read_baseline, read_settings
from leakscope.scenario.settings import DataChoice
from leakscope.sweep.chunk import Chunk, client_key
from leakscope.sweep.engines import threads_for, usable_cores
from leakscope.sweep.measuring import Measured, measure_group, share_of_memory
from leakscope.sweep.merging import shape_of
from leakscope.sweep.trials import Trial

WIDEST = {"cpu": 128, "cuda": 4096}
LEAST_WORTH_SPLITTING = 16
BASELINES_AT_ONCE = 512


@dataclass(frozen=True, slots=True)
class Group:
    """Trials of one shape."""

    key: str
    trials: tuple[Trial, ...]
    baseline: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """Chunks in the order they are run, with what was measured to choose their form and the seconds they may take at most."""

    chunks: tuple[Chunk, ...]
    seconds: float = 0.0
    measured: Mapping[str, Measured] = field(default_factory=dict)

    def plain(self) -> dict[str, object]:
        """Return the plan as it is written down: it names every trial of every chunk and how the chunk is run."""
        return {
            "chunks": [
                {
                    "name": chunk.name,
                    "form": chunk.form,
                    "threads": chunk.threads,
                    "device": chunk.device,
                    "baseline": chunk.baseline,
                    "trials": [trial.id for trial in chunk.trials],
                }
                for chunk in self.chunks
            ],
            "measured": {name: group.plain() for name, group in self.measured.items()},
        }


def group_trials(cells: Sequence[Cell], trials: Sequence[Trial]) -> list[Group]:
    """Return the trials by shape, each group's trials with equal clients beside each other."""
    keys = [_key(cell) for cell in cells]
    order: dict[str, list[Trial]] = {}
    for trial in trials:
        order.setdefault(keys[trial.cell], []).append(trial)
    clients = ["" if cell.baseline else client_key(read_settings(cell.settings)) for cell in cells]
    return [
        Group(key, tuple(sorted(group, key=lambda t: (clients[t.cell], t.cell))), cells[group[0].cell].baseline)
        for key, group in order.items()
    ]


def _key(cell: Cell) -> str:
    """Return what must be equal for trials to be attacked as one batch."""
    if cell.baseline:
        baseline = read_baseline(cell.settings)
        return repr((_data(baseline.data), baseline.data.part, baseline.name))
    settings = read_settings(cell.settings)
    known = [_kind(defence) for defence in settings.client.defences] if settings.knowledge.defence else []
    head = settings.client.on_model
    shape = None if head is None else (head.bits, head.spread)  # its weights are strengths: one for each trial
    client = replace(settings.client, defences=(), on_model=None)
    parts = (known, _data(settings.data), settings.model, client, shape, settings.knowledge, settings.precision)
    return repr(parts) + shape_of(settings.attack)


def _data(choice: DataChoice) -> tuple[object, ...]:
    return (choice.name, choice.samples, choice.scaling, choice.size)


def _kind(defence: Defence) -> tuple[str, bool]:
    """Return what of a defence decides which facts are revealed: those of every tensor are others than those of the whole."""
    return type(defence).__name__, bool(getattr(defence, "each", False))


def make_plan(
    cells: Sequence[Cell],
    trials: Sequence[Trial],
    *,
    device: str = "cpu",
    memory: int | None = None,
    cores: int | None = None,
    workers: int | None = None,
    say: Callable[[str], None] = lambda _: None,
    measure: bool = True,
) -> Plan:
    """Return the plan for these trials; `measure=False` takes the plain forms and estimates nothing.

    `workers` is how many chunks are in hand at a time: the cores by default, one on a GPU.
    """
    cores = cores or (workers if workers and device == "cpu" else usable_cores())
    groups = group_trials(cells, trials)
    table = dict(enumerate(cells))
    widths = [_width(group, table, device, cores) for group in groups]
    number = sum(-(-len(group.trials) // width) for group, width in zip(groups, widths, strict=True))
    threads = threads_for(number, cores) if device == "cpu" else 1
    workers = max(1, cores // threads) if device == "cpu" else workers or 1
    limit = share_of_memory(memory, workers, device)
    chunks: list[Chunk] = []
    measured: dict[str, Measured] = {}
    seconds = 0.0
    for place, (group, width) in enumerate(zip(groups, widths, strict=True)):
        measurement = Measured(form=_forced(group, table))
        if measure and not group.baseline:
            say(f"measuring group {len(measured) + 1} of {sum(not g.baseline for g in groups)}")
            measurement = measure_group(
                _chunk("probe", group.trials[:4], table, device, threads), len(group.trials), width, limit
            )
            width = min(width, measurement.width)
            measured[f"group {place + 1}"] = measurement
            seconds += measurement.seconds
        chunks += [
            _chunk(f"g{place + 1}-c{count + 1}", part, table, device, threads, measurement.form, group.baseline)
            for count, part in enumerate(_parts(group.trials, width))
        ]
    return Plan(tuple(chunks), seconds / workers, measured)


def _forced(group: Group, table: Mapping[int, Cell]) -> str | None:
    if group.baseline:
        return None
    return read_settings(table[group.trials[0].cell].settings).precision.form or "native"


def _width(group: Group, table: Mapping[int, Cell], device: str, cores: int) -> int:
    """Return the widest chunk of a group: as asked, else wide enough for the device and narrow enough for all cores."""
    if group.baseline:
        return BASELINES_AT_ONCE
    asked = read_settings(table[group.trials[0].cell].settings).precision.chunk
    if asked:
        return asked
    total, widest = len(group.trials), WIDEST["cuda" if device.startswith("cuda") else "cpu"]
    if device == "cpu" and total >= 2 * LEAST_WORTH_SPLITTING:
        widest = min(widest, max(LEAST_WORTH_SPLITTING, -(-total // cores)))
    return widest


def _parts(trials: Sequence[Trial], width: int) -> list[tuple[Trial, ...]]:
    """Return the trials cut into parts of about equal size, none wider than `width`."""
    number = -(-len(trials) // width)
    even = -(-len(trials) // number)
    return [tuple(trials[first : first + even]) for first in range(0, len(trials), even)]


def _chunk(
    name: str,
    trials: Sequence[Trial],
    table: Mapping[int, Cell],
    device: str,
    threads: int,
    form: str | None = None,
    baseline: bool = False,
) -> Chunk:
    cells = {trial.cell: table[trial.cell] for trial in trials}
    return Chunk(name, tuple(trials), cells, form, threads, device, baseline)


def chunks_of(
    plain: Mapping[str, Any], by_id: Mapping[str, Trial], cells: Sequence[Cell], pending: set[str], device: str
) -> list[Chunk]:
    """Return the chunks of a stored plan that are wholly pending: what is left to do of it.

    A plan for another device is not followed: its forms were chosen there.
    """
    table = dict(enumerate(cells))
    return [
        _chunk(
            chunk["name"],
            [by_id[trial] for trial in chunk["trials"]],
            table,
            chunk["device"],
            chunk["threads"],
            chunk["form"],
            chunk["baseline"],
        )
        for chunk in plain["chunks"]
        if chunk["device"] == device and pending.issuperset(chunk["trials"])
    ]
