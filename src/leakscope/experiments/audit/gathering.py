"""From files of captured updates to what an attack sees: checked, chosen, stacked, with what they tell of the local training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from leakscope.analysis.inferring import infer
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.scaling import Scaling
from leakscope.core.tree import Tree
from leakscope.core.types import Batch, LocalTraining, Observation, Round, Shares, make_batch
from leakscope.experiments.audit.target import Target, check_inputs, class_numbers, find_scaling, plain_module
from leakscope.models import from_module
from leakscope.store.captures import Capture, check_model, read_capture

KEYS = {
    "rate": ("lr", "learning-rate", "learning_rate", "rate"),
    "epochs": ("local-epochs", "local_epochs", "epochs"),
    "batch_size": ("batch-size", "batch_size"),
}


def model_of_captures(target: Target, notes: list[str]) -> tuple[Model, Scaling]:
    """Return the network and the scaling of its inputs."""
    module = plain_module(target.model, notes)
    shape, example, scaling = target.input_shape, None, Scaling()
    if target.inputs is not None:
        inputs = check_inputs(target.inputs, notes)
        scaling, _ = find_scaling(inputs, target.mean, target.std, notes)
        shape, example = tuple(inputs.shape[1:]), inputs[:2]
    elif target.mean is not None and target.std is not None:
        scaling = Scaling(target.mean, target.std)
    elif (target.mean is None) != (target.std is None):
        raise InputError("mean and std belong together: give both or neither")
    if shape is None:
        raise InputError("auditing captures needs the shape of an input: Target(input_shape=...) or a sample as inputs")
    return from_module(module, input_shape=shape, example=example), scaling


def _check(capture: Capture, model: Model) -> None:
    values = {**model.parameters, **model.buffers}
    shapes = {name: tuple(value.shape) for name, value in values.items()}
    given = {name: value for name, value in capture.before.items() if name in values or not _counter(name)}
    check_model(replace(capture, before=given), shapes, model.name, needed=frozenset(model.shared(model.parameters)))


def _counter(name: str) -> bool:
    """Return whether a name is one of batch norm's running statistics, which a replaced batch norm no longer has."""
    return name.rpartition(".")[2] in ("num_batches_tracked", "running_mean", "running_var")


@dataclass(frozen=True, slots=True)
class Listed:
    """A capture that was checked, without its tensors: there may be more than memory holds."""

    path: Path
    examples: int | None
    shares: str


def list_one(path: Path, model: Model) -> Listed:
    """Return a capture without its tensors, after checking all of it against the model."""
    capture = read_capture(path)
    _check(capture, model)
    return Listed(path, capture.examples, capture.shares)


def choose(
    listed: Sequence[Listed], model: Model, target: Target, most: int, notes: list[str]
) -> tuple[list[Capture], int]:
    """Return the captures of the fewest examples, at most so many, and that number of examples."""
    known = [item for item in listed if item.examples]
    if not known:
        first = read_capture(listed[0].path)
        guess = infer(model, first.before, first.sent, shares=Shares(first.shares)).samples
        samples = target.examples if guess.value is None else int(guess.value)
        notes.append(f"the captures do not say how many examples a client had: {samples} taken; inferred: {guess}")
        alike = [item for item in listed if item.shares == first.shares]
        return [read_capture(item.path) for item in alike[:most]], samples
    fewest = min(item.examples or 0 for item in known)
    alike = [item for item in known if item.examples == fewest and item.shares == known[0].shares][:most]
    if len(alike) < len(listed):
        notes.append(f"{len(alike)} of {len(listed)} captures were attacked: those of {fewest} examples, the fewest")
    return [read_capture(item.path) for item in alike], fewest


def local_training(capture: Capture, model: Model, notes: list[str]) -> LocalTraining | None:
    """Return the local training that the server's own configuration tells; else one step that moves as far."""
    if capture.shares == "gradient":
        return None
    found = {
        field: next((capture.config[name] for name in names if name in capture.config), None)
        for field, names in KEYS.items()
    }
    if found["rate"] is None:
        guess = infer(model, capture.before, capture.sent, shares=Shares.WEIGHTS)
        notes.append(f"the learning rate was not told; inferred rate times steps: {guess.rate_times_steps}")
        notes.append(f"inferred local steps: {guess.steps}")
        return None if not guess.rate_times_steps.value else LocalTraining(rate=guess.rate_times_steps.value)
    batch = found["batch_size"]
    return LocalTraining(
        rate=float(found["rate"]),
        epochs=int(found["epochs"] or 1),
        batch_size=None if batch is None else int(batch),
    )


def observe_captures(captures: Sequence[Capture], model: Model, samples: int, shares: Shares) -> Observation:
    """Return the captures as the trials of one observation; what a capture lacks is as the model has it."""

    def stacked(like: Tree, trees: list[Tree]) -> Tree:
        return {
            name: torch.stack([tree.get(name, value).to(value.dtype) for tree in trees]) for name, value in like.items()
        }

    shared = model.shared(model.parameters)
    before = stacked(model.parameters, [capture.before for capture in captures])
    buffers = stacked(model.buffers, [capture.before for capture in captures])
    sent = stacked(shared, [capture.sent for capture in captures])
    return Observation((Round(before, buffers, sent),), shares, torch.full((len(captures),), samples))


def truth_of_captures(
    captures: Sequence[Capture], target: Target, model: Model, scaling: Scaling, samples: int, notes: list[str]
) -> Batch | None:
    """Return what the clients really held, where the target can tell it for all of them."""
    if target.truth is None:
        return None
    if any(capture.partition is None for capture in captures):
        notes.append("a capture does not say its partition: the truth could not be looked up")
        return None
    pictures, labels = [], []
    for capture in captures:
        x, y = target.truth(int(capture.partition or 0))
        x = check_inputs(x, [])
        if len(x) != samples or tuple(x.shape[1:]) != model.input_shape:
            raise InputError(
                f"truth({capture.partition}) must give {samples} inputs of shape {model.input_shape}, got {tuple(x.shape)}"
            )
        pictures.append(scaling.unscale(x, x.ndim - 1).clamp(0, 1))
        labels.append(class_numbers(y, len(x), model.classes, []))
    return make_batch(torch.stack(pictures), torch.stack(labels), classes=model.classes)
