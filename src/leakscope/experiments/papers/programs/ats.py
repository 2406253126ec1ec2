"""ATS's attacks: every policy against every attacker at networks trained with it, and the privacy score against PSNR.

"[Re] Privacy-preserving collaborative learning with automatic transformation search", tables 1, figures 2 and 4. PSNR is reported
against T(x), as printed (`psnr`), and against x, which is what privacy means (`psnr_private`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from leakscope.attacks.known_policy import ig_policy
from leakscope.attacks.plan import Execution
from leakscope.attacks.recipes import ig
from leakscope.attacks.translate import ig_shift
from leakscope.clients import Client, tell_defences, told
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.types import make_batch
from leakscope.defences.on_data import Transform
from leakscope.experiments.papers.programs.ats_world import Say, Settings, data_of, network_of, score_privacy
from leakscope.experiments.papers.programs.rows import Keep
from leakscope.metrics import PSNR_CAP, clean, psnr
from leakscope.models import draw_parameters
from leakscope.models.initialise import Given
from leakscope.search.random_search import draw_policies

BLACK, FEWEST_BLACK = (
    0.02,
    16,
)  # up to this level a pixel is black; a picture with fewer such pixels says nothing of them
NETWORKS = {"without augmentation": False, "with crop and flip": True}
ALL = "all"


# -- table 1, figures 4 and 9 to 14


def attacks(settings: Settings, keep: Keep, say: Say, device: str) -> None:
    """Keep for each policy the accuracy of the network trained with it, and both PSNRs of every attack on that network."""
    for policy in settings["policies"]:
        key, where = f"{policy} accuracy", {"policy": policy}
        if not keep.done(key, where):
            trained = network_of(settings, policy, say, device)
            keep.add(key, where, {"accuracy": [trained.history[-1].test_accuracy]})
        for name in settings["attacks"] if policy != "none" else ["ig"]:
            key, where = f"{policy} {name}", {"policy": policy, "attack": name}
            if not keep.done(key, where):
                trained = network_of(settings, policy, say, device)
                say(f"policy {policy}, attack {name}: {settings['images']} pictures")
                keep.add(key, where, attack_pictures(settings, trained.model, policy, name, device))


def attack_pictures(settings: Settings, model: Model, policy: str, name: str, device: str) -> dict[str, list[float]]:
    """Return what an attack makes of the first test pictures, one a client: numbers for each picture.

    `psnr` and `psnr_private` in dB; `black_level`, the mean brightness of the reconstruction where T(x) is black (NaN
    where hardly anything is); `psnr_deviation`, the standard deviation of psnr over pictures, one number.
    """
    data = data_of(settings)
    made: dict[str, list[float]] = {"psnr": [], "psnr_private": [], "black_level": []}
    client = Client(scaling=data.statistics, on_data=Transform(policy))
    for first in range(0, settings["images"], settings["at_once"]):
        places = range(first, min(first + settings["at_once"], settings["images"]))
        x, y = data.pictures("test", places), data.labels("test", places)
        batch, seeds = make_batch(x[:, None], y[:, None], classes=data.classes), [settings["seed"] + i for i in places]
        update = client.observe(model, draw_parameters(model, Given(), random.key(seeds)), batch, seeds)
        knowledge = told(model, client, batch, labels=True)
        if name == "ig_policy":
            knowledge = tell_defences(knowledge, client, update)
        attack = _attack(name, settings["iterations"], settings["bounds"].get(policy, (1.1, 0.4)))
        found = attack.run(model, update, knowledge, seeds, Execution(device=device, form=settings.get("form")))
        target = client.transformed(batch, seeds).inputs
        seen = clean(found.inputs if found.seen is None else found.seen)
        made["psnr"] += _decibels(target, seen)
        made["psnr_private"] += _decibels(batch.inputs, clean(found.inputs))
        made["black_level"] += [black_level(a[0], b[0]) for a, b in zip(target, seen, strict=True)]
    if len(made["psnr"]) > 1:
        made["psnr_deviation"] = [float(torch.tensor(made["psnr"]).std())]
    return made


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
    """Keep for random policies privacy score and PSNR at one network, and how they correlate; for two networks."""
    policies = draw_policies(settings["policies"], settings["seed"])
    for network in settings["networks"]:
        for policy in policies:
            key, where = _key(network, policy), {"network": network, "policy": policy}
            if not keep.done(key, where):
                trained = network_of(settings, "none", say, device, augment=NETWORKS[network]).model
                (scores,) = score_privacy(settings, trained, [policy], device, settings["scored"])
                made = attack_pictures(settings, trained, policy, "ig", device)
                made.pop("psnr_deviation", None)
                keep.add(key, where, {**made, "privacy_score": scores})
                say(f"{network}, {policy}: privacy score {sum(scores) / len(scores):.3f}")
        where = {"network": network, "policy": ALL}
        if not keep.done(_key(network, ALL), where):
            rows = [keep.values(_key(network, policy)) for policy in policies]
            keep.add(_key(network, ALL), where, correlate(rows))


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
    found = float(torch.corrcoef(torch.stack([score, seen]))[0, 1])
    made = {
        "correlation": [found],
        "rank_correlation": [float(spearmanr(score.numpy(), seen.numpy()).statistic)],
        "correlation_private": [float(torch.corrcoef(torch.stack([score, private]))[0, 1])],
    }
    if len(rows) > 3 and abs(found) < 1:
        half = 1.96 / math.sqrt(len(rows) - 3)
        made["correlation_low"] = [math.tanh(math.atanh(found) - half)]
        made["correlation_high"] = [math.tanh(math.atanh(found) + half)]
    return made


def _mean(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else math.nan
