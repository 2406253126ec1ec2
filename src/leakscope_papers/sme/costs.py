"""SME's table 3: what one client costs DLFA, IG and SME. Time an iteration, interleaved; memory counted from the tensors made.

The paper's hours and gigabytes are those of JAX on a V100; ours are of the machine at hand, one client at a time without compilation, so
only the ratios are held against print. Pictures are random: cost does not depend on them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from leakscope.attacks.engine.forms import Evaluator
from leakscope.attacks.engine.plan import Execution
from leakscope.clients import Client, told
from leakscope.core import random
from leakscope.core.tree import to
from leakscope.core.types import LocalTraining, make_batch
from leakscope.kernels.memory import peak_bytes
from leakscope.models import Torch, build, draw_parameters
from leakscope.scenario.pieces import KINDS
from leakscope_papers.programs.rows import Keep, Place

ATTACKS = 100  # the paper's hours are for so many
REFERENCE, SIMULATION = "sme", "dlfa"


def costs(settings: Mapping[str, Any], keep: Keep, say: Callable[[str], None], device: str) -> None:
    """Keep memory, hours and, for the simulation, both as multiples of SME's, for each network and number of epochs."""
    for network in settings["networks"]:
        for one in settings["columns"]:
            rows = [(attack, *_row(settings, network, one, attack)) for attack in settings["attacks"]]
            wanted = [row for row in rows if not keep.done(row[1], row[2])]
            if wanted:
                say(f"  {network['model']['name']}, E = {one['epochs']}")
                measured = measure(settings, network, one, device)
                for attack, key, where in wanted:
                    keep.add(key, where, measured[attack["name"]])


def _row(
    settings: Mapping[str, Any], network: Mapping[str, Any], one: Mapping[str, Any], attack: Mapping[str, Any]
) -> tuple[str, Place]:
    steps = one["epochs"] * -(-settings["samples"] // settings["batch"])
    printed = network.get("printed_steps", {}).get(str(one["epochs"]), steps)  # the paper misprints one
    where: Place = {
        "data": network["data"],
        "model": network["model"]["name"],
        "samples": settings["samples"],
        "epochs": one["epochs"],
        "batch": settings["batch"],
        "local_steps": steps,
        "printed_steps": printed,
        "attack": attack["name"],
    }
    return f"{network['model']['name']} E={one['epochs']} {attack['name']}", where


def measure(
    settings: Mapping[str, Any], network: Mapping[str, Any], one: Mapping[str, Any], device: str
) -> dict[str, dict[str, list[float]]]:
    """Return by attack the numbers of a row; every repetition times all attacks in turn."""
    calls = {attack["name"]: _iteration(settings, network, one, attack, device) for attack in settings["attacks"]}
    memory = {name: peak_bytes(call) / 1e9 for name, call in calls.items()}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(settings["repeats"]):
        for name, call in calls.items():
            seconds[name].append(_seconds(call, device))
    iterations = {attack["name"]: attack["iterations"] for attack in settings["attacks"]}
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
    settings: Mapping[str, Any],
    network: Mapping[str, Any],
    one: Mapping[str, Any],
    attack: Mapping[str, Any],
    device: str,
) -> Callable[[], object]:
    """Return one evaluation of an attack on one client."""
    given = dict(network["model"])
    shape, classes, samples = tuple(network["shape"]), network["classes"], settings["samples"]
    model = to(build(given.pop("name"), shape, classes, given), device=device)
    labels = torch.arange(samples)[None] % classes
    batch = to(make_batch(random.uniform(random.key([0]), (samples, *shape)), labels, classes=classes), device=device)
    client = Client(LocalTraining(epochs=one["epochs"], batch_size=settings["batch"], rate=settings["rate"]))
    seen = client.observe(model, draw_parameters(model, Torch(), random.key([0], device=device)), batch, [0])
    knowledge = told(model, client, batch, labels=True, local=attack["name"] == SIMULATION)
    special = network.get("settings", {}).get(attack["name"], {})  # what an attack's authors use for this data alone
    recipe = KINDS["attack"].build({**attack, **special})
    problem, _ = recipe.prepare(model, seen, knowledge, [0], Execution(device=device))
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
