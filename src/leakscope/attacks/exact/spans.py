"""Spans of the rows of an update, and which inputs of a layer lie in them, on any device.

An SVD of a transformer's width takes longer on a GPU than on a CPU. So a QR decomposition where the matrix lies removes its long side,
and the small square that is left is decomposed on the CPU.

With the SVD G = U S V^T of an update's rows and an error of spectral norm E, the span of V moves: to first order in E a true input x stands
off it by `|(1 - V V^T) E^T U S^-1 V^T x| <= E |S^-1 V^T x|`. Wedin 1972 bounds this for all inputs by E / s_r.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from leakscope.attacks.exact.dense_readers import SharedInput
from leakscope.core.short_repr import short_repr
from leakscope.core.tree import Tree

SURE = 8  # times the rounding of a gradient: singular values above it count
COARSE = 1e-12  # least rounding of inputs that are computed a second time
CLOSE = 2  # times eps of the largest singular value: the rounding of a gradient, in its spectral norm
ROUNDED = 0.25  # times eps of a weight: deviation of its rounding
MOST_OFF = 0.1  # largest distance that counts as in the span


@dataclass(frozen=True, slots=True)
class Span:
    """An orthonormal basis of a span (width x rank) with its singular values, and the errors of the update and of inputs.

    `error` is the spectral norm of rounding and noise, `rounding` that of an input as a share of its length. `rows` are the update's,
    reduced to the width. `proof_floor` is what may be left of them when the true inputs, computed a second time, are removed. `unsure`:
    singular values near the rounding, so that true inputs may stand off the span.
    """

    source: SharedInput
    basis: Tensor
    sizes: Tensor
    error: float
    rounding: float
    rows: Tensor
    proof_floor: float
    unsure: bool

    __repr__ = short_repr

    @property
    def rank(self) -> int:
        """Return the dimension of the span."""
        return self.basis.shape[1]

    @property
    def room(self) -> int:
        """Return the dimensions that the span leaves free."""
        return self.source.width - self.rank

    def distance(self, inputs: Tensor) -> Tensor:
        """Return how far inputs (... x width) stand off the span, as a share of their length."""
        return off_span(inputs, self.basis)

    def holds(self, inputs: Tensor) -> Tensor:
        """Return which inputs (... x width) may be true: off the span by at most the error that their directions have."""
        x = normalize(inputs, dim=-1)
        within = x @ self.basis
        allowed = self.rounding + self.error * (within / self.sizes).norm(dim=-1)
        holds: Tensor = (x - within @ self.basis.mT).norm(dim=-1) <= allowed.clamp_max(MOST_OFF)
        return holds

    @property
    def limit(self) -> float:
        """Return the largest distance of a true input, one in the weakest direction."""
        return min(MOST_OFF, self.rounding + self.error / float(self.sizes[-1])) if self.rank else 0.0


def span_of(source: SharedInput, update: Tree, rounded: Tree | None, noise: float) -> Span:
    """Return the span of the inputs that a group of layers read."""
    rows = source.rows(update)
    number = len(rows)
    eps = torch.finfo(update[source.weights[0]].dtype).eps
    deviation = noise if rounded is None else noise + ROUNDED * eps * float(source.rows(rounded).square().mean().sqrt())
    if number > source.width:
        rows = torch.linalg.qr(rows, mode="r").R
    _, sizes, directions = thin_svd(rows)
    largest = float(sizes[0])
    added = deviation * (number**0.5 + source.width**0.5)  # spectral norm of random entries
    clear = sizes > max(SURE * eps * largest, added)
    rounding = SURE * max(eps, COARSE)
    error, proof_floor = max(CLOSE * eps * largest, added), max(rounding * largest, added)
    unsure = added < error and bool((~clear & (sizes > eps * largest)).any())
    return Span(source, directions[clear].mT, sizes[clear], error, rounding, rows, proof_floor, unsure)


def thin_svd(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return U, the singular values and V^T of a matrix, as many of each as its shorter side."""
    if x.shape[0] < x.shape[1]:
        right, sizes, left = thin_svd(x.mT)
        return left.mT, sizes, right.mT
    long, square = torch.linalg.qr(x)
    left, sizes, right = (each.to(x.device) for each in torch.linalg.svd(square.cpu(), full_matrices=False))
    return long @ left, sizes, right


def singular_values(x: Tensor) -> Tensor:
    """Return the singular values of a matrix, the largest first."""
    square = torch.linalg.qr(x if x.shape[0] >= x.shape[1] else x.mT, mode="r").R
    sizes: Tensor = torch.linalg.svdvals(square.cpu()).to(x.device)
    return sizes


def largest_singular_value(x: Tensor) -> Tensor:
    """Return the spectral norm of each matrix: the root of the largest eigenvalue of its smaller Gram matrix, exact up to rounding."""
    gram = x @ x.mT if x.shape[-2] < x.shape[-1] else x.mT @ x
    norm: Tensor = torch.linalg.eigvalsh(gram)[..., -1].clamp_min(0).sqrt()
    return norm


def off_span(x: Tensor, basis: Tensor) -> Tensor:
    """Return how far vectors (... x d) stand off the span of an orthonormal basis (d x k), as a share of their length."""
    distance: Tensor = (x - x @ basis @ basis.mT).norm(dim=-1) / x.norm(dim=-1)
    return distance
