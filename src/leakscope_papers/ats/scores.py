"""ATS's scores: the 50 operations alone (figure 5), random policies (figure 6), learning curves (figure 7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from leakscope.core import random
from leakscope.core.model import Model
from leakscope.defences.on_data import OPERATIONS, Policy
from leakscope.search.candidates import draw_policies
from leakscope_papers.ats.networks import (
    named_rightly,
    network_of,
    score_accuracy,
    score_privacy,
    scoring_network,
)
from leakscope_papers.ats.settings import (
    AccuracyScoring,
    CurveSettings,
    OperationSettings,
    RandomSettings,
    Scoring,
    Training,
)
from leakscope_papers.programs.rows import Keep, Say
from leakscope_papers.programs.settings import read_settings

TOP_TEN = (3, 15, 1, 26, 12, 43, 25, 13, 4, 39)  # as published, best first
NONE, RANDOM, TWO, THREE, ALL = "none", "random", "two_of_top_ten", "three_of_top_five", "all"
AT_ONCE = 10
DROPS = (1, 2, 3)


# -- figure 5


def operations(settings: Mapping[str, object], keep: Keep, say: Say, device: str) -> None:
    """Store the privacy score and rank (1 is the most private; ties share the lowest) of every operation alone.

    The last row holds Spearman's correlation of our scores with the published order of ten operations.
    """
    chosen, scoring = read_settings(OperationSettings, settings), read_settings(Scoring, settings)
    names = [str(index) for index in chosen.operations]
    missing = [not keep.done(name, {"policy": name, "operation": _kind(name)}) for name in names]
    compared = keep.done(ALL, {"policy": ALL})
    if compared and not any(missing):
        return
    trained = scoring_network(scoring, keep, say, device).model
    scores = _scores(scoring, trained, names, chosen.images, say, device)
    means = {name: sum(values) / len(values) for name, values in zip(names, scores, strict=True)}
    for name, values, new in zip(names, scores, missing, strict=True):
        rank = 1 + sum(other < means[name] - 1e-9 for other in means.values())
        if new:
            keep.add(
                name,
                {"policy": name, "operation": _kind(name)},
                {"privacy_score": values, "privacy_rank": [float(rank)]},
            )
    if not compared:
        keep.add(ALL, {"policy": ALL}, {"rank_correlation": [_agreement(means)]})


def _kind(name: str) -> str:
    return OPERATIONS[int(name)].words.split(" ")[0]


def _agreement(means: dict[str, float]) -> float:
    """Return Spearman's correlation of our scores with the published ranks, over the scored ones of the ten operations."""
    from scipy.stats import spearmanr

    known = [str(index) for index in TOP_TEN if str(index) in means]
    if len(known) < 2:
        return float("nan")
    return float(spearmanr([means[name] for name in known], range(len(known))).statistic)


def _scores(
    settings: Scoring, trained: Model, policies: Sequence[str], images: int, say: Say, device: str
) -> list[list[float]]:
    scores: list[list[float]] = []
    for first in range(0, len(policies), AT_ONCE):
        cut = policies[first : first + AT_ONCE]
        scores += score_privacy(settings, trained, cut, device, images)
        say(f"{len(scores)} of {len(policies)} policies scored")
    return scores


# -- figure 6


def random_policies(settings: Mapping[str, object], keep: Keep, say: Say, device: str) -> None:
    """Store privacy and accuracy scores of no policy, random policies, and policies of published operations; one number a policy.

    `share_beaten` is the share of random policies that are less private; `worse_on_both` is whether a policy is less private and
    less accurate than none.
    """
    chosen, scoring = read_settings(RandomSettings, settings), read_settings(Scoring, settings)
    accurate = read_settings(AccuracyScoring, settings)
    for name in (NONE, RANDOM, TWO, THREE):
        if keep.done(name, {"policy": name}):
            continue
        policies = policies_of(name, chosen.policies, scoring.seed)
        trained = scoring_network(scoring, keep, say, device).model
        scores = _scores(scoring, trained, policies, chosen.images, say, device)
        privacy = [sum(each) / len(each) for each in scores]
        accuracy = score_accuracy(accurate, policies, device)
        values = {"privacy_score": privacy, "accuracy_score": accuracy}
        if name != NONE:
            base = {measure: keep.values(NONE)[measure][0] or 0.0 for measure in values}
            pairs = zip(privacy, accuracy, strict=True)
            values["worse_on_both"] = [
                float(p > base["privacy_score"] and a < base["accuracy_score"]) for p, a in pairs
            ]
        if name in (TWO, THREE):
            others = [value or 0.0 for value in keep.values(RANDOM)["privacy_score"]]
            values["share_beaten"] = [sum(other > score for other in others) / len(others) for score in privacy]
        keep.add(name, {"policy": name}, values)


def policies_of(name: str, number: int, seed: int) -> list[str]:
    """Return the policies of a set: none, random ones, random ones with two of the top ten, all of three of the top five.

    >>> policies_of("none", 5, 0), len(policies_of("three_of_top_five", 5, 0)), len(policies_of("three_of_top_five", 500, 0))
    (['none'], 5, 60)
    """
    if name == NONE:
        return [NONE]
    if name == RANDOM:
        return draw_policies(number, seed)
    if name == TWO:
        return [each for each in _drawn(number, seed) if sum(int(i) in TOP_TEN for i in each.split("-")) >= 2][:number]
    five = TOP_TEN[:5]
    every = [str(Policy((a, b, c))) for a in five for b in five for c in five if len({a, b, c}) == 3]
    order = random.permutation(random.fold(random.key(seed), THREE), len(every)).tolist()
    return [every[place] for place in order[:number]]


def _drawn(number: int, seed: int) -> list[str]:
    """Return enough random policies that about `number` have two of the top ten (one in ten does)."""
    return draw_policies(min(12 * number + 40, 60_000), seed + 1)


# -- figure 7


def curves(settings: Mapping[str, object], keep: Keep, say: Say, device: str) -> None:
    """Store for every policy the final test accuracy (0 or 1 for each test image) and its rise after each drop of the learning rate."""
    training = read_settings(Training, settings)
    for policy in read_settings(CurveSettings, settings).policies:
        last = {"policy": policy, "at": "end"}
        missing = [not keep.done(f"{policy} drop {n}", {"policy": policy, "at": f"drop {n}"}) for n in DROPS]
        ended = keep.done(f"{policy} end", last)
        if ended and not any(missing):
            continue
        trained = network_of(training, policy, keep, say, device)
        curve = torch.tensor([epoch.test_accuracy for epoch in trained.history])
        epochs = [number * len(curve) // 200 for number in (75, 125, 175)]
        wide = max(1, len(curve) // 40)
        for n, at, new in zip(DROPS, epochs, missing, strict=True):
            if new:
                before, after = curve[max(0, at - wide) : max(1, at)], curve[at : at + wide]
                rise = float(after.mean() - before.mean())
                keep.add(f"{policy} drop {n}", {"policy": policy, "at": f"drop {n}"}, {"accuracy_rise": [rise]})
        if not ended:
            keep.add(f"{policy} end", last, {"accuracy": named_rightly(training.data, trained.model, device)})
