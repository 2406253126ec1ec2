"""Whether `vmap` can run an attack's computations on a model, and if not, why."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from leakscope.core import random
from leakscope.core.model import Model
from leakscope.core.tree import Tree, dot
from leakscope.models.adapter import Functional


class Lack(enum.Enum):
    """What a model lacks: `vmap` over trials, a second derivative, or any derivative by `torch.func`."""

    VMAP = "vmap"
    SECOND = "second derivative"
    FIRST = "first derivative"


def find_shortfall(model: Model) -> Shortfall | None:
    """Return what a model lacks for attacks that match gradients; None if nothing.

    Tested on two trials with separate weights and shared buffers: the gradient with respect to x of ||grad_w sum(output(w,
    x)^2)||^2, the second-order step of every such attack.
    """
    like = next(iter(model.parameters.values()))
    keys = random.key([0, 1], like.device)
    x = random.uniform(keys, (2, *model.input_shape), like.dtype)
    weights = {name: torch.stack([value, value]) for name, value in model.parameters.items()}

    def steepest(w: Tree, x: Tensor, key: Tensor) -> Tensor:
        slope: Tensor = grad(lambda guess: _gradient_norm(model, w, guess, key))(x)
        return slope

    try:
        slopes: Tensor = vmap(steepest, randomness="error")(weights, x, keys)
    except torch.OutOfMemoryError:
        raise
    except Exception as problem:  # a user's network may raise anything
        alone = _works(lambda: steepest(model.parameters, x[0], keys[0]))
        first = vmap(lambda w, x, key: _gradient(model, w, x, key), randomness="error")
        slope = alone or _works(lambda: first(weights, x, keys))
        lack = Lack.VMAP if alone else Lack.SECOND if slope else Lack.FIRST
        return Shortfall(lack, _sentence(model, problem, lack))
    if not bool(slopes.any()) and bool(_gradient_norm(model, model.parameters, x[0], keys[0])):
        message = f"the update of {model.name} does not change with its input, as far as autograd can see (detach or no_grad?)"
        return Shortfall(Lack.SECOND, message)
    return None


def _gradient(model: Model, w: Tree, x: Tensor, key: Tensor) -> Tree:
    """Return the gradient of sum(output^2) with respect to the weights."""

    def loss(w: Tree) -> Tensor:
        return model.apply(w, model.buffers, x, key)[0].square().sum()

    gradient: Tree = grad(loss)(w)
    return gradient


def _gradient_norm(model: Model, w: Tree, x: Tensor, key: Tensor) -> Tensor:
    """Return the squared norm of that gradient."""
    gradient = _gradient(model, w, x, key)
    return dot(gradient, gradient)


def _works(attempt: Callable[[], object]) -> bool:
    """Return whether an attempt succeeds; out-of-memory errors are raised."""
    try:
        attempt()
    except torch.OutOfMemoryError:
        raise
    except Exception:  # as above; only the answer matters
        return False
    return True


def _sentence(model: Model, problem: Exception, lack: Lack) -> str:
    """Return a description of the problem, naming the layer if possible."""
    text = (str(problem) or type(problem).__name__).splitlines()[0].rstrip(".")
    layer = _layer_of(problem) or _recurrent_layer(model)
    where = f"layer {layer} of {model.name}" if layer else model.name
    if lack is Lack.FIRST:
        return f"{where} has no derivative that torch.func can take: {text}"
    if lack is Lack.SECOND:
        return f"{where} has no second derivative, with or without vmap: {text}"
    if "data-dependent control flow" in text:
        return f"vmap cannot run {where}: it decides by a tensor's value (.item(), or `if` on a tensor)"
    return f"vmap cannot run {where}: {text}"


@dataclass(frozen=True, slots=True)
class Shortfall:
    """What a model lacks, and a sentence about it."""

    lack: Lack
    sentence: str


def _layer_of(problem: BaseException) -> str | None:
    """Return the type of the innermost layer that raised the error."""
    layer: str | None = None
    step: TracebackType | None = problem.__traceback__
    while step is not None:
        running = step.tb_frame.f_locals.get("self")
        if isinstance(running, nn.Module):
            layer = type(running).__name__
        step = step.tb_next
    return layer


def _recurrent_layer(model: Model) -> str | None:
    """Return the type of a recurrent layer: their errors come from the derivative, outside any layer."""
    if not isinstance(model.apply, Functional):
        return None
    return next((type(m).__name__ for m in model.apply.module.modules() if isinstance(m, nn.RNNBase)), None)
