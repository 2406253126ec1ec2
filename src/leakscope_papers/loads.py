"""What a part computes, counted from its settings: calls one after the other, and operations.

An evaluation of an attack calls every layer once (each local step again if the attack simulates them) on all its images; its operations are
counted as `PASSES` forward passes, those of a training step as `STEP`. Nothing is trained and no image is read.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from leakscope_papers.naming import setting_at
from leakscope_papers.planned import NOT_COMPARED, Settings

PASSES, STEP = 9.0, 3.0  # forward passes: a gradient costs three, and the gradient of its mismatch six more
ALONE = 6  # how much faster products are with one set of weights for all examples
EXAMPLES = 30_000  # of a training part that is in no npz file
CLASSES = 10  # of the image sets
SCORED = 10  # gradients of ATS's privacy score of one image
INNER = 20  # evaluations of an iteration of L-BFGS
Some = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Load:
    """Work: layers called one after the other, and operations of products."""

    calls: float = 0.0
    operations: float = 0.0

    def __add__(self, other: Load) -> Load:
        """Return the work of both, one after the other."""
        return Load(self.calls + other.calls, self.operations + other.operations)

    def times(self, factor: float) -> Load:
        """Return this work a number of times."""
        return Load(self.calls * factor, self.operations * factor)


@dataclass(frozen=True, slots=True)
class Size:
    """A network on a data set: its tensors of weights, and the operations of a forward pass of one example."""

    layers: int
    operations: float

    def attack(self, iterations: float, clients: int, samples: int = 1, *, steps: int = 1, epochs: int = 1) -> Load:
        """Return the work of attacks on clients at once; `steps` of `epochs` are simulated in every evaluation."""
        evaluations = iterations * clients * samples * epochs
        return Load(iterations * self.layers * steps, evaluations * self.operations * PASSES)

    def training(self, steps: float, batch: float, together: float = 1) -> Load:
        """Return the work of training steps, `together` models at once."""
        passes = STEP if together > 1 else STEP / ALONE
        return Load(steps * self.layers, steps * batch * together * self.operations * passes)


def size_of(model: Some, data: str, size: int | None = None) -> Size:
    """Return the size of a network for a data set, its pictures resized to `size`."""
    return _size(json.dumps(model, sort_keys=True), data, size)


@functools.cache
def _size(model: str, data: str, size: int | None) -> Size:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from leakscope.data import SOURCES
    from leakscope.models import MODELS

    settings, source = json.loads(model), SOURCES[data]
    shape = (source.shape[0], size, size) if size else source.shape
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        network = MODELS[settings.pop("name")](input_shape=shape, classes=source.classes, **settings).eval()
        network(torch.empty(1, *shape))
    return Size(len(list(network.parameters())), counter.get_total_flops())


@functools.cache
def examples_of(data: str, part: str = "train") -> int:
    """Return how many examples of a data set there are; `EXAMPLES` unless it is in an npz file."""
    import numpy as np

    from leakscope.data import locate

    location = locate(data)
    if location is None or location[0].suffix != ".npz":
        return EXAMPLES
    with np.load(location[0]) as arrays:
        return len(arrays[f"y_{part}"])


def _sized(some: Some) -> Size:
    return size_of(some["model"], some["data"]["name"], some["data"].get("size"))


# -- programs: the work of all rows


def _federation(some: Some) -> Load:
    """Return the work of a training file's rounds, for each point and seed."""
    data, local, partition = some["data"], some["client"]["local"], some["partition"]
    examples = data.get("examples") or examples_of(data["name"])
    dealt = partition.get("clients", 10)
    played = max(1, round(dealt * some.get("selection", {}).get("share", 1)))
    each = examples / dealt * local.get("epochs", 1)
    batch = local.get("batch_size") or examples / dealt
    size = _sized(some)
    points = functools.reduce(lambda number, values: number * len(values), some.get("vary", {}).values(), 1)
    rounds = some["rounds"] * points * len(some["seeds"])
    return size.training(rounds * max(1.0, each / batch), batch, played)


def _cpl_melis(some: Some) -> Load:
    """Return the work of the gradients, and of the singular value decomposition of those of public pictures."""
    size, known = _sized(some), CLASSES * some["public"]
    one = size.training(1, 1, some["images"] + known) + Load(operations=6 * known**2 * size.operations)
    return one.times(len(some["seeds"]))


def _rounds(some: Some, size: Size, last: int) -> Load:
    """Return the work of SME's federation until a round: `replies` of the clients answer."""
    chosen = some.get("federation")
    if not chosen or last < 2:
        return Load()
    steps = examples_of(some["data"]["name"]) * chosen["replies"] * chosen["epochs"] / chosen["batch"]
    return size.training(last * steps, chosen["batch"])


def _sme_lines(some: Some) -> Load:
    size, clients = _sized(some), some["clients"]
    load = Load()
    for column in some["columns"]:
        steps = column["epochs"] * -(-some["samples"] // column["batch"])
        load += size.training(steps, column["batch"], clients) + size.training(some["points"], some["samples"], clients)
    return (load + _rounds(some, size, max(column["round"] for column in some["columns"]))).times(len(some["inks"]))


def _sme_trained(some: Some) -> Load:
    size = _sized(some)
    load = _rounds(some, size, max(some["rounds"]))
    for samples in some["samples"]:
        for epochs in some["epochs"]:
            steps = epochs * -(-samples // some["batch"])
            for attack in some["attacks"]:
                if steps > some.get("most_steps", {}).get(attack["name"], steps):
                    continue
                local = {"steps": steps, "epochs": epochs} if attack["name"] == "dlfa" else {}
                each = size.attack(attack.get("iterations", 1000), some["clients"], samples, **local)
                load += each.times(len(some["rounds"]))
    return load


def _sme_costs(some: Some) -> Load:
    load = Load()
    for network in some["networks"]:
        size = size_of(network["model"], "emnist_byclass" if network["data"] == "femnist" else network["data"])
        for column in some["columns"]:
            steps = column["epochs"] * -(-some["samples"] // some["batch"])
            load += size.attack(some["repeats"], 1, some["samples"], steps=steps, epochs=column["epochs"])
    return load


def _spn_training(some: Some, size: Size) -> Load:
    """Return the work of the trainings under every curve, all strengths at once."""
    chosen = some.get("training")
    if not chosen:
        return Load()
    examples = chosen["examples"] or examples_of(some["data"]["name"])
    clients = chosen["clients"]
    turns = clients if chosen["in_turn"] else 1
    steps = chosen["rounds"] * examples / clients / chosen["batch"]
    strengths = [len(curve["strengths"]) for curve in some["curves"]]
    return sum((size.training(steps * turns, chosen["batch"] * clients / turns, each) for each in strengths), Load())


def _spn_curves(some: Some) -> Load:
    size = _sized(some)
    load = _spn_training(some, size) if some.get("training") else Load()
    for batch in some["batches"]:
        for curve in some["curves"]:
            clients = len(curve["strengths"]) * (some["images"] // batch)
            load += size.attack(some["iterations"] * INNER, clients, batch).times(_attackers(some, curve))
    return load


def _attackers(some: Some, curve: Some) -> int:
    from leakscope_papers.spn.attackers import attackers_of
    from leakscope_papers.spn.settings import Curve

    fields = {name: value for name, value in curve.items() if name != "strengths"}
    return len(attackers_of(some["attackers"], Curve(strengths=tuple(curve["strengths"]), **fields)))


def _spn_cosines(some: Some) -> Load:
    return _sized(some).training(2, some["batch"], some["images"])


def _spn_federations(some: Some) -> Load:
    size, examples = _sized(some), some["examples"] or examples_of(some["data"]["name"])
    load = Load()
    for clients in some["clients"]:
        for mechanism in some["mechanisms"]:
            share = min(1.0, some["standalone"] / clients) if mechanism["kind"] == "standalone" else 1.0
            load += size.training(some["rounds"] * share * examples / some["batch"], some["batch"])
    return load


def _ats_training(some: Some, size: Size, number: int = 1) -> Load:
    """Return the work of networks of the paper's schedule, in batches of 128."""
    examples = examples_of(some["data"]["name"]) * some.get("share", 1.0)
    return size.training(some["epochs"] * examples / 128, 128).times(number)


def _ats_scoring(some: Some, size: Size) -> Load:
    chosen = some["scoring"]
    return size.training(chosen["epochs"] * min(chosen["examples"], examples_of(some["data"]["name"])) / 128, 128)


def _scores(size: Size, policies: float, images: float) -> Load:
    return size.training(images, SCORED, policies)


def _attacked(some: Some, size: Size, policies: int, *, alone: bool = False) -> Load:
    """Return the work of attacks on the test images under policies, `at_once` images in a batch."""
    whole = size.attack(some["iterations"], some["images"] * policies)
    batches = (
        policies * -(-some["images"] // some["at_once"]) if alone else -(-some["images"] * policies // some["at_once"])
    )
    return Load(whole.calls * batches, whole.operations)


def _ats_attacks(some: Some) -> Load:
    size, policies = _sized(some), len(some["policies"])
    attacks = 1 + (policies - 1) * len(some["attacks"])  # no policy is attacked by IG alone
    return _ats_training(some, size, policies) + _attacked(some, size, attacks, alone=True)


def _ats_correlation(some: Some) -> Load:
    size, networks = _sized(some), len(some["networks"])
    each = _attacked(some, size, some["policies"]).times(networks)
    scores = _scores(size, some["policies"], some["scored"])
    return _ats_training(some, size, networks) + _ats_scoring(some, size) + each + scores


def _ats_operations(some: Some) -> Load:
    size = _sized(some)
    return _ats_scoring(some, size) + _scores(size, len(some["operations"]), some["images"])


def _ats_random(some: Some) -> Load:
    size = _sized(some)
    policies = 2 * some["policies"] + 60
    accuracy = size.training(some["batches"] * policies, some["batch_size"])
    return _ats_scoring(some, size) + _scores(size, policies, some["images"]) + accuracy


def _ats_curves(some: Some) -> Load:
    return _ats_training(some, _sized(some), len(some["policies"]))


PROGRAM_LOADS: dict[str, Callable[[Some], Load]] = {
    "ats_attacks": _ats_attacks,
    "ats_correlation": _ats_correlation,
    "ats_curves": _ats_curves,
    "ats_operations": _ats_operations,
    "ats_random": _ats_random,
    "cpl_melis": _cpl_melis,
    "federation": _federation,
    "sme_lines": _sme_lines,
    "sme_trained": _sme_trained,
    "sme_costs": _sme_costs,
    "spn_curves": _spn_curves,
    "spn_cosines": _spn_cosines,
    "spn_strengths": lambda some: _spn_training(some, _sized(some)),
    "spn_federations": _spn_federations,
}


# -- scenarios


def load_of_cells(cells: Iterable[tuple[Settings, int, float]]) -> Load:
    """Return the work of cells with their numbers of clients, and the share of the allowed iterations that attacks use on average.

    Cells that differ in numbers that are no whole ones, such as strengths, run as one.
    """
    calls: dict[str, float] = {}
    operations = 0.0
    for settings, trials, share in cells:
        load = _of_cell(cast(Some, settings), trials)
        alike = json.dumps(_without_strengths(settings), sort_keys=True)
        calls[alike] = max(calls.get(alike, 0.0), load.calls)
        operations += load.operations * share
    return Load(sum(calls.values()), operations)


def _of_cell(some: Some, trials: int) -> Load:
    local = (some["client"].get("local") or {}) if some["knowledge"]["local"] else {}
    samples, epochs = some["data"]["samples"] or 1, local.get("epochs", 1)
    steps = epochs * -(-samples // (local.get("batch_size") or samples))
    return _sized(some).attack(evaluations_of(some), trials, samples, steps=steps, epochs=epochs)


def evaluations_of(settings: Settings) -> float:
    """Return the most evaluations of an attack of a cell; 1 for one without iterations."""
    paths = ("attack.iterations", "attack.optimiser.inner", "attack.restarts")
    factors = [setting_at(settings, path) for path in paths]
    return float(math.prod(factor for factor in factors if isinstance(factor, int) and factor > 0))


def _without_strengths(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _without_strengths(each) for key, each in value.items() if key not in NOT_COMPARED}
    if isinstance(value, list | tuple):
        return [_without_strengths(each) for each in value]
    return None if isinstance(value, float) else value
