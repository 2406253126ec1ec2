"""How many labels of a batch each rule reads: fresh, half-trained and trained networks, even and uneven batches.

    LEAKSCOPE_DATA=... python benchmarks/labels.py [NETWORK ...] --weights DIR [--states trained] [--batches 24] [--samples 2 8 32 128]

A network is trained once with Adam (batches of 64) and kept in DIR; `half` is after a sixth of the steps. Test images are drawn at
random, from all classes or from three classes of a client's own. Rules read the last layer alone, so only its gradient is computed.
Numbers are shares of the labels (overlap of counts), means over batches; +- is half a 95 % interval (Student's t) of by_residual.
`chance` draws labels uniformly, `true p` is `N (p_c - dL/db_c)` with the private mean prediction, `sure` the share of batches that
by_residual calls sure.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from leakscope.attacks.label_rules.apportion import apportion
from leakscope.attacks.label_rules.choice import read_batch
from leakscope.attacks.labels import LABEL_RULES
from leakscope.core import random
from leakscope.core.model import Model
from leakscope.core.types import Knowledge, Observation, Round, Shares
from leakscope.data import load
from leakscope.metrics.interval import estimate_mean
from leakscope.metrics.labels import label_overlap
from leakscope.models import from_module
from leakscope.models.catalogue import MODELS

RULES = ("counts", "calibrated", "ilrg", "analytic", "bias_corrected")
STATES = ("fresh", "half", "trained")
POOL = 2000  # test images, at most


@dataclass(frozen=True)
class Network:
    model: str
    data: str
    steps: int
    settings: tuple[tuple[str, object], ...] = ()
    groups: bool = False  # group norm in place of batch norm


NETWORKS = {
    "lenet-cifar10": Network("lenet_sme", "cifar10", 800),
    "lenet-cifar100": Network("lenet_sme", "cifar100", 1000),
    "resnet20-cifar10": Network("resnet20", "cifar10", 400, (("width", 8),)),
    "resnet20-groups-cifar10": Network("resnet20", "cifar10", 300, (("width", 8),), groups=True),
    "lenet-emnist": Network("lenet_sme", "emnist_byclass", 1000),
    "resnet20-cifar100": Network("resnet20", "cifar100", 400, (("width", 8),)),
}


def module_of(network: Network, seed: int) -> nn.Module:
    """Return the network as it is drawn."""
    torch.manual_seed(seed)
    classes = load(network.data).classes
    module = MODELS[network.model](
        input_shape=load(network.data).input_shape, classes=classes, **dict(network.settings)
    )
    if network.groups:
        for parent in list(module.modules()):
            for name, layer in list(parent.named_children()):
                if isinstance(layer, nn.BatchNorm2d):
                    setattr(parent, name, nn.GroupNorm(4, layer.num_features))
    return module


def trained(network: Network, place: Path, seed: int) -> None:
    """Train a network and keep its three states in `place`."""
    data, module = load(network.data), module_of(network, seed)
    x, y = data.pictures("train", slice(None)), torch.as_tensor(data.labels("train", slice(None)))
    adam = torch.optim.Adam(module.parameters())
    rate = torch.optim.lr_scheduler.OneCycleLR(adam, 4e-3, total_steps=network.steps)
    generator = torch.Generator().manual_seed(seed)
    save_file(module.state_dict(), place / "fresh.safetensors")
    for step in range(network.steps):
        index = torch.randint(len(x), (64,), generator=generator)
        images = x[index].flip(-1) if step % 2 else x[index]
        loss = nn.functional.cross_entropy(module(images), y[index])
        adam.zero_grad()
        loss.backward()
        adam.step()
        rate.step()
        if step == network.steps // 6:
            save_file(module.state_dict(), place / "half.safetensors")
    save_file(module.state_dict(), place / "trained.safetensors")


@dataclass(frozen=True)
class Features:
    """The features and predictions of all images of the pool, with their labels."""

    rows: Tensor
    predictions: Tensor
    labels: Tensor


def features_of(network: Network, module: nn.Module) -> Features:
    """Return what the last layer sees of the pool, in eval mode."""
    data, seen = load(network.data), list[Tensor]()
    hook = module.get_submodule("head").register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    number = min(POOL, data.size("test"))
    with torch.no_grad():
        outputs = [module(data.pictures("test", part.tolist())) for part in torch.arange(number).split(250)]
    hook.remove()
    labels = torch.as_tensor(data.labels("test", range(number)))
    return Features(torch.cat(seen), torch.cat(outputs).softmax(-1), labels)


def batches(pool: Features, kinds: int, samples: int, number: int, seed: int) -> Tensor:
    """Return the places of so many batches in the pool, each from `kinds` classes of its own."""
    generator = torch.Generator().manual_seed(1000 * seed + samples)
    classes = pool.predictions.shape[1]
    drawn = []
    for _ in range(number):
        own = torch.randperm(classes, generator=generator)[:kinds]
        near = torch.isin(pool.labels, own).nonzero()[:, 0]
        drawn.append(near[torch.randint(len(near), (samples,), generator=generator)])
    return torch.stack(drawn)


def observe(model: Model, pool: Features, chosen: Tensor) -> tuple[Observation, Tensor]:
    """Return what the server sees of the last layer, and the private mean prediction."""
    rows, predictions, labels = pool.rows[chosen], pool.predictions[chosen], pool.labels[chosen]
    errors = predictions - nn.functional.one_hot(labels, predictions.shape[2])
    sent = {"head.weight": errors.mT @ rows / chosen.shape[1], "head.bias": errors.mean(1)}
    before = {name: value.expand(len(chosen), *value.shape) for name, value in model.parameters.items()}
    buffers = {name: value.expand(len(chosen), *value.shape) for name, value in model.buffers.items()}
    seen = Observation((Round(before, buffers, sent),), Shares.GRADIENT, torch.full((len(chosen),), chosen.shape[1]))
    return seen, predictions.mean(1)


def rates(model: Model, pool: Features, chosen: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield for every column its name and the values of all batches."""
    seen, prediction = observe(model, pool, chosen)
    samples, classes = chosen.shape[1], model.classes
    knowledge = Knowledge(model.input_shape, classes, samples)
    keys, truth = random.key(list(range(len(chosen)))), pool.labels[chosen]
    guesses = torch.randint(classes, chosen.shape, generator=torch.Generator().manual_seed(1))
    share = (prediction - seen.rounds[0].sent["head.bias"]).clamp_min(0)
    exact = apportion(share / share.sum(1, keepdim=True), torch.ones_like(chosen, dtype=torch.bool))
    yield "chance", label_overlap(truth, guesses)
    yield "true p", label_overlap(truth, exact)
    for rule in RULES:
        yield rule, label_overlap(truth, LABEL_RULES[rule](model, seen, knowledge, keys))
    found = read_batch(model, seen, knowledge, keys)
    yield "by_residual", label_overlap(truth, found.labels)
    yield "sure", found.sure.double()


def print_network(name: str, directory: Path, states: list[str], samples: list[int], number: int, seed: int) -> None:
    """Print the rows of one network."""
    network, place = NETWORKS[name], directory / f"{name}-{seed}"
    if not (place / "trained.safetensors").exists():
        place.mkdir(parents=True, exist_ok=True)
        trained(network, place, seed)
    for state in states:
        module = module_of(network, seed)
        module.load_state_dict(load_file(place / f"{state}.safetensors"))
        module.eval()
        pool = features_of(network, module)
        model = from_module(module, input_shape=load(network.data).input_shape)
        for kinds in (model.classes, 3):
            for size in samples:
                columns = dict(rates(model, pool, batches(pool, kinds, size, number, seed)))
                print_row(f"{name} | {state} | {kinds} | {size}", columns, number)


def print_row(label: str, columns: dict[str, Tensor], number: int) -> None:
    found = columns["by_residual"].double()[:, None]
    interval = estimate_mean(found, torch.ones_like(found, dtype=torch.bool), within=(0.0, 1.0))
    means = " | ".join(f"{float(value.double().mean()):.2f}" for value in columns.values())
    print(f"| {label} | {number} | {means} | {(interval.high - interval.low) / 2:.2f} |", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--weights", type=Path, required=True, help="where trained weights are kept")
    parser.add_argument("--states", nargs="+", choices=STATES, default=list(STATES))
    parser.add_argument("--batches", type=int, default=24)
    parser.add_argument(
        "--seed", type=int, default=1, help="of the networks' weights and of the batches; the rules were tuned with 0"
    )
    parser.add_argument("--samples", type=int, nargs="+", default=[2, 8, 32, 128])
    asked = parser.parse_args()
    torch.set_num_threads(1)
    names = ("chance", "true p", *RULES, "by_residual", "sure", "+-")
    print(f"| network | state | classes of a client | N | n | {' | '.join(names)} |\n|{'---|' * (5 + len(names))}")
    for name in asked.networks:
        print_network(name, asked.weights, asked.states, asked.samples, asked.batches, asked.seed)


if __name__ == "__main__":
    main()
