"""ATS's attacks: every policy against every attacker at networks trained with it, and the privacy score against PSNR.

"[Re] Privacy-preserving collaborative learning with automatic transformation search", table 1, figures 2 and 4. PSNR is reported
against T(x), as printed (`psnr`), and against x, which is what privacy means (`psnr_private`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.known_policy import ig_policy
from leakscope.attacks.recipes import ig
from leakscope.attacks.translate import ig_shift
from leakscope.clients import Client, tell_defences, told
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.tree import map_tensors
from leakscope.core.types import Knowledge, Observation, make_batch
from leakscope.defences.on_data import Transform
from leakscope.metrics import PSNR_CAP, clean, psnr
from leakscope.models import draw_parameters
from leakscope.models.initialise import Given
from leakscope.search.candidates import draw_policies
from leakscope_papers.ats.world import (
    Say,
    Settings,
    data_of,
    named_rightly,
    network_of,
    score_privacy,
    scoring_network,
)
from leakscope_papers.programs.rows import Keep

BLACK, FEWEST_BLACK = (
    0.02,
    16,
)  # up to this level a pixel is black; a picture with fewer such pixels says nothing of them
NETWORKS = {"without augmentation": False, "with crop and flip": True}
ALL = "all"


# -- table 1, figures 4 and 9 to 14


def attacks(settings: Settings, keep: Keep, say: Say, device: str) -> None:
    """Keep for each policy the accuracy of the network trained with it, and both PSNRs of every attack on that network.

    The accuracy is zeros and ones, one for each test picture.
    """
    for policy in settings["policies"]:
        key, where = f"{policy} accuracy", {"policy": policy}
        if not keep.done(key, where):
            trained = network_of(settings, policy, keep, say, device)
            keep.add(key, where, {"accuracy": named_rightly(settings, trained.model, device)})
        default_first = sorted(settings["attacks"], key=lambda name: name != "ig")
        for name in default_first if policy != "none" else ["ig"]:
            key, where = f"{policy} {name}", {"policy": policy, "attack": name}
            if not keep.done(key, where):
                trained = network_of(settings, policy, keep, say, device)
                say(f"policy {policy}, attack {name}: {settings['images']} pictures")
                (values,) = attack_pictures(settings, trained.model, [policy], name, device)
                gained = (
                    {}
                    if name == "ig" or "ig" not in settings["attacks"]
                    else gains(keep.values(f"{policy} ig"), values)
                )
                keep.add(key, where, {**_with_deviation(values), **gained})


def attack_pictures(
    settings: Settings, model: Model, policies: Sequence[str], name: str, device: str
) -> list[dict[str, list[float]]]:
    """Return what an attack makes of the first test pictures under each policy, one a client: numbers for each picture.

    `psnr` and `psnr_private` in dB; `black_level`, the mean brightness of the reconstruction where T(x) is black (NaN where hardly
    anything is). Every policy meets the same pictures, draws and starts. The clients of all policies are attacked as one batch, which
    is how a GPU is fast, so that an attack which depends on the policy takes one policy alone.
    """
    if len(policies) > 1 and name != "ig":
        raise InputError(f"attack {name} depends on the policy: give one policy at a time, got {len(policies)}")
    attack = _attack(name, settings["iterations"], settings["bounds"].get(policies[0], (1.1, 0.4)))
    rows: list[dict[str, list[float]]] = [{"psnr": [], "psnr_private": [], "black_level": []} for _ in policies]
    for first in range(0, settings["images"], settings["at_once"]):
        places = range(first, min(first + settings["at_once"], settings["images"]))
        faced = face(settings, model, policies, places, aware=name == "ig_policy")
        execution = Execution(device=device, form=settings.get("form"))
        reconstruction = attack.run(model, faced.update, faced.knowledge, faced.seeds, execution)
        guess = clean(reconstruction.inputs)
        seen = guess if reconstruction.seen is None else clean(reconstruction.seen)
        for row, x, transformed, inputs, looked in zip(
            rows, *(each.split(len(places)) for each in (faced.truth, faced.transformed, guess, seen)), strict=True
        ):
            row["psnr"] += _decibels(transformed, looked)
            row["psnr_private"] += _decibels(x, inputs)
            row["black_level"] += [black_level(a[0], b[0]) for a, b in zip(transformed, looked, strict=True)]
    return rows


@dataclass(frozen=True, slots=True)
class Faced:
    """Clients with their policies, policy by policy: what they hold, what their networks saw, what a server got and is told."""

    truth: Tensor
    transformed: Tensor
    update: Observation
    knowledge: Knowledge
    seeds: list[int]


def face(settings: Settings, model: Model, policies: Sequence[str], places: range, *, aware: bool = False) -> Faced:
    """Return for every policy one client for each of these test pictures, all as one batch; `aware` is told the policy."""
    data = data_of(settings)
    x, y = data.pictures("test", places), data.labels("test", places)
    batch, seeds = make_batch(x[:, None], y[:, None], classes=data.classes), [settings["seed"] + i for i in places]
    weights, parts = draw_parameters(model, Given(), random.key(seeds)), []
    for policy in policies:
        client = Client(scaling=data.statistics, on_data=Transform(policy))
        update = client.observe(model, weights, batch, seeds)
        knowledge = told(model, client, batch, labels=True)
        knowledge = tell_defences(knowledge, client, update) if aware else knowledge
        parts.append((batch.inputs, client.transformed(batch, seeds).inputs, update, knowledge))
    joined = map_tensors(lambda *each: torch.cat(each), *parts)
    return Faced(*joined, seeds * len(policies))


def gains(default: Mapping[str, Sequence[float | None]], values: dict[str, list[float]]) -> dict[str, list[float]]:
    """Return by how much an attack is above the default one, picture by picture: `psnr_gain`, and against x `psnr_private_gain`.

    >>> gains({"psnr": [6.0, 7.0], "psnr_private": [8.0, None]}, {"psnr": [9.0, 7.5], "psnr_private": [9.0, 9.0]})
    {'psnr_gain': [3.0, 0.5], 'psnr_private_gain': [1.0, nan]}
    """
    return {
        f"{name}_gain": [b - (math.nan if a is None else a) for a, b in zip(default[name], values[name], strict=True)]
        for name in ("psnr", "psnr_private")
    }


def _with_deviation(values: dict[str, list[float]]) -> dict[str, list[float]]:
    """Return the numbers with `psnr_deviation`, the standard deviation of psnr over pictures, one number."""
    psnr = values["psnr"]
    return {**values, "psnr_deviation": [float(torch.tensor(psnr).std())]} if len(psnr) > 1 else values


def black_level(target: Tensor, guess: Tensor) -> float:
    """Return how bright a guess is where the picture (C x H x W) is black, NaN where hardly anything is black."""
    black = (target <= BLACK).all(0)
    return float(guess[:, black].mean()) if int(black.sum()) >= FEWEST_BLACK else math.nan


def _attack(name: str, iterations: int, bounds: Sequence[float]) -> Any:
    if name == "ig_shift":
        return ig_shift(iterations=iterations, bound_x=bounds[0], bound_y=bounds[1])
    if name not in ("ig", "ig_policy"):
        raise InputError(f"attacks must be ig, ig_shift or ig_policy, got {name!r}")
    return (ig if name == "ig" else ig_policy)(iterations=iterations)


def _decibels(truth: Tensor, guess: Tensor) -> list[float]:
    return psnr(truth, guess).clamp_max(PSNR_CAP).flatten().tolist()


# -- figure 2


def correlation(settings: Settings, keep: Keep, say: Say, device: str) -> None:
    """Keep for random policies privacy score and PSNR, and how they correlate; for each kind of attacked network.

    Scores are taken at one network, which is trained as that of the search; attacks are at a second one, trained to the end.
    Policies are attacked in groups of `at_once` pictures or fewer, and kept group by group.
    """
    policies = draw_policies(settings["policies"], settings["seed"])
    for network in settings["networks"]:
        missing = [
            policy
            for policy in policies
            if not keep.done(_key(network, policy), {"network": network, "policy": policy})
        ]
        for group in groups(missing, max(1, settings["at_once"] // settings["images"])):
            scores = _privacy(settings, keep, network, group, say, device)
            attacked = network_of(settings, "none", keep, say, device, augment=NETWORKS[network]).model
            attacks = attack_pictures(settings, attacked, group, "ig", device)
            for policy, privacy, row in zip(group, scores, attacks, strict=True):
                where = {"network": network, "policy": policy}
                keep.add(_key(network, policy), where, {**row, "privacy_score": privacy})
                say(f"{network}, {policy}: privacy score {sum(privacy) / len(privacy):.3f}")
        where = {"network": network, "policy": ALL}
        if not keep.done(_key(network, ALL), where):
            rows = [keep.values(_key(network, policy)) for policy in policies]
            keep.add(_key(network, ALL), where, correlate(rows))


def _privacy(
    settings: Settings, keep: Keep, network: str, group: Sequence[str], say: Say, device: str
) -> list[list[float]]:
    """Return the privacy scores of policies for each picture; those of the first attacked network are those of every other."""
    first = settings["networks"][0]
    if network == first:
        scoring = scoring_network(settings, keep, say, device).model
        return score_privacy(settings, scoring, group, device, settings["scored"])
    known = [keep.values(_key(first, policy))["privacy_score"] for policy in group]
    return [[math.nan if value is None else value for value in values] for values in known]


def groups(names: Sequence[str], most: int) -> list[Sequence[str]]:
    """Return the names in as few groups of at most `most` as there can be, of sizes that differ by one at most.

    >>> groups(["a", "b", "c", "d"], 3)
    [['a', 'b'], ['c', 'd']]
    """
    number = -(-len(names) // most)
    cuts = [len(names) * place // number for place in range(number + 1)] if number else [0]
    return [names[a:b] for a, b in itertools.pairwise(cuts)]


def _key(network: str, policy: str) -> str:
    return f"{network}: {policy}"


def correlate(rows: Sequence[Mapping[str, Sequence[float | None]]]) -> dict[str, list[float]]:
    """Return the correlation of privacy score with PSNR against T(x) over policies, with the ends of its 95 % interval.

    The interval is Fisher's: tanh(atanh(r) -/+ 1.96 / sqrt(n - 3)). `rank_correlation` is Spearman's, `correlation_private` that
    with PSNR against x.
    """
    from scipy.stats import spearmanr

    score, seen, private = (
        torch.tensor([_mean(row[name]) for row in rows], dtype=torch.float64)
        for name in ("privacy_score", "psnr", "psnr_private")
    )
    correlation = float(torch.corrcoef(torch.stack([score, seen]))[0, 1])
    values = {
        "correlation": [correlation],
        "rank_correlation": [float(spearmanr(score.numpy(), seen.numpy()).statistic)],
        "correlation_private": [float(torch.corrcoef(torch.stack([score, private]))[0, 1])],
    }
    if len(rows) > 3 and abs(correlation) < 1:
        half = 1.96 / math.sqrt(len(rows) - 3)
        values["correlation_low"] = [math.tanh(math.atanh(correlation) - half)]
        values["correlation_high"] = [math.tanh(math.atanh(correlation) + half)]
    return values


def _mean(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else math.nan
