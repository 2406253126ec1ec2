"""How a group is best run on this machine: the fastest form, the width that fits in memory, the time it may take.

The first few trials are really played up to one evaluation, so that whatever cannot work (an attack that the network does not
suit, a prior that needs pictures) is refused before anything is written.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

import torch

from leakscope.attacks.attack import Matching
from leakscope.attacks.engine.forms import ON_CUDA, Evaluator
from leakscope.attacks.engine.plan import (
    FEW,
    SHARE_OF_FREE,
    Execution,
    choose_form,
    measure_form,
    narrow,
    predict_bytes,
)
from leakscope.attacks.engine.runner import form_without_vmap
from leakscope.core.errors import InputError
from leakscope.kernels.memory import available
from leakscope.sweep.chunk import Chunk, begun, expose_chunk, informed
from leakscope.sweep.engines.contract import torch_threads

WORTH_CHOOSING = 20.0  # seconds of work from which measuring all forms pays
SAMPLE_WIDTH = 16


@dataclass(frozen=True, slots=True)
class Measured:
    """What was found for one group: form, lanes that fit, seconds at most on one worker, and the rates behind the choice."""

    form: str | None = None
    width: int = 10**9
    seconds: float = 0.0
    rates: dict[str, float] = field(default_factory=dict)
    bytes_per_trial: int = 0

    def plain(self) -> dict[str, object]:
        """Return the same as JSON data."""
        return asdict(self)


def share_of_memory(memory: int | None, workers: int, device: str) -> int | None:
    """Return the bytes one of several workers may take: of `memory`, else of what a shared GPU has free.

    >>> share_of_memory(1000, 4, "cpu"), share_of_memory(None, 1, "cuda")
    (250, None)
    """
    if memory:
        return memory // workers
    if device == "cpu" or workers == 1:
        return None  # measured where the chunk runs
    return int(available(torch.device(device)) * SHARE_OF_FREE) // workers


def measure_group(probe: Chunk, total: int, width: int, memory: int | None) -> Measured:
    """Return how to run `total` trials like those of the probe, at most `width` at a time."""
    with torch_threads(probe.threads):
        exposure, settings = expose_chunk(probe), probe.settings()
        precision = settings.precision
        execution = Execution(device=probe.device, dtype=precision.dtype, tf32=precision.tf32, form=precision.form)
        model, knowledge = exposure.model, exposure.known(informed=True)
        attack = informed(begun(settings.attack, probe, exposure.batch), settings, knowledge, probe.seeds)
        if not isinstance(attack, Matching):
            attack.run(model, exposure.observation, knowledge, probe.seeds, execution)
            return Measured()
        problem, restarts = attack.prepare(model, exposure.observation, knowledge, probe.seeds, execution)
        form = precision.form or form_without_vmap(model, problem)
        device = torch.device(probe.device)
        each, fixed = predict_bytes(model, problem, form or "native")
        limit = memory or int(available(device) * SHARE_OF_FREE)
        if each * restarts + fixed > limit:
            need, have = (each * restarts + fixed) / 2**20, limit / 2**20
            raise InputError(f"one trial needs about {need:.0f} MiB, the memory limit is {have:.0f} MiB")
        fits = max(1, (limit - fixed) // (each * restarts))
        evaluations = attack.most_evaluations() * restarts * total
        few = evaluations <= FEW
        sample = narrow(problem, 1 if few else min(max(min(width, total) * restarts, 4), SAMPLE_WIDTH))
        Evaluator(model, sample.unknowns, sample.facts, form or "native")  # builds or raises
        played = form in ON_CUDA and device.type == "cuda"  # as it will be run
        how = form or "native"
        rates = {how: measure_form(model, sample, how, seconds=0.1, least=1 if few else 2, traced=played)}
        if form is None and not few and evaluations / rates["native"] > WORTH_CHOOSING:
            each_lane = evaluations / len(sample.unknowns["guess"])
            live = min(width, total) * restarts
            form, rates = choose_form(model, sample, device, each_lane, native=rates["native"], live=live)
    rate = max(rates.values())
    rounded = {name: round(value, 3) for name, value in rates.items()}
    return Measured(form or "native", int(min(fits, 10**9)), evaluations / rate, rounded, each * restarts)
