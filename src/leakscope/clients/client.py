"""One federated client, for many trials at once: from weights and a private batch to what the server sees."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.registry import lookup
from leakscope.core.scaling import Scaling
from leakscope.core.tree import Tree, flat_names, lift, subtract
from leakscope.core.types import Batch, Knowledge, LocalTraining, Observation, Round, Shares, direction
from leakscope.defences import Defence
from leakscope.defences.stack import State, begin, check_stack, protect, revealed
from leakscope.learning.gradients import loss_and_gradient
from leakscope.learning.local import draw_order, train
from leakscope.learning.losses import LOSSES, one_hot

AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Client:
    """What a client does between download and upload.

    `local=None` shares the gradient of one full batch (FedSGD). With `LocalTraining` it shares its weights after E epochs
    of batches of B (FedAvg); defences then act on the change of the weights. Defences apply in the order given. With
    `rounds` above 1 the client answers several times with the same data, defences that draw drawing anew and those that
    remember going on; between rounds the server moves the weights by `server_rate` times what it got (0: it does not).
    """

    local: LocalTraining | None = None
    loss: str = "cross_entropy"
    scaling: Scaling = field(default_factory=Scaling)
    defences: tuple[Defence, ...] = ()
    rounds: int = 1
    server_rate: float = 0.0

    def __post_init__(self) -> None:
        lookup(LOSSES, self.loss, "loss")
        check_stack(self.defences)
        if not isinstance(self.rounds, int) or self.rounds < 1:
            raise InputError(f"Client.rounds must be a whole number of at least 1, got {self.rounds}")
        if not 0 <= self.server_rate < math.inf:
            raise InputError(f"Client.server_rate must be in [0, inf), got {self.server_rate}")

    def observe(self, model: Model, weights: Tree, batch: Batch, seeds: Sequence[int]) -> Observation:
        """Return what the server sees of every trial; `weights` lead with T, `seeds` has one number per trial."""
        self._check(model, weights, batch, seeds)
        keys = random.fold(random.key(list(seeds), device=batch.inputs.device), "client")
        buffers = {n: b.expand(batch.trials, *b.shape) for n, b in model.buffers.items()}
        play = self._gradient if self.local is None else self._weights

        def one(
            defences: tuple[Defence, ...],
            state: State,
            weights: Tree,
            buffers: Tree,
            x: Tensor,
            y: Tensor,
            m: Tensor,
            k: Tensor,
        ) -> tuple[Tree, State]:
            x = self.scaling.scale(x, len(model.input_shape)).to(next(iter(weights.values())).dtype)
            update = play(model, weights, buffers, x, y, m, k)
            return protect(defences, update, state, k)

        weights = {n: w.detach() for n, w in weights.items()}
        state = begin(self.defences, model.shared(weights))
        seen: list[Round] = []
        for number in range(self.rounds):
            own = keys if number == 0 else random.fold(random.fold(keys, "round"), number)
            update, state = lift(one, chunk=AT_ONCE)(
                self.defences, state, weights, buffers, batch.inputs, batch.labels, batch.mask, own
            )
            before = model.shared(weights)
            seen.append(Round(before, buffers, update if self.local is None else subtract(before, update)))
            if self.server_rate:
                weights = weights | {n: before[n] - self.server_rate * update[n] for n in update}
        return Observation(
            rounds=tuple(seen),
            shares=Shares.GRADIENT if self.local is None else Shares.WEIGHTS,
            samples=batch.mask.sum(1),
        )

    def _check(self, model: Model, weights: Tree, batch: Batch, seeds: Sequence[int]) -> None:
        if tuple(batch.inputs.shape[2:]) != tuple(model.input_shape):
            raise InputError(
                f"model {model.name!r} takes inputs {model.input_shape}, the batch has {tuple(batch.inputs.shape[2:])}"
            )
        if int(batch.labels.max()) >= model.classes or int(batch.labels.min()) < 0:
            lowest, highest = int(batch.labels.min()), int(batch.labels.max())
            raise InputError(f"labels must lie in 0..{model.classes - 1}, got {lowest}..{highest}")
        for number, defence in enumerate(self.defences):
            for name, value in flat_names(defence).items():
                if value.ndim < 1 or len(value) != batch.trials:
                    raise InputError(
                        f"defences[{number}].{name} must have one value per trial ({batch.trials}), got {tuple(value.shape)}"
                    )
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

    def _gradient(
        self, model: Model, weights: Tree, buffers: Tree, x: Tensor, y: Tensor, mask: Tensor, key: Tensor
    ) -> Tree:
        """Return the gradient of the whole batch."""
        targets = one_hot(y, model.classes, x.dtype)
        gradient, _, _, _ = loss_and_gradient(model, LOSSES[self.loss], weights, buffers, x, targets, mask, key)
        return model.shared(gradient)

    def _weights(
        self, model: Model, weights: Tree, buffers: Tree, x: Tensor, y: Tensor, mask: Tensor, key: Tensor
    ) -> Tree:
        """Return the change of the weights, before minus after."""
        if self.local is None:
            raise RuntimeError("local training needs its settings")
        targets = one_hot(y, model.classes, x.dtype)
        order = draw_order(self.local, x.shape[0], key, mask)
        after, _ = train(model, LOSSES[self.loss], self.local, weights, buffers, x, targets, mask, order, key)
        return subtract(model.shared(weights), model.shared(after))


def told(
    model: Model,
    client: Client,
    batch: Batch,
    *,
    labels: bool = False,
    local: bool = True,
) -> Knowledge:
    """Return the Knowledge of a server that knows network, loss, scaling and sample count; `labels` and `local` if told."""
    return Knowledge(
        input_shape=tuple(model.input_shape),
        classes=model.classes,
        samples=batch.samples,
        loss=client.loss,
        scaling=client.scaling,
        present=None if bool(batch.mask.all()) else batch.mask,
        labels=batch.labels if labels else None,
        local=client.local if local else None,
    )


def tell_defences(knowledge: Knowledge, client: Client, observation: Observation) -> Knowledge:
    """Return the Knowledge of an attacker who also knows which defences the client used: their facts, not their draws.

    Coordinates that were sent in any round are marked as sent.
    """
    updates = [direction(seen, observation.shares) for seen in observation.rounds]
    facts = [revealed(client.defences, update) for update in updates]
    told_ = dict(facts[0])
    if "mask" in told_:
        masks: list[Any] = [each["mask"] for each in facts]
        told_["mask"] = {name: torch.stack([mask[name] for mask in masks]).amax(0) for name in masks[0]}
    return replace(knowledge, **told_)  # type: ignore[arg-type]
