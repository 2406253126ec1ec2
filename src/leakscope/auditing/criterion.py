"""Which loss a user's function is: known by its gradients, where outputs are spread widely enough to tell losses apart."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.learning.losses import LOSSES, one_hot

SPREAD = 3.0  # of drawn outputs; a model that is sure of all it sees would make all losses look alike
ALIKE = 1e-3  # of the length of the gradient
SEED = 11


def find_loss(loss: str | Callable[[Tensor, Tensor], Tensor], model: Model, inputs: Tensor, notes: list[str]) -> str:
    """Return the name of a loss: the one given, or the one with the gradient that a given function has by the outputs.

    Outputs are drawn, a row more than there are classes, so that every class is a label and nothing fits by accident. Where the
    model gives logarithms of probabilities, so do they.
    """
    if isinstance(loss, str):
        if loss not in LOSSES:
            raise InputError(f"loss must be one of {', '.join(LOSSES)} or a function, got {loss!r}")
        return loss
    if not callable(loss):
        raise InputError(f"loss must be a name or a function (output, labels) -> loss, got {type(loss).__name__}")
    rows, classes = model.classes + 1, model.classes
    drawn = SPREAD * random.normal(random.fold(random.key(SEED), "loss"), (rows, classes), torch.float32)
    labels = torch.arange(rows) % classes
    targets = one_hot(labels, classes, drawn.dtype)
    normalised = _gives_logarithms(model, inputs)
    shape, slope = _slope(lambda output: _value(loss, output, labels, targets), drawn, normalised=normalised)
    for name, ours in LOSSES.items():
        _, known = _slope(lambda output, ours=ours: ours(output, targets).mean(), drawn, normalised=normalised)  # type: ignore[misc]
        if shape == () and _alike(slope, known):
            return name
        if shape == (rows,) and _alike(slope, rows * known):
            notes.append("the loss returns a value for each example; its mean is taken")
            return name
        if shape == () and _alike(slope, rows * known):
            raise InputError(f"the loss sums over examples; give its mean ({name} is known here)")
    raise InputError(f"the loss is none that attacks here can simulate: give one of {', '.join(LOSSES)}")


def _gives_logarithms(model: Model, inputs: Tensor) -> bool:
    with torch.no_grad():
        output = model.apply(model.parameters, model.buffers, inputs[:4], random.key(0))[0]
    return float(output.logsumexp(-1).abs().max()) < 1e-4


def _slope(loss: Callable[[Tensor], Tensor], drawn: Tensor, *, normalised: bool) -> tuple[tuple[int, ...], Tensor]:
    """Return the shape of a loss, and the gradient of its sum by the drawn outputs."""
    output = drawn.clone().requires_grad_()
    value = loss(output.log_softmax(-1) if normalised else output)
    try:
        (slope,) = torch.autograd.grad(value.sum(), output)
    except RuntimeError as error:
        raise InputError(f"the loss cannot be differentiated by the model's output: {_line(error)}") from None
    return tuple(value.shape), slope.float()


def _alike(slope: Tensor, known: Tensor) -> bool:
    return bool((slope - known).norm() <= ALIKE * known.norm())


def _value(loss: Callable[[Tensor, Tensor], Tensor], output: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    """Return the loss with class numbers, or with one-hot rows where it wants those."""
    message = ""
    for wanted in (labels, targets):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                value = loss(output, wanted)
        except Exception as error:  # a user's loss may raise anything
            message = message or _line(error)
            continue
        if isinstance(value, Tensor):
            return value
    raise InputError(f"the loss cannot compare the model's output with labels: {message or 'it returns no tensor'}")


def _line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
