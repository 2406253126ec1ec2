"""The guess as the output of an untrained generator: `x = G_theta(z)` with fixed noise z, and theta as the unknown.

An untrained convolutional network makes smooth images before noisy ones, so its shape is the prior (Ulyanov, Vedaldi and Lempitsky
2018, arXiv:1711.10925). z lies in the unknown `guess`, whose rate is 0; `theta` is one vector. The image is made in the simulator
and once more at the end, so the film of an attack shows z.

    G: transposed convolutions of 4 x 4 to 4 x 4, 8 x 8, ... pixels; batch norm and leaky ReLU between them, tanh at the end
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from leakscope.attacks.attack import Matching
from leakscope.attacks.optimisers import Rule
from leakscope.attacks.priors import GUESS
from leakscope.attacks.settings import AdamSettings, adam_attack
from leakscope.attacks.simulate import OneGradient
from leakscope.attacks.view import Clock, Simulated, Simulator
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.padding import channel_statistics
from leakscope.core.signature import settings_of
from leakscope.core.tree import Tree
from leakscope.core.types import Knowledge, Round

THETA = "theta"
NOISE = 100  # numbers of z that a sample uses
SPREAD = 0.02  # of the first filters, as in DCGAN (Radford et al. 2016, arXiv:1511.06434)
EPS, LEAK = 1e-5, 0.2
KERNEL = 4


class Layer(NamedTuple):
    """The channels that enter and leave a transposed convolution, and whether it is the last, without batch norm."""

    entering: int
    leaving: int
    last: bool

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return how many numbers of theta are filters, scales and shifts."""
        filters = self.entering * self.leaving * KERNEL**2
        return (filters,) if self.last else (filters, self.leaving, self.leaving)


@dataclass(frozen=True, slots=True)
class Generator:
    """The network G with `width` channels before its last layer, twice as many before that, and so on."""

    width: int = 64

    def __post_init__(self) -> None:
        if self.width < 1:
            raise InputError(f"deep_prior(width=...) must be at least 1, got {self.width}")

    def layers(self, knowledge: Knowledge) -> list[Layer]:
        """Return the layers that make an image at least as large as the input; it is cut to size."""
        shape = knowledge.input_shape
        if len(shape) != 3:
            raise InputError(f"deep_prior makes pictures (C x H x W), the input has shape {tuple(shape)}")
        doublings = max(1, math.ceil(math.log2(max(shape[1:]) / KERNEL)))
        channels = [min(NOISE, math.prod(shape)), *(self.width * 2**n for n in reversed(range(doublings))), shape[0]]
        return [Layer(a, b, n == doublings) for n, (a, b) in enumerate(itertools.pairwise(channels))]

    def start(self, key: Tensor, knowledge: Knowledge) -> Tensor:
        """Return the first theta of ONE trial: filters N(0, 0.02), scales 1, shifts 0."""
        parts: list[Tensor] = []
        for number, layer in enumerate(self.layers(knowledge)):
            filters, *rest = layer.sizes
            parts.append(SPREAD * random.normal(random.fold(key, number), (filters,)))
            parts += [torch.full((size,), 1.0 - place, device=key.device) for place, size in enumerate(rest)]
        return torch.cat(parts)

    def __call__(self, theta: Tensor, z: Tensor, knowledge: Knowledge) -> Tensor:
        """Return the images of ONE trial in network space."""
        layers, (_, height, width) = self.layers(knowledge), knowledge.input_shape
        parts = iter(theta.split([size for layer in layers for size in layer.sizes]))
        x = z.flatten(1)[:, : layers[0].entering, None, None]
        for number, layer in enumerate(layers):
            filters = next(parts).reshape(layer.entering, layer.leaving, KERNEL, KERNEL)
            x = F.conv_transpose2d(x, filters, stride=2 if number else 1, padding=1 if number else 0)
            x = torch.tanh(x) if layer.last else F.leaky_relu(_normalised(x, parts), LEAK)
        return knowledge.scaling.scale((1 + x[..., :height, :width]) / 2, 3)


def _normalised(x: Tensor, parts: Iterator[Tensor]) -> Tensor:
    """Return batch norm by the batch's own statistics, with the next scale and shift."""
    mean, var, _ = channel_statistics(x, torch.ones(len(x), dtype=torch.bool, device=x.device))
    scale, shift = next(parts), next(parts)
    mean, var, scale, shift = (each[:, None, None] for each in (mean, var, scale, shift))
    return (x - mean) * (var + EPS).rsqrt() * scale + shift


@dataclass(frozen=True, slots=True)
class ThroughGenerator:
    """The inner simulator on the generated images."""

    generator: Generator
    inner: Simulator = field(default_factory=OneGradient)

    def __call__(self, model: Model, unknowns: Tree, seen: Round, knowledge: Knowledge, clock: Clock) -> Simulated:
        """Return the simulated update."""
        guess = self.generator(unknowns[THETA], unknowns[GUESS], knowledge)
        return self.inner(model, {**unknowns, GUESS: guess}, seen, knowledge, clock)


@dataclass(frozen=True, slots=True)
class Generated:
    """Put the generated images in the place of z, in the final unknowns of all trials."""

    generator: Generator

    def __call__(self, unknowns: Tree, knowledge: Knowledge) -> Tree:
        """Return the unknowns with the images, made one trial after the other: their bits do not depend on the neighbours."""
        pairs = zip(unknowns[THETA], unknowns[GUESS], strict=True)
        return {**unknowns, GUESS: torch.stack([self.generator(theta, z, knowledge) for theta, z in pairs])}


@settings_of(
    adam_attack,
    without=("start", "tv", "signed", "decay"),
    rate=1e-3,
    iterations=2000,
    tv=0.0,
    signed=False,
    decay=False,
)
def deep_prior(*, width: int = 64, **settings: Unpack[AdamSettings]) -> Matching:
    """`ig` on the weights of an untrained generator in the place of the image: a deep image prior, without pretraining.

    `width` is the number of channels before the last layer of the generator.

    Equation: `min over theta of 1 - cos(grad l(w, G_theta(z), y), g)`, z fixed in N(0, 1).
    Reference: Ulyanov et al. 2018, Deep image prior, arXiv:1711.10925; Jeon et al. 2021, arXiv:2110.14962, without pretraining.
    Works when: images; reported to succeed with sigmoid networks only.
    Costs: 2000 evaluations with a second derivative, and the generator's; about a million unknowns for images of 32 x 32.
    """
    attack, generator = adam_attack("deep_prior", **settings), Generator(width)
    return replace(
        attack,
        simulate=ThroughGenerator(generator),
        rules={GUESS: Rule(rate=0.0, every=attack.stop.iterations), THETA: Rule()},
        extras={THETA: generator.start},
        finish=Generated(generator),
    )
