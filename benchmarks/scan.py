"""What the scan of a received model says of honest models and of every manipulation.

python benchmarks/scan.py --seeds 14 --write         # limits from the first half of the seeds, false alarms on the second half
python benchmarks/scan.py --seeds 10 --traps         # how many of each manipulation are suspect under the package's limits
python benchmarks/scan.py --seeds 14 --first 2 --step 5 --rows part2.jsonl       # one of five processes; then
python benchmarks/scan.py --write --read part0.jsonl part1.jsonl ... part4.jsonl  # the tables and the reference from their rows
python benchmarks/scan.py --seeds 14 --weights --write    # the tests of the weights alone; also with --traps
python benchmarks/scan.py --seeds 14 --adapters      # false alarms on honest models with low-rank adapters

Honest models: every network below at each seed, fresh, trained (1 to 12 epochs by SGD or Adam), and the trained one pruned by 50 and
80 %, rounded to 8 and 4 bits, and fine-tuned on other data. The first round of training and the fine-tuning are also
compared with the model before. Samples of 64 and of 16 are examples that the model was trained on (seeds 0, 1, 4, 5, ...) or others.
The package's reference is that of the first half of the seeds; `UNSEEN` networks are never part of it. A model is a
false alarm if any test of either scan is suspect. Intervals are Wilson's, 95 %.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
from collections import ChainMap, Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

import leakscope.scanning
from leakscope.auditing.target import Target
from leakscope.core.tree import take
from leakscope.data import load
from leakscope.metrics.interval import wilson
from leakscope.models import adapt, from_module
from leakscope.models.catalogue import MODELS
from leakscope.models.token_model import TokensFromNumbers
from leakscope.models.transformer_text import bert, gpt
from leakscope.play.exposure import shared_weights
from leakscope.scanning.findings import Test
from leakscope.scanning.reference import BATCHES, FILE, key_of, load_reference, summarise_honest
from leakscope.scanning.scan import Scan, scan
from leakscope.servers.adapter_imprint import AdapterImprint
from leakscope.servers.decepticons import Decepticons
from leakscope.servers.fishing import Fishing
from leakscope.servers.imprint import BIAS, FIRST, KERNELS, SECOND, Imprint, random_direction
from leakscope.servers.inconsistent import Inconsistent
from leakscope.servers.loki import Loki
from leakscope.servers.manipulation import Manipulation, dishonest_weights
from leakscope.servers.soliton import SolitonBiases
from leakscope.servers.trap_weights import TrapWeights

ON_BATCH = (Test.D_SNR, Test.CLASS_D_SNR, Test.DEGREES, Test.PEELING)
JUDGED = tuple(test for test in Test if test not in (Test.HASH, Test.TRAINED_DECODER))


Source = Callable[[int, int, str], tuple[Tensor, Tensor]]


class Honest(NamedTuple):
    """A model, a sample of 64, and the model of the round before, if there was one."""

    kind: str
    model: nn.Module
    inputs: Tensor
    labels: Tensor
    previous: Mapping[str, Tensor] | None = None


class Row(NamedTuple):
    """The values of one honest model, by their key in the reference."""

    network: str
    kind: str
    seed: int
    values: dict[str, float]


def pictures(name: str, first: int, number: int, part: str = "train") -> tuple[Tensor, Tensor]:
    data = load(name)
    places = [place % data.size(part) for place in range(first, first + number)]
    return data.pictures(part, places), data.labels(part, places)


def tokens(first: int, number: int, part: str = "train") -> tuple[Tensor, Tensor]:
    """Return sequences of 12 tokens of 64, each drawn mostly from the tokens of its class."""
    generator = torch.Generator().manual_seed(first + (part == "test") * 10**6)
    labels = torch.randint(4, (number,), generator=generator)
    common = torch.randint(64, (number, 12), generator=generator)
    own = torch.randint(16, (number, 12), generator=generator) + 16 * labels[:, None]
    return torch.where(torch.rand(number, 12, generator=generator) < 0.5, own, common), labels


def larger(source: Source, first: int, number: int, part: str = "train") -> tuple[Tensor, Tensor]:
    """Return images of twice the size."""
    x, y = source(first, number, part)
    return nn.functional.interpolate(x, scale_factor=2.0), y


def made(name: str, shape: tuple[int, ...] = (1, 8, 8), **settings: object) -> Callable[[], nn.Module]:
    return partial(MODELS[name], input_shape=shape, classes=10, **settings)


DIGITS, MNIST, CIFAR = (partial(pictures, name) for name in ("digits", "mnist", "cifar10"))
NETWORKS: dict[str, tuple[Callable[[], nn.Module], Source]] = {
    "linear": (made("linear"), DIGITS),
    "mlp": (made("mlp", hidden=(128,)), DIGITS),
    "mlp, MNIST": (made("mlp", (1, 28, 28), hidden=(200,)), MNIST),
    "mlp, CIFAR-10": (made("mlp", (3, 32, 32), hidden=(200,)), CIFAR),
    "lenet_dlg": (made("lenet_dlg"), DIGITS),
    "lenet_cpl, relu": (made("lenet_cpl", activation="relu"), DIGITS),
    "cnn_mnist": (made("cnn_mnist"), DIGITS),
    "alexnet": (made("alexnet", width=8, hidden=64), DIGITS),
    "resnet8": (made("resnet8", width=8, hidden=64), DIGITS),
    "resnet18": (made("resnet18", width=8, stem="small"), DIGITS),
    "vit": (made("vit", patch=2, width=32, depth=2), DIGITS),
    "gpt": (partial(gpt, vocabulary=64, positions=12, width=32, depth=2, classes=4), tokens),
}

UNSEEN: dict[str, tuple[Callable[[], nn.Module], Source]] = {
    "mlp, two layers, Fashion-MNIST": (made("mlp", (1, 28, 28), hidden=(128, 64)), partial(pictures, "fashion_mnist")),
    "cnn_cifar": (made("cnn_cifar"), DIGITS),
    "lenet_sme": (made("lenet_sme", (1, 16, 16)), partial(larger, DIGITS)),
    "resnet20": (made("resnet20", width=8), DIGITS),
    "lenet_cpl": (made("lenet_cpl"), DIGITS),
    "bert": (partial(bert, vocabulary=64, positions=12, width=32, depth=2, classes=4), tokens),
}


def adapted(*layers: str) -> nn.Module:
    """Return a transformer whose clients train low-rank adapters alone."""
    return adapt(gpt(vocabulary=64, positions=12, width=32, depth=3, classes=4), rank=8, layers=layers)


ADAPTED: dict[str, tuple[Callable[[], nn.Module], Source]] = {
    "gpt, adapters on queries and values": (partial(adapted, "query", "value"), tokens),
    "gpt, adapters on dense1": (partial(adapted, "query", "value", "dense1"), tokens),
}
EVERY = NETWORKS | UNSEEN | ADAPTED


def train(net: nn.Module, x: Tensor, y: Tensor, epochs: int, seed: int, rate: float) -> nn.Module:
    """Return a trained copy; seeds that divide by 3 use Adam, the others SGD with momentum."""
    net = copy.deepcopy(net).train()
    adam = torch.optim.Adam(net.parameters(), lr=rate / 20)
    sgd = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9, weight_decay=1e-4)
    for epoch in range(epochs):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1000 * seed + epoch))
        for part in order.split(32):
            net.zero_grad()
            nn.functional.cross_entropy(net(x[part]), y[part]).backward()
            (adam if seed % 3 == 0 else sgd).step()
    return net.eval()


def changed(net: nn.Module, change: Callable[[Tensor], Tensor]) -> nn.Module:
    """Return a copy with every weight matrix or filter changed."""
    net = copy.deepcopy(net)
    with torch.no_grad():
        for value in net.parameters():
            if value.ndim > 1:
                value.copy_(change(value))
    return net


def pruned(net: nn.Module, share: float) -> nn.Module:
    """Return the network without the smallest weights of all layers together."""
    sizes = torch.cat([value.detach().abs().flatten() for value in net.parameters() if value.ndim > 1])
    least = sizes.sort().values[int(share * len(sizes))]
    return changed(net, lambda value: value.where(value.abs() >= least, 0.0))


def rounded(net: nn.Module, bits: int) -> nn.Module:
    """Return the network with weights rounded to symmetric steps, one size a tensor."""
    most = 2 ** (bits - 1) - 1

    def change(value: Tensor) -> Tensor:
        step = value.abs().max().clamp_min(1e-12) / most
        return (value / step).round() * step

    return changed(net, change)


def honest_models(name: str, seed: int) -> Iterator[Honest]:
    """Yield the honest models of one network and seed."""
    make, source = EVERY[name]
    torch.manual_seed(seed)
    fresh = make().eval()
    x, y = source(1000 * seed % 1200, 512, "train")
    own, labels = (x[:64], y[:64]) if seed % 4 < 2 else source(64 * seed % 256, 64, "test")
    epochs, rate = 1 + 2 * seed % 12, 0.05
    first = train(fresh, x, y, 1, seed, rate)
    trained = train(first, x, y, epochs, seed, rate)
    tuned = train(trained, *source(700, 256, "train"), 2, seed, rate / 5)
    yield Honest("fresh", fresh, own, labels)
    yield Honest("first round", first, own, labels, fresh.state_dict())
    yield Honest("trained", trained, own, labels)
    yield Honest("fine-tuned", tuned, own, labels, trained.state_dict())
    for share in (0.5, 0.8):
        yield Honest("pruned", pruned(trained, share), own, labels)
    for bits in (8, 4):
        yield Honest("quantised", rounded(trained, bits), own, labels)


def scans(model: Honest, sizes: Sequence[int] = BATCHES) -> Iterator[Scan]:
    """Yield a scan for each size of the sample; without sizes one of the weights alone."""
    for size in sizes:
        sample = Target(model=model.model, inputs=model.inputs[:size], labels=model.labels[:size])
        yield scan(sample, previous=model.previous)
    if not sizes:
        yield scan(model.model)


def values_of(result: Scan) -> dict[str, float]:
    """Return the values of the tests that ran, by their key in the reference."""
    of = {test: result[test].value for test in JUDGED}
    return {
        key_of(test, result.batch if test in ON_BATCH else None): value
        for test, value in of.items()
        if isinstance(value, float)
    }


Case = tuple[str, str, int]  # kind ("" for honest ones), network, seed


def continued(path: Path | None, cases: list[Case], make: Callable[[str, str, int], list[Row]]) -> list[Row]:
    """Return the rows of all cases; those in the file `path` are not measured again, others are added to it."""
    rows = [Row(*json.loads(line)) for line in path.read_text("utf-8").splitlines()] if path and path.exists() else []
    known = {(row.kind, row.network, row.seed) for row in rows} | {("", row.network, row.seed) for row in rows}
    for case in cases:
        if case not in known:
            new = make(*case)
            rows += new
            if path is not None:
                with path.open("a", encoding="utf-8") as file:
                    file.write("".join(f"{json.dumps(row)}\n" for row in new))
    seeds = {seed for *_, seed in cases}
    return [row for row in rows if row.seed in seeds]


def measure(seeds: range, held_out: range, path: Path | None, sizes: Sequence[int], *, adapters: bool) -> list[Row]:
    """Return the values of every honest model; of unseen networks, and of those with adapters, at the held-out seeds alone."""

    def rows(_: str, name: str, seed: int) -> list[Row]:
        return [
            Row(name, model.kind, seed, dict(ChainMap(*map(values_of, scans(model, sizes)))))
            for model in honest_models(name, seed)
        ]

    cases = [("", name, seed) for seed in seeds for name in (NETWORKS | UNSEEN if seed in held_out else NETWORKS)]
    if adapters:
        cases = [("", name, seed) for seed in held_out for name in ADAPTED]
    return continued(path, cases, rows)


def reference_of(rows: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Return the distribution of every test."""
    keys = [key_of(test, size) for test in JUDGED for size in (BATCHES if test in ON_BATCH else (None,))]
    tests = {each.value: each for each in Test}
    found = {key: [row[key] for row in rows if key in row] for key in keys}
    return {
        key: asdict(summarise_honest(tests[key.split(" at ")[0]], values)) for key, values in found.items() if values
    }


def share(hits: int, n: int) -> str:
    low, high = wilson(hits / n, n)
    return f"{hits} of {n} ({100 * hits / n:.1f} %, {100 * low:.1f} to {100 * high:.1f})"


class Sent(nn.Module):
    """An imprint layer before a network, behind a convolution where LOKI adds one: what a client gets with inserted units."""

    def __init__(self, network: nn.Module, weights: Mapping[str, Tensor], bound: float) -> None:
        super().__init__()
        self.network, self.bound = network, bound
        kernels = weights.get(KERNELS)
        self.copies: nn.Module = nn.Identity()
        if kernels is not None:
            self.copies = nn.Conv2d(kernels.shape[1], len(kernels), kernels.shape[2], padding=1, bias=False)
            self.copies.weight.data = kernels
        self.first = nn.Linear(weights[FIRST].shape[1], len(weights[FIRST]))
        self.second = nn.Linear(len(weights[FIRST]), len(weights[SECOND]), bias=False)
        self.first.weight.data, self.first.bias.data = weights[FIRST], weights[BIAS]
        self.second.weight.data = weights[SECOND]

    def forward(self, x: Tensor) -> Tensor:
        bins = self.first(self.copies(x).flatten(1)).clamp(0, self.bound)
        output: Tensor = self.network(x + self.second(bins).view_as(x))
        return output


def sent_module(honest: nn.Module, sent: Mapping[str, Tensor], bound: float = math.inf) -> nn.Module:
    """Return what a client gets: the network with other weights, behind an imprint layer if there is one."""
    if FIRST in sent:
        return Sent(honest, sent, bound)
    net = copy.deepcopy(honest)
    net.load_state_dict({**honest.state_dict(), **sent})
    return net


MLPS, CONVOLUTIONAL = ("mlp", "mlp, MNIST", "mlp, CIFAR-10"), ("cnn_mnist", "resnet8", "resnet18")
TRAPS: dict[str, tuple[Manipulation, tuple[str, ...]]] = {
    "imprint, brightness": (Imprint(), MLPS),
    "imprint, random direction": (Imprint(functional=random_direction), MLPS),
    "imprint, one shot": (Imprint(one_shot=64), MLPS),
    "imprint, inserted": (Imprint(inserted=128), CONVOLUTIONAL),
    "imprint, inserted and sparse": (Imprint(inserted=128, sparse=True), CONVOLUTIONAL),
    "LOKI, 4 clients": (Loki(clients=4, units=128), CONVOLUTIONAL),
    "trap weights, s = 0.95": (TrapWeights(), MLPS),
    "trap weights, s = 0.7": (TrapWeights(factor=0.7), MLPS),
    "soliton biases, public data": (SolitonBiases(), MLPS),
    "soliton biases, uniform inputs": (SolitonBiases(from_data=False), MLPS),
    "fishing by class": (Fishing(target=3), CONVOLUTIONAL),
    "fishing by feature": (Fishing(target=3, feature=0), CONVOLUTIONAL),
    "model inconsistency, a silenced client": (Inconsistent(clients=3, client=2), MLPS),
    "Decepticons": (Decepticons(), ("gpt",)),
    "adapter imprint": (AdapterImprint(), tuple(ADAPTED)),
}


def trapped(kind: str, name: str, seed: int) -> Honest:
    """Return a manipulated model beside the honest one that it was made from: fresh at even seeds, trained at odd ones."""
    manipulation, (make, source) = TRAPS[kind][0], EVERY[name]
    torch.manual_seed(100 + seed)
    honest, (x, y) = make().eval(), source(0, 512, "train")
    honest = train(honest, x, y, 3, seed, 0.05) if seed % 2 else honest
    network = honest if x.is_floating_point() else TokensFromNumbers(honest)
    model = from_module(network, input_shape=tuple(x.shape[1:]), example=x[:2].float())
    public = source(0, 256, "test")[0].float()
    extended, changed = dishonest_weights(manipulation, model, shared_weights(model, 1), public, [seed])
    sent = extended.buffers | take(changed, 0)
    sent = {name.removeprefix("network."): value for name, value in sent.items()}
    bound = Imprint().shrink if isinstance(manipulation, Imprint) and manipulation.sparse else math.inf
    return Honest(
        kind, sent_module(honest, sent, bound), x[:64], y[:64], None if FIRST in sent else honest.state_dict()
    )


def measure_traps(seeds: range, path: Path | None, sizes: Sequence[int]) -> list[Row]:
    """Return the values of every manipulation on its networks."""
    cases = [(kind, name, seed) for seed in seeds for kind, (_, names) in TRAPS.items() for name in names]

    def rows(kind: str, name: str, seed: int) -> list[Row]:
        return [Row(name, kind, seed, values_of(next(scans(trapped(kind, name, seed), sizes))))]

    return continued(path, cases, rows)


def show_detection(rows: list[Row], limits: Mapping[str, Mapping[str, float]]) -> None:
    """Print how many of each manipulation are suspect, by the weights alone, with the sample and with the last round, and the tests."""
    rounds = {key_of(Test.JUMP), key_of(Test.LOSS_JUMP)}
    data = {key_of(test, BATCHES[0]) for test in ON_BATCH} | {key_of(Test.LOSS)}
    print("| manipulation | n | weights alone | and a sample | and the last round | tests |\n|---|---|---|---|---|---|")
    for kind in TRAPS:
        found = [
            {key for key, value in row.values.items() if value > limits[key]["limit"]}
            for row in rows
            if row.kind == kind
        ]
        counts = (sum(bool(keys - without) for keys in found) for without in (rounds | data, rounds, set[str]()))
        tests = Counter(key for keys in found for key in keys)
        named = ", ".join(f"{key.split(' at ')[0]} {number}" for key, number in tests.most_common())
        print(f"| {kind} | {len(found)} | {' | '.join(map(str, counts))} | {named or 'none'} |")


def show_false_alarms(rows: list[Row], limits: Mapping[str, Mapping[str, float]]) -> None:
    """Print the false alarms under these limits, by kind and by network, and the tests that gave them."""
    alarms = [
        [key for key, value in row.values.items() if key in limits and not value <= limits[key]["limit"]]
        for row in rows
    ]
    print("| honest models | false alarms |\n|---|---|")
    groups: dict[str, list[bool]] = {}
    for row, keys in zip(rows, alarms, strict=True):
        for group in (
            row.kind,
            f"of {'the same' if row.network in NETWORKS else 'other'} networks",
            row.network,
            "all",
        ):
            groups.setdefault(group, []).append(bool(keys))
    for group, of in groups.items():
        print(f"| {group} | {share(sum(of), len(of))} |")
    for row, keys in zip(rows, alarms, strict=True):
        if keys:
            found = ", ".join(f"{key} {row.values[key]:.3g}" for key in keys)
            print(f"  false alarm: {row.network}, {row.kind}, seed {row.seed}: {found}")


def show_reference(tests: Mapping[str, Mapping[str, float]]) -> None:
    """Print what honest models have."""
    print("| test | n | median | 99 % | largest | limit |\n|---|---|---|---|---|---|")
    for key, each in tests.items():
        values = " | ".join(f"{each[field]:.3g}" for field in ("median", "p99", "most", "limit"))
        print(f"| {key} | {each['n']} | {values} |")


def read_rows(paths: list[Path]) -> list[Row]:
    """Return the rows of several processes."""
    return [Row(*json.loads(line)) for path in paths for line in path.read_text("utf-8").splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=14)
    parser.add_argument("--traps", action="store_true", help="detection of manipulations in place of false alarms")
    parser.add_argument("--weights", action="store_true", help="the tests of the weights alone")
    parser.add_argument("--adapters", action="store_true", help="honest models with low-rank adapters")
    parser.add_argument("--first", type=int, default=0, help="with --step: the seeds of one of several processes")
    parser.add_argument("--step", type=int, default=1)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--rows", type=Path, help="a file of values that is continued")
    parser.add_argument("--read", type=Path, nargs="*", help="files of values that other processes measured")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    seeds, reference, held_out = (
        range(asked.first, asked.seeds, asked.step),
        asked.seeds // 2,
        range(asked.seeds // 2, asked.seeds),
    )
    sizes = () if asked.weights else BATCHES
    if asked.traps:
        rows = read_rows(asked.read) if asked.read else measure_traps(seeds, asked.rows, sizes)
        show_detection(rows, {key: asdict(each) for key, each in load_reference().items()})
        return
    rows = read_rows(asked.read) if asked.read else measure(seeds, held_out, asked.rows, sizes, adapters=asked.adapters)
    if asked.step > 1:
        return
    if asked.adapters:
        show_false_alarms(rows, {key: asdict(each) for key, each in load_reference().items()})
        return
    usual = [row for row in rows if row.seed < reference and row.network not in UNSEEN]
    tests = reference_of([row.values for row in usual])
    show_false_alarms([row for row in rows if row.seed in held_out], tests)
    show_reference(tests)
    if asked.write:
        made_by = f"python benchmarks/scan.py --seeds {asked.seeds} --write"
        stored = {"made_by": made_by, "models": len(usual), "tests": tests}
        path = Path(leakscope.scanning.__file__).parent / FILE
        if asked.weights:
            stored["tests"] = json.loads(path.read_text("utf-8"))["tests"] | tests
        path.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
