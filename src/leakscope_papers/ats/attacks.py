"""ATS's attacks: every policy against every attacker at networks trained with it, and the privacy score against PSNR.

"[Re] Privacy-preserving collaborative learning with automatic transformation search", table 1, figures 2 and 4. PSNR is reported
against T(x), as printed (`psnr`), and against x, which measures privacy (`psnr_private`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from leakscope.attacks.attack import Attack
from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.known_policy import ig_policy
from leakscope.attacks.recipes import ig
from leakscope.attacks.translate import ig_shift
from leakscope.clients import Client
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.types import make_batch
from leakscope.defences.on_data import Transform
from leakscope.metrics import PSNR_CAP, Scores, clean
from leakscope.models import draw_parameters
from leakscope.models.initialise import Given
from leakscope.play import Exposure, attack, expose, join, judge
from leakscope.search.candidates import draw_policies
from leakscope_papers.ats.networks import data_of, named_rightly, network_of, score_privacy, scoring_network
from leakscope_papers.ats.settings import Attacked, AttackSettings, CorrelationSettings, Scoring, Training
from leakscope_papers.programs.rows import Keep, Say
from leakscope_papers.programs.settings import read_settings

BLACK, FEWEST_BLACK = 0.02, 16  # level of a black pixel; images with fewer black pixels have no black level
NETWORKS = {"without augmentation": False, "with crop and flip": True}
ALL = "all"


# -- table 1, figures 4 and 9 to 14


def attacks(settings: Mapping[str, object], keep: Keep, say: Say, device: str) -> None:
    """Store for each policy the accuracy of the network trained with it (0 or 1 for each test image) and both PSNRs of every attack."""
    chosen, attacked = read_settings(AttackSettings, settings), read_settings(Attacked, settings)
    training = read_settings(Training, settings)
    default_first = sorted(chosen.attacks, key=lambda name: name != "ig")
    for policy in chosen.policies:
        key, where = f"{policy} accuracy", {"policy": policy}
        if not keep.done(key, where):
            trained = network_of(training, policy, keep, say, device)
            keep.add(key, where, {"accuracy": named_rightly(training.data, trained.model, device)})
        for name in default_first if policy != "none" else ["ig"]:
            key, where = f"{policy} {name}", {"policy": policy, "attack": name}
            if not keep.done(key, where):
                trained = network_of(training, policy, keep, say, device)
                say(f"policy {policy}, attack {name}: {attacked.images} pictures")
                (values,) = attack_pictures(attacked, trained.model, [policy], name, device)
                compared = name != "ig" and "ig" in chosen.attacks
                gained = gains(keep.values(f"{policy} ig"), values) if compared else {}
                keep.add(key, where, {**_with_deviation(values), **gained})


def attack_pictures(
    settings: Attacked, model: Model, policies: Sequence[str], name: str, device: str
) -> list[dict[str, list[float]]]:
    """Return the measures of an attack on the first test images under each policy, one image a client.

    `psnr` and `psnr_private` are in dB; `black_level` is the mean brightness of the reconstruction where T(x) is black (NaN if
    hardly any pixel is). All policies share images, draws and starts, and are attacked as one batch, which is fast on a GPU; an
    attack that depends on the policy takes one policy at a time.
    """
    if len(policies) > 1 and name != "ig":
        raise InputError(f"attack {name} depends on the policy: give one policy at a time, got {len(policies)}")
    method = _attack(name, settings.iterations, settings.bounds.get(policies[0], (1.1, 0.4)))
    execution, informed = Execution(device=device, form=settings.form), name == "ig_policy"
    rows: list[dict[str, list[float]]] = [{"psnr": [], "psnr_private": [], "black_level": []} for _ in policies]
    for first in range(0, settings.images, settings.at_once):
        places = range(first, min(first + settings.at_once, settings.images))
        parts = [_expose(settings, model, policy, places, informed=informed) for policy in policies]
        result = attack(join(parts), method, informed=informed, execution=execution)
        for number, (row, part) in enumerate(zip(rows, parts, strict=True)):
            private = result.select(slice(number * len(places), (number + 1) * len(places)))
            reconstruction, transformed = private.reconstruction, part.client.transformed(part.batch, part.seeds)
            seen = reconstruction.inputs if reconstruction.seen is None else reconstruction.seen
            row["psnr"] += _decibels(judge(transformed, replace(reconstruction, inputs=seen)).scores)
            row["psnr_private"] += _decibels(private.scores)
            row["black_level"] += [
                black_level(a[0], b[0]) for a, b in zip(transformed.inputs, clean(seen), strict=True)
            ]
    return rows


def _expose(settings: Attacked, model: Model, policy: str, places: range, *, informed: bool) -> Exposure:
    """Return one client for each of these test images, all with one policy, which an `informed` attacker knows."""
    data = data_of(settings.data)
    x, y = data.pictures("test", places), data.labels("test", places)
    batch, seeds = make_batch(x[:, None], y[:, None], classes=data.classes), [settings.seed + i for i in places]
    client = Client(scaling=data.statistics, on_data=Transform(policy))
    weights = draw_parameters(model, Given(), random.key(seeds))
    return expose(model, client, weights, batch, seeds, labels=True, informed=informed)


def gains(default: Mapping[str, Sequence[float | None]], values: dict[str, list[float]]) -> dict[str, list[float]]:
    """Return each image's gain over the default attack: `psnr_gain`, and against x `psnr_private_gain`.

    >>> gains({"psnr": [6.0, 7.0], "psnr_private": [8.0, None]}, {"psnr": [9.0, 7.5], "psnr_private": [9.0, 9.0]})
    {'psnr_gain': [3.0, 0.5], 'psnr_private_gain': [1.0, nan]}
    """
    return {
        f"{name}_gain": [b - (math.nan if a is None else a) for a, b in zip(default[name], values[name], strict=True)]
        for name in ("psnr", "psnr_private")
    }


def _with_deviation(values: dict[str, list[float]]) -> dict[str, list[float]]:
    """Return the values with `psnr_deviation`, the standard deviation of psnr over images."""
    psnr = values["psnr"]
    return {**values, "psnr_deviation": [float(torch.tensor(psnr).std())]} if len(psnr) > 1 else values


def black_level(target: Tensor, guess: Tensor) -> float:
    """Return the mean brightness of a guess where the image (C x H x W) is black, NaN if hardly any pixel is."""
    black = (target <= BLACK).all(0)
    return float(guess[:, black].mean()) if int(black.sum()) >= FEWEST_BLACK else math.nan


def _attack(name: str, iterations: int, bounds: tuple[float, float]) -> Attack:
    if name == "ig_shift":
        return ig_shift(iterations=iterations, bound_x=bounds[0], bound_y=bounds[1])
    if name not in ("ig", "ig_policy"):
        raise InputError(f"attacks must be ig, ig_shift or ig_policy, got {name!r}")
    return (ig if name == "ig" else ig_policy)(iterations=iterations)


def _decibels(scores: Scores) -> list[float]:
    return scores.psnr.clamp_max(PSNR_CAP).flatten().tolist()


# -- figure 2


def correlation(settings: Mapping[str, object], keep: Keep, say: Say, device: str) -> None:
    """Store privacy score and PSNR of random policies and their correlation, for each kind of attacked network.

    Scores use a network trained as in the search; attacks use a second one, fully trained. Policies are attacked and stored in
    groups of at most `at_once` images.
    """
    chosen, attacked = read_settings(CorrelationSettings, settings), read_settings(Attacked, settings)
    training, scoring = read_settings(Training, settings), read_settings(Scoring, settings)
    policies = draw_policies(chosen.policies, training.seed)
    for network in chosen.networks:
        rows = {policy: (_key(network, policy), {"network": network, "policy": policy}) for policy in (*policies, ALL)}
        missing = [policy for policy in policies if not keep.done(*rows[policy])]
        for group in groups(missing, max(1, attacked.at_once // attacked.images)):
            if network == chosen.networks[0]:
                scored = scoring_network(scoring, keep, say, device).model
                scores = score_privacy(scoring, scored, group, device, chosen.scored)
            else:  # the same scores for every attacked network
                scores = [_known_scores(keep, _key(chosen.networks[0], policy)) for policy in group]
            trained = network_of(training, "none", keep, say, device, augment=NETWORKS[network]).model
            attacks = attack_pictures(attacked, trained, group, "ig", device)
            for policy, privacy, numbers in zip(group, scores, attacks, strict=True):
                keep.add(*rows[policy], {**numbers, "privacy_score": privacy})
                say(f"{network}, {policy}: privacy score {sum(privacy) / len(privacy):.3f}")
        if not keep.done(*rows[ALL]):
            keep.add(*rows[ALL], correlate([keep.values(_key(network, policy)) for policy in policies]))


def _known_scores(keep: Keep, key: str) -> list[float]:
    return [math.nan if value is None else value for value in keep.values(key)["privacy_score"]]


def groups(names: Sequence[str], most: int) -> list[Sequence[str]]:
    """Return the names in as few groups of at most `most` as possible, of sizes that differ by at most one.

    >>> groups(["a", "b", "c", "d"], 3)
    [['a', 'b'], ['c', 'd']]
    """
    number = -(-len(names) // most)
    cuts = [len(names) * place // number for place in range(number + 1)] if number else [0]
    return [names[a:b] for a, b in itertools.pairwise(cuts)]


def _key(network: str, policy: str) -> str:
    return f"{network}: {policy}"


def correlate(rows: Sequence[Mapping[str, Sequence[float | None]]]) -> dict[str, list[float]]:
    """Return the correlation of privacy score with PSNR against T(x) over policies, with Fisher's 95 % interval.

    Its ends are tanh(atanh(r) -/+ 1.96 / sqrt(n - 3)). `rank_correlation` is Spearman's; `correlation_private` uses PSNR against
    x.
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
