"""The objects that a training's settings describe: data, holdings, network, federation, first weights."""

from __future__ import annotations

from dataclasses import dataclass, replace

from leakscope.attacks.engine.plan import DTYPES
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.tree import Tree, take, to
from leakscope.data import Dataset
from leakscope.federated import Federation, Holdings, deal
from leakscope.models import build, draw_parameters
from leakscope.models.batch_norm import in_eval_mode, in_train_mode
from leakscope.models.checkpoint import Checkpoint, check_scaling
from leakscope.scenario.problems import Problem
from leakscope.sweep.objects import load_data
from leakscope.training.file import Training


@dataclass(frozen=True, slots=True)
class TrainingObjects:
    """What a training runs on: the network as clients run it and as it is used, who holds what."""

    federation: Federation
    trained: Model
    used: Model
    holdings: Holdings
    data: Dataset
    weights: Tree


def make_objects(training: Training, device: str = "cpu") -> TrainingObjects:
    """Return the objects of a training, or raise what does not fit together, with its line."""
    choice = training.data
    try:
        data = load_data(choice.name, choice.size)
    except InputError as error:
        raise training.error([Problem(("data",), str(error))]) from None
    model = _model(training, data, device)
    holdings = _holdings(training, data)
    scaling = data.statistics if choice.scaling == "statistics" else data.scaling
    try:
        if isinstance(training.weights, Checkpoint):
            model = training.weights.load(model)
            check_scaling(training.weights, choice.scaling)
        key = random.fold(random.key([training.federation.seed]), "weights")
        weights = take(draw_parameters(model, training.weights, key), 0)
    except InputError as error:
        raise training.error([Problem(("weights",), str(error))]) from None
    federation = replace(training.federation, client=replace(training.federation.client, scaling=scaling))
    if federation.client.on_model is not None:
        try:
            federation.client.on_model.check(model.classes)
        except InputError as error:
            raise training.error([Problem(("client", "on_model", "bits"), str(error))]) from None
    trained = in_train_mode(model) if training.norm == "train" else model
    first = to(weights, device=device, dtype=DTYPES[training.precision.dtype])
    return TrainingObjects(federation, trained, in_eval_mode(model), holdings, data, first)


def _model(training: Training, data: Dataset, device: str) -> Model:
    try:
        model = build(training.model.name, data.input_shape, data.classes, dict(training.model.settings))
    except (InputError, RuntimeError, TypeError) as error:
        reason = str(error).splitlines()[0][:160]
        raise training.error(
            [Problem(("model",), f"cannot be built for inputs {data.input_shape}: {reason}")]
        ) from None
    return to(model, device=device, dtype=DTYPES[training.precision.dtype])


def _holdings(training: Training, data: Dataset) -> Holdings:
    wanted = training.data.examples
    if wanted is not None and wanted > data.size("train"):
        message = f"TrainingData.examples must be at most {data.size('train')}, got {wanted}"
        raise training.error([Problem(("data", "examples"), message)])
    groups = None if data.groups_train is None else data.groups_train[:wanted]
    part = replace(data, x_train=data.x_train[:wanted], y_train=data.y_train[:wanted], groups_train=groups)
    try:
        return deal(part, training.partition, seed=training.federation.seed)
    except InputError as error:
        raise training.error([Problem(("partition",), str(error))]) from None
