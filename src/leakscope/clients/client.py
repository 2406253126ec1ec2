"""One federated client, for many trials at once: from weights and a private batch to what the server sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.registry import lookup
from leakscope.core.scaling import Scaling
from leakscope.core.tree import Tree, flat_names, lift, subtract
from leakscope.core.types import Batch, Knowledge, LocalTraining, Observation, Round, Shares
from leakscope.defences.on_update import UpdateDefence
from leakscope.learning.gradients import loss_and_gradient
from leakscope.learning.local import draw_order, train
from leakscope.learning.losses import LOSSES, one_hot

AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Client:
    """What a client does between download and upload.

    `local=None` shares the gradient of one full batch (FedSGD). With `LocalTraining` it shares its weights after E epochs
    of batches of B (FedAvg); defences then act on the change of the weights. Defences apply in the order given.
    """

    local: LocalTraining | None = None
    loss: str = "cross_entropy"
    scaling: Scaling = field(default_factory=Scaling)
    defences: tuple[UpdateDefence, ...] = ()

    def __post_init__(self) -> None:
        lookup(LOSSES, self.loss, "loss")

    def observe(self, model: Model, weights: Tree, batch: Batch, seeds: Sequence[int]) -> Observation:
        """Return what the server sees of every trial; `weights` lead with T, `seeds` has one number per trial."""
        self._check(model, weights, batch, seeds)
        keys = random.key(list(seeds), device=batch.inputs.device)
        buffers = {n: b.expand(batch.trials, *b.shape) for n, b in model.buffers.items()}
        play = self._gradient if self.local is None else self._weights

        def one(
            defences: tuple[UpdateDefence, ...],
            weights: Tree,
            buffers: Tree,
            x: Tensor,
            y: Tensor,
            m: Tensor,
            k: Tensor,
        ) -> Tree:
            x = self.scaling.scale(x, len(model.input_shape)).to(next(iter(weights.values())).dtype)
            return play(model, defences, weights, buffers, x, y, m, random.fold(k, "client"))

        weights = {n: w.detach() for n, w in weights.items()}
        sent = lift(one, chunk=AT_ONCE)(self.defences, weights, buffers, batch.inputs, batch.labels, batch.mask, keys)
        before = {name: value.detach() for name, value in weights.items() if name not in model.private}
        return Observation(
            rounds=(Round(before, buffers, sent),),
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
        self,
        model: Model,
        defences: tuple[UpdateDefence, ...],
        weights: Tree,
        buffers: Tree,
        x: Tensor,
        y: Tensor,
        mask: Tensor,
        key: Tensor,
    ) -> Tree:
        targets = one_hot(y, model.classes, x.dtype)
        gradient, _, _, _ = loss_and_gradient(model, LOSSES[self.loss], weights, buffers, x, targets, mask, key)
        return _protected(model.shared(gradient), defences, key)

    def _weights(
        self,
        model: Model,
        defences: tuple[UpdateDefence, ...],
        weights: Tree,
        buffers: Tree,
        x: Tensor,
        y: Tensor,
        mask: Tensor,
        key: Tensor,
    ) -> Tree:
        if self.local is None:
            raise RuntimeError("local training needs its settings")
        targets = one_hot(y, model.classes, x.dtype)
        order = draw_order(self.local, x.shape[0], key, mask)
        after, _ = train(model, LOSSES[self.loss], self.local, weights, buffers, x, targets, mask, order, key)
        start = model.shared(weights)
        change = _protected(subtract(start, model.shared(after)), defences, key)
        return subtract(start, change)


def _protected(update: Tree, defences: tuple[UpdateDefence, ...], key: Tensor) -> Tree:
    for number, defence in enumerate(defences):
        update = defence.protect_update(update, random.fold(random.fold(key, "defence"), number))
    return update


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
