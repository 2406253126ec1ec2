"""Fishing: a head that silences every sample but one. Wen et al. 2022, Fishing for user data, arXiv:2202.00580.

By class: all head rows but that of the target class are 0 with a large bias. A sample of another class has
no gradient behind the head; one of the target class has the gradient `-w_c` by its features. By feature: the target's row is
`STEEP (f_m - q)` for one feature m, the others are 0. A sample of the target class has a gradient only if its feature is below q, so
among samples of one class the one with the least feature stands alone. In both the bias gradient of the target says how many samples
are left. Then the update is that of one sample, and any attack on one sample reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakscope.attacks.attack import Attack, check_observation
from leakscope.attacks.engine.plan import DEFAULT, Execution
from leakscope.attacks.recipes import ig
from leakscope.core import random
from leakscope.core.errors import InputError, first_line
from leakscope.core.layer_inputs import noting
from leakscope.core.model import Dense, Model
from leakscope.core.tree import Tree
from leakscope.core.types import Knowledge, Observation, Reconstruction, Round, Seeds, to_gradient

SILENT = 1e3  # bias of the other classes
HALF = 0.5  # factor of the target's row
STEEP = 300.0  # slope in the feature
IG = ig()


@dataclass(frozen=True, slots=True)
class Fishing:
    """Reduce a batch to the samples of class `target`, or to those of it with a low `feature`; read by an attack on one sample.

    By feature the others of the batch must be of the same class; a share `1 / batch` of the public inputs lies below the threshold. Other
    places of the result stay grey: this server sees one sample a round. `Reconstruction.learned["fished"]` is the number of samples
    left, by the update; the readout is a mixture if it is above 1, and nothing if it is 0.
    """

    name: str = "fishing"
    target: int = 0
    feature: int | None = None
    batch: int = 8
    reader: Attack = IG

    def __post_init__(self) -> None:
        if self.target < 0 or (self.feature is not None and self.feature < 0) or self.batch < 2:
            raise InputError(
                f"Fishing needs target and feature of at least 0 and a batch of at least 2, got {self.target}, "
                f"{self.feature}, {self.batch}"
            )

    def extend(self, model: Model) -> Model:
        """Return the network itself."""
        return model

    def weights(self, model: Model, weights: Tree, public: Tensor, key: Tensor) -> Tree:
        """Return the weights with another head."""
        head, bias_name = self._head(model)
        weight, bias = torch.zeros_like(weights[head.weight]), torch.zeros_like(weights[bias_name])
        if self.feature is None:
            weight[self.target] = HALF * weights[head.weight][self.target]
            bias += SILENT
            bias[self.target] = HALF * weights[bias_name][self.target]
        else:
            with noting([head.layer]) as inputs:
                model.apply(weights, model.buffers, public, random.fold(key, "features"))
            features = inputs[head.layer]
            if features is None or self.feature >= features.shape[1]:
                raise InputError(f"Fishing.feature must be below {weight.shape[1]}, got {self.feature}")
            weight[self.target, self.feature] = STEEP
            bias[self.target] = -STEEP * features[:, self.feature].quantile(1 / self.batch)
        return weights | {head.weight: weight, bias_name: bias}

    def _head(self, model: Model) -> tuple[Dense, str]:
        head = model.head
        if head is None or head.bias is None or {head.weight, head.bias} & model.private:
            raise InputError(f"{self.name} changes a dense head with a bias, and {model.name!r} shares none")
        if self.target >= model.classes:
            raise InputError(f"Fishing.target must be below {model.classes} classes, got {self.target}")
        return head, head.bias

    def run(
        self, model: Model, observation: Observation, knowledge: Knowledge, seeds: Seeds, execution: Execution = DEFAULT
    ) -> Reconstruction:
        """Return the fished sample in the first place of every trial, grey in the others."""
        check_observation(model, observation, knowledge, seeds)
        if knowledge.loss != "cross_entropy":
            raise InputError(f"{self.name} silences samples under cross entropy; this loss is {knowledge.loss}")
        head, bias = self._head(model)
        rate = 1.0 if knowledge.local is None else knowledge.local.length([knowledge.samples])
        seen = to_gradient(observation, rate)
        left = -knowledge.samples * torch.stack([each.sent[bias][:, self.target] for each in seen.rounds]).mean(0)
        factor = knowledge.samples / left.round().clamp_min(1)
        rounds = tuple(self._of_one(each, head, bias, factor) for each in seen.rounds)
        label = torch.full((observation.trials, 1), self.target, device=left.device)
        one = replace(seen, rounds=rounds, samples=torch.ones_like(observation.samples))
        known = replace(knowledge, samples=1, labels=label, present=None, local=None)
        try:
            result = self.reader.run(model, one, known, seeds, execution)
        except InputError:
            raise
        except ValueError as error:  # of torch: batch norm without positions
            raise InputError(
                f"{self.name} reads one sample, and {model.name!r} cannot run on one: {first_line(error)}"
            ) from None
        whole = in_batch(result, knowledge.samples)
        return replace(whole, learned=result.learned | {"fished": left.to(result.inputs)})

    def _of_one(self, seen: Round, head: Dense, bias: str, factor: Tensor) -> Round:
        """Return the round as if the fished samples' mean were the batch: head rows of other classes follow from the target's."""

        def scaled(value: Tensor) -> Tensor:
            return value * factor.to(value).reshape(-1, *[1] * (value.ndim - 1))

        sent = {name: scaled(value) for name, value in seen.sent.items()}
        for name in (head.weight, bias):
            row = sent[name][:, self.target : self.target + 1]
            others = torch.arange(sent[name].shape[1], device=row.device) != self.target
            shape = (1, -1, *[1] * (row.ndim - 2))
            sent[name] = torch.where(others.reshape(shape), -row / (len(others) - 1), row)
        return replace(seen, sent=sent)


def in_batch(result: Reconstruction, samples: int) -> Reconstruction:
    """Return the result of some samples of a batch as that of the whole, with grey images and the first label in the other places."""

    def filled(images: Tensor, dim: int) -> Tensor:
        shape = list(images.shape)
        shape[dim] = samples - shape[dim]
        return torch.cat([images, images.new_full(shape, 0.5)], dim)

    missing, proved = samples - result.inputs.shape[1], result.proved
    return replace(
        result,
        inputs=filled(result.inputs, 1),
        start=filled(result.start, 1),
        snapshots=filled(result.snapshots, 2),
        seen=None,
        labels=torch.cat([result.labels, result.labels[:, :1].expand(-1, missing)], 1),
        proved=None if proved is None else torch.nn.functional.pad(proved, (0, missing)),
    )
