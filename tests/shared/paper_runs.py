"""Runs of a paper's item laid by hand: nothing is attacked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from leakscope.core.record import Cell, Record, SampleScore
from leakscope.store import Landing, Run
from leakscope_papers.items import Item, Part
from leakscope_papers.scales import run_directory, scenario_at

CPU = {"device": "cpu"}


def records_of(
    cells: Sequence[Cell], iterations: Sequence[int], score: SampleScore, outcome: str = "converged"
) -> tuple[Record, ...]:
    """Return in every cell one trial for each number of iterations, all with the same score and outcome."""
    return tuple(
        Record(
            trial=f"{place:012x}{number:012x}",
            cell=cell.id,
            number=number,
            seed=number,
            items=(number,),
            outcome=outcome,
            iterations=steps,
            evaluations=steps,
            mismatch=1e-5,
            label_overlap=None,
            seconds=0.1,
            version="0",
            samples=(score,),
        )
        for place, cell in enumerate(cells)
        for number, steps in enumerate(iterations)
    )


def lay_run(
    item: Item,
    part: Part,
    scale: str,
    out: Path,
    landing: Callable[[list[Cell]], Landing],
    facts: Mapping[str, str] = CPU,
) -> Path:
    """Lay the run of a part with one landing of all its cells; return its directory."""
    scenario = scenario_at(item, part, scale)
    cells = list({cell.id: cell for cell in scenario.cells()}.values())
    directory = run_directory(out, item, part, scale)
    with Run.create(directory, scenario.text, dict(facts)).writing() as writer:
        writer.renew(scenario.text, cells, dict(facts))
        writer.add_plan({"chunks": []})
        writer.land(landing(cells))
    return directory
