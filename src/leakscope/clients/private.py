"""DP-SGD clients (Abadi et al. 2016, arXiv:1607.00133, Algorithm 1): clip every example's gradient, add noise, step.

    g = 1/B ( sum_i m_i g_i min(1, C / |g_i|) + sigma C z ),   z ~ N(0, I),   m_i = 1 with probability q = B / N

`bound` is C, `multiplier` sigma. Every example joins every step independently with probability q (Poisson sampling), as the
accountants assume; shuffled batches of fixed size would not comply. With B = N nothing is drawn. Agrees with Opacus
(tests/integrations/test_opacus.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.fields import check_fields
from leakscope.core.model import Model
from leakscope.core.registry import lookup
from leakscope.core.scaling import Scaling
from leakscope.core.tree import TINY, Tree, lift, norm, subtract
from leakscope.core.types import Batch, Knowledge, LocalTraining, Observation, Round, Shares
from leakscope.learning.gradients import loss_and_gradient
from leakscope.learning.losses import LOSSES, Loss, one_hot


@dataclass(frozen=True, slots=True)
class PrivateClient:
    """A client that trains with DP-SGD: one private gradient (`local=None`), or `local` steps of plain SGD with them.

    `local.batch_size` is the expected batch size; momentum, Adam, weight decay and a proximal term are refused. The epsilon is
    `leakscope.integrations.opacus.epsilon` of `multiplier`, `rate(N)` and `steps(N)`.
    """

    bound: float = 1.0
    multiplier: float = 1.0
    local: LocalTraining | None = None
    loss: str = "cross_entropy"
    scaling: Scaling = field(default_factory=Scaling)

    def __post_init__(self) -> None:
        check_fields(self)
        lookup(LOSSES, self.loss, "loss")
        if not 0 < self.bound < math.inf:
            raise InputError(f"PrivateClient.bound must be in (0, inf), got {self.bound}")
        if not 0 <= self.multiplier < math.inf:
            raise InputError(f"PrivateClient.multiplier must be in [0, inf), got {self.multiplier}")
        local = self.local
        if local is not None and (
            local.optimiser != "sgd" or local.momentum or local.weight_decay or getattr(local, "proximal", 0)
        ):
            raise InputError("PrivateClient.local must be plain SGD: no Adam, momentum, weight decay or proximal term")

    def size(self, samples: int) -> int:
        """Return B, the expected number of examples in a step."""
        return min((self.local.batch_size if self.local else None) or samples, samples)

    def rate(self, samples: int) -> float:
        """Return q, the probability that an example takes part in a step."""
        return self.size(samples) / samples

    def steps(self, samples: int) -> int:
        """Return the number of steps in a round."""
        return 1 if self.local is None else self.local.steps(samples)

    def observe(self, model: Model, weights: Tree, batch: Batch, seeds: Sequence[int]) -> Observation:
        """Return what the server sees of every trial; `weights` have leading T, `seeds` one number per trial."""
        if len(seeds) != batch.trials:
            raise InputError(f"one seed per trial: {batch.trials} trials, {len(seeds)} seeds")
        if tuple(batch.inputs.shape[2:]) != tuple(model.input_shape):
            raise InputError(
                f"model {model.name!r} takes inputs {model.input_shape}, the batch has {tuple(batch.inputs.shape[2:])}"
            )
        keys = random.fold(random.key(list(seeds), device=batch.inputs.device), "private client")
        buffers = {n: b.expand(batch.trials, *b.shape) for n, b in model.buffers.items()}
        weights = {n: w.detach() for n, w in weights.items()}

        def one(weights: Tree, buffers: Tree, x: Tensor, y: Tensor, mask: Tensor, key: Tensor) -> Tree:
            x = self.scaling.scale(x, len(model.input_shape)).to(next(iter(weights.values())).dtype)
            return self._update(model, weights, buffers, x, one_hot(y, model.classes, x.dtype), mask, key)

        update = lift(one)(weights, buffers, batch.inputs, batch.labels, batch.mask, keys)
        before = model.shared(weights)
        update = model.shared(update)
        sent = update if self.local is None else subtract(before, update)
        shares = Shares.GRADIENT if self.local is None else Shares.WEIGHTS
        return Observation((Round(before, buffers, sent),), shares, batch.mask.sum(1))

    def inform(self, knowledge: Knowledge, trials: int) -> Knowledge:
        """Return Knowledge with the noise level per coordinate, and the clip if it bounds the update (one gradient of one example)."""
        samples = knowledge.samples
        each = self.multiplier * self.bound / self.size(samples)
        moved = 1.0 if self.local is None else self.local.rate * math.sqrt(self.steps(samples))
        whole = samples == 1 and self.local is None
        return replace(
            knowledge,
            sigma=torch.full((trials,), each * moved),
            bound=torch.full((trials,), self.bound) if whole else knowledge.bound,
        )

    def _update(
        self, model: Model, weights: Tree, buffers: Tree, x: Tensor, targets: Tensor, mask: Tensor, key: Tensor
    ) -> Tree:
        """Return the private gradient, or the weight change over all steps, of ONE client."""
        loss, size, steps = LOSSES[self.loss], self.size(len(x)), self.steps(len(x))
        now = weights
        gradient: Tree = {}
        for step in range(steps):
            step_key = random.fold(key, step)
            joined = mask
            if size < len(x):
                drawn = random.uniform(random.fold(step_key, "joins"), (len(x),), torch.float64)
                joined = mask & (drawn < self.rate(len(x)))
            gradient = private_gradient(
                model,
                loss,
                now,
                buffers,
                x,
                targets,
                joined,
                step_key,
                bound=self.bound,
                multiplier=self.multiplier,
                size=size,
            )
            if self.local is not None:
                now = {n: now[n] - self.local.rate * g for n, g in gradient.items()}
        return gradient if self.local is None else subtract(weights, now)


def private_gradient(
    model: Model,
    loss: Loss,
    weights: Tree,
    buffers: Tree,
    x: Tensor,
    targets: Tensor,
    mask: Tensor,
    key: Tensor,
    *,
    bound: float,
    multiplier: float,
    size: int,
) -> Tree:
    """Return the noisy mean of clipped per-example gradients of ONE client; `mask` says which examples take part.

    Divides by the expected number `size`: dividing by the actual number would reveal it.
    """
    alone = torch.ones(1, dtype=torch.bool, device=x.device)

    def each(x: Tensor, target: Tensor) -> Tree:
        gradient, _, _, _ = loss_and_gradient(model, loss, weights, buffers, x[None], target[None], alone, key)
        factor = (bound / norm(gradient).clamp_min(TINY)).clamp_max(1.0)
        return {name: value * factor for name, value in gradient.items()}

    clipped = torch.func.vmap(each)(x, targets)
    shapes = {name: value.shape[1:] for name, value in clipped.items()}
    noise = random.normals(random.fold(key, "private noise"), shapes, x.dtype)
    private = {}
    for name, value in clipped.items():
        total = torch.where(mask.reshape(-1, *[1] * (value.ndim - 1)), value, 0).sum(0)
        private[name] = (total + multiplier * bound * noise[name].to(total.dtype)) / size
    return private
