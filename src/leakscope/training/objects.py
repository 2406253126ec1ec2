"""The objects that a training's settings describe: data, client data, network, federation, first weights."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

from leakscope.attacks.engine.plan import DTYPES
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.tree import Tree, take, to
from leakscope.data import Dataset
from leakscope.federated import Federation, Form, Holdings, State, deal, groups_of, train_groups, who_answers
from leakscope.kernels.bands import Banded
from leakscope.kernels.heap import keep_freed
from leakscope.kernels.im2col import Im2col
from leakscope.kernels.per_client import client_by_client
from leakscope.kernels.windows import Windowed
from leakscope.models import Functional, build, draw_parameters
from leakscope.models.batch_norm import in_eval_mode, in_train_mode
from leakscope.models.checkpoint import Checkpoint, check_scaling
from leakscope.scenario.problems import Problem
from leakscope.sweep.objects import load_data, settings_for
from leakscope.training.file import Training


@dataclass(frozen=True, slots=True)
class TrainingObjects:
    """What a training runs on: the network in training and in eval mode, and each client's examples."""

    federation: Federation
    trained: Model
    used: Model
    holdings: Holdings
    data: Dataset
    weights: Tree


def make_objects(training: Training, device: str = "cpu") -> TrainingObjects:
    """Return the objects of a training, or raise what does not fit together, with its line."""
    choice = training.data
    with naming_field(training, "data"):
        data = load_data(choice.name, choice.size, choice.length, choice.words, choice.shortest)
    model = _model(training, data, device)
    holdings = _holdings(training, data)
    scaling = data.statistics if choice.scaling == "statistics" else data.scaling
    with naming_field(training, "weights"):
        if isinstance(training.weights, Checkpoint):
            model = training.weights.load(model)
            check_scaling(training.weights, choice.scaling)
        key = random.fold(random.key([training.federation.seed]), "weights")
        weights = take(draw_parameters(model, training.weights, key), 0)
    federation = replace(training.federation, client=replace(training.federation.client, scaling=scaling))
    if federation.client.on_model is not None:
        with naming_field(training, "client", "on_model", "bits"):
            federation.client.on_model.check(model.classes)
    trained = in_train_mode(model) if training.norm == "train" else model
    first = to(weights, device=device, dtype=DTYPES[training.precision.dtype])
    return TrainingObjects(federation, trained, in_eval_mode(model), holdings, data, first)


def _model(training: Training, data: Dataset, device: str) -> Model:
    try:
        model = build(training.model.name, data.input_shape, data.classes, settings_for(training.model, data))
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
    with naming_field(training, "partition"):
        return deal(part, training.partition, seed=training.federation.seed)


@contextmanager
def naming_field(training: Training, *field: str) -> Iterator[None]:
    """Turn an input error into one that names a field of the training and its line."""
    try:
        yield
    except InputError as error:
        raise training.error([Problem(field, str(error))]) from None


def _keeping_freed(way: Callable[[], Banded | Windowed]) -> Banded | Windowed:
    keep_freed()  # large tensors are allocated many times a second
    return way()


FORMS: dict[str, Form] = {
    "native": Form(nullcontext, traced=True),
    "by_client": Form(client_by_client),
    "split": Form(partial(client_by_client, channels_last=True), split=True),
    "bands": Form(partial(_keeping_freed, Banded), split=True),
    "windows": Form(partial(_keeping_freed, Windowed), split=True, traced=True),
    "im2col": Form(Im2col, traced=True),
}
MEASURED = ("native", "by_client", "split", "bands", "windows")  # im2col was never the fastest on CPU
MOST_CLIENTS = 100  # with fewer, the fixed cost of a step dominates
TIMES = 3
NEAR = 1.5  # only forms within this factor of the best are timed a third time


def choose_form(world: TrainingObjects, state: State, say: Callable[[str], None] = lambda _: None) -> str:
    """Return the form that trains a few of the clients fastest; 'native' without convolutions."""
    if not _has_convolutions(world):
        return "native"
    if next(iter(state.weights.values())).is_cuda:
        return "im2col"  # grouped convolutions are slow on CUDA, and client by client leaves the GPU idle
    answered = who_answers(world.federation, state.rounds, world.holdings.clients) or (0,)
    counts, together = world.holdings.counts, world.federation.together
    some = sorted(answered, key=lambda client: int(counts[client]))[:MOST_CLIENTS]
    client = world.federation.client
    short = client if client.local is None else replace(client, local=replace(client.local, epochs=1))
    federation = replace(world.federation, client=short)
    seconds: dict[str, float] = {}
    threads = torch.get_num_threads()

    def measure(form: Form) -> float:
        groups = list(groups_of(some, counts, together, threads if form.split else 1))
        began = time.perf_counter()
        answers = train_groups(
            federation, world.trained, world.holdings, state, groups, form=replace(form, traced=False)
        )
        deque(answers, maxlen=0)  # consumed one by one to save memory
        return time.perf_counter() - began

    for turn in range(TIMES):
        for name in MEASURED:
            if turn < 2 or seconds[name] <= NEAR * min(seconds.values()):
                seconds[name] = min(seconds.get(name, math.inf), measure(FORMS[name]))
    chosen = min(seconds, key=lambda name: seconds[name])
    timings = ", ".join(f"{name} {value * 1e3:.0f} ms" for name, value in seconds.items())
    say(f"convolutions {chosen} ({timings} for one epoch of {len(some)} clients, {threads} threads)")
    return chosen


def _has_convolutions(world: TrainingObjects) -> bool:
    apply = world.trained.apply
    return not isinstance(apply, Functional) or any(isinstance(layer, nn.Conv2d) for layer in apply.module.modules())
