"""Running a scenario: plan the missing trials, run the chunks on an engine, store the results.

The plan is stored before the first chunk starts. A resumed run follows it, so its records equal those of an uninterrupted run.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from leakscope.core.errors import InputError
from leakscope.core.plugins import plugin_facts, registered_in
from leakscope.core.progress import SILENT, ProgressOption, Reporter, reporting
from leakscope.core.provenance import gather_facts
from leakscope.core.record import Cell, nobody_knows
from leakscope.scenario import Problem, Scenario
from leakscope.scenario.attackers import cost_of_knowing
from leakscope.scenario.cell import CellSettings, read_settings
from leakscope.store import Landing, Run, Writer
from leakscope.store.directory import check_free
from leakscope.sweep.chunk import Chunk, on, play_chunk
from leakscope.sweep.engines import Engine, Needs, Note, local, never, processes, serial, usable_cores, visible_gpus
from leakscope.sweep.fit_checks import MisfitError, attack_misfits, part_misfits
from leakscope.sweep.plan import Plan, make_plan
from leakscope.sweep.stored_plan import StoredPlan, chunks_of, read_plan
from leakscope.sweep.trials import Sweep, Trial, sweep_of, unique_cells

ATTACK, MAIN = "attack", "__main__"
ONE_HOT = "client.loss mse: labels are one-hot targets, compared with the outputs as they are (no softmax)"


@dataclass(slots=True)
class Done:
    """How a run ended: its directory; trials wanted, stored before and stored now; whether it was stopped; the time spent."""

    run: Run
    wanted: int
    before: int
    landed: int = 0
    stopped: bool = False
    attack_seconds: float = 0.0
    overhead_seconds: float = 0.0
    outcomes: dict[str, int] = field(default_factory=dict)

    @property
    def left(self) -> int:
        """Return the number of missing trials."""
        return self.wanted - self.before - self.landed

    def write(self, path: str | Path) -> Path:
        """Write the page of the run and return its path."""
        return self.run.write(path)

    def _repr_html_(self) -> str:
        return self.run._repr_html_()


class Watcher(Protocol):
    """Receives the progress of a run, for a progress bar or a log."""

    def planned(self, wanted: int, before: int, chunks: int, seconds: float) -> None:
        """Report the number of trials and chunks and an upper bound on the seconds."""

    def noted(self, note: Note) -> None:
        """Report the state of a running chunk."""

    def landed(self, landing: Landing, done: Done) -> None:
        """Report that a chunk has been stored."""

    def message(self, line: str) -> None:
        """Report a message."""


@dataclass(eq=False)
class ReportingWatcher(Watcher):
    """A watcher that sends everything to one reporter."""

    report: Reporter = SILENT

    def planned(self, wanted: int, before: int, chunks: int, seconds: float) -> None:
        """Report the plan."""
        most = f"at most about {seconds:.0f} s" if seconds else "not timed"
        self.report("trials", f"{wanted - before} to run in {chunks} chunks, {most}", done=before, total=wanted)

    def noted(self, note: Note) -> None:
        """Report the state of a chunk."""
        self.report(note.chunk, "" if note.total else note.note, done=note.done, total=note.total)

    def landed(self, landing: Landing, done: Done) -> None:
        """Report the trials stored so far."""
        del landing
        self.report("trials", done=done.wanted - done.left, total=done.wanted)

    def message(self, line: str) -> None:
        """Report a message."""
        self.report("run", line)


def unfold(scenario: Scenario) -> Sweep:
    """Return all cells and trials of a scenario, after checking that data and networks fit."""
    cells = unique_cells(scenario.cells())
    return sweep_of(cells, check(scenario, cells))


def check(scenario: Scenario, cells: Sequence[Cell]) -> list[CellSettings]:
    """Return the settings of all cells; raise where parts do not fit together or an attack does not suit its client."""
    settings = [read_settings(cell.settings) for cell in cells]
    for read, find in ((_parts_read, part_misfits), (_attack_read, attack_misfits)):
        _raise_misfits(scenario, cells, settings, read, find)
    return settings


def _parts_read(settings: CellSettings) -> tuple[object, ...]:
    """Return all settings that `part_misfits` reads."""
    parts = (settings.data, settings.model, settings.weights, settings.trials, settings.baselines)
    return (
        *parts,
        settings.client.on_model,
        settings.client.loss,
        settings.recipe,
        settings.knowledge.labels,
        settings.metrics,
        (settings.client.on_data is None, settings.client.aggregate, settings.knowledge.defence),
    )


def _attack_read(settings: CellSettings) -> tuple[object, ...]:
    """Return all settings that `attack_misfits` reads."""
    client = settings.client
    shared = (client.local and client.local.optimiser, client.rounds, client.on_data is None, client.aggregate)
    defences = [type(defence).__name__ for defence in client.defences]
    return settings.recipe, shared, defences, settings.knowledge, settings.data, settings.model


def _raise_misfits(
    scenario: Scenario,
    cells: Sequence[Cell],
    settings: Sequence[CellSettings],
    read: Callable[[CellSettings], tuple[object, ...]],
    find: Callable[[CellSettings], list[Problem]],
) -> None:
    """Raise the problems of all cells; `read` returns what `find` looks at, so that equal inputs are checked once."""
    looked_at: set[str] = set()
    problems: dict[tuple[object, str], Problem] = {}
    for cell, chosen in zip(cells, settings, strict=True):
        key = repr((cell.axes.get(ATTACK), read(chosen)))
        if key not in looked_at:
            looked_at.add(key)
            placed = [_placed(problem, scenario, cell) for problem in find(chosen)]
            problems |= {(problem.path, problem.message): problem for problem in placed}
    if problems:
        raise scenario.error(list(problems.values()))


def _placed(problem: Problem, scenario: Scenario, cell: Cell) -> Problem:
    """Return a problem at the place in the file that set the field: an entry of `attacks` or a value of an axis."""
    for axis in scenario.axes:
        for number, path in enumerate(axis.paths):
            if problem.path[: len(path)] == path and axis.name in cell.axes:
                place = axis.places[axis.labels.index(cell.axes[axis.name])][number]
                return replace(problem, path=(*place, *problem.path[len(path) :]))
    return problem


@contextmanager
def naming_lines(scenario: Scenario, cells: Sequence[Cell]) -> Iterator[None]:
    """Convert a `MisfitError` raised inside to an error that names the line in the file."""
    try:
        yield
    except MisfitError as misfit:
        cell = next(cell for cell in cells if cell.id == misfit.cell)
        raise scenario.error([_placed(misfit.problem, scenario, cell)]) from None


def remarks(sweep: Sweep) -> list[str]:
    """Return messages about what settings mean or cost that their names do not show."""
    attacked = list(sweep.attacked.values())
    targets = ONE_HOT if any(settings.client.loss == "mse" for settings in attacked) else ""
    return [line for line in (targets, cost_of_knowing(attacked), nobody_knows(sweep.cells)) if line]


def run_scenario(
    scenario: Scenario,
    directory: str | Path,
    *,
    engine: Engine | None = None,
    device: str = "cpu",
    memory: int | None = None,
    workers: int | None = None,
    command: str = "",
    watcher: Watcher | None = None,
    progress: ProgressOption = None,
    stop: Callable[[], bool] = never,
    measure: bool = True,
) -> Done:
    """Run the missing trials of a scenario in a run directory (created if needed), and return how the run ended.

    `workers` is the number of processes, which share a GPU. Once `stop()` is true, running chunks are finished and stored.
    `progress` receives `ProgressEvent`s; by default they are shown in a terminal or notebook. A `watcher` receives more instead.
    """
    with reporting(progress if watcher is None else False) as report:
        watcher = watcher or ReportingWatcher(report)
        return _run(scenario, Path(directory), engine, device, memory, workers, command, watcher, stop, measure=measure)


def _run(
    scenario: Scenario,
    directory: Path,
    engine: Engine | None,
    device: str,
    memory: int | None,
    workers: int | None,
    command: str,
    watcher: Watcher,
    stop: Callable[[], bool],
    *,
    measure: bool,
) -> Done:
    began = time.perf_counter()
    sweep = unfold(scenario)
    for line in remarks(sweep):
        watcher.message(line)
    plain = [cell.settings for cell in sweep.cells]
    facts = gather_facts(command, device) | plugin_facts(plain)
    engine = _reaching(engine, plain)
    run = Run.open(directory) if Run.exists(directory) else None
    if run is None:
        check_free(directory, scenario.text)
    make = partial(
        make_plan, sweep, device=device, memory=memory, workers=workers, say=watcher.message, measure=measure
    )
    with naming_lines(scenario, sweep.cells):
        plan = None
        if run is None:  # measure before writing, so that a scenario that cannot run leaves no directory
            plan = make(sweep.trials)
            run = Run.create(directory, scenario.text, facts)
        with run.writing() as writer:
            for line in writer.verify():
                watcher.message(line)
            before = run.done() & {trial.id for trial in sweep.trials}
            chunks, seconds = _to_do(run, writer, sweep, scenario, facts, plan, device, make)
            done = Done(run, len(sweep.trials), len(before))
            watcher.planned(done.wanted, done.before, len(chunks), seconds)
            done.overhead_seconds = time.perf_counter() - began
            for landing, spent in _results(engine or _engine(workers, seconds, device), chunks, watcher, stop, done):
                start = time.perf_counter()
                writer.land(landing)
                _tidy(run, landing)
                _count(done, landing, spent + time.perf_counter() - start)
                watcher.landed(landing, done)
            done.stopped = done.left > 0
    return done


def _engine(workers: int | None, seconds: float, device: str) -> Engine:
    if workers is None:
        return local(seconds=seconds or None, gpus=visible_gpus() if device == "cuda" else ())
    return serial if workers == 1 else processes(workers, share_gpu=True)


def _reaching(engine: Engine | None, settings: Sequence[Mapping[str, object]]) -> Engine | None:
    """Return the engine, serial if none is given and a component is registered in a script or notebook: workers cannot import that."""
    unknown = [place for place, module in registered_in(settings).items() if module == MAIN]
    if not unknown or engine is serial:
        return engine
    if engine is not None:
        name = " ".join(unknown[0])
        raise InputError(
            f"{name} is registered in {MAIN}, which workers cannot import: put it into a module, or use serial"
        )
    return serial


def _to_do(
    run: Run,
    writer: Writer,
    sweep: Sweep,
    scenario: Scenario,
    facts: dict[str, str],
    plan: Plan | None,
    device: str,
    make: Callable[[Sequence[Trial]], Plan],
) -> tuple[list[Chunk], float]:
    """Return the chunks to run: those of stored plans that are entirely missing, and new ones for all other missing trials."""
    pending = {trial.id for trial in sweep.trials} - run.done()
    chunks: list[Chunk] = []
    seconds = 0.0
    for stored in reversed(run.plans()):
        content = read_plan(stored["id"], stored["plan"])
        left = chunks_of(content, sweep, pending, device)
        chunks += [on(chunk, plan=int(stored["id"]), work=run.work) for chunk in left]  # type: ignore[call-overload]
        pending -= {trial.id for chunk in left for trial in chunk.trials}
        seconds += _share(content, left)
    if pending:
        rest = [trial for trial in sweep.trials if trial.id in pending]
        if plan is None or {t.id for c in plan.chunks for t in c.trials} != pending:
            plan = make(rest)
        seconds += plan.seconds
    writer.renew(scenario.text, sweep.cells, facts)
    if pending and plan is not None:
        number = writer.add_plan(plan.plain())
        chunks += [on(chunk, plan=number, work=run.work) for chunk in plan.chunks]
    return chunks, seconds


def _share(plan: StoredPlan, left: Sequence[Chunk]) -> float:
    """Return an upper bound on the seconds for the remaining chunks of a stored plan, from its measurements."""
    whole = sum(len(chunk.trials) for chunk in plan.chunks if not chunk.baseline)
    part = sum(len(chunk.trials) for chunk in left if not chunk.baseline)
    cores = max(1, usable_cores() // max((chunk.threads for chunk in left), default=1))
    measured = sum(group.seconds for group in plan.measured.values())
    return float(measured * part / whole / cores) if whole else 0.0


def _results(
    engine: Engine, chunks: Sequence[Chunk], watcher: Watcher, stop: Callable[[], bool], done: Done
) -> Iterator[tuple[Landing, float]]:
    """Yield every chunk's result with the seconds of overhead spent on it."""
    jobs = ((chunk, Needs(threads=chunk.threads, gpus=float(chunk.device != "cpu"))) for chunk in chunks)
    for _, played in engine(play_chunk, jobs, stop=stop, on_note=watcher.noted):
        done.attack_seconds += played.landing.seconds
        yield played.landing, played.overhead_seconds


def _count(done: Done, landing: Landing, seconds: float) -> None:
    done.overhead_seconds += seconds
    done.landed += len(landing.records)
    for record in landing.records:
        done.outcomes[record.outcome] = done.outcomes.get(record.outcome, 0) + 1


def _tidy(run: Run, landing: Landing) -> None:
    """Remove the scratch directory of a stored chunk."""
    shutil.rmtree(run.work / f"{landing.plan}-{landing.chunk}", ignore_errors=True)
