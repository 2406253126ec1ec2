"""What each manipulation still gets from clients that use a remedy, and the accuracy that the remedy costs.

    LEAKSCOPE_DATA=... python benchmarks/remedies.py [MANIPULATION ...] [--remedies nothing clip noise censor scan] [--batches 10]
    LEAKSCOPE_DATA=... python benchmarks/remedies.py --accuracy [NETWORK ...] [--batches 5]
    ... --accuracy mlp --remedies noise --first 2 --step 5 --batches 10 --rows part2.jsonl       # one of five processes; then
    ... --accuracy --read part0.jsonl ... part4.jsonl                                            # the table of their rows

Remedies: `clip` to norm 1, `noise` of 0.0001 after that clip, `censor` units of the first dense layer with fewer than 4 examples,
`scan` the received model with 64 examples beside the honest model as that of the last round, and refuse it if suspect. A refused server
gets nothing. Shares are of images of Fashion-MNIST, 64 a client, within 1e-3 (root mean square) of a read one, for LOKI (2 clients in
the sum) 3e-2, under noise 0.1. For fishing (one image of the class among 64, read by division) they are of the images of that class, for
Decepticons and for adapters of rank 8 (GPT of width 128, 8 sentences) of tokens in their places. Networks of images are
784-1000-10, for LOKI `cnn_mnist`. Intervals: Student's t over clients (n).

`--accuracy`: FedSGD of 10 clients with 64 examples each, 100 rounds at rate 0.1, tested on 1,000 examples: 784-1000-10 (`mlp`) and
`lenet_dlg` with ReLU on Fashion-MNIST, a GPT of width 32 (`gpt`) on drawn sentences of 4 classes. n counts federations. `scan` tests every
tenth round's model beside that of the round before; `refused` counts the rounds. `cost` is the accuracy without a remedy minus that with
it, of the same federation.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from decepticons import Network, placed, sentences, small_gpt
from leakscope.attacks import analytic
from leakscope.attacks.engine.plan import DEFAULT
from leakscope.auditing.target import Target
from leakscope.clients import Client
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.tree import Tree, take
from leakscope.core.types import Batch, Reconstruction, make_batch
from leakscope.data import load
from leakscope.defences import Clip, GaussianNoise
from leakscope.models import Torch, build, draw_parameters, from_module, gpt
from leakscope.models.token_model import TokensFromNumbers
from leakscope.play import reconstruct, shared_weights
from leakscope.play.dishonest import expose_manipulated
from leakscope.scanning.scan import scan
from leakscope.servers.adapter_imprint import AdapterImprint
from leakscope.servers.decepticons import Decepticons
from leakscope.servers.fishing import Fishing
from leakscope.servers.imprint import Imprint
from leakscope.servers.loki import Loki
from leakscope.servers.manipulation import Manipulation, dishonest_weights
from leakscope.servers.soliton import SolitonBiases
from leakscope.servers.trap_weights import TrapWeights
from scan import sent_module, tokens
from servers import Row, batch_and_weights, near, show_interval

HONEST = Client()
EXACT, NOISY = 1e-3, 0.1  # distances that count, NOISY under noise
CLIENTS = {
    "nothing": HONEST,
    "clip": Client(defences=(Clip(1.0),)),
    "noise": Client(defences=(Clip(1.0), GaussianNoise(1e-4))),
    "censor": Client(censor=4),
    "scan": HONEST,
}
DATA, EACH, SUMMED = "fashion_mnist", 64, 2
PUBLIC = 8_000  # images
WIDTH, BATCH, SAMPLE, RANK = 128, 8, 64, 8  # of sentences: the network, a batch, what is scanned, adapters
ROUNDS, MEMBERS, EVERY, RATE = 100, 10, 10, 0.1  # of the training that measures accuracy
DENSE = {
    "imprint": Row(DATA, EACH, Imprint()),
    "trap weights": Row(DATA, EACH, TrapWeights(factor=0.7), normal=True),
    "soliton biases": Row(DATA, EACH, SolitonBiases(batch=EACH), normal=True),
    "LOKI": Row(DATA, SUMMED * EACH, Loki(SUMMED), network="cnn_mnist", client=Client(aggregate=SUMMED), rms=3e-2),
}


class Case(NamedTuple):
    """One batch of a manipulation's clients, and the share of it that a readout has; `samples` are what each client scans with."""

    manipulation: Manipulation
    model: Model
    weights: Tree
    batch: Batch
    public: Tensor
    samples: list[tuple[Tensor, Tensor]]
    share: Callable[[Reconstruction, bool], Tensor]  # of each client; bool: whether the updates are noisy


def of_row(name: str, number: int) -> Case:
    """Return a batch of a manipulation whose readout gives images."""
    row = DENSE[name]
    model, weights, batch = batch_and_weights(row, number)
    clients = row.client.aggregation.clients

    def share(read: Reconstruction, noisy: bool) -> Tensor:
        return near(batch, read.inputs[0], NOISY if noisy else row.rms).unflatten(0, (clients, -1)).mean(1)

    samples = list(zip(batch.inputs[0].split(EACH), batch.labels[0].split(EACH), strict=True))
    data = load(row.data)
    public = data.pictures("train", range(data.size("train")))
    return Case(row.manipulation, model, weights, batch, public, samples, share)


def of_fishing(number: int) -> Case:
    """Return a batch with one image of class 0, which a division by the first layer's bias gradients reads."""
    data = load(DATA)
    labels = data.labels("test", range(data.size("test")))
    target, others = (labels == 0).nonzero().flatten(), (labels != 0).nonzero().flatten()
    index = [int(target[number]), *others[(EACH - 1) * number : (EACH - 1) * (number + 1)].tolist()]
    batch = make_batch(data.pictures("test", index)[None], labels[index][None], classes=data.classes)
    model = build("mlp", data.input_shape, data.classes, {"hidden": (1000,)})

    def share(read: Reconstruction, noisy: bool) -> Tensor:
        return near(batch, read.inputs[0, :1], NOISY if noisy else EXACT)[:1]

    weights = draw_parameters(model, Torch(), random.key([number]))
    public = data.pictures("train", range(EACH))
    samples = [(batch.inputs[0], batch.labels[0])]
    return Case(Fishing(reader=analytic()), model, weights, batch, public, samples, share)


def of_sentences(manipulation: Manipulation, layers: str, number: int) -> Case:
    """Return a batch of sentences, and a network whose weights or adapters on the named layers are trained."""
    model, batch, public = small_gpt(Network(BATCH, WIDTH, layers=layers, rank=RANK), number)
    sample = sentences(SAMPLE, 3000 + number), torch.arange(SAMPLE) % model.classes

    def share(read: Reconstruction, _: bool) -> Tensor:
        return torch.tensor([placed(batch.inputs[0], read.inputs[0])[0]], dtype=torch.float64)

    return Case(manipulation, model, shared_weights(model, 1), batch, public, [sample], share)


CASES: dict[str, Callable[[int], Case]] = {
    **{name: partial(of_row, name) for name in DENSE},
    "fishing": of_fishing,
    "Decepticons": partial(of_sentences, Decepticons(), ""),
    "adapters on values": partial(of_sentences, AdapterImprint(), "value"),
    "adapters on dense1": partial(of_sentences, AdapterImprint(), "dense1"),
}


def module_of(model: Model, weights: Tree) -> nn.Module:
    """Return the network with the weights of one client as a module, which a scan reads."""
    module = getattr(model.apply, "module", None)
    if not isinstance(module, nn.Module):
        raise TypeError(f"{model.name} has no module")
    return sent_module(module, weights)


def refuses(case: Case, number: int) -> list[bool]:
    """Return whether each client refuses the model that it gets."""
    honest, answers = module_of(case.model, take(case.weights, 0)), []
    for place, (x, y) in enumerate(case.samples):
        own = case.manipulation.for_client(place) if isinstance(case.manipulation, Loki) else case.manipulation
        extended, changed = dishonest_weights(own, case.model, case.weights, case.public, [number])
        received = sent_module(honest, extended.buffers | take(changed, 0))
        previous = honest if set(received.state_dict()) == set(honest.state_dict()) else None
        answers.append(scan(Target(model=received, inputs=x, labels=y), previous=previous).suspected)
    return answers


def share_under(case: Case, remedy: str, number: int) -> Tensor:
    """Return what the server reads of each client."""
    client = replace(CLIENTS[remedy], aggregate=len(case.samples))
    given = (case.manipulation, case.model, client, case.weights, case.batch, case.public, [number])
    shares = case.share(reconstruct(expose_manipulated(*given), case.manipulation, DEFAULT), remedy == "noise")
    return shares.masked_fill(torch.tensor(refuses(case, number)), 0.0) if remedy == "scan" else shares


def show_shares(names: list[str], remedies: list[str], batches: int) -> None:
    """Print what each manipulation gets from clients with each remedy."""
    print("| manipulation | remedy | n | share | 95 % |\n|---|---|---|---|---|")
    for name in names:
        for remedy in remedies:
            try:
                shares = torch.cat([share_under(CASES[name](number), remedy, number) for number in range(batches)])
            except InputError as error:
                if remedy != "censor":
                    raise
                print(f"| {name} | {remedy} | does not apply: {error} |", flush=True)
                continue
            print(f"| {name} | {remedy} | {show_interval(shares)} |", flush=True)


@dataclass(frozen=True)
class Federation:
    """A network, its clients' examples and examples for the test."""

    model: Model
    weights: Tree
    batch: Batch
    test: tuple[Tensor, Tensor]


def federation(network: str, seed: int) -> Federation:
    """Return the federation of one seed."""
    examples = MEMBERS * EACH
    if network == "gpt":
        (x, y), test = tokens(10_000 * seed, examples), tokens(seed, 1000, "test")
        torch.manual_seed(seed)
        net = TokensFromNumbers(gpt(vocabulary=64, positions=12, width=32, depth=2, classes=4))
        model = from_module(net, input_shape=(12,), example=x[:2].float())
        x, test, weights = x.float(), (test[0].float(), test[1]), shared_weights(model, 1)
    else:
        data = load(DATA)
        index = torch.randperm(data.size("train"), generator=torch.Generator().manual_seed(seed))[:examples].tolist()
        settings = {"hidden": (1000,)} if network == "mlp" else {"activation": "relu"}
        model = build(network, data.input_shape, data.classes, settings)
        x, y = data.pictures("train", index), data.labels("train", index)
        test = data.pictures("test", range(1000)), data.labels("test", range(1000))
        weights = draw_parameters(model, Torch(), random.key([seed]))
    shape = (MEMBERS, EACH)
    batch = Batch(x.unflatten(0, shape), y.unflatten(0, shape), torch.ones(shape, dtype=torch.bool))
    return Federation(model, take(weights, 0), batch, test)


def accuracy_under(remedy: str, network: str, seed: int) -> tuple[float, list[bool]]:
    """Return the accuracy after training with clients that use a remedy, and which of the rounds that were scanned a client refused."""
    of, client, refused = federation(network, seed), CLIENTS[remedy], []
    model, weights, batch = of.model, of.weights, of.batch
    for number in range(ROUNDS):
        shared = {name: value.expand(MEMBERS, *value.shape) for name, value in weights.items()}
        seeds = [1000 * seed + MEMBERS * number + member for member in range(MEMBERS)]
        sent = client.observe(model, shared, batch, seeds).rounds[0].sent
        before, weights = weights, {name: value - RATE * sent[name].mean(0) for name, value in weights.items()}
        if remedy == "scan" and number % EVERY == 0:
            sample = Target(model=module_of(model, weights), inputs=batch.inputs[0], labels=batch.labels[0])
            refused.append(scan(sample, previous=module_of(model, before)).suspected)
    output, _ = model.apply(weights, model.buffers, of.test[0], random.key(0))
    return float((output.argmax(1) == of.test[1]).double().mean()), refused


class Trained(NamedTuple):
    """One federation after training; `refused` are the rounds that were scanned."""

    network: str
    remedy: str
    seed: int
    accuracy: float
    refused: list[bool]


def trained(networks: list[str], remedies: list[str], seeds: range, path: Path | None) -> list[Trained]:
    """Return federations of every network and remedy, and add them to the file `path`; censoring does not apply to some networks."""
    rows = []
    for network, remedy, seed in product(networks, remedies, seeds):
        try:
            rows.append(Trained(network, remedy, seed, *accuracy_under(remedy, network, seed)))
        except InputError:
            if remedy != "censor":
                raise
            continue
        if path is not None:
            with path.open("a", encoding="utf-8") as file:
                file.write(f"{json.dumps(rows[-1])}\n")
    return rows


def show_accuracy(rows: list[Trained]) -> None:
    """Print what each remedy costs."""
    print(
        "| network | remedy | n | accuracy | 95 % | n | cost | 95 % | refused |\n|---|---|---|---|---|---|---|---|---|"
    )
    accuracy = {(row.network, row.remedy, row.seed): row.accuracy for row in rows}
    for network, remedy in dict.fromkeys((row.network, row.remedy) for row in rows):
        of = [row for row in rows if (row.network, row.remedy) == (network, remedy)]
        pairs = [(accuracy.get((network, "nothing", row.seed), math.nan), row.accuracy) for row in of]
        alone, under = torch.tensor(pairs, dtype=torch.float64).T
        cost = show_interval(alone - under, lowest=-1.0)
        rounds = [each for row in of for each in row.refused]
        shown = f"{sum(rounds)} of {len(rounds)}" if rounds else ""
        print(f"| {network} | {remedy} | {show_interval(under)} | {cost} | {shown} |", flush=True)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", help="manipulations, or networks with --accuracy")
    parser.add_argument("--remedies", nargs="*", default=list(CLIENTS))
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument(
        "--head", choices=("glorot", "normal"), default="glorot", help="of trap weights and soliton biases"
    )
    parser.add_argument("--accuracy", action="store_true", help="what the remedies cost instead")
    parser.add_argument(
        "--first", type=int, default=0, help="of --accuracy, with --step: the federations of one process"
    )
    parser.add_argument("--step", type=int, default=1)
    parser.add_argument("--rows", type=Path, help="of --accuracy: a file that federations are added to")
    parser.add_argument("--read", type=Path, nargs="*", help="of --accuracy: files of other processes")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    DENSE.update({name: replace(row, head=asked.head) for name, row in DENSE.items()})
    if asked.read:
        lines = [line for path in asked.read for line in path.read_text("utf-8").splitlines()]
        show_accuracy([Trained(*json.loads(line)) for line in lines])
    elif asked.accuracy:
        seeds = range(asked.first, asked.batches, asked.step)
        show_accuracy(trained(asked.names or ["mlp", "lenet_dlg", "gpt"], asked.remedies, seeds, asked.rows))
    else:
        show_shares(asked.names or list(CASES), asked.remedies, asked.batches)


if __name__ == "__main__":
    main()
