"""What a ResNet18 with only its head trained gives away: features read off the head's update, and pictures searched for them.

    LEAKSCOPE_DATA=... python benchmarks/head.py [--device cuda] [--batches 1,2,4] [--clients 8] [--iterations 2000]
    LEAKSCOPE_DATA=... python benchmarks/head.py --width 8 --clients 2 --batches 2 --iterations 5 --epochs 0   # on a CPU

CIFAR-10 at 32 x 32 pixels. The backbone is frozen, in eval mode: with its first weights, or trained for `--epochs` on public pictures.
A client sends the gradient of the head for one batch of different labels. `features` is the share that came back to 1 % of their length,
`proved` the share that the update certifies. Pictures come from `feature_inversion`; null baselines see no update. SSIM and PSNR are
means over clients, with 95 % intervals.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor, nn

from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.feature_inversion import PROVED, feature_inversion
from leakscope.clients import Client
from leakscope.core import random
from leakscope.core.layer_inputs import noting
from leakscope.core.tree import to
from leakscope.core.types import Batch, make_batch
from leakscope.data import Dataset, load
from leakscope.metrics.interval import estimate_mean
from leakscope.models import from_module
from leakscope.models.resnet18 import resnet18
from leakscope.play import Exposure, expose, judge, reconstruct, shared_weights
from leakscope.play.attacking import AttackResult
from leakscope.play.baselines import baselines, public_part

NEAR = 0.01  # of a feature's length


def backbone(data: Dataset, args: argparse.Namespace, epochs: int) -> nn.Module:
    """Return the network after some epochs on public pictures, with everything but the head frozen."""
    torch.manual_seed(0)
    module = resnet18(input_shape=data.input_shape, classes=data.classes, width=args.width, stem="small").to(
        args.device
    )
    inputs, labels = public_part(data, "test")
    inputs = data.statistics.scale(inputs, 3).to(args.device)
    labels = torch.as_tensor(labels).to(args.device)
    optimiser = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    for _ in range(epochs):
        for part in torch.randperm(len(inputs)).split(128):
            optimiser.zero_grad()
            nn.functional.cross_entropy(module(inputs[part]), labels[part]).backward()
            optimiser.step()
    for name, weight in module.named_parameters():
        weight.requires_grad_(name.startswith("fc."))
    return module.eval()


def private_batch(data: Dataset, samples: int, clients: int) -> Batch:
    """Return test pictures, of different labels in each batch."""
    labels = torch.as_tensor(data.labels("test", slice(None)))
    places = []
    for client in range(clients):
        classes = [(client + k) % data.classes for k in range(samples)]
        places += [int((labels == c).nonzero()[client, 0]) for c in classes]
    inputs = data.pictures("test", torch.tensor(places)).reshape(clients, samples, *data.input_shape)
    return make_batch(inputs, labels[places].reshape(clients, samples), classes=data.classes)


def near_features(exposure: Exposure, device: str) -> Tensor:
    """Return the share of each client's features that came back to `NEAR` of their length."""
    attack = feature_inversion(iterations=1)
    model = exposure.model.in_mode("eval")
    layer = model.dense[-1]
    seen = to((exposure.observation, exposure.knowledge), device=torch.device(device))
    read = attack.reader.read(model, layer, *seen, list(exposure.seeds), Execution(device=device))
    shares = []
    for inputs, answer in zip(exposure.batch.inputs, read.inputs, strict=True):
        with noting([layer.layer]) as found, torch.no_grad():
            x = exposure.knowledge.scaling.scale(inputs, 3).to(device)
            model.apply(model.parameters, model.buffers, x, random.key(0, x.device))
        features = found[layer.layer].double().to(device)
        off = torch.cdist(features, answer.double().to(device)).amin(1) / features.norm(dim=1)
        shares.append(float((off < NEAR).double().mean()))
    return torch.tensor(shares)


def line(kind: str, samples: int, name: str, result: AttackResult, rest: str) -> str:
    """Return a line of the table."""
    cells = []
    for values in (result.scores.ssim, result.scores.psnr):
        rate = estimate_mean(values.double(), torch.ones_like(values).bool())
        cells.append(f"{rate.value:.2f} ({rate.low:.2f} to {rate.high:.2f})")
    return f"| {kind} | {samples} | {name} | {len(result.scores.psnr)} | {rest} | {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--batches", default="1,2,4")
    parser.add_argument("--iterations", type=int, default=2000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--epochs", default="0,10")
    args = parser.parse_args()
    data = load("cifar10")
    print("| backbone | batch | attack | n | features | proved | s | SSIM | PSNR |\n" + "|---" * 9 + "|", flush=True)
    public, labels = public_part(data, "test")
    first = ""
    for epochs in map(int, args.epochs.split(",")):
        module = backbone(data, args, epochs)
        kind = f"trained for {epochs} epochs" if epochs else "first weights"
        first = first or kind
        for samples in map(int, args.batches.split(",")):
            batch, seeds = private_batch(data, samples, args.clients), list(range(args.clients))
            model = to(from_module(module.cpu(), input_shape=data.input_shape), device=torch.device(args.device))
            weights = shared_weights(model, args.clients)
            exposure = expose(model, Client(scaling=data.statistics), weights, batch, seeds)
            began = time.perf_counter()
            execution = Execution(device=args.device)
            near = near_features(exposure, args.device)
            found = reconstruct(exposure, feature_inversion(iterations=args.iterations, tv=1e-3), execution)
            seconds = time.perf_counter() - began
            proved = f"{float(found.learned[PROVED].mean()):.2f}"
            rest = f"{float(near.mean()):.2f} | {proved} | {seconds:.0f}"
            print(line(kind, samples, "feature inversion", judge(batch, found), rest), flush=True)
            if kind != first:
                continue
            null = baselines(
                batch, public, labels, classes=data.classes, seeds=seeds, scaling=data.statistics, execution=execution
            )
            for name, guess in null.items():
                print(line("", samples, name, judge(batch, to(guess, device="cpu")), " | | "), flush=True)


if __name__ == "__main__":
    main()
