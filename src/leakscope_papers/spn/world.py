"""What SPN's programs share: defences with a grid of strengths, the pictures that are attacked, and who attacks them.

Fan et al. 2020, arXiv:2006.11601, table 2. A curve is plain data: `{defence: dp, strengths: [...]}`, with `share` for PPDL and `bits`
for SPN. PPDL chooses the largest share of the gradient and adds noise to what it sends, nothing to what it leaves out (Shokri and
Shmatikov 2015). Strength 0 is no defence, of PPDL the choice alone; it has a curve of its own, so that CAPs stay over the paper's
grid. No attacker stops before its iterations are done: an absolute threshold is reached sooner by weak gradients
than by strong ones, and never under noise, so it would decide how well defences compare.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
from leakscope.core.tree import Tree
from leakscope.core.types import Batch, Knowledge, make_batch
from leakscope.data import Dataset
from leakscope.defences import ChosenNoise, GaussianNoise, LaplaceNoise, Sparsify
from leakscope.defences.on_model import Polarisation
from leakscope.inference.tracing import spread
from leakscope.models import Uniform, build, draw_parameters
from leakscope_papers.programs.rows import Place
from leakscope_papers.published import read_printed

RANGE = 0.3
UNAWARE, READER, AWARE, DUMMY, HEAD = "unaware", "reader", "aware", "dummy", "head"
Curve = Mapping[str, Any]
Strength = float | Tensor


def _dp(curve: Curve, strength: Strength) -> Client:
    """Return DP's client; without noise nothing is drawn, which would be most of a turn of its training."""
    del curve
    return Client(defences=(GaussianNoise(strength),) if _any(strength) else ())


def _ppdl(curve: Curve, strength: Strength) -> Client:
    """Return PPDL's client; without noise it is the choice alone, of which one who knows may use that the largest were sent."""
    if not _any(strength):
        return Client(defences=(Sparsify(share=curve["share"]),))
    return Client(defences=(ChosenNoise(strength, curve["share"]),))


def _any(strength: Strength) -> bool:
    return bool((torch.as_tensor(strength) > 0).any())


CLIENTS: dict[str, Callable[[Curve, Strength], Client]] = {
    "dp": _dp,
    "laplace": lambda _, s: Client(defences=(LaplaceNoise(scale=s),)),
    "laplace_equal": lambda _, s: Client(defences=(LaplaceNoise(s),)),
    "ppdl": _ppdl,
    "spn": lambda curve, s: Client(on_model=Polarisation(s, bits=curve.get("bits", 64), spread=RANGE)),
}


def client_of(curve: Curve, strength: Strength) -> Client:
    """Return a client under the defence of a curve, at one strength or at one for each trial."""
    return lookup(CLIENTS, curve["defence"], "defence of a curve")(curve, strength)


def place_of(curve: Curve, strength: float | None = None) -> dict[str, Any]:
    """Return the defence in the words of the published files: what kind, which share, how many bits, how strong.

    >>> place_of({"defence": "ppdl", "share": 0.3, "strengths": [0.1]}, 0.1)
    {'defence': 'ppdl', 'share': 0.3, 'sigma': 0.1}
    """
    place = {"defence": curve["defence"], **{name: curve[name] for name in ("share", "bits") if name in curve}}
    if strength is not None:
        place["alpha2" if curve["defence"] == "spn" else "sigma"] = strength
    return place


def title_of(curve: Curve) -> str:
    """Return the name of a curve in the key of a row."""
    return " ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in place_of(curve).values())


def printed_accuracies(data: str, curve: Curve) -> list[float] | None:
    """Return the accuracies of table 11 at the strengths of a curve; None where one of them is not printed."""
    accuracies = []
    for strength in curve["strengths"]:
        place = {"data": data, **{k: v for k, v in place_of(curve, strength).items() if k != "bits"}}
        rows = [row for row in read_printed("spn-table-11").rows if _within(row.where, place)]
        if len(rows) != 1 or rows[0].value is None or curve.get("bits", 64) != 64:
            return None
        accuracies.append(rows[0].value)
    return accuracies


def _within(where: Place, place: Mapping[str, Any]) -> bool:
    """Return whether a printed place has these words and no share or strength besides."""
    same = {name: value for name, value in where.items() if name != "model"}
    return same.keys() == place.keys() and all(same[name] == value for name, value in place.items())


@dataclass(frozen=True, slots=True)
class Attacked:
    """What every curve attacks: the network, private batches with weights and seeds, the queries, which of them they are."""

    model: Model
    batch: Batch
    weights: Tree
    seeds: list[int]
    queries: Tensor
    source: Tensor

    def repeated(self, times: int) -> tuple[Batch, Tree, list[int]]:
        """Return the same trials once for every strength, strength by strength."""
        parts = (self.batch.inputs, self.batch.labels, self.batch.mask)
        return Batch(*(_repeat(t, times) for t in parts)), _repeat_tree(self.weights, times), self.seeds * times


def attacked_of(settings: Mapping[str, Any], data: Dataset, samples: int) -> Attacked:
    """Return the clients of a data set: pictures spread over the queries, so many to a batch, weights of uniform(-0.3, 0.3)."""
    number = min(settings["queries"], data.size("train"))
    source = spread(settings["images"], number)
    trials = len(source) // samples
    if not trials:
        raise InputError(f"a batch of {samples} needs as many images, got {settings['images']}")
    source = source[: trials * samples]
    queries = data.pictures("train", range(number))
    labels = data.labels("train", source.tolist())
    inputs = queries[source].unflatten(0, (trials, samples))
    model, seeds = network_of(settings, data), list(range(trials))
    weights = draw_parameters(model, Uniform(RANGE), random.key(seeds))
    batch = make_batch(inputs, labels.unflatten(0, (trials, samples)), classes=data.classes)
    return Attacked(model, batch, weights, seeds, queries, source)


def network_of(settings: Mapping[str, Any], data: Dataset) -> Model:
    """Return the network that the settings name, for a data set."""
    given = dict(settings["model"])
    return build(given.pop("name"), data.input_shape, data.classes, given)


def attackers_of(settings: Mapping[str, Any], curve: Curve) -> Sequence[str]:
    """Return who attacks a curve: those of the settings; a dummy head and the public head alone are for SPN only."""
    return [name for name in settings["attackers"] if curve["defence"] == "spn" or name in (UNAWARE, READER, AWARE)]


def attack_of(
    kind: str, client: Client, knowledge: Knowledge, strengths: Tensor, iterations: int, threshold: float = 0.0
) -> Matching:
    """Return the attacker: algorithm 5's, a reader of labels, one who knows the defence, with a dummy head, of the public head alone.

    Algorithm 5 learns labels with the picture, all others read them off the update. The `reader` is algorithm 5 with that alone
    changed: what one who knows gains over him comes from knowing the defence. A `threshold` of 0 lets all of them run to the
    end, also the one who knows how much noise there is.
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


def _repeat(value: Tensor, times: int) -> Tensor:
    return value.repeat(times, *[1] * (value.ndim - 1))


def _repeat_tree(tree: Tree, times: int) -> Tree:
    return {name: _repeat(value, times) for name, value in tree.items()}
