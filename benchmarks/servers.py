"""Dishonest servers: how many samples of a batch each manipulation gets back, beside the honest server and what is published.

    LEAKSCOPE_DATA=... python benchmarks/servers.py [ROW ...] [--batches 3]
    LEAKSCOPE_DATA=... python benchmarks/servers.py ROW ... --activated [--batches 20]
    LEAKSCOPE_DATA=... python benchmarks/servers.py --fishing [--batches 3] [--device cuda --iterations 1000]

Every batch has honest weights, server draws and private samples of its own: test images in their order, or where those are too few, images
drawn from the whole set. Public data are up to 10,000 of the other images. `share` is the part of the private samples within `rms` (root
mean square) of a reconstructed one: 1e-3 for exact readouts, 3e-2 where the scale of a sample is only known up to its bin (LOKI). `honest`
is the same reader on the weights that were not manipulated, `nearest` the share for the nearest public image, an oracle. Intervals:
Student's t over clients (n). `--fishing` prints how much of a ResNet18's update of 16 images, the head left out, is the gradient of the one
image of a class: its cosine with that image's own gradient, beside the honest server's; with iterations also the PSNR of that image as IG
reads it, beside the class mean and the nearest public image.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakscope.attacks import analytic, ig
from leakscope.attacks.engine.plan import DEFAULT, Execution
from leakscope.attacks.null import class_mean, guessed
from leakscope.clients import Client
from leakscope.core import random
from leakscope.core.model import Model
from leakscope.core.tree import Tree, map_tensors, to
from leakscope.core.types import Batch, LocalTraining, Reconstruction, make_batch
from leakscope.data import load
from leakscope.data.dataset import Dataset, Part
from leakscope.metrics.interval import estimate_mean
from leakscope.models import Torch, build, draw_parameters
from leakscope.play import expose, judge, reconstruct
from leakscope.play.baselines import nearest_public
from leakscope.play.dishonest import expose_manipulated
from leakscope.servers.fishing import Fishing
from leakscope.servers.imprint import Imprint
from leakscope.servers.loki import Loki
from leakscope.servers.manipulation import Manipulation, dishonest_weights
from leakscope.servers.soliton import SolitonBiases
from leakscope.servers.trap_weights import TrapWeights

PUBLIC, LEAST = 10_000, 1_000  # public images at most, and at least
HONEST = Client()
LOCAL = Client(local=LocalTraining(epochs=5, batch_size=16))
PAPER = "0.772 (100 clients)"


@dataclass(frozen=True)
class Row:
    data: str
    batch: int
    manipulation: Manipulation
    published: str = ""
    network: str = "mlp"
    units: int = 1000
    client: Client = HONEST
    normal: bool = False  # weights as in the papers on dense layers (`weights_of`), else PyTorch's
    rms: float = 1e-3
    double: bool = False  # the client computes in float64
    head: str = "glorot"  # with `normal`: or "normal"


def law(bins: int, batch: int) -> str:
    """Return the share of samples alone in one of so many equally likely bins."""
    return f"{(1 - 1 / bins) ** (batch - 1):.3f} (law)"


SETS = ("cifar10", "cifar100", "svhn", "fashion_mnist", "mnist", "emnist_byclass", "lfw_face")
ROWS = {
    "imprint-256": Row("cifar10", 64, Imprint(), law(256, 64), units=256),
    "imprint-1000": Row("cifar10", 64, Imprint(), law(1000, 64)),
    "imprint-inserted-256": Row("cifar10", 64, Imprint(inserted=256), law(256, 64), network="cnn_cifar"),
    "imprint-fedavg": Row("cifar10", 64, Imprint(inserted=256), network="cnn_cifar", client=LOCAL),
    "imprint-sparse-fedavg": Row("cifar10", 64, Imprint(inserted=256, sparse=True), network="cnn_cifar", client=LOCAL),
    "trap-mnist": Row("mnist", 100, TrapWeights(factor=0.70, reader=analytic()), "0.54", normal=True),
    "trap-cifar10": Row("cifar10", 100, TrapWeights(factor=0.95, reader=analytic()), "0.54", normal=True),
    "trap-mnist-peeled": Row("mnist", 100, TrapWeights(factor=0.70), normal=True),
    "trap-cifar10-peeled": Row("cifar10", 100, TrapWeights(factor=0.95), normal=True),
    "trap-mnist-3000-20": Row("mnist", 20, TrapWeights(factor=0.70), "1.0", units=3000, normal=True),
    "trap-cifar10-3000-20": Row("cifar10", 20, TrapWeights(factor=0.95), "0.945", units=3000, normal=True),
}  # fmt: skip
ROWS |= {
    f"trap-cifar10-{factor}": Row("cifar10", 100, TrapWeights(factor=factor, reader=analytic()), normal=True)
    for factor in (0.94, 0.945, 0.955, 0.96)
}
ROWS["trap-cifar10-1700-units"] = replace(ROWS["trap-cifar10"], units=1700, published="")
ROWS |= {
    f"soliton-{name}": Row(name, 256, SolitonBiases(batch=256), "at least 0.856", normal=True, double=True)
    for name in SETS
}
ROWS |= {
    "soliton-cifar10-float32": Row("cifar10", 256, SolitonBiases(batch=256), normal=True),
    "soliton-uniform-cifar10": Row("cifar10", 256, SolitonBiases(batch=256, from_data=False), normal=True, double=True),
}
for clients in (1, 2, 5, 20, 100):
    together, of, law_of_sum = Client(aggregate=clients), "mnist", law(1000, 64 * clients)
    ROWS |= {
        f"loki-{clients}": Row(of, 64 * clients, Loki(clients), PAPER, "cnn_mnist", client=together, rms=3e-2),
        f"loki-cifar100-{clients}": Row(
            "cifar100", 64 * clients, Loki(clients), PAPER, "cnn_cifar", client=together, rms=3e-2
        ),
        f"imprint-sum-{clients}": Row(of, 64 * clients, Imprint(), law_of_sum, client=together),
    }


def weights_of(row: Row, model: Model, seed: int) -> Tree:
    """Return the honest weights of one batch's network.

    With `normal` the first layer is N(0, 0.5^2), as in the papers on dense layers, the head Glorot's uniform, and biases are 0. With
    the head "normal" all are N(0, 0.5^2), which saturates the softmax.
    """
    key = random.key([seed])
    if not row.normal:
        return draw_parameters(model, Torch(), key)
    if model.entry is None or model.head is None:
        raise ValueError(f"{model.name} has no first dense layer or no head")
    shapes = {name: value.shape for name, value in model.parameters.items()}
    normal = {name: 0.5 * random.normal(random.fold(key, name), shape) for name, shape in shapes.items()}
    if row.head == "normal":
        return normal
    name, shape = model.head.weight, shapes[model.head.weight]
    glorot = (6 / sum(shape)) ** 0.5 * (2 * random.uniform(random.fold(key, name), shape) - 1)
    zeros = {each: torch.zeros_like(value) for each, value in normal.items()}
    return zeros | {model.entry.weight: normal[model.entry.weight], name: glorot}


def near(batch: Batch, images: Tensor, rms: float) -> Tensor:
    """Return 1 for every private sample of one trial that is among N images, else 0."""
    truth, guess = batch.inputs[0].flatten(1).double(), images.flatten(1).double()
    apart = torch.cdist(truth, guess, compute_mode="use_mm_for_euclid_dist")
    return (apart.amin(1) <= rms * truth.shape[1] ** 0.5).double()


def places(row: Row, batches: int) -> tuple[list[int], list[int]]:
    """Return where the private images of all batches are, and the public ones; test images are counted before training images."""
    data, private = load(row.data), row.batch * batches
    tests, every = data.size("test"), data.size("test") + data.size("train")
    if private > every - LEAST:
        raise SystemExit(f"{row.data} has {every} images, too few for {batches} batches of {row.batch} and public ones")
    if private <= tests:
        return list(range(private)), list(range(tests, every))[:PUBLIC]
    order: list[int] = torch.randperm(every, generator=torch.Generator().manual_seed(0)).tolist()
    return order[:private], order[private:][:PUBLIC]


def images(data: Dataset, places: list[int]) -> tuple[Tensor, Tensor]:
    """Return images and labels, those of the test part first."""
    tests = data.size("test")
    index: dict[Part, list[int]] = {
        "test": [place for place in places if place < tests],
        "train": [place - tests for place in places if place >= tests],
    }
    read = [(data.pictures(part, where), data.labels(part, where)) for part, where in index.items()]
    return torch.cat([x for x, _ in read]), torch.cat([y for _, y in read])


def batch_and_weights(row: Row, number: int, batches: int = 1) -> tuple[Model, Tree, Batch]:
    """Return the network of one of the batches, its honest weights and the private samples."""
    data = load(row.data)
    settings = {"hidden": (row.units,)} if row.network == "mlp" else {}
    model = build(row.network, data.input_shape, data.classes, settings)
    private, _ = places(row, max(batches, number + 1))
    x, y = images(data, private[number * row.batch : (number + 1) * row.batch])
    batch = make_batch(x[None], y[None], classes=data.classes)
    weights = weights_of(row, model, number)
    if row.double:
        model, weights, batch = to((model, weights, batch), dtype=torch.float64)
    return model, weights, batch


def play(row: Row, number: int, batches: int, public: Tensor) -> tuple[Tensor, list[float]]:
    """Return each client's share of one batch, and the batch's with honest weights, by nearest public images, and seconds."""
    model, weights, batch = batch_and_weights(row, number, batches)
    began = time.perf_counter()
    exposure = expose_manipulated(row.manipulation, model, row.client, weights, batch, public, [number])
    result = reconstruct(exposure, row.manipulation, DEFAULT)
    took = time.perf_counter() - began
    honest = float("nan")
    if isinstance(row.manipulation, TrapWeights | SolitonBiases) and row.client == HONEST:
        seen = expose(model, row.client, weights, batch, [number])
        honest = float(near(batch, reconstruct(seen, row.manipulation.reader, DEFAULT).inputs[0], row.rms).mean())
    nearest = float(near(batch, public, row.rms).mean())
    shares = near(batch, result.inputs[0], row.rms).unflatten(0, (row.client.aggregation.clients, -1)).mean(1)
    return shares, [honest, nearest, took]


def activated(row: Row, number: int, batches: int, public: Tensor) -> tuple[float, float]:
    """Return the shares of one batch that are alone on a unit, and that a chain of exact subtractions would reach, by activations alone."""
    model, weights, batch = batch_and_weights(row, number, batches)
    network, sent = dishonest_weights(row.manipulation, model, weights, public, [number])
    if network.entry is None or network.entry.bias is None:
        raise ValueError(f"{network.name} has no first dense layer")
    x = batch.inputs[0].flatten(1)
    active = x @ sent[network.entry.weight][0].mT + sent[network.entry.bias][0] > 0
    known, steps = torch.zeros(len(x), dtype=torch.bool), []
    while not steps or steps[-1] > 0:
        single = active[~known].sum(0) == 1
        new = ~known & active[:, single].any(1)
        known |= new
        steps.append(float(new.double().mean()))
    return steps[0], sum(steps)


def show_activated(names: list[str], batches: int) -> None:
    """Print what the activations of each row would allow an exact reader."""
    print("| row | n | alone | 95 % | n | by a chain | 95 % |\n|---|---|---|---|---|---|---|")
    for name in names:
        row = ROWS[name]
        public, _ = images(load(row.data), places(row, batches)[1])
        shares = torch.tensor(
            [activated(row, number, batches, public) for number in range(batches)], dtype=torch.float64
        )
        print(f"| {name} | {show_interval(shares[:, 0])} | {show_interval(shares[:, 1])} |", flush=True)


def fishing_batch(number: int) -> tuple[Model, Tree, Batch]:
    """Return a ResNet18, its first weights, and 16 test images of which only the first is of class 0."""
    data = load("cifar10")
    labels = data.labels("test", range(data.size("test")))
    target, others = (labels == 0).nonzero().flatten(), (labels != 0).nonzero().flatten()
    index = [int(target[number]), *others[15 * number : 15 * number + 15].tolist()]
    batch = make_batch(data.pictures("test", index)[None], labels[index][None], classes=data.classes)
    model = build("resnet18", data.input_shape, data.classes)
    return model, map_tensors(lambda value: value[0], draw_parameters(model, Torch(), random.key([number]))), batch


def fished(number: int, *, honest: bool) -> float:
    """Return the cosine between the update of 16 images behind the head and that of the only one of class 0 among them."""
    model, first, batch = fishing_batch(number)
    weights = {name: value[None] for name, value in first.items()}
    if not honest:
        model, weights = dishonest_weights(Fishing(), model, weights, batch.inputs[0], [number])
    behind = [name for name in weights if model.head is None or name not in (model.head.weight, model.head.bias)]

    def update(of: Batch) -> Tensor:
        sent = expose(model, HONEST, weights, of, [number]).observation.rounds[0].sent
        return torch.cat([sent[name].flatten().double() for name in behind])

    alone = map_tensors(lambda value: value[:, :1], batch)
    return float(torch.nn.functional.cosine_similarity(update(batch), update(alone), dim=0))


def show_fished_images(trials: int, iterations: int, device: str) -> None:
    """Print the PSNR of the images of class 0 as IG reads them from fished updates, beside guesses without the update."""
    data = load("cifar10")
    public, labels = data.pictures("train", range(4000)), data.labels("train", range(4000))
    each = [fishing_batch(number) for number in range(trials)]
    model = each[0][0]
    weights = {name: torch.stack([first[name] for _, first, _ in each]) for name in each[0][1]}
    batch = map_tensors(lambda *values: torch.cat(values), *[one for *_, one in each])
    truth = map_tensors(lambda value: value[:, :1], batch)
    for tv in (1e-4, 1e-2):
        manipulation = Fishing(reader=ig(iterations=iterations, tv=tv))
        exposure = expose_manipulated(manipulation, model, HONEST, weights, batch, public, list(range(trials)))
        read = reconstruct(exposure, manipulation, Execution(device=device))
        show_psnr(f"ig, {iterations} iterations, tv {tv:g}", truth, guessed(read.inputs[:, :1], truth.labels))
    known = replace(exposure.knowledge, labels=truth.labels, samples=1)
    show_psnr("class mean", truth, class_mean(public, labels, classes=data.classes).guess(known, trials))
    show_psnr("nearest public image", truth, nearest_public(truth, public, labels, classes=data.classes).reconstruction)


def show_psnr(name: str, truth: Batch, guess: Reconstruction) -> None:
    """Print the mean PSNR of one image a trial with its interval, and how many count as recovered."""
    result = judge(truth, guess, name=name)
    psnr = estimate_mean(result.scores.psnr, truth.mask)
    recovered = f"{int(result.recovered.sum())} of {truth.trials} recovered"
    print(f"{name}: PSNR {psnr.value:.1f} dB ({psnr.low:.1f} to {psnr.high:.1f}), {recovered}", flush=True)


def show_interval(values: Tensor, lowest: float = 0.0) -> str:
    """Return n, mean and interval of shares, or of their differences from `lowest` -1."""
    found = estimate_mean(values[:, None], torch.ones(len(values), 1, dtype=torch.bool), within=(lowest, 1.0))
    return f"{len(values)} | {found.value:.3f} | {found.low:.3f} to {found.high:.3f}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("rows", nargs="*", default=list(ROWS))
    parser.add_argument("--batches", type=int, default=3)
    parser.add_argument("--fishing", action="store_true", help="the purity of fished updates instead")
    parser.add_argument("--iterations", type=int, default=0, help="of IG on fished updates; 0: none")
    parser.add_argument("--device", default="cpu", help="of IG on fished updates")
    parser.add_argument(
        "--head", choices=("glorot", "normal"), default="glorot", help="of the rows of trap weights and soliton biases"
    )
    parser.add_argument(
        "--activated", action="store_true", help="what activations alone would allow, without an attack"
    )
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    if asked.activated:
        show_activated(asked.rows, asked.batches)
        return
    if asked.fishing:
        for honest in (True, False):
            cosines = torch.tensor([fished(number, honest=honest) for number in range(asked.batches)])
            who = "honest" if honest else "fishing"
            print(
                f"{who}: n = {len(cosines)}, cosine {cosines.mean():.4f}, {cosines.min():.4f} to {cosines.max():.4f}",
                flush=True,
            )
        if asked.iterations:
            show_fished_images(asked.batches, asked.iterations, asked.device)
        return
    print(
        "| row | set | B | n | share | 95 % | published | honest | nearest | s a batch |\n|---|---|---|---|---|---|---|---|---|---|"
    )
    for name in asked.rows:
        row = replace(ROWS[name], head=asked.head)
        public, _ = images(load(row.data), places(row, asked.batches)[1])
        results = [play(row, number, asked.batches, public) for number in range(asked.batches)]
        honest, nearest, took = torch.tensor([rest for _, rest in results]).nanmean(0).tolist()
        print(
            f"| {name} | {row.data} | {row.batch} | {show_interval(torch.cat([each for each, _ in results]))} | "
            f"{row.published} | {'' if honest != honest else f'{honest:.3f}'} | {nearest:.3f} | {took:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
