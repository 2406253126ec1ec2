"""Theorem 2.2 of the SPN paper for any square system; of a dense layer see `leakscope.analysis.linear_system`."""

from __future__ import annotations

import torch
from torch import Tensor

from leakscope.analysis.linear_system import SystemReport, are_finite, report
from leakscope.core.errors import InputError


def inspect_matrix(b: Tensor, w: Tensor, e_b: Tensor, e_w: Tensor) -> SystemReport:
    """Return the report of T systems with any square matrix, T x N x N and T x N each; singular from condition 1 / (N eps) of float64."""
    if (
        b.ndim != 3
        or b.shape[1] != b.shape[2]
        or e_b.shape != b.shape
        or w.shape != b.shape[:2]
        or e_w.shape != w.shape
    ):
        raise InputError(
            f"systems are T x N x N matrices and T x N right sides, got {tuple(b.shape)}, {tuple(w.shape)}, "
            f"{tuple(e_b.shape)}, {tuple(e_w.shape)}"
        )
    finite = are_finite(b, w, e_b, e_w)
    b, w, e_b, e_w = (torch.where(_like(finite, part), part.double(), 0.0) for part in (b, w, e_b, e_w))
    inverse, info = torch.linalg.inv_ex(b)
    applicable = (info == 0) & inverse.isfinite().flatten(1).all(1) & _regular(b)
    inverse = torch.where(applicable[:, None, None], inverse, torch.eye(b.shape[1], dtype=b.dtype, device=b.device))
    solution, broken = torch.linalg.solve_ex(b + e_b, w + e_w)
    return report(
        finite=finite,
        norm_b=_norm(b),
        norm_inverse=_norm(inverse),
        norm_e=_norm(e_b),
        norm_inverse_e=_norm(inverse @ e_b),
        w=w,
        e_w=e_w,
        x=(inverse @ w.unsqueeze(-1)).squeeze(-1),
        solution=torch.where((broken == 0)[:, None], solution, torch.nan),
        applicable=applicable,
    )


def _like(each: Tensor, part: Tensor) -> Tensor:
    """Return one value per system, shaped to broadcast over `part`."""
    return each.reshape(-1, *[1] * (part.ndim - 1))


def _regular(matrix: Tensor) -> Tensor:
    """Return whether matrices have full rank in float64: the smallest singular value is above N eps times the largest."""
    values: Tensor = torch.linalg.svdvals(matrix)
    return values[:, -1] > matrix.shape[1] * torch.finfo(matrix.dtype).eps * values[:, 0]


def _norm(matrix: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.matrix_norm(matrix, ord=2)
    return norm
