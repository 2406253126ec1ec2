"""Whether labels that no rule is sure of should be optimised or tried: IG on a trained network with labels read, optimised and known.

    LEAKSCOPE_DATA=... python benchmarks/unsure_labels.py [--trials 8] [--samples 8] [--iterations 500] [--epochs 3]

LeNet (CPL's) on the bundled digits, trained with Adam on the other part. Means over clients: the share of labels right (overlap of counts),
of the rule and of the attack's result, and PSNR of the images; +- is half a 95 % interval (Student's t). `guesses` runs IG once with the
labels of each of four rules and keeps for each client the result of the smallest mismatch; `best guess` keeps that of the most right labels.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leakscope.attacks.label_rules.choice import read_batch
from leakscope.attacks.labels import JOINT
from leakscope.attacks.recipes import ig
from leakscope.clients import Client, attacker_knowledge
from leakscope.core import random
from leakscope.core.types import make_batch
from leakscope.data import load
from leakscope.metrics.interval import estimate_mean
from leakscope.metrics.labels import label_overlap
from leakscope.models import Torch, build, draw_parameters
from leakscope.play import judge


RULES = ("by_residual", "calibrated", "ilrg", "bias_corrected")


@dataclass(frozen=True)
class Columns:
    """The share of labels right, the PSNR and the mismatch of each client."""

    right: Tensor
    psnr: Tensor
    mismatch: Tensor

    def print_row(self, name: str) -> None:
        print(f"| {name} | {show(self.right)} | {show(self.psnr)} | {float(self.mismatch.mean()):.2g} |", flush=True)


def kept(runs: list[Columns], chosen: Tensor) -> Columns:
    """Return for each client the run that was chosen for it."""
    names = ("right", "psnr", "mismatch")
    return Columns(*(torch.stack([getattr(run, name) for run in runs]).gather(0, chosen[None])[0] for name in names))


def show(values: Tensor) -> str:
    """Return mean and half an interval."""
    rows = values.double().reshape(-1, 1)
    estimate = estimate_mean(rows, torch.ones_like(rows, dtype=torch.bool))
    return f"{estimate.value:.2f} +- {(estimate.high - estimate.low) / 2:.2f}"


def main() -> None:
    """Print a row for each way to get the labels."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=500)
    parser.add_argument("--epochs", type=int, default=30)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    data, seeds = load("digits"), list(range(asked.trials))
    model = build("lenet_cpl", data.input_shape, data.classes)
    weights = {name: w[0].requires_grad_() for name, w in draw_parameters(model, Torch(), random.key([0])).items()}
    adam, x = torch.optim.Adam(weights.values(), lr=3e-3), data.pictures("train", slice(None))
    y = torch.as_tensor(data.labels("train", slice(None)))
    for epoch in range(asked.epochs):
        for part in torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch)).split(32):
            loss = nn.functional.cross_entropy(model.apply(weights, {}, x[part], random.key(0))[0], y[part])
            adam.zero_grad()
            loss.backward()
            adam.step()
    tested = data.pictures("test", slice(None))
    guesses = model.apply(weights, {}, tested, random.key(0))[0].argmax(1)
    accuracy = float((guesses == torch.as_tensor(data.labels("test", slice(None)))).double().mean())
    held = {name: w.detach().expand(asked.trials, *w.shape) for name, w in weights.items()}
    places = torch.randperm(data.size("test"), generator=torch.Generator().manual_seed(1))
    places = places[: asked.trials * asked.samples].reshape(asked.trials, -1)
    inputs = data.pictures("test", places.flatten().tolist()).unflatten(0, places.shape)
    batch = make_batch(inputs, torch.as_tensor(data.labels("test", slice(None)))[places], classes=data.classes)
    seen = Client().observe(model, held, batch, seeds)
    knowledge = attacker_knowledge(model, Client(), batch)
    read = read_batch(model, seen, knowledge, random.key(seeds))
    right, sure = label_overlap(batch.labels, read.labels), float(read.sure.double().mean())
    print(f"accuracy {accuracy:.2f}; rule: labels {show(right)}, sure {sure:.2f}")
    known = attacker_knowledge(model, Client(), batch, labels=True)
    print("| labels | labels right | PSNR in dB | mismatch |\n|---|---|---|---|")
    runs = dict[str, Columns]()
    for labels, given in (
        ("known", known),
        ("auto", knowledge),
        (JOINT, knowledge),
        *((rule, knowledge) for rule in RULES),
    ):
        result = ig(iterations=asked.iterations, labels=labels).run(model, seen, given, seeds)
        psnr = judge(batch, result).scores.psnr
        assert psnr is not None
        runs[labels] = Columns(label_overlap(batch.labels, result.labels), psnr.mean(1), result.mismatch)
        runs[labels].print_row(labels)
    tried = [runs[rule] for rule in RULES]
    kept(tried, torch.stack([run.mismatch for run in tried]).argmin(0)).print_row("guesses")
    kept(tried, torch.stack([run.right for run in tried]).argmax(0)).print_row("best guess")


if __name__ == "__main__":
    main()
