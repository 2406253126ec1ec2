"""Which trials share a chunk, and how each chunk is run. The plan is made once when a run starts, then followed exactly.

A chunk has one network, sample count, attack (except strengths), knowledge and dtype; all else may differ between its trials.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial

import torch

from leakscope.attacks.attack import Matching
from leakscope.attacks.engine.footprint import Room, count_within
from leakscope.attacks.engine.form_choice import choose_form, measure_form, narrow
from leakscope.attacks.engine.forms import ON_CUDA
from leakscope.attacks.engine.plan import FEW, SHARE_OF_FREE, Execution
from leakscope.attacks.engine.state import SNAPSHOTS
from leakscope.attacks.tokens.token_attacks import TokenMatching
from leakscope.defences import Defence
from leakscope.kernels.heap import give_back
from leakscope.kernels.memory import available, peak_bytes
from leakscope.metrics import score, score_sentences
from leakscope.scenario.cell import BaselineSettings, CellSettings
from leakscope.scenario.settings import DataChoice
from leakscope.servers import Manipulation
from leakscope.sweep.chunk import Chunk, begun, client_key, expose_chunk, informed
from leakscope.sweep.engines import threads_for, usable_cores, visible_gpus
from leakscope.sweep.engines.contract import torch_threads
from leakscope.sweep.merging import shape_of
from leakscope.sweep.objects import network_of
from leakscope.sweep.trials import Sweep, Trial

WIDEST = {"cpu": 128, "cuda": 4096}
LEAST_WORTH_SPLITTING = 16
BASELINES_AT_ONCE = 512


@dataclass(frozen=True, slots=True)
class Group:
    """Trials that may share a chunk."""

    key: str
    trials: tuple[Trial, ...]
    baseline: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """Chunks in running order, the measurements behind their forms, and an upper bound on the seconds."""

    chunks: tuple[Chunk, ...]
    seconds: float = 0.0
    measured: Mapping[str, Measured] = field(default_factory=dict)

    def plain(self) -> dict[str, object]:
        """Return the plan as stored: every chunk with its trials and how it is run."""
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


def group_trials(sweep: Sweep, trials: Sequence[Trial]) -> list[Group]:
    """Return the trials grouped by shape, with equal clients adjacent within a group."""
    keys = {place: _key(settings) for place, settings in sweep.attacked.items()}
    keys |= {place: _baseline_key(settings) for place, settings in sweep.baselines.items()}
    order: dict[str, list[Trial]] = {}
    for trial in trials:
        order.setdefault(keys[trial.cell], []).append(trial)
    clients = {place: client_key(settings) for place, settings in sweep.attacked.items()}
    return [
        Group(
            key, tuple(sorted(group, key=lambda t: (clients.get(t.cell, ""), t.cell))), group[0].cell in sweep.baselines
        )
        for key, group in order.items()
    ]


def _baseline_key(settings: BaselineSettings) -> str:
    return repr((_data(settings.data), settings.data.part, settings.name, settings.metrics))


def _key(settings: CellSettings) -> str:
    """Return what must be equal for trials to be attacked as one batch."""
    known = [_kind(defence) for defence in settings.client.defences] if settings.knowledge.defence else []
    head = settings.client.on_model
    shape = None if head is None else (head.bits, head.spread)  # alpha and margin are strengths, one for each trial
    client = replace(settings.client, defences=(), on_model=None)
    parts = (known, _data(settings.data), settings.model, client, shape, settings.knowledge, settings.precision)
    asked = (settings.metrics, settings.data.part) if settings.metrics else ()  # a part has its public examples
    return repr((*parts, asked)) + shape_of(settings.attack)


def _data(choice: DataChoice) -> tuple[object, ...]:
    return (choice.name, choice.samples, choice.scaling, choice.size, choice.length, choice.words, choice.shortest)


def _kind(defence: Defence) -> tuple[str, bool]:
    """Return the type of a defence and whether it acts on each tensor: these decide which facts are revealed."""
    return type(defence).__name__, bool(getattr(defence, "each", False))


def make_plan(
    sweep: Sweep,
    trials: Sequence[Trial],
    *,
    device: str = "cpu",
    memory: int | None = None,
    cores: int | None = None,
    workers: int | None = None,
    say: Callable[[str], None] = lambda _: None,
    measure: bool = True,
) -> Plan:
    """Return the plan for these trials; `measure=False` times nothing; `workers` chunks run at a time (default: cores, one on a GPU)."""
    cores = cores or (workers if workers and device == "cpu" else usable_cores())
    groups = group_trials(sweep, trials)
    widths = [_width(group, sweep, device, cores) for group in groups]
    number = sum(-(-len(group.trials) // width) for group, width in zip(groups, widths, strict=True))
    threads = threads_for(number, cores) if device == "cpu" else 1
    workers = max(1, cores // threads) if device == "cpu" else workers or 1
    limit = share_of_memory(memory, workers, device)
    chunks: list[Chunk] = []
    measured: dict[str, Measured] = {}
    seconds = 0.0
    for place, (group, width) in enumerate(zip(groups, widths, strict=True)):
        measurement = Measured(form=_forced(group, sweep))
        if measure and not group.baseline:
            say(f"measuring group {len(measured) + 1} of {sum(not g.baseline for g in groups)}")
            measurement = measure_group(
                make_chunk("probe", group.trials[:4], sweep, device, threads), len(group.trials), width, limit
            )
            width = min(width, measurement.width)
            measured[f"group {place + 1}"] = measurement
            seconds += measurement.seconds
        chunks += [
            make_chunk(f"g{place + 1}-c{count + 1}", part, sweep, device, threads, measurement.form, group.baseline)
            for count, part in enumerate(_parts(group.trials, width))
        ]
    return Plan(tuple(chunks), seconds / workers, measured)


def _forced(group: Group, sweep: Sweep) -> str | None:
    if group.baseline:
        return None
    return sweep.attacked[group.trials[0].cell].precision.form or "native"


def _width(group: Group, sweep: Sweep, device: str, cores: int) -> int:
    """Return the largest chunk of a group: the setting if given, else by the device and small enough to use all cores."""
    if group.baseline:
        return BASELINES_AT_ONCE
    asked = sweep.attacked[group.trials[0].cell].precision.chunk
    if asked:
        return asked
    total, widest = len(group.trials), WIDEST["cuda" if device.startswith("cuda") else "cpu"]
    if device == "cpu" and total >= 2 * LEAST_WORTH_SPLITTING:
        widest = min(widest, max(LEAST_WORTH_SPLITTING, -(-total // cores)))
    if device == "cuda":  # each GPU of the machine gets a chunk
        widest = min(widest, -(-total // max(1, len(visible_gpus()))))
    return widest


def _parts(trials: Sequence[Trial], width: int) -> list[tuple[Trial, ...]]:
    """Return the trials cut into parts of about equal size, none larger than `width`."""
    number = -(-len(trials) // width)
    even = -(-len(trials) // number)
    return [tuple(trials[first : first + even]) for first in range(0, len(trials), even)]


def make_chunk(
    name: str,
    trials: Sequence[Trial],
    sweep: Sweep,
    device: str,
    threads: int,
    form: str | None = None,
    baseline: bool = False,
) -> Chunk:
    """Return a chunk of these trials, with their cells."""
    cells = {trial.cell: sweep.cells[trial.cell] for trial in trials}
    return Chunk(name, tuple(trials), cells, form, threads, device, baseline)


WORTH_CHOOSING = 20.0  # seconds of work above which timing all forms pays
SAMPLE_WIDTH = 16
FILMS = 4  # copies of the snapshots while a result is scored and stored


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of one group: form, trials that fit in memory, maximal seconds on one worker, rates of the forms."""

    form: str | None = None
    width: int = 10**9
    seconds: float = 0.0
    rates: dict[str, float] = field(default_factory=dict)
    bytes: int = 0  # predicted for a chunk

    def plain(self) -> dict[str, object]:
        """Return the fields as JSON data."""
        return asdict(self)


def share_of_memory(memory: int | None, workers: int, device: str) -> int | None:
    """Return the bytes for one of several workers: a share of `memory`, else of what is free; None if it is alone.

    >>> share_of_memory(1000, 4, "cpu"), share_of_memory(None, 1, "cuda")
    (250, None)
    """
    if memory:
        return memory // workers
    if workers == 1:
        return None  # measured where the chunk runs
    return int(available(torch.device(device)) * SHARE_OF_FREE) // workers


def measure_group(probe: Chunk, total: int, width: int, memory: int | None) -> Measured:
    """Return how to run `total` trials like the first one of the probe, at most `width` at a time."""
    limit = memory or int(available(torch.device(probe.device)) * SHARE_OF_FREE)
    give_back()  # what building the network left
    try:
        with torch_threads(probe.threads):
            return _measure(replace(probe, trials=probe.trials[:1]), total, width, limit)
    finally:
        give_back()


def _measure(probe: Chunk, total: int, width: int, limit: int) -> Measured:
    settings, device = probe.settings(), torch.device(probe.device)
    network, on_cpu = network_of(settings), device.type == "cpu"
    exposure, held, peak, _ = count_within(limit, lambda: expose_chunk(probe), network, on_cpu=on_cpu)
    truth = exposure.batch
    precision = settings.precision
    execution = Execution(device=probe.device, dtype=precision.dtype, tf32=precision.tf32, form=precision.form)
    model, knowledge = exposure.model, exposure.known(informed=True)
    attack = informed(begun(settings.attack, probe, truth), settings, knowledge, probe.seeds)
    if isinstance(attack, Manipulation):
        return Measured()
    seen = exposure.observation
    if isinstance(attack, TokenMatching):
        attack, model, seen, knowledge = attack.over_embeddings(model, seen, knowledge)
    if not isinstance(attack, Matching):
        attack.run(model, seen, knowledge, probe.seeds, execution)
        return Measured()
    problem, restarts = attack.prepare(model, seen, knowledge, probe.seeds, execution)
    compare = score_sentences if truth.tokens else score
    scored = peak_bytes(lambda: compare(truth.inputs, truth.labels, truth.inputs, truth.labels, mask=truth.mask))
    other = max(peak - held, scored + FILMS * SNAPSHOTS * truth.inputs.nbytes)
    room = Room(model, problem, attack.stop, limit, restarts=restarts, trial=held, other=other)
    form = room.settle(precision.form)
    evaluations = attack.most_evaluations() * restarts * total
    few = evaluations <= FEW
    give_back()  # what the probes left
    how = form or "native"
    live = min(width, total, room.need(how).fits(limit)) * restarts
    sample = narrow(problem, 1 if few else room.most_lanes(how, min(max(live, 4), SAMPLE_WIDTH)))
    played = form in ON_CUDA and device.type == "cuda"  # traced as in the run
    rates = {how: measure_form(model, sample, how, seconds=0.1, least=1 if few else 2, traced=played)}
    if form is None and not few and evaluations / rates["native"] > WORTH_CHOOSING:
        number = len(sample.unknowns["guess"])
        fits = partial(room.measurable, beside=number)
        native = rates["native"]
        form, rates = choose_form(model, sample, device, evaluations / number, native=native, live=live, fits=fits)
    need = room.need(form or "native")
    rounded = {name: round(value, 3) for name, value in rates.items()}
    at_once = need.fits(limit)
    predicted = need.at(min(width, total, at_once))
    return Measured(need.form, at_once, evaluations / max(rates.values()), rounded, predicted)
