"""SPN's characteristics: reconstruction, membership and tracing at every strength of a defence, CAP, and cosines of gradients.

Fan et al. 2020, arXiv:2006.11601, tables 1 and 7 to 10, figures 1, 4, 5, 26 and 27. All strengths of a curve are attacked as one batch,
with the same pictures, weights, starts and draws. rMSE is of the guess clamped to the valid box, so that no diverged trial
carries a CAP (`analysis.characteristic.Rule`); `rmse_raw` is of the guess as the attack left it, at most 10.

Rows hold numbers whose mean is the value and whose spread is its error: of every trial (iterations, rMSE, labels), of every
reconstruction (tracing, `inference.tracing.by_cluster`), for a median of ratios `around_median`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from leakscope.analysis.characteristic import Rule, around_median, bias_ratio
from leakscope.attacks.engine.plan import Execution
from leakscope.clients import Client, tell_defences, told
from leakscope.core.tree import Tree, dot, lift, norm
from leakscope.core.types import Reconstruction
from leakscope.data import Dataset
from leakscope.defences.on_model import Polarisation
from leakscope.inference.membership import membership
from leakscope.inference.tracing import Tracing, trace_each
from leakscope.metrics import arrange, clean, match
from leakscope.sweep.objects import load_data
from leakscope_papers.programs.rows import Keep, Place
from leakscope_papers.spn.caps import (
    CAPS,
    PRINTED,
    TRAINED,
    caps_of,
    guessed_cap,
    printed_pictures,
)
from leakscope_papers.spn.training import kept_curve
from leakscope_papers.spn.world import (
    AWARE,
    RANGE,
    Attacked,
    Curve,
    attack_of,
    attacked_of,
    attackers_of,
    client_of,
    place_of,
    printed_accuracies,
    title_of,
)

Say = Callable[[str], None]
RAW_CAP = 10.0
ALL, PARTS = "all", "tracing by participants"
PRODUCT = "accuracy_x_"  # before the name of a distance: that times the accuracy
DISTANCES = ("rmse", "membership", "tracing")
Numbers = dict[str, list[float]]
Asked = tuple[str, Place]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A curve against one attacker at one batch: keys and places of its rows, by strength, (strength, owners), (CAP, accuracies)."""

    curve: Curve
    samples: int
    attacker: str
    strengths: Mapping[int, Asked]
    parts: Mapping[tuple[int, int], Asked]
    caps: Mapping[tuple[str, str], Asked]


@dataclass(frozen=True, slots=True)
class Measured:
    """What one strength has: numbers by measure, and those of tracing for every number of participants."""

    numbers: Numbers
    parts: Mapping[int, Numbers]


def curves(settings: Mapping[str, Any], keep: Keep, say: Say, device: str) -> None:
    """Keep for each strength distances, ratio, accuracy and products; for each curve its CAP by attack and kind of accuracies."""
    name = settings["data"]["name"]
    wanted = [one for curve in settings["curves"] for one in _wanted(settings, curve, keep)]
    data = load_data(name) if wanted else None
    for curve in settings["curves"]:
        missing = [one for one in wanted if one.curve is curve]
        if not missing or data is None:
            continue
        say(f"{name}, {title_of(curve)}")
        right = kept_curve(settings, curve, data, keep.directory, say, device) if settings.get("training") else None
        for one in missing:
            attacked = attacked_of(settings, data, one.samples)
            attacks = attack_curve(settings, attacked, curve, one.attacker, device)
            pictures = {TRAINED: right, PRINTED: _printed(data, name, curve)}
            _add(keep, one, attacks, pictures, settings["owners"])


def _wanted(settings: Mapping[str, Any], curve: Curve, keep: Keep) -> list[Wanted]:
    """Return what is missing of a curve, attacker by attacker."""
    missing = []
    for samples in settings["batches"]:
        for attacker in attackers_of(settings, curve):
            rows = [
                {which: row for which, row in some.items() if not keep.done(*row)}
                for some in _rows(settings, curve, samples, attacker)
            ]
            if any(rows):
                missing.append(Wanted(curve, samples, attacker, *rows))
    return missing


def _rows(
    settings: Mapping[str, Any], curve: Curve, samples: int, attacker: str
) -> tuple[dict[Any, Asked], dict[Any, Asked], dict[Any, Asked]]:
    """Return the rows by strength, by strength and number of participants, and by CAP and accuracies."""
    base = {"data": settings["data"]["name"], "model": settings["model"]["name"], "batch": samples}
    base |= {"attacker": attacker}
    title = f"{title_of(curve)} B={samples} {attacker}"
    strengths: dict[Any, Asked] = {}
    parts: dict[Any, Asked] = {}
    for number, strength in enumerate(curve["strengths"]):
        place = {**base, **place_of(curve, strength), "strength": strength}
        strengths[number] = (f"{title} {strength:g}", {**place, "attack": ALL, "owners": settings["owners"]})
        for owners in settings.get("owners_too", ()):
            key = f"{title} {strength:g} among {owners}"
            parts[number, owners] = (key, {**place, "attack": PARTS, "owners": owners})
    caps: dict[Any, Asked] = {
        (cap, kind): (
            f"{title} CAP of {cap}, {kind}",
            {**base, **place_of(curve), "attack": value.attack, "queries": value.queries, "accuracies": kind},
        )
        for cap, value in CAPS.items()
        for kind in settings["accuracies"]
    }
    return strengths, parts, caps


def _printed(data: Dataset, name: str, curve: Curve) -> Tensor | None:
    rates = printed_accuracies(name, curve)
    return None if rates is None else printed_pictures(rates, data.size("test"))


def _add(keep: Keep, one: Wanted, attacks: list[Measured], pictures: Mapping[str, Tensor | None], owners: int) -> None:
    right = pictures[TRAINED]
    for number, (key, where) in one.strengths.items():
        trained = {} if right is None else _trained(right[number], attacks[number])
        keep.add(key, where, {**attacks[number].numbers, **trained})
    for (number, parts), (key, where) in one.parts.items():
        keep.add(key, where, attacks[number].parts[parts])
    for (cap, kind), (key, where) in one.caps.items():
        known = pictures[kind]
        values: Numbers = {name: [] for name in CAPS[cap].measures}
        if known is not None:
            values = {
                name: caps_of(known, [row.numbers[of] for row in attacks]) for name, of in CAPS[cap].measures.items()
            }
            values |= {"cap_chance": guessed_cap(known, owners)} if CAPS[cap].attack == "tracing" else {}
        keep.add(key, where, values)


def _trained(right: Tensor, measured: Measured) -> Numbers:
    """Return what a strength has of the training: its accuracy, and each distance times it (a CAP over one strength)."""
    products = {PRODUCT + name: caps_of(right[None], [measured.numbers[name]]) for name in DISTANCES}
    return {"accuracy": right.double().tolist(), **products}


def attack_curve(
    settings: Mapping[str, Any], attacked: Attacked, curve: Curve, attacker: str, device: str
) -> list[Measured]:
    """Return what each strength has."""
    times, trials = len(curve["strengths"]), len(attacked.seeds)
    strengths = torch.tensor([float(s) for s in curve["strengths"]]).repeat_interleave(trials)
    batch, weights, seeds = attacked.repeated(times)
    client = client_of(curve, strengths)
    seen = client.observe(attacked.model, weights, batch, seeds)
    plain = Client().observe(attacked.model, weights, batch, seeds)
    ratio = bias_ratio(plain.rounds[0].sent, seen.rounds[0].sent)
    knowledge = told(attacked.model, client, batch)
    if attacker == AWARE:
        knowledge = tell_defences(knowledge, client, seen)
    attack = attack_of(attacker, client, knowledge, strengths, settings["iterations"], settings["threshold"])
    execution = Execution(device=device, form=settings.get("form"))
    reconstruction = attack.run(attacked.model, seen, knowledge, seeds, execution)
    return [
        _measured(settings, attacked, reconstruction, ratio, slice(number * trials, (number + 1) * trials))
        for number in range(times)
    ]


def _measured(
    settings: Mapping[str, Any], attacked: Attacked, reconstruction: Reconstruction, ratio: Tensor, trials: slice
) -> Measured:
    truth, labels = attacked.batch.inputs, attacked.batch.labels
    guess, guessed_labels = reconstruction.inputs[trials].cpu(), reconstruction.labels[trials].cpu()
    rmse, _ = Rule().distances(truth, guess)
    raw, _ = Rule(shown=False, cap=RAW_CAP).distances(truth, guess)
    classes, owners = attacked.model.classes, settings["owners"]
    tracing = traced(attacked, guess, [owners, *settings.get("owners_too", ())])
    numbers = {
        "ratio": around_median(ratio[trials]).tolist(),
        "iterations": reconstruction.iterations[trials].double().tolist(),
        "rmse": rmse.nanmean(1).tolist(),
        "rmse_raw": raw.nanmean(1).tolist(),
        "membership": membership(truth, labels, guess, guessed_labels, classes=classes).each.tolist(),
        **tracing[owners],
    }
    return Measured(numbers, tracing)


def traced(attacked: Attacked, guess: Tensor, owners: Sequence[int]) -> dict[int, Numbers]:
    """Return for each number of participants the share given a wrong one: of all queries, of those that have a reconstruction.

    Reconstructions are paired with the samples of their batch first (algorithm 6: the index is that of the true picture).
    """
    truth = attacked.batch.inputs
    order = match(truth, clean(guess), torch.ones(truth.shape[:2], dtype=torch.bool))
    pictures = arrange(clean(guess), order).flatten(0, 1)
    traces = trace_each(attacked.queries, pictures, attacked.source, owners)
    return {one.participants: _shares(one) for one in traces}


def _shares(tracing: Tracing) -> Numbers:
    return {
        "tracing": tracing.all_by.tolist(),
        "tracing_reconstructed": tracing.reconstructed_by.tolist(),
        "tracing_chance": [tracing.chance],
    }


# -- figure 4


def cosines(settings: Mapping[str, Any], keep: Keep, say: Say, device: str) -> None:
    """Keep the cosine between the gradients of the CE and of the polarization loss: each layer, all weights, all biases."""
    del device
    name = settings["data"]["name"]
    missing = []
    for group in settings["groups"]:
        where: Place = {"data": name, "model": settings["model"]["name"], "defence": "spn", "layer": group}
        if not keep.done(group, where):
            missing.append((group, where))
    if not missing:
        return
    say(f"{name}: gradients of both losses for {settings['images']} pictures")
    attacked = attacked_of(settings, load_data(name), settings["batch"])
    parts = both_gradients(attacked, settings["bits"])
    for group, where in missing:
        keep.add(group, where, {"gradient_cosine": cosine_of(parts, group).tolist()})


def both_gradients(attacked: Attacked, bits: int) -> tuple[Tree, Tree]:
    """Return the shared gradients of the CE loss alone and of the polarization loss alone, one for each trial."""
    ce, polarised = (
        Client(on_model=Polarisation(alpha2, alpha1, bits=bits, spread=RANGE))
        .observe(attacked.model, attacked.weights, attacked.batch, attacked.seeds)
        .rounds[0]
        .sent
        for alpha1, alpha2 in ((1.0, 0.0), (0.0, 1.0))
    )
    head = attacked.model.head
    public = () if head is None else (head.weight, head.bias)  # the private loss never reaches the public head
    return {n: v for n, v in ce.items() if n not in public}, {n: v for n, v in polarised.items() if n not in public}


def cosine_of(parts: tuple[Tree, Tree], group: str) -> Tensor:
    """Return the cosine of each trial over a layer by its name, or over `all weights` or `all biases`."""
    ends = {"all weights": "weight", "all biases": "bias"}
    chosen = [n for n in parts[0] if n == group or (group in ends and n.endswith(ends[group]))]

    def cosine(one: Tree, other: Tree) -> Tensor:
        return dot(one, other) / (norm(one) * norm(other)).clamp_min(1e-30)

    return lift(cosine)(*({n: part[n] for n in chosen} for part in parts))
