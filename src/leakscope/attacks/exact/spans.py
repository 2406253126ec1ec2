"""Spans of the rows of matrices, and distances from them, on any device.

An SVD of a transformer's width takes longer on a GPU than on a CPU. So a QR decomposition where the matrix lies removes its long side,
and the small square that is left is decomposed on the CPU.
"""

from __future__ import annotations

import torch
from torch import Tensor


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
