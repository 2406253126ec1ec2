"""SME's table 3: the cost of one client for DLFA, IG and SME. Iterations are timed interleaved; memory is counted from tensors.

The paper's hours and gigabytes are for JAX on a V100. Ours are for this machine, one client at a time without compilation, so
only ratios are compared. Images are random, because the cost does not depend on them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch

from leakscope.attacks.engine.forms import Evaluator
from leakscope.attacks.engine.plan import Execution
from leakscope.clients import Client
from leakscope.core import random
from leakscope.core.tree import to
from leakscope.core.types import LocalTraining, make_batch
from leakscope.kernels.memory import peak_bytes
from leakscope.models import Torch, build, draw_parameters
from leakscope.play import expose
from leakscope_papers.programs.rows import Keep, Place, Say
from leakscope_papers.programs.settings import read_settings
from leakscope_papers.sme.settings import AttackSettings, CostNetwork, CostSettings

ATTACKS = 100  # number of attacks behind the paper's hours
REFERENCE, SIMULATION = "sme", "dlfa"


def costs(settings: Mapping[str, object], keep: Keep, say: Say, device: str) -> None:
    """Store memory, hours and, for the simulation, both as multiples of SME's, for each network and number of epochs."""
    chosen = read_settings(CostSettings, settings)
    for network in chosen.networks:
        for column in chosen.columns:
            rows = [(attack.name, *_row(chosen, network, column.epochs, attack.name)) for attack in chosen.attacks]
            wanted = [row for row in rows if not keep.done(row[1], row[2])]
            if wanted:
                say(f"  {network.model.name}, E = {column.epochs}")
                measured = measure(chosen, network, column.epochs, device)
                for attack, key, where in wanted:
                    keep.add(key, where, measured[attack])


def _row(settings: CostSettings, network: CostNetwork, epochs: int, attack: str) -> tuple[str, Place]:
    steps = epochs * -(-settings.samples // settings.batch)
    where: Place = {
        "data": network.data,
        "model": network.model.name,
        "samples": settings.samples,
        "epochs": epochs,
        "batch": settings.batch,
        "local_steps": steps,
        "printed_steps": network.printed_steps.get(str(epochs), steps),
        "attack": attack,
    }
    return f"{network.model.name} E={epochs} {attack}", where


def measure(
    settings: CostSettings, network: CostNetwork, epochs: int, device: str
) -> dict[str, dict[str, list[float]]]:
    """Return attack -> the numbers of a row; every repetition times all attacks in turn."""
    calls = {attack.name: _iteration(settings, network, epochs, attack, device) for attack in settings.attacks}
    memory = {name: peak_bytes(call) / 1e9 for name, call in calls.items()}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(settings.repeats):
        for name, call in calls.items():
            seconds[name].append(_seconds(call, device))
    iterations = {attack.name: attack.build().stop.iterations for attack in settings.attacks}
    measured = {
        name: {
            "seconds_an_iteration": taken,
            "hours": [each * iterations[name] * ATTACKS / 3600 for each in taken],
            "memory": [memory[name]],
        }
        for name, taken in seconds.items()
    }
    if SIMULATION in measured and REFERENCE in measured:
        theirs, ours = measured[SIMULATION], measured[REFERENCE]
        theirs["time_ratio"] = [a / b for a, b in zip(theirs["hours"], ours["hours"], strict=True)]
        theirs["memory_ratio"] = [memory[SIMULATION] / memory[REFERENCE]]
    return measured


def _iteration(
    settings: CostSettings, network: CostNetwork, epochs: int, attack: AttackSettings, device: str
) -> Callable[[], object]:
    """Return one evaluation of an attack on one client."""
    shape, classes, samples = network.shape, network.classes, settings.samples
    model = to(build(network.model.name, shape, classes, dict(network.model.settings)), device=device)
    labels = torch.arange(samples)[None] % classes
    batch = to(make_batch(random.uniform(random.key([0]), (samples, *shape)), labels, classes=classes), device=device)
    client = Client(LocalTraining(epochs=epochs, batch_size=settings.batch, rate=settings.rate))
    weights = draw_parameters(model, Torch(), random.key([0], device=device))
    exposure = expose(model, client, weights, batch, [0], labels=True, local=attack.name == SIMULATION)
    recipe = attack.build(network.settings.get(attack.name))
    problem, _ = recipe.prepare(model, exposure.observation, exposure.knowledge, [0], Execution(device=device))
    evaluator = Evaluator(model, problem.unknowns, problem.facts, "native")
    zero = torch.zeros(1, dtype=torch.int64, device=device)
    return lambda: evaluator(problem.unknowns, zero)


def _seconds(call: Callable[[], object], device: str) -> float:
    began = _now(device)
    call()
    return _now(device) - began


def _now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()
