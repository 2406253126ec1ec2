"""What the engine tests let workers do. A module of its own, because workers import their work by name."""

from __future__ import annotations

import os
import time
import uuid
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from leakscope.core.errors import InputError
from leakscope.sweep.engines import Note, report


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk that may write down in `folder` when and where it began."""

    name: str
    number: int = 0
    folder: str = ""


def begin(chunk: Chunk) -> int:
    """Write down that a chunk begins here, and return how often it began before."""
    before = len(list(Path(chunk.folder).glob(f"{chunk.name}-*")))
    (Path(chunk.folder) / f"{chunk.name}-{uuid.uuid4().hex}").write_text(str(os.getpid()), encoding="ascii")
    return before


def linger(chunk: Chunk) -> int:
    begin(chunk)
    time.sleep(0.2)
    return chunk.number


def hang_once(chunk: Chunk) -> int:
    """The victim waits to be killed the first time; all others and its second try just work."""
    if chunk.name == "victim" and begin(chunk) == 0:
        time.sleep(120)
    time.sleep(0.05)
    return chunk.number


def describe(chunk: Chunk) -> dict[str, object]:
    """Return the square of the number and what the process looks like from inside, after some notes and a warning."""
    report(Note(chunk.name, total=4, done=1, iteration=7))
    report(Note(chunk.name, total=4, done=4, converged=3, diverged=1, iteration=9))
    warnings.warn("the work warns", stacklevel=1)
    return {
        "square": chunk.number**2,
        "threads": torch.get_num_threads(),
        "omp": os.environ.get("OMP_NUM_THREADS"),
        "pid": os.getpid(),
    }


def refuse(chunk: Chunk) -> int:
    """Refuse number 2 as bad input."""
    begin(chunk)
    if chunk.number == 2:
        raise InputError(f"Chunk.number must not be {chunk.number}")
    time.sleep(0.3)
    return chunk.number


def attack(chunk: Chunk) -> dict[str, Tensor]:
    """Play four clients on bundled pictures, attack them by CPL for one step of twenty evaluations, and return the reconstruction."""
    from leakscope.attacks.engine.plan import Execution
    from leakscope.attacks.recipes import cpl
    from leakscope.clients import Client, attacker_knowledge
    from leakscope.core import random
    from leakscope.core.types import make_batch
    from leakscope.data import load
    from leakscope.models import Uniform, build, draw_parameters
    from leakscope.sweep.engines import reporter

    items = range(chunk.number, chunk.number + 4)
    data = load("fashion_mnist")
    labels = torch.as_tensor(data.labels("test", items))
    batch = make_batch(data.pictures("test", items)[:, None], labels[:, None], classes=10)
    model, client, seeds = build("lenet_cpl", (1, 28, 28), 10), Client(), list(items)
    weights = draw_parameters(model, Uniform(0.5), random.key(seeds))
    observation = client.observe(model, weights, batch, seeds)
    execution = Execution(form="native", progress=reporter(chunk.name))
    made = cpl(iterations=1).run(model, observation, attacker_knowledge(model, client, batch), seeds, execution)
    return {"inputs": made.inputs, "mismatch": made.mismatch, "trace": made.trace, "outcome": made.outcome}
