"""Twice-differentiable gradients of a function of named tensors, by function transforms or by plain autograd.

Function transforms work under vmap. For a single trial plain autograd has a sixth of the overhead (double backward through
ResNet20 on a CPU), so callers that evaluate one trial use `plain_autograd`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import torch
from torch import Tensor
from torch._functorch import eager_transforms as transforms

from leakscope.core.progress import SILENT, Reporter
from leakscope.core.tree import Tree, map_tensors

A = TypeVar("A")
_DEPTH: ContextVar[int | None] = ContextVar("gradients around this one, by plain autograd", default=None)


@contextmanager
def plain_autograd() -> Iterator[None]:
    """Let `gradient_and_aux` use plain autograd: for one trial, outside vmap; the outermost gradient is a constant."""
    token = _DEPTH.set(0)
    try:
        yield
    finally:
        _DEPTH.reset(token)


def gradient_and_aux(f: Callable[[Tree], tuple[Tensor, A]], at: Tree) -> tuple[Tree, A]:
    """Return the gradient of the first result of `f` at a tree, and its second result; zeros for tensors that `f` does not use."""
    depth = _DEPTH.get()
    if depth is None:
        return _transformed(f, at)
    token = _DEPTH.set(depth + 1)
    try:
        with torch.enable_grad():
            point = {name: t.view_as(t) if t.requires_grad else t.detach().requires_grad_() for name, t in at.items()}
            value, aux = f(point)
            # only a gradient inside another one is differentiated: a graph of the outermost would double the memory
            gradients = torch.autograd.grad(value, list(point.values()), create_graph=depth > 0, materialize_grads=True)
    finally:
        _DEPTH.reset(token)
    return dict(zip(point, gradients, strict=True)), aux


def load_transforms(report: Reporter = SILENT) -> None:
    """Import what the first call of `torch.func.grad` imports, which takes seconds: before a time limit begins."""
    if "torch._dynamo" not in sys.modules:
        report("torch.func", "loading it")
        importlib.import_module("torch._dynamo")


def _transformed(f: Callable[[Tree], tuple[Tensor, A]], at: Tree) -> tuple[Tree, A]:
    """Return `torch.func.grad(f, has_aux=True)(at)`, by the same steps; that function would import `torch._dynamo`, which takes 1.3 s."""
    if "torch._dynamo" in sys.modules:
        gradient, aux = torch.func.grad(f, has_aux=True)(at)
        return gradient, aux
    with transforms.grad_increment_nesting() as level, torch.enable_grad():
        point = transforms._wrap_all_tensors(at, level)
        for tensor in point.values():
            transforms._create_differentiable(tensor, level)
        value, aux = f(point)
        found: tuple[Tensor | None, ...] = (None,) * len(point)
        if value.requires_grad:
            found = torch.autograd.grad(value, list(point.values()), create_graph=True, allow_unused=True)
        slopes = {n: torch.zeros_like(t) if g is None else g for (n, t), g in zip(point.items(), found, strict=True)}
        return map_tensors(lambda t: transforms._undo_create_differentiable(t, level), (slopes, aux))
