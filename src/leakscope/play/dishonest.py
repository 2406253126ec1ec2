"""Playing a dishonest server on data that its user holds: manipulated weights, the client's answer, the readout, null baselines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from leakscope.attacks.null import class_mean
from leakscope.clients import Client, attacker_knowledge
from leakscope.clients.aggregation import split_clients
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.pages import notebook_html, write_page
from leakscope.core.tree import Tree, add, subtract, take
from leakscope.core.types import Batch, Observation, Shares, direction
from leakscope.play.attacking import AttackResult, attack, judge
from leakscope.play.baselines import nearest_public
from leakscope.play.exposure import Exposure, expose, shared_weights
from leakscope.servers.manipulation import Manipulation, PerClient, dishonest_weights


@dataclass(frozen=True, slots=True, eq=False)
class ManipulationResult:
    """What a manipulation recovers, compared with public data alone: `attack` scores its readout, `baselines` are by name."""

    exposure: Exposure
    attack: AttackResult
    baselines: dict[str, AttackResult]

    _repr_html_ = notebook_html
    write = write_page

    def __repr__(self) -> str:
        runs = (f"{run.name} {int(run.recovered.sum())}" for run in (self.attack, *self.baselines.values()))
        attack, *nulls = runs
        return f"{attack} of {self.attack.summary.samples} recovered; without the update: {', '.join(nulls)}"


def manipulate(
    model: Model,
    batch: Batch,
    manipulation: Manipulation,
    public: Tensor,
    public_labels: Tensor,
    *,
    client: Client = Client(),  # noqa: B008  frozen
    weights: Tree | None = None,
    seeds: Sequence[int] | None = None,
) -> ManipulationResult:
    """Return what a dishonest server reads of T clients, and what it would have guessed without their updates.

    `public` (P x input_shape in [0, 1]) are the server's own images; they must not contain private ones. `weights` are the honest
    weights with leading T, the model's if not given.
    """
    seeds = list(range(batch.trials)) if seeds is None else seeds
    honest = shared_weights(model, batch.trials) if weights is None else weights
    exposure = expose_manipulated(manipulation, model, client, honest, batch, public, seeds)
    batch = exposure.batch  # of the clients that answered
    known = replace(exposure.knowledge, labels=batch.labels)
    guesses = {
        "class_mean": class_mean(public, public_labels, classes=model.classes).guess(known, batch.trials),
        "nearest_public": nearest_public(batch, public, public_labels, classes=model.classes).reconstruction,
    }
    nulls = {name: judge(batch, guess, name=name) for name, guess in guesses.items()}
    return ManipulationResult(exposure, attack(exposure, manipulation), nulls)


def expose_manipulated(
    manipulation: Manipulation,
    model: Model,
    client: Client,
    weights: Tree,
    batch: Batch,
    public: Tensor,
    seeds: Sequence[int],
    *,
    labels: bool = False,  # whether the server knows the labels
    local: bool = True,  # whether it knows the local training
) -> Exposure:
    """Return what T clients expose that got manipulated weights; under a sum each client may get weights of its own."""
    public = client.scaling.scale(public, len(model.input_shape))
    if client.aggregation.clients > 1 and isinstance(manipulation, PerClient):
        exposure = _expose_sum(manipulation, model, client, weights, batch, public, seeds)
    else:
        network, sent = dishonest_weights(manipulation, model, weights, public, seeds)
        exposure = expose(network, client, sent, batch, seeds, informed=False)
    known = attacker_knowledge(exposure.model, client, exposure.batch, labels=labels, local=local)
    return replace(exposure, knowledge=known)


def _expose_sum(
    manipulation: PerClient,
    model: Model,
    client: Client,
    weights: Tree,
    batch: Batch,
    public: Tensor,
    seeds: Sequence[int],
) -> Exposure:
    """Return the mean update of clients with weights of their own; weights before are those of the first client."""
    if client.rounds > 1:
        raise InputError(f"{manipulation.name} sums clients over one round, got Client.rounds = {client.rounds}")
    summed, alone, parts = client.aggregation, replace(client, aggregate=1), split_clients(batch, client.aggregation)
    K, answering, answered = summed.clients, summed.answering(seeds), summed.answered(batch, seeds)
    exposures: list[Exposure] = []
    total: Tree = {}
    for number in range(K):
        part = take(parts, slice(number, None, K))
        network, sent = dishonest_weights(manipulation.for_client(number), model, weights, public, seeds)
        own = random.fold(random.fold(random.key(list(seeds)), "aggregate"), number).tolist()
        seen = expose(network, alone, sent, part, own, informed=False)
        share = part.mask.sum(1) * answering[:, number].to(part.mask.device) / answered.mask.sum(1)
        update = direction(seen.observation.rounds[0], seen.observation.shares)
        update = {name: value * share.to(value).reshape(-1, *[1] * (value.ndim - 1)) for name, value in update.items()}
        total = add(total, update) if total else update
        exposures = exposures or [seen]
    first = exposures[0].observation
    change = total if first.shares is Shares.GRADIENT else subtract(first.rounds[0].before, total)
    seen_sum = Observation((replace(first.rounds[0], sent=change),), first.shares, answered.mask.sum(1))
    return Exposure(exposures[0].model, client, answered, tuple(seeds), seen_sum, exposures[0].knowledge)
