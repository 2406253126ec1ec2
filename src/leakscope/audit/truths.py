"""What the clients behind captured updates really held, as their user tells it: asked, checked, brought into [0, 1]."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from leakscope.audit.target import Target, Truth, check_inputs, class_numbers, find_scaling
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.scaling import Scaling
from leakscope.core.types import Batch, make_batch
from leakscope.store.captures import Capture

EDGE = 1e-3


def ask_truth(
    captures: Sequence[Capture], target: Target, model: Model, samples: int, notes: list[str]
) -> tuple[Tensor, Tensor] | None:
    """Return the inputs (T x N x ...) and labels (T x N) of the clients; None where the target cannot tell them for all."""
    if target.truth is None:
        return None
    if any(capture.partition is None for capture in captures):
        notes.append("a capture does not say its partition: the truth could not be looked up")
        return None
    told = [_ask(target.truth, int(capture.partition or 0), model, samples) for capture in captures]
    return torch.stack([x for x, _ in told]), torch.stack([y for _, y in told])


def _ask(truth: Truth, partition: int, model: Model, samples: int) -> tuple[Tensor, Tensor]:
    """Return the inputs and labels of one partition."""
    where = f"truth({partition})"
    try:
        told = truth(partition)
    except Exception as error:  # a user's function may raise anything
        said = (str(error).strip() or "no message").splitlines()[0]
        raise InputError(f"{where} raised {type(error).__name__}: {said}") from None
    if not isinstance(told, tuple | list) or len(told) != 2:
        raise InputError(f"{where} must return (inputs, labels), got {type(told).__name__}")
    try:
        x = check_inputs(told[0], [])
        if len(x) != samples or tuple(x.shape[1:]) != model.input_shape:
            raise InputError(f"must give {samples} inputs of shape {model.input_shape}, got {tuple(x.shape)}")
        return x, class_numbers(told[1], samples, model.classes, [])
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def scaling_of_captures(target: Target, inputs: Tensor | None, truth: Tensor | None, notes: list[str]) -> Scaling:
    """Return the way from [0, 1] to inputs: by mean and std, else by the range of the sample, which then holds the truth too."""
    if inputs is not None:
        ranged = truth is not None and target.mean is None
        seen = torch.cat([inputs, truth.flatten(0, 1)]) if ranged and truth is not None else inputs
        return find_scaling(seen, target.mean, target.std, notes)[0]
    if (target.mean is None) != (target.std is None):
        raise InputError("mean and std belong together: give both or neither")
    if target.mean is not None and target.std is not None:
        return Scaling(tuple(target.mean), tuple(target.std))
    notes.append("neither inputs nor mean and std were given: inputs are taken to lie in [0, 1]")
    return Scaling()


def batch_of_truth(truth: tuple[Tensor, Tensor], scaling: Scaling, model: Model) -> Batch:
    """Return the truth as an attack is scored against it; refuse what lies outside [0, 1] instead of cutting it off."""
    x, y = truth
    pictures = scaling.unscale(x, len(model.input_shape))
    low, high = float(pictures.min()), float(pictures.max())
    if low < -EDGE or high > 1 + EDGE:
        raise InputError(
            f"inputs of truth times std plus mean must lie in [0, 1], got [{low:.4g}, {high:.4g}]; give the mean and std of "
            "the inputs, or a sample of them as inputs"
        )
    return make_batch(pictures.clamp(0, 1), y, classes=model.classes)
