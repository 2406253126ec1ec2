"""What the scan of a received model says of honest models and of every manipulation.

python benchmarks/scan.py --seeds 10             # false alarms: limits from the even seeds, tested on the odd ones
python benchmarks/scan.py --seeds 10 --write     # the same, and writes the reference distributions of the package (all seeds)

Honest models: every network below at each seed, fresh, trained (1 to 12 epochs by SGD or Adam), and the trained one pruned by 50 and
80 %, rounded to 8 and 4 bits, and fine-tuned on other data. The first round of training and the fine-tuning are also
compared with the model before. Samples of 64 and of 16 are examples that the model was trained on (even seeds / 2) or others. A model is a
false alarm if any test of either scan is suspect. Intervals are Wilson's, 95 %.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

import leakscope.scanning
from leakscope.auditing.target import Target
from leakscope.data import load
from leakscope.metrics.interval import wilson
from leakscope.models.catalogue import MODELS
from leakscope.models.transformer_text import gpt
from leakscope.scanning.findings import Test
from leakscope.scanning.reference import BATCHES, FILE, key_of, summarise_honest
from leakscope.scanning.scan import Scan, scan

ON_BATCH = (Test.D_SNR, Test.CLASS_D_SNR, Test.DEGREES, Test.PEELING)
JUDGED = tuple(test for test in Test if test not in (Test.HASH, Test.TRAINED_DECODER))


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


def made(name: str, shape: tuple[int, ...] = (1, 8, 8), **settings: object) -> Callable[[], nn.Module]:
    return partial(MODELS[name], input_shape=shape, classes=10, **settings)


Source = Callable[[int, int, str], tuple[Tensor, Tensor]]
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
    make, source = NETWORKS[name]
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


def scans(model: Honest) -> Iterator[Scan]:
    """Yield a scan for each size of the sample."""
    for size in BATCHES:
        sample = Target(model=model.model, inputs=model.inputs[:size], labels=model.labels[:size])
        yield scan(sample, previous=model.previous)


def values_of(result: Scan) -> dict[str, float]:
    """Return the values of the tests that ran, by their key in the reference."""
    of = {test: result[test].value for test in JUDGED}
    return {
        key_of(test, result.batch if test in ON_BATCH else None): value
        for test, value in of.items()
        if isinstance(value, float)
    }


def measure(seeds: range, path: Path | None) -> list[Row]:
    """Return the values of every honest model; those in the file `path` are not measured again, others are added to it."""
    rows = [Row(*json.loads(line)) for line in path.read_text("utf-8").splitlines()] if path and path.exists() else []
    known = {(row.network, row.seed) for row in rows}
    for seed in seeds:
        for name in NETWORKS:
            if (name, seed) in known:
                continue
            new = []
            for model in honest_models(name, seed):
                large, small = (values_of(each) for each in scans(model))
                new.append(Row(name, model.kind, seed, small | large))
            rows += new
            if path is not None:
                with path.open("a", encoding="utf-8") as file:
                    file.writelines(f"{json.dumps(row)}\n" for row in new)
    return [row for row in rows if row.seed in seeds]


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


def show_false_alarms(rows: list[Row]) -> None:
    """Print the false alarms on odd seeds under limits of even seeds, by kind, and the tests that gave them."""
    limits = reference_of([row.values for row in rows if row.seed % 2 == 0])
    odd = [row for row in rows if row.seed % 2]
    alarms = [[key for key, value in row.values.items() if not value <= limits[key]["limit"]] for row in odd]
    print("| honest models | false alarms |\n|---|---|")
    for kind in dict.fromkeys(row.kind for row in odd):
        of = [bool(keys) for row, keys in zip(odd, alarms, strict=True) if row.kind == kind]
        print(f"| {kind} | {share(sum(of), len(of))} |")
    print(f"| all | {share(sum(map(bool, alarms)), len(odd))} |")
    for row, keys in zip(odd, alarms, strict=True):
        if keys:
            found = ", ".join(f"{key} {row.values[key]:.3g}" for key in keys)
            print(f"  false alarm: {row.network}, {row.kind}, seed {row.seed}: {found}")
    print("| test | n | median | 99 % | largest | limit |\n|---|---|---|---|---|---|")
    for key, each in reference_of([row.values for row in rows]).items():
        print(
            f"| {key} | {each['n']} | "
            + " | ".join(f"{each[f]:.3g}" for f in ("median", "p99", "most", "limit"))
            + " |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="with --step: the seeds of one of several processes")
    parser.add_argument("--step", type=int, default=1)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--rows", type=Path, help="a file of values that is continued")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows = measure(range(asked.first, asked.seeds, asked.step), asked.rows)
    show_false_alarms(rows)
    if asked.write:
        made_by = f"python benchmarks/scan.py --seeds {asked.seeds} --write"
        stored = {"made_by": made_by, "models": len(rows), "tests": reference_of([row.values for row in rows])}
        path = Path(leakscope.scanning.__file__).parent / FILE
        path.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
