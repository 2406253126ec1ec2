"""SPN's characteristics: reconstruction, membership and tracing at every strength of a defence, CAP, and cosines of gradients.

Fan et al. 2020, arXiv:2006.11601, tables 1 and 7 to 10, figures 1, 4, 5, 26 and 27. All strengths of a curve are attacked as one
batch, with the same images, weights, starts and draws. rMSE is of the guess clamped to the valid range, so that no diverged trial
dominates a CAP (`characteristics.Rule`); `rmse_raw` is of the unclamped guess, at most 10. The mean of a row's numbers is
the value, their spread its error: of every trial (iterations, rMSE, labels), of every reconstruction (tracing,
`inference.tracing.by_cluster`), for a median of ratios `around_median`.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from leakscope.attacks.engine.plan import Execution
from leakscope.clients import Client
from leakscope.core.tree import Tree, dot, lift, norm
from leakscope.data import Dataset
from leakscope.defences.on_model import Polarisation
from leakscope.inference.membership import membership
from leakscope.inference.tracing import Tracing, trace_each
from leakscope.metrics import arrange, clean
from leakscope.metrics.interval import Z
from leakscope.play import AttackResult, attack, expose
from leakscope.sweep.objects import load_data
from leakscope_papers.characteristics.characteristic import Rule, bias_ratio
from leakscope_papers.programs.rows import Keep, Place, Say
from leakscope_papers.programs.settings import read_settings
from leakscope_papers.spn.attackers import (
    AWARE,
    RANGE,
    Attacked,
    attack_of,
    attacked_of,
    attackers_of,
    client_of,
    printed_accuracies,
)
from leakscope_papers.spn.caps import CAPS, PRINTED, TRAINED, caps_of, guessed_cap, printed_pictures
from leakscope_papers.spn.settings import CosineSettings, Curve, CurveSettings, Pictures, Trained
from leakscope_papers.spn.training import kept_curve

K = TypeVar("K", bound=Hashable)
RAW_CAP = 10.0
ALL, PARTS = "all", "tracing by participants"
PRODUCT = "accuracy_x_"  # prefix of a distance's name: distance times accuracy
DISTRIBUTIONS = ("gradient of the CE loss", "gradient of the polarization loss")  # of figure 4, as quantiles
LEVELS = 21  # of the quantiles
DISTANCES = ("rmse", "membership", "tracing")
Numbers = dict[str, list[float]]
Asked = tuple[str, Place]  # key and place of a row


@dataclass(frozen=True, slots=True)
class Wanted:
    """A curve against one attacker at one batch: keys and places of its rows, by strength, (strength, owners), (CAP, accuracies)."""

    curve: Curve
    strengths: Mapping[int, Asked]
    parts: Mapping[tuple[int, int], Asked]
    caps: Mapping[tuple[str, str], Asked]
    samples: int
    attacker: str


@dataclass(frozen=True, slots=True)
class Measured:
    """The results of one strength: numbers by measure, and those of tracing for every number of participants."""

    numbers: Numbers
    parts: Mapping[int, Numbers]


def curves(settings: Mapping[str, object], keep: Keep, say: Say, device: str) -> None:
    """Store for each strength distances, ratio, accuracy and products; for each curve its CAP by attack and kind of accuracies."""
    chosen, shown = read_settings(CurveSettings, settings), read_settings(Pictures, settings)
    trained = read_settings(Trained, settings) if chosen.training else None
    name = shown.data.name
    wanted = [one for curve in chosen.curves for one in _wanted(chosen, shown, curve, keep)]
    data = load_data(name) if wanted else None
    for curve in chosen.curves:
        missing = [one for one in wanted if one.curve is curve]
        if not missing or data is None:
            continue
        say(f"{name}, {curve.title}")
        right = None if trained is None else kept_curve(trained, curve, data, keep.directory, say, device)
        for one in missing:
            attacked = attacked_of(shown, data, one.samples)
            attacks = attack_curve(chosen, attacked, curve, one.attacker, device)
            pictures = {TRAINED: right, PRINTED: _printed(data, name, curve)}
            _add(keep, one, attacks, pictures, chosen.owners)


def _wanted(settings: CurveSettings, shown: Pictures, curve: Curve, keep: Keep) -> list[Wanted]:
    """Return the missing rows of a curve, by attacker."""

    def missing(rows: Mapping[K, Asked]) -> dict[K, Asked]:
        return {which: row for which, row in rows.items() if not keep.done(*row)}

    wanted = []
    for samples in settings.batches:
        for attacker in attackers_of(settings.attackers, curve):
            base: Place = {"data": shown.data.name, "model": shown.model.name, "batch": samples, "attacker": attacker}
            title = f"{curve.title} B={samples} {attacker}"
            strengths = missing(_strength_rows(settings, curve, title, base))
            parts = missing(_part_rows(settings, curve, title, base))
            caps = missing(_cap_rows(settings, curve, title, base))
            if strengths or parts or caps:
                wanted.append(Wanted(curve, strengths, parts, caps, samples, attacker))
    return wanted


def _place(curve: Curve, strength: float, base: Place) -> Place:
    return {**base, **curve.place(strength), "strength": strength}


def _strength_rows(settings: CurveSettings, curve: Curve, title: str, base: Place) -> dict[int, Asked]:
    """Return the rows by strength number."""
    return {
        number: (f"{title} {s:g}", {**_place(curve, s, base), "attack": ALL, "owners": settings.owners})
        for number, s in enumerate(curve.strengths)
    }


def _part_rows(settings: CurveSettings, curve: Curve, title: str, base: Place) -> dict[tuple[int, int], Asked]:
    """Return the rows by strength number and number of participants."""
    return {
        (number, owners): (
            f"{title} {s:g} among {owners}",
            {**_place(curve, s, base), "attack": PARTS, "owners": owners},
        )
        for number, s in enumerate(curve.strengths)
        for owners in settings.owners_too
    }


def _cap_rows(settings: CurveSettings, curve: Curve, title: str, base: Place) -> dict[tuple[str, str], Asked]:
    """Return the rows by CAP and kind of accuracies."""
    return {
        (cap, kind): (
            f"{title} CAP of {cap}, {kind}",
            {**base, **curve.place(), "attack": value.attack, "queries": value.queries, "accuracies": kind},
        )
        for cap, value in CAPS.items()
        for kind in settings.accuracies
    }


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
    """Return a strength's training results: its accuracy, and each distance times it (a CAP over one strength)."""
    products = {PRODUCT + name: caps_of(right[None], [measured.numbers[name]]) for name in DISTANCES}
    return {"accuracy": right.double().tolist(), **products}


def attack_curve(
    settings: CurveSettings, attacked: Attacked, curve: Curve, attacker: str, device: str
) -> list[Measured]:
    """Return the results of each strength."""
    times, trials, informed = len(curve.strengths), len(attacked.seeds), attacker == AWARE
    strengths = torch.tensor([float(s) for s in curve.strengths]).repeat_interleave(trials)
    batch, weights, seeds = attacked.repeated(times)
    client = client_of(curve, strengths)
    exposure = expose(attacked.model, client, weights, batch, seeds, informed=informed)
    plain = Client().observe(attacked.model, weights, batch, seeds)
    ratio = bias_ratio(plain.rounds[0].sent, exposure.observation.rounds[0].sent)
    knowledge = exposure.known(informed=informed)
    method = attack_of(attacker, client, knowledge, strengths, settings.iterations, settings.threshold)
    execution = Execution(device=device, form=settings.form)
    result = attack(exposure, method, informed=informed, execution=execution)
    every = [slice(number * trials, (number + 1) * trials) for number in range(times)]
    return [_measured(settings, attacked, result.select(some), ratio[some]) for some in every]


def _measured(settings: CurveSettings, attacked: Attacked, result: AttackResult, ratio: Tensor) -> Measured:
    truth, labels, reconstruction = attacked.batch.inputs, attacked.batch.labels, result.reconstruction
    guess = reconstruction.inputs
    rmse, _ = Rule().distances(truth, guess)
    raw, _ = Rule(shown=False, cap=RAW_CAP).distances(truth, guess)
    classes, owners = attacked.model.classes, settings.owners
    tracing = traced(attacked, guess, result.scores.pairing, [owners, *settings.owners_too])
    labelled = membership(truth, labels, guess, reconstruction.labels, classes=classes)
    numbers = {
        "ratio": around_median(ratio).tolist(),
        "iterations": reconstruction.iterations.double().tolist(),
        "rmse": rmse.nanmean(1).tolist(),
        "rmse_raw": raw.nanmean(1).tolist(),
        "membership": labelled.each.tolist(),
        "membership_unpaired": labelled.unpaired.tolist(),
        **tracing[owners],
    }
    return Measured(numbers, tracing)


def traced(attacked: Attacked, guess: Tensor, pairing: Tensor, owners: Sequence[int]) -> dict[int, Numbers]:
    """Return for each number of participants the share traced to a wrong one: of all queries, and of those with a reconstruction."""
    pictures = arrange(clean(guess), pairing).flatten(0, 1)
    traces = trace_each(attacked.queries, pictures, attacked.source, owners)
    return {one.participants: _shares(one) for one in traces}


def _shares(tracing: Tracing) -> Numbers:
    return {
        "tracing": tracing.all_by.tolist(),
        "tracing_reconstructed": tracing.reconstructed_by.tolist(),
        "tracing_chance": [tracing.chance],
    }


# -- figure 4


def cosines(settings: Mapping[str, object], keep: Keep, say: Say, device: str) -> None:
    """Store the cosine between the gradients of CE and polarization loss: each layer, all weights, all biases."""
    del device
    chosen, shown = read_settings(CosineSettings, settings), read_settings(Pictures, settings)
    base = {"data": shown.data.name, "model": shown.model.name, "defence": "spn"}
    rows: list[Asked] = [(group, {**base, "layer": group}) for group in chosen.groups]
    missing = [row for row in rows if not keep.done(*row)]
    if not missing:
        return
    say(f"{shown.data.name}: gradients of both losses for {shown.images} pictures")
    attacked = attacked_of(shown, load_data(shown.data.name), chosen.batch)
    parts = both_gradients(attacked, chosen.bits)
    for group, where in missing:
        values = {"gradient_cosine": cosine_of(parts, group).tolist()}
        keep.add(group, where, values, curves=distributions(parts, group))


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
    """Return the cosine of each trial over a named layer, `all weights` or `all biases`."""
    chosen = _names(parts[0], group)

    def cosine(one: Tree, other: Tree) -> Tensor:
        return dot(one, other) / (norm(one) * norm(other)).clamp_min(1e-30)

    return lift(cosine)(*({n: part[n] for n in chosen} for part in parts))


def distributions(parts: tuple[Tree, Tree], group: str) -> dict[str, dict[str, list[float] | list[list[float]]]]:
    """Return the quantiles of the entries of both gradients over a group, the mean over images."""
    levels = torch.linspace(0, 1, LEVELS, dtype=torch.float64)
    curves: dict[str, dict[str, list[float] | list[list[float]]]] = {}
    for title, part in zip(DISTRIBUTIONS, parts, strict=True):
        entries = torch.cat([part[n].flatten(1) for n in _names(part, group)], dim=1).double()
        curves[title] = {"x": levels.tolist(), "y": [torch.quantile(entries, levels, dim=1).mean(1).tolist()]}
    return curves


def _names(part: Tree, group: str) -> list[str]:
    ends = {"all weights": "weight", "all biases": "bias"}
    return [n for n in part if n == group or (group in ends and n.endswith(ends[group]))]


def around_median(values: Tensor) -> Tensor:
    """Return T numbers whose mean is the median of T values and whose standard error is that of the median.

    The numbers are m + c sign(x - m), with c / sqrt(T) the median's error by order statistics, (x_u - x_l) / 2z for the ranks T/2
    +- z sqrt(T)/2. For tables that take means. An infinite median is returned unchanged.

    >>> around_median(torch.tensor([1.0, 2.0, 3.0, 100.0])).mean()
    tensor(2., dtype=torch.float64)
    """
    x = values.double()
    number, ordered, middle = len(x), x.sort().values, x.median()
    if not bool(middle.isfinite()):
        return torch.full_like(x, float(middle))
    reach = Z * math.sqrt(number) / 2
    low = max(0, math.floor(number / 2 - reach))
    high = min(number - 1, math.ceil(number / 2 + reach) - 1)
    ends = ordered[[low, high]].clamp_max(float(ordered[ordered.isfinite()].max()))
    side = torch.sign(torch.arange(number, dtype=torch.float64) - (number - 1) / 2)  # by rank: as many above as below
    return (middle + (ends[1] - ends[0]) / (2 * Z) * math.sqrt(number) * side)[x.argsort().argsort()]
