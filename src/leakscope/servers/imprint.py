"""Imprint: a layer that sorts samples into bins by one number. Fowl et al. 2022, Robbing the Fed, arXiv:2110.13057.

All rows of the first layer are one functional w (the brightness of an image), and unit i has the bias -q_i, the i-th of k quantiles of
<w, x> over public data. Behind a ReLU, unit i sums the samples above q_i. All units have the same weights into the next layer, so a
sample has the same gradient on each unit that it activates, and `(G_i - G_i+1) / (h_i - h_i+1)` is the sample alone in bin i. With
exact quantiles a sample is alone among B with probability `(1 - 1/k)^(B-1)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakscope.attacks.attack import check_observation
from leakscope.attacks.engine.plan import DEFAULT, Execution
from leakscope.attacks.exact.analytic import exact_result, first_layer, labels_of
from leakscope.attacks.exact.ledger import ROUNDING
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Apply, Dense, HasNorms, Mode, Model
from leakscope.core.tree import TINY, Tree
from leakscope.core.types import Knowledge, Observation, Reconstruction, Seeds
from leakscope.servers.manipulation import first_relu_layer

FIRST, BIAS, SECOND = "imprint.first.weight", "imprint.first.bias", "imprint.second.weight"
KERNELS = "imprint.kernels"  # of a convolution before the first layer, if there is one
EQUAL = 1e-3  # relative difference between gradients that count as equal
OWN = (FIRST, BIAS, SECOND, KERNELS)
Functional = Callable[[tuple[int, ...], Tensor], Tensor]  # of an input's shape and a key; flat


def brightness(shape: tuple[int, ...], key: Tensor) -> Tensor:
    """Return the functional that is the mean of all values."""
    del key
    return torch.full((math.prod(shape),), 1 / math.prod(shape))


def cosine_mode(shape: tuple[int, ...], key: Tensor) -> Tensor:
    """Return a low cosine mode along the last dimension, the same for all rows and channels."""
    del key
    mode = torch.cos(math.pi * (torch.arange(shape[-1]) + 0.5) / shape[-1])
    return mode.expand(shape).flatten() / math.prod(shape)


def random_direction(shape: tuple[int, ...], key: Tensor) -> Tensor:
    """Return a random unit vector: no two clients need share it, and its values say nothing about images."""
    drawn = random.normal(random.fold(key, "functional"), (math.prod(shape),))
    unit: Tensor = drawn / drawn.norm()
    return unit


@dataclass(frozen=True, slots=True)
class Imprint:
    """Sort samples into bins by `functional`, in the first dense layer or in `inserted` units put before the network.

    `sparse` bounds each unit to its own bin, so that no differences are needed and local steps do less harm; it needs inserted units,
    which have an activation of their own. `one_shot` gives every unit the quantile 1 - 1/one_shot: of a batch of that size one sample
    stands alone with probability 1/e, however few units there are. `shrink` multiplies the rows and divides the weights behind them:
    the same function, but the rows' update is larger against the rounding of shared weights, and moves the bins more in local steps.
    """

    name: str = "imprint"
    functional: Functional = brightness
    inserted: int | None = None
    sparse: bool = False
    one_shot: int | None = None
    shrink: float = 2**-6

    def __post_init__(self) -> None:
        if self.inserted is not None and self.inserted < 2:
            raise InputError(f"Imprint.inserted must be at least 2 units, got {self.inserted}")
        if self.sparse and (self.inserted is None or self.one_shot is not None):
            raise InputError("Imprint.sparse needs inserted units and bins: set inserted, and leave one_shot at None")
        if self.one_shot is not None and self.one_shot < 2:
            raise InputError(f"Imprint.one_shot is a batch size of at least 2, got {self.one_shot}")
        if not 0 < self.shrink < math.inf:
            raise InputError(f"Imprint.shrink must be in (0, inf), got {self.shrink}")

    def extend(self, model: Model) -> Model:
        """Return the network with the inserted layer before it; the network itself without one."""
        if self.inserted is None:
            return model
        features, like = math.prod(model.input_shape), next(iter(model.parameters.values()))
        own = {
            FIRST: like.new_zeros(self.inserted, features),
            BIAS: like.new_zeros(self.inserted),
            SECOND: like.new_zeros(features, self.inserted),
        }
        return replace(
            model,
            name=f"imprinted {model.name}",
            apply=Inserted(model.apply, self.shrink if self.sparse else math.inf),
            parameters=own | model.parameters,
            entry=Dense(FIRST, BIAS),
        )

    def weights(self, model: Model, weights: Tree, public: Tensor, key: Tensor) -> Tree:
        """Return the weights with equal rows, quantiles as biases, and equal columns behind them."""
        if self.inserted is None:
            entry, behind = first_relu_layer(model, self.name)
            if behind is None:
                raise InputError(
                    f"{self.name} needs a dense layer directly after the first; {model.name!r} has none: insert units"
                )
            first, bias, second = entry.weight, str(entry.bias), behind
            units, outputs = len(weights[bias]), len(weights[behind])
        else:
            first, bias, second, units, outputs = FIRST, BIAS, SECOND, self.inserted, math.prod(model.input_shape)
        direction = self.functional(tuple(model.input_shape), key).to(public)
        values = public.flatten(1) @ direction
        if len(public) == 1 or bool(values.std() <= EQUAL**2 * values.abs().max()):
            raise InputError(
                f"{self.name} takes quantiles of public inputs, and its functional is the same for all {len(public)}"
            )
        gain = 1 / values.std().clamp_min(TINY)
        row, edges = direction * gain, self._edges(values * gain, units)
        scale = self.shrink / edges.diff().clamp_min(TINY) if self.sparse else torch.full_like(edges[:-1], self.shrink)
        column = (2 * random.uniform(random.fold(key, "column"), (outputs,)).to(public) - 1) / (units * self.shrink)
        changed = weights | {
            first: scale[:, None] * row,
            bias: -scale * edges[:-1],
            second: column[:, None].expand(outputs, units).clone(),
        }
        if self.inserted is None:
            largest = public[values.argmax()]
            self._check(model, changed, bias, torch.stack([largest, largest + (row / row.norm()).view_as(largest)]))
        return changed

    def _check(self, model: Model, weights: Tree, bias: str, x: Tensor) -> None:
        """Raise if two inputs that activate all units have different gradients on them: then differences mean nothing."""
        leaf = weights[bias].clone().requires_grad_()
        output, _ = model.apply(weights | {bias: leaf}, model.buffers, x, random.key(0))
        (slope,) = torch.autograd.grad(output.logsumexp(1).sum(), leaf)
        if not bool((slope - slope.mean()).abs().max() <= EQUAL * slope.abs().max()):
            raise InputError(
                f"{self.name} needs the next dense layer directly after the first; {model.name!r} treats units differently "
                "between them: insert units"
            )

    def _edges(self, values: Tensor, units: int) -> Tensor:
        """Return the lower edges of the bins, ascending, and the last upper edge; the outer bins are wide."""
        if self.one_shot is not None:
            return values.quantile(1 - 1 / self.one_shot).expand(units + 1)
        edges = values.sort().values[(torch.linspace(0, 1, units + 1) * (len(values) - 1)).long()]
        reach = (values.max() - values.min()).clamp_min(TINY)
        edges[0], edges[-1] = edges[0] - reach, edges[-1] + reach
        return edges

    def run(
        self, model: Model, observation: Observation, knowledge: Knowledge, seeds: Seeds, execution: Execution = DEFAULT
    ) -> Reconstruction:
        """Return the content of the fullest bins, one an image; grey where fewer bins than samples are filled."""
        del execution
        check_observation(model, observation, knowledge, seeds)
        if model.entry is None:
            raise InputError(f"{self.name} reads a first dense layer, and {model.name!r} has none")
        weight, bias, _ = first_layer(model.entry.weight, str(model.entry.bias), observation, knowledge)
        if self.one_shot is not None:
            weight, bias = (weight * bias[..., None]).sum(1, keepdim=True), bias.square().sum(1, keepdim=True)
        elif not self.sparse:
            weight, bias = -weight.diff(dim=1, append=0 * weight[:, :1]), -bias.diff(dim=1, append=0 * bias[:, :1])
        flat, filled = fullest_bins(weight, bias, knowledge)
        pictures = knowledge.scaling.unscale(
            flat.unflatten(-1, tuple(knowledge.input_shape)), len(knowledge.input_shape)
        )
        pictures = torch.where(filled.reshape(*filled.shape, *[1] * (pictures.ndim - 2)), pictures, 0.5)
        unread = 1 - filled.sum(1).to(flat.dtype) / knowledge.samples
        return exact_result(pictures, labels_of(model, observation, knowledge, seeds), unread, 0.0)


def fullest_bins(weight: Tensor, bias: Tensor, knowledge: Knowledge) -> tuple[Tensor, Tensor]:
    """Return T x N x F quotients of the N bins with the largest bias gradients, and which are above rounding, T x N."""
    number = min(knowledge.samples, bias.shape[1])
    chosen = bias.abs().topk(number, dim=1).indices
    strength = bias.gather(1, chosen)
    floor = ROUNDING.get(bias.dtype, 1e-2) * bias.abs().sum(1, keepdim=True)
    filled = strength.abs() > floor.clamp_min(TINY**2)
    rows = weight.gather(1, chosen[..., None].expand(-1, -1, weight.shape[2]))
    flat = rows / torch.where(filled, strength, 1.0)[..., None]
    short = knowledge.samples - number
    return torch.nn.functional.pad(flat, (0, 0, 0, short)), torch.nn.functional.pad(filled, (0, short))


@dataclass(frozen=True, slots=True, eq=False)
class Inserted:
    """`x + W2 act(W1 c(x) + b)` before a network: what the server adds in front of it.

    `act` is ReLU up to `bound`; c is the identity, or a convolution with `KERNELS`.
    """

    network: Apply
    bound: float

    def __call__(self, parameters: Tree, buffers: Tree, x: Tensor, key: Tensor) -> tuple[Tensor, Tree]:
        """Return the output for N inputs, and the buffers after the call."""
        kernels = parameters.get(KERNELS)
        copies = x if kernels is None else torch.nn.functional.conv2d(x, kernels, padding=kernels.shape[-1] // 2)
        sums = torch.nn.functional.linear(copies.flatten(1), parameters[FIRST], parameters[BIAS])
        bins = sums.clamp(0.0, self.bound)
        rest = {name: value for name, value in parameters.items() if name not in OWN}
        return self.network(rest, buffers, x + (bins @ parameters[SECOND].mT).view_as(x), key)

    def in_mode(self, mode: Mode) -> Apply:
        """Return the function with the network's batch norms in a mode; itself if they are."""
        layers: object = self.network
        network = layers.in_mode(mode) if isinstance(layers, HasNorms) else self.network
        return self if network is self.network else replace(self, network=network)
