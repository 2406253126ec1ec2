"""The plan of a run as read back from its store: checked, because a run may come from anyone."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field, ValidationError

from leakscope.core.errors import InputError
from leakscope.store.tensor_files import check_chunk_name
from leakscope.sweep.chunk import Chunk
from leakscope.sweep.plan import group_trials, make_chunk
from leakscope.sweep.trials import Sweep

MOST_THREADS = 1024


class StoredChunk(BaseModel, strict=True):
    """A chunk of a stored plan."""

    name: str
    form: str | None
    threads: Annotated[int, Field(ge=1, le=MOST_THREADS)]
    device: str
    baseline: bool
    trials: Annotated[list[str], Field(min_length=1)]


class StoredMeasurement(BaseModel, strict=True):
    """The part of a group's measurement that a resumed run uses."""

    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]


class StoredPlan(BaseModel, strict=True):
    """A plan as `Plan.plain` stores it."""

    chunks: list[StoredChunk]
    measured: dict[str, StoredMeasurement]


def read_plan(number: object, plain: object) -> StoredPlan:
    """Return a stored plan; raise if a field has another type, a name leads out of the run, or chunks share a name or a trial."""
    try:
        plan = StoredPlan.model_validate(plain)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise InputError(f"plan {number} of the run cannot be followed: {place}: {first['msg']}") from None
    for chunk in plan.chunks:
        check_chunk_name(chunk.name)
    names, trials = [chunk.name for chunk in plan.chunks], [trial for chunk in plan.chunks for trial in chunk.trials]
    if len(set(names)) < len(names) or len(set(trials)) < len(trials):
        raise InputError(f"plan {number} of the run cannot be followed: it names a chunk or a trial twice")
    return plan


def chunks_of(plan: StoredPlan, sweep: Sweep, pending: set[str], device: str) -> list[Chunk]:
    """Return the chunks of a stored plan for this device that are entirely pending and that one batch can hold."""
    by_id = {trial.id: trial for trial in sweep.trials}
    chunks = [
        make_chunk(
            chunk.name,
            [by_id[trial] for trial in chunk.trials],
            sweep,
            chunk.device,
            chunk.threads,
            chunk.form,
            chunk.baseline,
        )
        for chunk in plan.chunks
        if chunk.device == device and pending.issuperset(chunk.trials)
    ]
    groups = group_trials(sweep, [trial for chunk in chunks for trial in chunk.trials])
    group_of = {trial.id: place for place, group in enumerate(groups) for trial in group.trials}
    return [
        chunk
        for chunk in chunks
        if len(among := {group_of[trial.id] for trial in chunk.trials}) == 1
        and groups[among.pop()].baseline == chunk.baseline
    ]
