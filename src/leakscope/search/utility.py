"""Training a network with and without a policy, to measure the policy's cost in accuracy; resumable to the same bits on CPU.

The schedule is that of Gao et al. 2021 and its reproduction: SGD 0.1 with Nesterov momentum 0.9, weight decay 5e-4, batches of
128, 200 epochs, rate times 0.1 after epochs 75, 125 and 175; images cropped (padding 4), flipped, transformed, normalised.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.scaling import Scaling
from leakscope.core.short_repr import short_repr
from leakscope.core.tree import Tree
from leakscope.defences.on_data import Transform
from leakscope.defences.on_data.applying import to_unit
from leakscope.models import build, build_module, from_module
from leakscope.models.checkpoint import pack_checkpoint
from leakscope.store.disk import check_plain, replacing

AT_ONCE = 500
STATE, WEIGHTS = "network.safetensors", "weights.safetensors"


@dataclass(frozen=True, slots=True)
class Schedule:
    """The training schedule; after each epoch in `milestones` the rate is multiplied by `factor`."""

    epochs: int = 200
    batch: int = 128
    rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    milestones: tuple[int, ...] = (75, 125, 175)
    factor: float = 0.1

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch < 1:
            raise InputError(f"Schedule needs epochs and batch of at least 1, got {self.epochs} and {self.batch}")
        if not self.rate > 0:
            raise InputError(f"Schedule.rate must be above 0, got {self.rate}")

    def shortened(self, epochs: int) -> Schedule:
        """Return the same schedule in fewer epochs, with proportional milestones.

        >>> Schedule().shortened(40).milestones
        (15, 25, 35)
        """
        return replace(self, epochs=epochs, milestones=tuple(m * epochs // self.epochs for m in self.milestones))

    def rate_at(self, epoch: int) -> float:
        """Return the learning rate of an epoch, counted from 0."""
        return self.rate * self.factor ** sum(epoch >= m for m in self.milestones)


@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """Labelled bytes, N x C x H x W, and the scaling of the network's inputs."""

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: int
    scaling: Scaling = field(default_factory=Scaling)

    __repr__ = short_repr

    def __post_init__(self) -> None:
        for name in ("x_train", "x_test"):
            if getattr(self, name).dtype != torch.uint8 or getattr(self, name).ndim != 4:
                raise InputError(f"Examples.{name} must be bytes N x C x H x W, got {getattr(self, name).dtype}")


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that determines a training: network, policy, schedule, seed, the share of the training examples used."""

    network: str = "resnet20"
    settings: tuple[tuple[str, int | float | str], ...] = (("width", 64),)
    transform: Transform = field(default_factory=lambda: Transform(crop=4, flip=True))
    schedule: Schedule = field(default_factory=Schedule)
    seed: int = 0
    share: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise InputError(f"Recipe.share must be in (0, 1], got {self.share}")


@dataclass(frozen=True, slots=True)
class Epoch:
    """Results of one epoch: training loss and accuracy, test accuracy (shares)."""

    number: int
    loss: float
    train_accuracy: float
    test_accuracy: float


class Trained(NamedTuple):
    """A trained network in eval mode, and its history."""

    model: Model
    history: tuple[Epoch, ...]


def train_network(
    recipe: Recipe,
    data: Examples,
    *,
    device: str = "cpu",
    directory: Path | None = None,
    save_every: int = 5,
    watch: Callable[[Epoch], None] | None = None,
    epochs: int | None = None,  # stops after this many in total, without changing the schedule
) -> Trained:
    """Return the network after training, resumed from and saved in `directory`; a scenario can attack its weights.safetensors."""
    data = _on(data, recipe, device)
    module = _begin(recipe, data).to(device)
    optimiser = _optimiser(module, recipe.schedule)
    stamp = _stamp(recipe, data)
    history = _resume(directory, stamp, module, optimiser)
    last = min(epochs or recipe.schedule.epochs, recipe.schedule.epochs)
    for number in range(len(history), last):
        history.append(_epoch(module, optimiser, recipe, data, number))
        if watch is not None:
            watch(history[-1])
        if directory is not None and ((number + 1) % save_every == 0 or number + 1 == last):
            _save(directory, stamp, module, optimiser, history)
    shape = tuple(data.x_train.shape[1:])
    trained = Trained(from_module(module.cpu().eval(), input_shape=shape, name=recipe.network), tuple(history))
    if directory is not None:
        about = {"epochs": len(history), "policy": str(recipe.transform.policy), "accuracy": history[-1].test_accuracy}
        with replacing(directory / WEIGHTS) as file:
            file.write(pack_checkpoint(trained.model, trained.model.parameters, trained.model.buffers, about))
    return trained


def load_trained(recipe: Recipe, data: Examples, directory: Path) -> Trained | None:
    """Return the network in a directory for this recipe, finished or not; None if there is none."""
    data = _on(data, recipe, "cpu")
    module = _begin(recipe, data)
    history = _resume(directory, _stamp(recipe, data), module, _optimiser(module, recipe.schedule))
    if not history:
        return None
    shape = tuple(data.x_train.shape[1:])
    return Trained(from_module(module.eval(), input_shape=shape, name=recipe.network), tuple(history))


def _optimiser(module: nn.Module, schedule: Schedule) -> torch.optim.SGD:
    return torch.optim.SGD(
        module.parameters(),
        lr=schedule.rate,
        momentum=schedule.momentum,
        weight_decay=schedule.weight_decay,
        nesterov=schedule.momentum > 0,
    )


def _on(data: Examples, recipe: Recipe, device: str) -> Examples:
    """Return the examples on the device, with the recipe's share of the training part drawn by the seed."""
    number = max(1, round(recipe.share * len(data.x_train)))
    chosen = torch.arange(number)
    if recipe.share < 1:
        order = random.permutation(random.fold(random.key(recipe.seed), "share"), len(data.x_train))
        chosen = order[:number].sort().values
    return replace(
        data,
        x_train=data.x_train[chosen].to(device),
        y_train=data.y_train[chosen].to(device),
        x_test=data.x_test.to(device),
        y_test=data.y_test.to(device),
    )


def _begin(recipe: Recipe, data: Examples) -> nn.Module:
    shape = tuple(data.x_train.shape[1:])
    return first_module(recipe.network, shape, data.classes, dict(recipe.settings), seed=recipe.seed)


def _epoch(module: nn.Module, optimiser: torch.optim.SGD, recipe: Recipe, data: Examples, number: int) -> Epoch:
    """Train for one epoch and return its results."""
    for group in optimiser.param_groups:
        group["lr"] = recipe.schedule.rate_at(number)
    module.train()
    total, key = len(data.x_train), random.fold(random.fold(random.key(recipe.seed), "epoch"), number)
    order = random.permutation(random.fold(key, "order"), total).to(data.x_train.device)
    losses, right = torch.zeros((), device=order.device), torch.zeros((), device=order.device)
    for places in order.split(recipe.schedule.batch):
        keys = random.fold(key.to(places.device).expand(len(places)), places)
        pictures = recipe.transform.change(data.x_train[places], recipe.transform.draw(keys))
        labels = data.y_train[places]
        output = module(data.scaling.scale(to_unit(pictures), 3))
        loss = F.cross_entropy(output, labels)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        losses += loss.detach() * len(places)
        right += (output.detach().argmax(1) == labels).sum()
    return Epoch(number, float(losses) / total, float(right) / total, accuracy(module, data))


@torch.no_grad()
def accuracy(module: nn.Module, data: Examples) -> float:
    """Return the share of untransformed test images classified correctly, in eval mode."""
    module.eval()
    right = sum(
        int((module(data.scaling.scale(to_unit(x), 3)).argmax(1) == y).sum())
        for x, y in zip(data.x_test.split(AT_ONCE), data.y_test.split(AT_ONCE), strict=True)
    )
    return right / max(len(data.x_test), 1)


def _stamp(recipe: Recipe, data: Examples) -> str:
    """Return a hash of everything that determines the result."""
    digest = hashlib.sha256(json.dumps(asdict(recipe), sort_keys=True).encode())
    digest.update(repr((data.scaling, data.classes, tuple(data.x_train.shape))).encode())
    digest.update(data.x_train[:: max(1, len(data.x_train) // 256)].cpu().numpy().tobytes())
    digest.update(data.y_train.cpu().numpy().tobytes())
    return digest.hexdigest()[:32]


def _tensors(module: nn.Module, optimiser: torch.optim.SGD) -> Tree:
    values = {f"network.{name}": value for name, value in module.state_dict().items()}
    for name, value in module.named_parameters():
        velocity = optimiser.state.get(value, {}).get("momentum_buffer")
        if velocity is not None:
            values[f"velocity.{name}"] = velocity
    return {name: value.detach().cpu().contiguous().clone() for name, value in values.items()}


def _save(directory: Path, stamp: str, module: nn.Module, optimiser: torch.optim.SGD, history: Sequence[Epoch]) -> None:
    from safetensors.torch import save

    directory.mkdir(parents=True, exist_ok=True)
    about: Mapping[str, str] = {"stamp": stamp, "history": json.dumps([asdict(epoch) for epoch in history])}
    with replacing(directory / STATE) as file:
        file.write(save(_tensors(module, optimiser), metadata=dict(about)))


def _resume(directory: Path | None, stamp: str, module: nn.Module, optimiser: torch.optim.SGD) -> list[Epoch]:
    """Return the saved epochs after loading network and momentum; [] to start."""
    path = None if directory is None else directory / STATE
    if path is None or not path.exists():
        return []
    from safetensors import SafetensorError, safe_open

    check_plain(path)  # opening a FIFO waits for ever
    try:
        with safe_open(path, "pt") as file:
            about = file.metadata() or {}
            if about.get("stamp") != stamp:
                raise InputError(f"{directory} holds another training; use an empty directory or the same recipe")
            kept = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a mapping
            history = [Epoch(**each) for each in json.loads(about["history"])]
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is not a readable checkpoint ({error}); delete it to start again") from None
    prefix = "network."
    module.load_state_dict({n.removeprefix(prefix): v for n, v in kept.items() if n.startswith(prefix)})
    for name, value in module.named_parameters():
        if f"velocity.{name}" in kept:
            optimiser.state[value]["momentum_buffer"] = kept[f"velocity.{name}"].to(value.device)
    return history


Settings = Mapping[str, int | float | str]


def first_module(network: str, shape: Sequence[int], classes: int, settings: Settings, *, seed: int = 0) -> nn.Module:
    """Return a network in train mode with the first weights of ATS: Kaiming normal by fan-out for convolutions, else PyTorch's."""
    first = build(network, shape, classes, settings, seed=seed).parameters
    key = random.fold(random.key(seed), "kaiming")
    module = build_module(network, shape, classes, settings, seed=seed)
    with torch.no_grad():
        for name, value in module.named_parameters():
            value.copy_(first[name])
        for prefix, layer in module.named_modules():
            if isinstance(layer, nn.Conv2d):
                drawn = random.normal(random.fold(key, prefix), layer.weight.shape)
                layer.weight.copy_(drawn * math.sqrt(2 / layer.weight[:, 0].numel()))
    return module


def first_model(network: str, shape: Sequence[int], classes: int, settings: Settings, *, seed: int = 0) -> Model:
    """Return `first_module` as a model in eval mode: the untrained network of the accuracy score."""
    module = first_module(network, shape, classes, settings, seed=seed)
    return from_module(module.eval(), input_shape=shape, name=network)
