"""Clients under a curve's defence, the attacked images, and the attackers (Fan et al. 2020, arXiv:2006.11601)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakscope.attacks.attack import Matching
from leakscope.attacks.aware import aware
from leakscope.attacks.polarised import DummyPolarised, spn_aware, spn_head, spn_unaware
from leakscope.clients import Client
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.registry import lookup
from leakscope.core.tree import Tree, take
from leakscope.core.types import Batch, Knowledge, make_batch
from leakscope.data import Dataset
from leakscope.defences import ChosenNoise, GaussianNoise, LaplaceNoise, Sparsify
from leakscope.defences.on_model import Polarisation
from leakscope.inference.tracing import spread
from leakscope.models import Uniform, draw_parameters
from leakscope_papers.programs.rows import Place
from leakscope_papers.programs.settings import build_network
from leakscope_papers.published import read_printed
from leakscope_papers.spn.settings import Curve, Pictures

RANGE = 0.3
UNAWARE, READER, AWARE, DUMMY, HEAD = "unaware", "reader", "aware", "dummy", "head"
BITS = 64
Strength = float | Tensor


def _dp(curve: Curve, strength: Strength) -> Client:
    """Return DP's client; without noise nothing is drawn, because drawing would dominate the training time."""
    del curve
    return Client(defences=(GaussianNoise(strength),) if _any(strength) else ())


def _ppdl(curve: Curve, strength: Strength) -> Client:
    """Return PPDL's client; without noise only the selection, which reveals to an informed attacker that the largest were sent."""
    if curve.share is None:
        raise InputError("a curve of ppdl needs a share")
    return Client(defences=(ChosenNoise(strength, curve.share) if _any(strength) else Sparsify(share=curve.share),))


def _any(strength: Strength) -> bool:
    return bool((torch.as_tensor(strength) > 0).any())


CLIENTS: dict[str, Callable[[Curve, Strength], Client]] = {
    "dp": _dp,
    "laplace": lambda _, s: Client(defences=(LaplaceNoise(scale=s),)),
    "laplace_equal": lambda _, s: Client(defences=(LaplaceNoise(s),)),
    "ppdl": _ppdl,
    "spn": lambda curve, s: Client(on_model=Polarisation(s, bits=curve.bits or BITS, spread=RANGE)),
}


def client_of(curve: Curve, strength: Strength) -> Client:
    """Return a client under a curve's defence, at one strength or at one for each trial."""
    return lookup(CLIENTS, curve.defence, "defence of a curve")(curve, strength)


def printed_accuracies(data: str, curve: Curve) -> list[float] | None:
    """Return the accuracies of table 11 at the strengths of a curve; None if one is not printed."""
    accuracies = []
    for strength in curve.strengths:
        place = {"data": data, **{axis: value for axis, value in curve.place(strength).items() if axis != "bits"}}
        rows = [row for row in read_printed("spn-table-11").rows if _within(row.where, place)]
        if len(rows) != 1 or rows[0].value is None or (curve.bits or BITS) != BITS:
            return None
        accuracies.append(rows[0].value)
    return accuracies


def _within(where: Place, place: Place) -> bool:
    """Return whether a printed place has these words and no other share or strength."""
    same = {name: value for name, value in where.items() if name != "model"}
    return same.keys() == place.keys() and all(same[name] == value for name, value in place.items())


@dataclass(frozen=True, slots=True)
class Attacked:
    """What every curve attacks: the network, private batches with weights and seeds, the queries and their indices."""

    model: Model
    batch: Batch
    weights: Tree
    seeds: list[int]
    queries: Tensor
    source: Tensor

    def repeated(self, times: int) -> tuple[Batch, Tree, list[int]]:
        """Return the trials repeated for every strength, strength by strength."""
        lanes = torch.arange(len(self.seeds)).repeat(times)
        batch, weights = take((self.batch, self.weights), lanes)
        return batch, weights, self.seeds * times


def attacked_of(pictures: Pictures, data: Dataset, samples: int) -> Attacked:
    """Return the clients of a data set: images spread over the queries, `samples` to a batch, weights of uniform(-0.3, 0.3)."""
    number = min(pictures.queries, data.size("train"))
    source = spread(pictures.images, number)
    trials = len(source) // samples
    if not trials:
        raise InputError(f"a batch of {samples} needs as many images, got {pictures.images}")
    source = source[: trials * samples]
    queries = data.pictures("train", range(number))
    labels = data.labels("train", source.tolist())
    inputs = queries[source].unflatten(0, (trials, samples))
    model, seeds = build_network(pictures.model, data), list(range(trials))
    weights = draw_parameters(model, Uniform(RANGE), random.key(seeds))
    batch = make_batch(inputs, labels.unflatten(0, (trials, samples)), classes=data.classes)
    return Attacked(model, batch, weights, seeds, queries, source)


def attackers_of(names: Sequence[str], curve: Curve) -> Sequence[str]:
    """Return which of these attackers apply to a curve; the dummy head and the public head alone are for SPN only."""
    return [name for name in names if curve.defence == "spn" or name in (UNAWARE, READER, AWARE)]


def attack_of(
    kind: str, client: Client, knowledge: Knowledge, strengths: Tensor, iterations: int, threshold: float = 0.0
) -> Matching:
    """Return an attacker: algorithm 5, a label reader, an informed one, one with a dummy head, or one of the public head alone.

    Algorithm 5 optimises labels with the image; all others read them from the update. The `reader` differs from algorithm 5 only
    in that, so the informed attacker's gain over it comes from knowing the defence. With `threshold` 0 all run to the end, also
    the one who knows the noise level.
    """
    attack = _attack_of(kind, client, knowledge, strengths, iterations)
    return replace(attack, stop=replace(attack.stop, threshold=threshold))


def _attack_of(kind: str, client: Client, knowledge: Knowledge, strengths: Tensor, iterations: int) -> Matching:
    if kind == UNAWARE:
        return spn_unaware(iterations=iterations)
    if kind in (READER, AWARE):
        reader = spn_unaware(iterations=iterations, labels="auto")
        return reader if kind == READER else aware(reader, knowledge)
    if kind == HEAD:
        return spn_head(iterations=iterations)
    if kind != DUMMY or client.on_model is None:
        raise InputError(f"attacker must be one of {UNAWARE}, {READER}, {AWARE}, {DUMMY}, {HEAD}, got {kind!r}")
    attack = spn_aware(bits=client.on_model.bits, spread=client.on_model.spread, iterations=iterations)
    return replace(attack, simulate=DummyPolarised(1.0, strengths, 1.0))
