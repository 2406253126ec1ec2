"""Twice-differentiable gradients of a function of named tensors, by function transforms or by plain autograd.

Function transforms work under vmap. For a single trial plain autograd has a sixth of the overhead (double backward through
ResNet20 on a CPU), so callers that evaluate one trial use `plain_autograd`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import torch
from torch import Tensor

from leakscope.core.tree import Tree

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
        gradient, aux = torch.func.grad(f, has_aux=True)(at)
        return gradient, aux
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
