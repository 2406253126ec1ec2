"""What the targets of a caller's own loss are, so that an attack can search them: found by calling the loss."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import is_dataclass, replace
from functools import partial

import torch
from torch import Tensor

from leakscope.core import random
from leakscope.learning.losses import UserLoss, one_hot
from leakscope.learning.targets import TargetKind, Targets

Function = Callable[[Tensor, Tensor], Tensor]
ALIKE = 1e-3  # relative to the larger of two values
NUMBERS = "it takes whole numbers as targets and has no value for class probabilities, so no gradient leads to them"
FLAT = "the update does not change smoothly with the targets, so no gradient leads to them"


def with_targets(loss: UserLoss, output: Tensor, targets: Tensor) -> UserLoss:
    """Return the loss with what an attack needs to search its targets, or with the reason why it cannot."""
    function = loss.function.__call__ if is_dataclass(loss.function) else loss.function  # its fields are no trials
    loss = replace(loss, function=function)
    binary = bool(((targets == 0) | (targets == 1)).all())
    targets = targets[: len(output)]
    if not targets.is_floating_point():
        for relaxed in RELAXATIONS:
            if (classes := _class_targets(function, partial(relaxed, function), output, targets)) is not None:
                return replace(loss, targets=classes, relaxed=relaxed)
        if targets.shape != output.shape or not _alike(function, function, output, targets, targets.to(output.dtype)):
            return replace(loss, reason=NUMBERS)
    drawn = targets.to(output.dtype) + 0.1 * _draw(targets.shape, output)
    if not _is_smooth(function, output, drawn):
        return replace(loss, reason=FLAT)
    kind = _float_kind(function, output, targets.to(output.dtype), binary=binary)
    return replace(loss, targets=Targets(kind, tuple(targets.shape[1:])))


def _draw(shape: tuple[int, ...], like: Tensor, name: str = "targets") -> Tensor:
    return random.uniform(random.fold(random.key(0, device=like.device), name), tuple(shape), like.dtype)


def _plain(function: Function, output: Tensor, rows: Tensor) -> Tensor:
    """Return the loss itself at class probabilities."""
    return function(output, rows)


def _weighted(function: Function, output: Tensor, rows: Tensor) -> Tensor:
    """Return torch's cross entropy over the mean weight: with numbers torch divides by the targets' weights, with rows by their count."""
    weight: Tensor = function.weight  # type: ignore[attr-defined]
    return function(output, rows) / (rows.movedim(1, -1) @ weight.to(rows)).mean()


def _expected(function: Function, output: Tensor, rows: Tensor) -> Tensor:
    """Return the mean over places of `sum_k p_k f(o, k)`, with the loss of every place by itself."""
    classes, places = output.shape[1], [1] * (output.ndim - 2)
    outputs = output.movedim(1, -1).reshape(-1, classes)
    chances = rows.movedim(1, -1).reshape(-1, classes)

    def value(one: Tensor, number: Tensor) -> Tensor:
        return function(one.reshape(1, classes, *places), number.reshape(1, *places)).mean()

    each = torch.func.vmap(value, in_dims=(None, 0))
    values = torch.func.vmap(each, in_dims=(0, None))(outputs, torch.arange(classes, device=output.device))
    return (chances * values).sum(1).mean()


RELAXATIONS = (_plain, _weighted, _expected)  # the first that agrees with a loss of class numbers is taken


def _class_targets(function: Function, relaxed: Function, output: Tensor, targets: Tensor) -> Targets | None:
    """Return targets of classes if they are class numbers, and the relaxed loss agrees with the loss at certain ones."""
    classes = output.shape[1] if output.ndim > 1 else 0
    fits = classes > 1 and targets.shape == output.shape[:1] + output.shape[2:]
    if not fits or int(targets.min()) < 0 or int(targets.max()) >= classes:
        return None
    drawn = (_draw(targets.shape, output, "classes") * classes).to(
        targets.dtype
    )  # every class, not those of the sample
    rows = one_hot(drawn, classes, output.dtype).movedim(-1, 1).contiguous()
    if not _alike(function, relaxed, output, drawn, rows) or not _is_smooth(relaxed, output, rows):
        return None
    return Targets(TargetKind.CLASSES, tuple(rows.shape[1:]))


def _float_kind(function: Function, output: Tensor, targets: Tensor, *, binary: bool) -> TargetKind:
    """Return what floating targets are: labels if all are 0 or 1 or the loss is affine in them, as cross entropies are; else values.

    Rows that sum to 1 are class probabilities where such a loss does not change if all outputs of a row grow alike.
    """
    ends = [float(function(output, torch.full_like(targets, each)).mean()) for each in (0.0, 0.5, 1.0)]
    affine = all(map(math.isfinite, ends)) and abs(ends[0] + ends[2] - 2 * ends[1]) <= ALIKE * max(map(abs, ends))
    rows = targets.ndim > 1 and targets.shape == output.shape and targets.shape[1] > 1
    rows = rows and torch.allclose(targets.sum(1), torch.ones(()), atol=1e-3)
    if affine and rows and torch.allclose(function(output + 1, targets), function(output, targets), rtol=ALIKE):
        return TargetKind.CLASSES
    return TargetKind.LABELS if affine or binary else TargetKind.VALUES


def _slope(function: Function, output: Tensor, targets: Tensor, *, graph: bool = False) -> Tensor | None:
    """Return the gradient of the mean loss by the outputs; None if there is none."""
    at = output.detach().clone().requires_grad_()
    try:
        (slope,) = torch.autograd.grad(function(at, targets).mean(), at, create_graph=graph)
    except Exception:  # a user's loss may raise anything
        return None
    return slope


def _alike(one: Function, other: Function, output: Tensor, given: Tensor, relaxed: Tensor) -> bool:
    """Return whether two losses have the same gradient by the outputs, each at its form of the same targets."""
    first, second = _slope(one, output, given), _slope(other, output, relaxed)
    return first is not None and second is not None and bool((first - second).norm() <= ALIKE * first.norm())


def _is_smooth(function: Function, output: Tensor, targets: Tensor) -> bool:
    """Return whether the gradient by the outputs changes smoothly with the targets."""
    at = targets.detach().clone().requires_grad_()
    slope = _slope(function, output, at, graph=True)
    if slope is None or not slope.requires_grad:
        return False
    (mixed,) = torch.autograd.grad((slope * _draw(slope.shape, slope, "slope")).sum(), at, allow_unused=True)
    return mixed is not None and bool(mixed.isfinite().all()) and bool((mixed != 0).any())
