"""How the target's loss compares outputs with labels: a loss that attacks simulate, by name, or the caller's own function."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakscope.auditing.limits import first_line
from leakscope.auditing.target_kinds import with_targets
from leakscope.core import random
from leakscope.core.errors import InputError, UnknownNameError
from leakscope.core.model import Model
from leakscope.core.registry import lookup
from leakscope.learning.losses import LOSSES, UserLoss, one_hot

Function = Callable[[Tensor, Tensor], Tensor]
Criterion = str | Function
ONE_LOGIT = "cross entropy of one logit is 0 whatever the input: give the loss that trains the model, such as torch.nn.BCEWithLogitsLoss()"
SUMS = ", a sum over examples: give its mean"
SPREAD = 3.0  # standard deviation of random outputs; with confident outputs all losses look alike
ALIKE = 1e-5  # relative to the norm of the gradient: rounding, and no faint label smoothing or class weights
SEED = 11
NO_FORM = "the loss takes neither class numbers nor numbers in the shape of the outputs: give a sample of labels"


# the losses by name, for targets other than one class an example
FUNCTIONS: dict[str, Function] = {**LOSSES, "cross_entropy": F.cross_entropy, "mse": F.mse_loss}


class Comparison(NamedTuple):
    """The loss, a class number for each of M examples (0 without classes), and what a caller's own loss compares outputs with."""

    loss: str | UserLoss
    labels: Tensor
    targets: Tensor | None = None


def captured_loss(loss: Criterion, model: Model, notes: list[str]) -> str | UserLoss:
    """Return the loss of captured updates, whose labels are not known."""
    like = next(iter(model.parameters.values()))
    output = _output(model, random.uniform(random.key(0), (2, *model.input_shape), like.dtype))
    name, kind = find_loss(loss, model if _has_logits(model, output) else None, output, notes)
    if name:
        return name
    own = _own(loss, f"outputs of shape {tuple(output.shape[1:])}{kind}")
    places = torch.arange(output[:, 0].numel()).reshape(output[:, 0].shape) % max(output.shape[1:2] or (1,))
    forms = [places, torch.linspace(-1, 2, output.numel()).reshape(output.shape)]
    targets = next((form for form in forms if not isinstance(_slope(own.function, output, form), str)), None)
    return replace(own, reason=NO_FORM) if targets is None else with_targets(own, output, targets)


def captured_truth(
    loss: Criterion, own: UserLoss, model: Model, truth: tuple[Tensor, Tensor]
) -> tuple[UserLoss, tuple[Tensor, Tensor]]:
    """Return the caller's own loss of captured updates and their true data (T x N x ...) with targets in the form that it takes."""
    inputs, labels = truth
    try:
        compared = compare(loss, labels.flatten(0, 1), model, inputs.flatten(0, 1), [])
    except InputError:
        return replace(own, targets=None, reason="the loss cannot compare outputs with the true labels"), truth
    if isinstance(compared.loss, str) or compared.targets is None:
        return own, truth
    return compared.loss, (inputs, compared.targets.unflatten(0, labels.shape[:2]))


def compare(
    loss: Criterion, labels: object, model: Model, inputs: Tensor, notes: list[str], *, padded: bool = False
) -> Comparison:
    """Return how the loss compares outputs with labels of any shape; `padded` says that a client has batches of unequal size."""
    loss = loss if isinstance(loss, str) else _moved(loss, "cpu")
    output = _output(model, inputs[:4])
    rows = _has_logits(model, output)
    if loss == "cross_entropy" and output.ndim == 2 and not rows:
        raise InputError(ONE_LOGIT)
    name, kind = find_loss(loss, model if rows else None, output, notes)
    values, numbers = label_tensor(labels, len(inputs)), None
    if rows:
        try:
            numbers = class_numbers(values, len(inputs), model.classes, notes if name else [])
        except InputError:
            if name and values.numel() == len(inputs):  # one value an example, and not a class
                raise
    if name and numbers is not None:
        return Comparison(name, numbers)
    own = _own(loss, "", each=padded)
    hot = [] if numbers is None else [one_hot(numbers, model.classes, output.dtype)]
    targets = _fitting_targets(own.function, output, values, hot)
    if padded:
        _check_mean(own.function, output, targets[: len(output)])
    none = torch.zeros(len(inputs), dtype=torch.int64)
    own = _own(loss, f"targets of shape {tuple(targets.shape[1:])}{kind}", each=padded)
    return Comparison(with_targets(own, output, targets), none if numbers is None else numbers, targets)


def _has_logits(model: Model, output: Tensor) -> bool:
    """Return whether outputs are rows of at least two numbers, which may be the logits of classes."""
    return output.ndim == 2 and model.classes > 1


def _own(loss: Criterion, of: str, *, each: bool = False) -> UserLoss:
    """Return the caller's own loss, or a loss by name where an example has not one class."""
    title = loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__)
    return UserLoss(FUNCTIONS[loss] if isinstance(loss, str) else loss, f"{title} with {of}", each)


def loss_on(device: torch.device, loss: str | UserLoss) -> str | UserLoss:
    """Return the loss with the tensors of a loss module, such as class weights, on the device."""
    return loss if isinstance(loss, str) else replace(loss, function=_moved(loss.function, device))


def _moved(function: Function, device: torch.device | str) -> Function:
    return copy.deepcopy(function).to(device) if isinstance(function, nn.Module) else function


def label_tensor(labels: object, number: int) -> Tensor:
    """Return the labels of `number` examples as a tensor on the CPU, floating ones in float32."""
    try:
        values = torch.as_tensor(labels).detach().cpu()
    except (TypeError, ValueError, RuntimeError):
        raise InputError(
            f"labels must be numbers (a tensor, an array or a list), got {type(labels).__name__}"
        ) from None
    if values.ndim == 0 or len(values) != number:
        raise InputError(f"labels must be {number}, one for each example, got {tuple(values.shape)}")
    return values.float() if values.is_floating_point() else values


def class_numbers(labels: Tensor, number: int, classes: int, notes: list[str]) -> Tensor:
    """Return M class numbers from class numbers or one-hot rows; other rows are refused."""
    if labels.ndim == 2 and labels.shape == (number, classes) and classes > 1:
        rows = labels.double()
        if not bool((((rows == 0) | (rows == 1)).all(1) & (rows.sum(1) == 1)).all()):
            raise InputError("labels are soft or mixed rows, not one class an example")
        notes.append("one-hot labels were read as class numbers")
        return rows.argmax(1)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.shape != (number,):
        raise InputError(
            f"labels must be {number} class numbers or {number} x {classes} one-hot, got {tuple(labels.shape)}"
        )
    if labels.is_floating_point() and not bool((labels == labels.round()).all()):
        raise InputError("labels must be whole class numbers, got fractions")
    labels = labels.to(torch.int64)
    if int(labels.min()) < 0 or int(labels.max()) >= classes:
        raise InputError(
            f"labels must lie in 0..{classes - 1}, got {int(labels.min())}..{int(labels.max())}; if the loss ignores a label "
            "(ignore_index), leave its examples out: they add nothing to an update"
        )
    return labels


def find_loss(loss: Criterion, model: Model | None, output: Tensor, notes: list[str]) -> tuple[str | None, str]:
    """Return the name of the loss (given, or whose gradient by the outputs is the same), or None and what is known of it.

    Without a model, outputs are not rows of logits, and a name is returned as it is.
    """
    if isinstance(loss, str):
        try:
            lookup(LOSSES, loss, "loss")
        except UnknownNameError as error:
            raise InputError(f"loss must be a known name or a function: {error}") from None
        return (loss if model is not None else None), ""
    if not callable(loss):
        raise InputError(f"loss must be a name or a function (output, labels) -> loss, got {type(loss).__name__}")
    if model is None:
        return None, ""
    rows, classes = model.classes + 1, model.classes  # every class is a label, and nothing fits by accident
    drawn = SPREAD * random.normal(random.fold(random.key(SEED), "loss"), (rows, classes), torch.float32)
    labels = torch.arange(rows) % classes
    targets = one_hot(labels, classes, drawn.dtype)
    normalised = float(output.detach().logsumexp(-1).abs().max()) < 1e-4  # the model gives logarithms
    slopes = (_slope(loss, drawn, wanted, normalised=normalised) for wanted in (labels, targets))
    fitting = next((slope for slope in slopes if not isinstance(slope, str)), None)
    if fitting is None:
        return None, ""
    shape, slope = fitting
    for name, ours in LOSSES.items():
        known = _slope(lambda o, t, ours=ours: ours(o, t).mean(), drawn, targets, normalised=normalised)  # type: ignore[misc]
        if isinstance(known, str):
            continue
        if shape == () and _alike(slope, known[1]):
            return name, ""
        if shape == (rows,) and _alike(slope, rows * known[1]):
            notes.append("the loss returns a value for each example; its mean is taken")
            return name, ""
        if shape == () and _alike(slope, rows * known[1]):
            return None, SUMS
    return None, ""


def _output(model: Model, inputs: Tensor) -> Tensor:
    with torch.no_grad():
        return model.apply(model.parameters, model.buffers, inputs, random.key(0))[0]


def _slope(
    loss: Function, drawn: Tensor, target: Tensor, *, normalised: bool = False
) -> tuple[tuple[int, ...], Tensor] | str:
    """Return the shape of a loss, and the gradient of its sum by the outputs; or why there is none."""
    output = drawn.clone().requires_grad_()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.filterwarnings("error", message="Using a target size")  # torch broadcasts N x 1 with N to N x N
            value: object = loss(output.log_softmax(-1) if normalised else output, target)
    except Exception as error:  # a user's loss may raise anything
        return f"the loss cannot compare the model's output with labels: {first_line(error)}"
    if not isinstance(value, Tensor):
        return "the loss cannot compare the model's output with labels: it returns no tensor"
    try:
        (slope,) = torch.autograd.grad(value.sum(), output)
    except RuntimeError as error:
        return f"the loss cannot be differentiated by the model's output: {first_line(error)}"
    return tuple(value.shape), slope.float()


def _alike(slope: Tensor, known: Tensor) -> bool:
    return bool((slope - known).norm() <= ALIKE * known.norm())


def _fitting_targets(function: Function, output: Tensor, labels: Tensor, hot: list[Tensor]) -> Tensor:
    """Return the labels in the first form that the loss takes: as given, as floats, in the output's shape, as one-hot rows."""

    def forms() -> Iterator[Tensor]:
        yield labels
        yield labels.float()
        if labels.numel() * len(output) == output.numel() * len(labels):
            yield labels.float().reshape(len(labels), *output.shape[1:])
        yield from hot

    problems = []
    for form in forms():
        slope = _slope(function, output, form[: len(output)])
        if not isinstance(slope, str):
            return form
        problems.append(slope)
    raise InputError(problems[0])


def _check_mean(function: Function, output: Tensor, targets: Tensor) -> None:
    """Refuse a loss that is no mean over examples: the last batch of a client is smaller, and is computed example by example."""
    alone = [function(o[None], t[None]).mean() for o, t in zip(output, targets, strict=True)]
    if not torch.allclose(torch.stack(alone).mean(), function(output, targets).mean(), rtol=1e-3):
        raise InputError("client.batch_size must divide examples: the loss is not a mean over examples")
