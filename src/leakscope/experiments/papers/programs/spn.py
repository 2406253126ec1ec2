"""SPN's characteristics: reconstruction, membership and tracing at every strength of a defence, CAP, and cosines of gradients.

Fan et al. 2020, arXiv:2006.11601, tables 1 and 7 to 10, figures 1, 4, 5, 26 and 27. All strengths of a curve are attacked as one batch,
with the same pictures, weights, starts and draws. rMSE is of the guess clamped to the valid box, so that no diverged trial
carries a CAP (`analysis.characteristic.Rule`); `rmse_raw` is of the guess as the attack left it, at most 10.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from leakscope.analysis.characteristic import Rule, bias_ratio
from leakscope.attacks.plan import Execution
from leakscope.clients import Client, tell_defences, told
from leakscope.core.tree import Tree, dot, lift, norm
from leakscope.core.types import Reconstruction
from leakscope.defences.on_model import Polarisation
from leakscope.experiments.papers.programs.rows import Keep, Place
from leakscope.experiments.papers.programs.spn_training import train_curve
from leakscope.experiments.papers.programs.spn_world import (
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
from leakscope.experiments.sweep.world import load_data
from leakscope.inference.membership import membership
from leakscope.inference.tracing import partition, trace
from leakscope.metrics import arrange, clean, match

Say = Callable[[str], None]
RAW_CAP = 10.0
ALL = "all"
TRAINED, PRINTED = "trained", "table 11"
DISTANCES = {"reconstruction": "rmse", "membership": "membership", "tracing": "tracing"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """A curve against one attacker at one batch: the keys and places of its rows, by strength and by (attack, accuracies)."""

    curve: Curve
    samples: int
    attacker: str
    strengths: Mapping[int, tuple[str, Place]]
    caps: Mapping[tuple[str, str], tuple[str, Place]]


def curves(settings: Mapping[str, Any], keep: Keep, say: Say, device: str) -> None:
    """Keep for each strength the distances, the ratio and the accuracy; for each curve its CAP by attack and kind of accuracies."""
    name = settings["data"]["name"]
    wanted = [one for curve in settings["curves"] for one in _wanted(settings, curve, keep)]
    data = load_data(name) if wanted else None
    for curve in settings["curves"]:
        own = [one for one in wanted if one.curve is curve]
        if not own or data is None:
            continue
        say(f"{name}, {title_of(curve)}")
        right = train_curve(settings, curve, data, say, device) if settings.get("training") else None
        for one in own:
            attacked = attacked_of(settings, data, one.samples)
            found = attack_curve(settings, attacked, curve, one.attacker, device)
            _add(keep, one, found, _accuracies(name, curve, right), right)


def _wanted(settings: Mapping[str, Any], curve: Curve, keep: Keep) -> list[Wanted]:
    """Return what is missing of a curve, attacker by attacker."""
    common = {"data": settings["data"]["name"], "model": settings["model"]["name"]}
    found = []
    for samples in settings["batches"]:
        for attacker in attackers_of(settings, curve):
            base = {**common, "batch": samples, "attacker": attacker}
            title = f"{title_of(curve)} B={samples} {attacker}"
            rows = {
                number: (
                    f"{title} {strength:g}",
                    {**base, **place_of(curve, strength), "strength": strength, "attack": ALL},
                )
                for number, strength in enumerate(curve["strengths"])
            }
            caps = {
                (attack, kind): (
                    f"{title} CAP of {attack}, {kind}",
                    {**base, **place_of(curve), "attack": attack, "accuracies": kind},
                )
                for attack in DISTANCES
                for kind in settings["accuracies"]
            }
            strengths = {number: row for number, row in rows.items() if not keep.done(*row)}
            missing = {which: row for which, row in caps.items() if not keep.done(*row)}
            if strengths or missing:
                found.append(Wanted(curve, samples, attacker, strengths, missing))
    return found


def _accuracies(name: str, curve: Curve, right: Tensor | None) -> dict[str, list[float] | None]:
    trained = None if right is None else [float(rate) for rate in right.double().mean(1)]
    return {TRAINED: trained, PRINTED: printed_accuracies(name, curve)}


def _add(
    keep: Keep, one: Wanted, found: list[dict[str, list[float]]], known: Mapping[str, Any], right: Tensor | None
) -> None:
    for number, (key, where) in one.strengths.items():
        accuracy = {} if right is None else {"accuracy": right[number].double().tolist()}
        keep.add(key, where, {**found[number], **accuracy})
    for (attack, kind), (key, where) in one.caps.items():
        measures = {"cap": DISTANCES[attack], **({"cap_raw": "rmse_raw"} if attack == "reconstruction" else {})}
        rates = known[kind]
        values = {name: caps_of(rates, [row[of] for row in found]) if rates else [] for name, of in measures.items()}
        keep.add(key, where, values)


def caps_of(accuracies: list[float], distances: list[list[float]]) -> list[float]:
    """Return the CAP of each trial: the mean over strengths of accuracy times distance (equation 1); their mean is the CAP.

    >>> caps_of([0.5, 1.0], [[1.0, 0.0], [0.5, 1.0]])
    [0.5, 0.5]
    """
    products = torch.tensor(accuracies, dtype=torch.float64)[:, None] * torch.tensor(distances, dtype=torch.float64)
    found: list[float] = products.mean(0).tolist()
    return found


def attack_curve(
    settings: Mapping[str, Any], attacked: Attacked, curve: Curve, attacker: str, device: str
) -> list[dict[str, list[float]]]:
    """Return for each strength the numbers of every trial (tracing: of every participant)."""
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
    attack = attack_of(attacker, client, knowledge, strengths, settings["iterations"])
    execution = Execution(device=device, form=settings.get("form"))
    made = attack.run(attacked.model, seen, knowledge, seeds, execution)
    return [
        {
            "ratio": ratio[number * trials : (number + 1) * trials].tolist(),
            **_distances(settings, attacked, made, slice(number * trials, (number + 1) * trials)),
        }
        for number in range(times)
    ]


def _distances(
    settings: Mapping[str, Any], attacked: Attacked, made: Reconstruction, own: slice
) -> dict[str, list[float]]:
    truth, labels = attacked.batch.inputs, attacked.batch.labels
    guess, said = made.inputs[own].cpu(), made.labels[own].cpu()
    rmse, _ = Rule().distances(truth, guess)
    raw, _ = Rule(shown=False, cap=RAW_CAP).distances(truth, guess)
    classes = attacked.model.classes
    return {
        "rmse": rmse.mean(1).tolist(),
        "rmse_raw": raw.mean(1).tolist(),
        "membership": membership(truth, labels, guess, said, classes=classes).each.tolist(),
        **traced(attacked, guess, settings["owners"]),
    }


def traced(attacked: Attacked, guess: Tensor, owners: int) -> dict[str, list[float]]:
    """Return the share of wrong participants for the queries of each: all of them, and those that have a reconstruction.

    Reconstructions are paired with the samples of their batch first (algorithm 6: the index is that of the true picture).
    """
    truth = attacked.batch.inputs
    order = match(truth, clean(guess), torch.ones(truth.shape[:2], dtype=torch.bool))
    pictures = arrange(clean(guess), order).flatten(0, 1)
    found = trace(attacked.queries, pictures, attacked.source, participants=owners)
    owner = partition(len(attacked.queries), owners)
    wrong, known = (found.owner != owner).double(), torch.zeros(len(owner), dtype=torch.bool)
    known[attacked.source] = True
    return {
        "tracing": [float(wrong[owner == one].mean()) for one in range(owners)],
        "tracing_reconstructed": [float(wrong[(owner == one) & known].mean()) for one in range(owners)],
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
