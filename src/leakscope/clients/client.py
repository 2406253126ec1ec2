"""One federated client, for many trials at once: from weights and a private batch to the Observation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import torch
from torch import Tensor

from leakscope.clients.aggregation import (
    Aggregation,
    average,
    client_keys_of,
    facts_of_mean,
    first_of_each,
    join_clients,
    joint_training,
    split_clients,
    spread,
)
from leakscope.clients.censoring import censor_rare_units, censored_layer
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.fields import check_fields
from leakscope.core.model import MODES, Mode, Model
from leakscope.core.registry import lookup
from leakscope.core.scaling import Scaling
from leakscope.core.short_repr import short_repr
from leakscope.core.tree import Tree, V, flat_names, lift, map_tensors, subtract
from leakscope.core.types import Batch, Knowledge, LocalTraining, Observation, Round, Shares, direction
from leakscope.defences import Defence
from leakscope.defences.on_data import DataDefence, Transform
from leakscope.defences.on_model import Polarisation, equip
from leakscope.defences.stack import State, begin, check_stack, protect, revealed
from leakscope.learning.gradients import loss_and_gradient
from leakscope.learning.local import draw_order, train
from leakscope.learning.losses import LOSSES, UserLoss, loss_of, one_hot

AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Answer:
    """What one client sends (a gradient, or its weight change: before minus after), and what it keeps.

    `state` belongs to its defences; `weights` are those after local training, private ones included.
    """

    update: Tree
    state: State
    weights: Tree
    buffers: Tree

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class Client:
    """What a client does between download and upload.

    `local=None` shares the gradient of one full batch (FedSGD). With `LocalTraining` it shares its weights after E epochs of
    batches of B (FedAvg); defences then act on the weight change. Defences apply in the order given. With `rounds` above 1 the
    client answers several times with the same data, with new random draws and continued state of its defences; between rounds the
    server moves the weights by `server_rate` times the update. `on_model` adds a private part to the client's network, drawn once
    from its key. `on_data` transforms the private images, with new draws in every round. `sends_buffers` also shares the buffers
    after each round, such as batch norm's statistics. `norm` is the mode of its batch norm; None: that of the network. With
    `aggregate` above 1 an update is the mean of so many clients, which share the examples of a trial equally; the server sees no
    update of a single one. `Aggregation` adds clients that drop out and clients of unequal size. With `censor` above 0 a
    client sends 0 for units of its first dense layer that fewer than so many of its samples activate, before its defences.
    """

    local: LocalTraining | None = None
    loss: str | UserLoss = "cross_entropy"
    scaling: Scaling = field(default_factory=Scaling)
    defences: tuple[Defence, ...] = ()
    rounds: int = 1
    server_rate: float = 0.0
    on_model: Polarisation | None = None
    on_data: Transform | DataDefence | None = None  # Transform from a file, or a caller's own defence
    sends_buffers: bool = False
    norm: Mode | None = None
    aggregate: int | Aggregation = 1
    censor: int = 0

    def __post_init__(self) -> None:
        check_fields(self)
        if isinstance(self.loss, str):
            lookup(LOSSES, self.loss, "loss")
        elif self.on_model is not None:
            raise InputError(f"Client.on_model needs a loss of classes ({', '.join(LOSSES)}), got {self.loss.name}")
        check_stack(self.defences)
        if not isinstance(self.rounds, int) or self.rounds < 1:
            raise InputError(f"Client.rounds must be a whole number of at least 1, got {self.rounds}")
        if not isinstance(self.aggregate, Aggregation) and self.aggregate < 1:
            raise InputError(f"Client.aggregate must be at least 1, got {self.aggregate}")
        if self.censor < 0:
            raise InputError(f"Client.censor must not be below 0, got {self.censor}")
        if not 0 <= self.server_rate < math.inf:
            raise InputError(f"Client.server_rate must be in [0, inf), got {self.server_rate}")
        if self.norm not in (None, *MODES):
            raise InputError(f"Client.norm must be 'train', 'eval' or None, got {self.norm!r}")
        if self.sends_buffers and self.aggregation.clients > 1:
            raise InputError(
                "Client.sends_buffers is for single clients: buffers of an aggregate are not simulated yet"
            )
        if self.on_data is not None and self.aggregation.dropouts:
            raise InputError("Client.on_data with clients that drop out is not simulated yet: leave dropouts at 0")

    @property
    def aggregation(self) -> Aggregation:
        """Return the clients that an update is the mean of."""
        return self.aggregate if isinstance(self.aggregate, Aggregation) else Aggregation(self.aggregate)

    def observe(self, model: Model, weights: Tree, batch: Batch, seeds: Sequence[int]) -> Observation:
        """Return what the server sees of every trial; `weights` have leading T, `seeds` one number per trial."""
        self._check(model, weights, batch, seeds)
        model = model.in_mode(self.norm)
        summed, samples = self.aggregation, self.aggregation.answered(batch, seeds).mask.sum(1)
        K = summed.clients
        keys, batch = client_keys_of(client_keys(seeds, batch.inputs.device), K), split_clients(batch, summed)
        weights, defences, on_model = spread((weights, self.defences, self.on_model), K)
        if on_model is not None:
            model = on_model.polarise(model)
            weights = weights | on_model.draw(model, keys)
        buffers = {n: b.expand(batch.trials, *b.shape) for n, b in model.buffers.items()}

        def one(
            defences: tuple[Defence, ...],
            guard: Polarisation | None,
            state: State,
            weights: Tree,
            buffers: Tree,
            x: Tensor,
            y: Tensor,
            m: Tensor,
            k: Tensor,
        ) -> tuple[Tree, State, Tree | None]:
            answer = self.answer(model, defences, state, weights, buffers, x, y, m, k, guard=guard)
            return answer.update, answer.state, answer.buffers if self.sends_buffers else None

        weights = {n: w.detach() for n, w in weights.items()}
        state = begin(defences, model.shared(weights))
        seen: list[Round] = []
        for number in range(self.rounds):
            round_keys = keys if number == 0 else random.fold(random.fold(keys, "round"), number)
            update, state, after = lift(one, chunk=AT_ONCE)(
                defences,
                on_model,
                state,
                weights,
                buffers,
                batch.inputs,
                batch.compared,
                batch.mask,
                round_keys,
            )
            update = average(update, batch.mask.sum(1), summed, seeds)
            before = first_of_each(model.shared(weights), K)
            sent = update if self.local is None else subtract(before, update)
            seen.append(Round(before, first_of_each(buffers, K), sent, after))
            if self.server_rate:
                moved = {n: before[n] - self.server_rate * update[n] for n in update}
                weights = weights | spread(moved, K)
        return Observation(
            rounds=tuple(seen),
            shares=Shares.GRADIENT if self.local is None else Shares.WEIGHTS,
            samples=samples,
        )

    def transformed(self, batch: Batch, seeds: Sequence[int]) -> Batch:
        """Return the batch as the network sees it in the first round: after `on_data`, before the scaling."""
        if self.on_data is None:
            return batch
        keys = client_keys_of(client_keys(seeds, batch.inputs.device), self.aggregation.clients)
        inputs = split_clients(batch, self.aggregation).inputs
        inputs = lift(self.on_data.protect_data, chunk=AT_ONCE)(inputs, keys)
        return replace(batch, inputs=join_clients(inputs, self.aggregation, batch.samples))

    def _check(self, model: Model, weights: Tree, batch: Batch, seeds: Sequence[int]) -> None:
        if tuple(batch.inputs.shape[2:]) != tuple(model.input_shape):
            raise InputError(
                f"model {model.name!r} takes inputs {model.input_shape}, the batch has {tuple(batch.inputs.shape[2:])}"
            )
        if int(batch.labels.max()) >= model.classes or int(batch.labels.min()) < 0:
            lowest, highest = int(batch.labels.min()), int(batch.labels.max())
            raise InputError(f"labels must lie in 0..{model.classes - 1}, got {lowest}..{highest}")
        guarded = [(f"defences[{i}]", defence) for i, defence in enumerate(self.defences)]
        for place, defence in [*guarded, ("on_model", self.on_model)]:
            for name, value in flat_names(defence).items():
                if value.ndim < 1 or len(value) != batch.trials:
                    raise InputError(
                        f"{place}.{name} must have one value per trial ({batch.trials}), got {tuple(value.shape)}"
                    )
        if self.censor:
            censored_layer(model)
        if len(seeds) != batch.trials:
            raise InputError(f"one seed per trial: {batch.trials} trials, {len(seeds)} seeds")
        for name, value in model.parameters.items():
            if name not in weights or tuple(weights[name].shape) != (batch.trials, *value.shape):
                got = tuple(weights[name].shape) if name in weights else "nothing"
                raise InputError(
                    f"weights[{name!r}] must be {(batch.trials, *value.shape)} (one set per trial), got {got}"
                )
            if not bool(torch.isfinite(weights[name]).all()):
                raise InputError(f"weights[{name!r}] holds NaN or infinity")

    def answer(
        self,
        model: Model,
        defences: tuple[Defence, ...],
        state: State,
        weights: Tree,
        buffers: Tree,
        x: Tensor,
        y: Tensor,
        mask: Tensor,
        key: Tensor,
        order: Tensor | tuple[Tensor, ...] | None = None,
        guard: Polarisation | None = None,
    ) -> Answer:
        """Return the answer of ONE client; `order` gives the examples of each local step (drawn if None).

        `guard` is `on_model` with this client's strengths; with it `model` is polarised and `weights` hold its secrets.
        """
        x = x if self.on_data is None else self.on_data.protect_data(x, key)
        x = self.scaling.scale(x, len(model.input_shape)).to(next(iter(weights.values())).dtype)
        targets = one_hot(y, model.classes, x.dtype) if isinstance(self.loss, str) else y
        kit = equip(guard or self.on_model, model, loss_of(self.loss), weights, targets)
        loss, weights, targets = kit.loss, kit.weights, kit.targets
        if self.local is None:
            update, _, _, buffers = loss_and_gradient(model, loss, weights, buffers, x, targets, mask, key)
            after = weights
        else:
            order = draw_order(self.local, x.shape[0], key, mask) if order is None else order
            after, buffers = train(model, loss, self.local, weights, buffers, x, targets, mask, order, key)
            update = subtract(model.shared(weights), model.shared(after))
        if self.censor:
            update = censor_rare_units(model, update, weights, after, x, mask, self.censor)
        update, state = protect(defences, model.shared(update), state, key)
        return Answer(update, state, {**after, **kit.kept}, buffers)


def client_keys(seeds: Sequence[int], device: torch.device | None = None) -> Tensor:
    """Return the keys of the clients' draws in the first round: order of examples, noise, dropout masks."""
    return random.fold(random.key(list(seeds), device=device), "client")


def attacker_knowledge(
    model: Model, client: Client, batch: Batch, *, labels: bool = False, local: bool = True
) -> Knowledge:
    """Return the Knowledge of a server that knows network, loss, scaling and sample count, optionally `labels` and `local`.

    `batch` holds the examples behind the update: those of the clients that answered.
    """
    return Knowledge(
        input_shape=tuple(model.input_shape),
        classes=model.classes,
        samples=batch.samples,
        loss=client.loss,
        scaling=client.scaling,
        present=None if bool(batch.mask.all()) else batch.mask,
        labels=batch.compared if labels else None,
        local=joint_training(client.local, client.aggregation.answers) if local else None,
    )


def knowledge_of_defences(knowledge: Knowledge, client: Client, observation: Observation) -> Knowledge:
    """Return Knowledge with the facts about the client's defences, not their draws; coordinates sent in any round count as sent."""
    updates = [direction(seen, observation.shares) for seen in observation.rounds]
    rounds = [revealed(client.defences, update) for update in updates]
    facts = dict(rounds[0])
    if client.on_data is not None:
        facts["policies"] = client.on_data.facts()
    if client.on_model is not None:
        facts["private_head"] = client.on_model.facts(observation.samples)
    if "mask" in facts:
        masks: list[Tree] = [cast(Tree, each["mask"]) for each in rounds]
        facts["mask"] = {name: torch.stack([mask[name] for mask in masks]).amax(0) for name in masks[0]}
    if "sigma_each" in facts:  # estimated from the update of each round
        facts |= {name: _over_rounds([each[name] for each in rounds]) for name in ("sigma", "sigma_each")}
    return replace(knowledge, **facts_of_mean(facts, client.aggregation.answers))  # type: ignore[arg-type]


def _over_rounds(levels: Sequence[V]) -> V:
    """Return the root mean square over rounds, of tensors or of trees."""
    return map_tensors(lambda *each: torch.stack(each).square().mean(0).sqrt(), levels[0], *levels[1:])
