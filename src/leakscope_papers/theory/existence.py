"""Theorem 2.1 of the SPN paper for any layer of a sequential network, convolutions as dense layers, with bound (11).

Fan et al. 2020, arXiv:2006.11601, theorems 2.1 and 5.3. With o = f(x) the input of layer i, z = A o + c its output before the
activation and d = dL/dz, the gradients of the layer are dL/dA = d o^T and dL/dc = d. The input x exists if the Jacobian J of f at x
has full rank and some d_m is not 0. For x* near x, with W the row m of dL/dA and B the entry d_m,

    ||x - x*||  <=  1 / sigma_min(J) * 1 / |d_m| * (||W - W*|| + ||o*|| |B - B*|)                              (11)

to first order. The paper writes the constant as `M^[i] ||x*|| ||B^-1|| + 1` (`printed`), with x* where its lemma 5.2 has o*.

A convolution becomes a dense layer by stacking shifted kernels (figure 8, `dense_matrix`). Its units then have weights of their own,
one for each place, while a client shares the sum over places: the theorem bounds what an attacker of the untied layer could do,
and a convolution's shared gradient can leak less.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leakscope.core.errors import InputError
from leakscope.core.registry import lookup

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class LayerGradient:
    """The gradient of one layer as a dense one: its input o, d = dL/dz, and the strongest unit m."""

    entering: Tensor
    slope: Tensor
    unit: int

    @property
    def b(self) -> Tensor:
        """Return B, the bias gradient of the strongest unit."""
        return self.slope[self.unit]

    @property
    def w(self) -> Tensor:
        """Return W, the row of the weight gradient of the strongest unit."""
        return self.b * self.entering


@dataclass(frozen=True, slots=True)
class Existence:
    """Whether theorem 2.1 applies to a layer: rank and condition of J, the size of B, and both constants of bound (11)."""

    inputs: int
    features: int
    rank: int
    condition: float
    largest_b: float
    constant: float  # of (||W - W*||^2 + |B - B*|^2)^(1/2), with o* for x*
    printed: float

    @property
    def applies(self) -> bool:
        """Return whether J has full rank in x and B is not singular."""
        return self.rank == self.inputs and self.largest_b > 0


def dense_matrix(layer: nn.Module, shape: tuple[int, ...]) -> Tensor:
    """Return A of a dense or convolutional layer on inputs of a shape: outputs x inputs (figure 8)."""
    if not isinstance(layer, nn.Linear | nn.Conv2d):
        raise InputError(f"theorem 2.1 is for dense layers and convolutions, got {type(layer).__name__}")
    bias = 0 if layer.bias is None else layer(torch.zeros(1, *shape, dtype=layer.weight.dtype))
    size = torch.Size(shape).numel()
    basis = torch.eye(size, dtype=layer.weight.dtype).reshape(size, *shape)
    columns: Tensor = (layer(basis) - bias).flatten(1)
    return columns.T.detach()


def split(network: nn.Sequential, name: str) -> tuple[nn.Sequential, nn.Module, nn.Sequential]:
    """Return the layers before a named one, it, and those after."""
    layers = dict(network.named_children())
    layer, place = lookup(layers, name, "layer"), list(layers).index(name)
    every = list(layers.values())
    return nn.Sequential(*every[:place]), layer, nn.Sequential(*every[place + 1 :])


def layer_gradient(network: nn.Sequential, name: str, x: Tensor, label: Tensor, loss: Loss) -> LayerGradient:
    """Return the gradient of a layer, as a dense one, for one sample x of shape C x H x W."""
    before, layer, after = split(network, name)
    with torch.no_grad():
        entering = before(x[None])
        z = layer(entering)
    slope = torch.func.grad(lambda z: loss(after(z), label[None]))(z)[0].flatten().detach()
    return LayerGradient(entering.flatten(), slope, int(slope.abs().argmax()))


def inspect_existence(network: nn.Sequential, name: str, x: Tensor, label: Tensor, loss: Loss) -> Existence:
    """Return what theorem 2.1 says of a layer for one sample; the Jacobian is computed in float64 if the network is."""
    before, _, _ = split(network, name)
    seen = layer_gradient(network, name, x, label, loss)
    jacobian = torch.func.jacrev(lambda flat: before(flat.reshape(1, *x.shape)).flatten(), chunk_size=256)(x.flatten())
    values = torch.linalg.svdvals(jacobian.detach())
    rank = int((values > values[0] * max(jacobian.shape) * torch.finfo(values.dtype).eps).sum())
    full, largest = rank == x.numel(), float(seen.b.abs())
    inverse = 1 / float(values[-1]) / largest if full and largest > 0 else torch.inf
    return Existence(
        inputs=x.numel(),
        features=jacobian.shape[0],
        rank=rank,
        condition=float(values[0] / values[-1]) if full else torch.inf,
        largest_b=largest,
        constant=inverse * (1 + float(seen.entering.norm()) ** 2) ** 0.5,
        printed=inverse * float(x.norm()) + 1,
    )


def solve_input(before: nn.Sequential, w: Tensor, b: Tensor, start: Tensor, *, steps: int = 20) -> Tensor:
    """Return x with f(x) = W / B, by Gauss-Newton from a start: the direct solve of theorem 2.1."""
    target, at = w / b, start.flatten()

    def features(flat: Tensor) -> Tensor:
        entering: Tensor = before(flat.reshape(1, *start.shape))
        return entering.flatten()

    for _ in range(steps):
        jacobian = torch.func.jacrev(features, chunk_size=256)(at)
        at = at + torch.linalg.lstsq(jacobian, (target - features(at)).unsqueeze(-1)).solution.squeeze(-1)
    return at.reshape(start.shape).detach()
