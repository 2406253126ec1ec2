"""What each of the field's usual evaluation mistakes does to a number, on one small example each.

    python benchmarks/fool_yourself.py [MISTAKE ...] [--clients 8]

The bundled 3,000 + 1,000 images of Fashion-MNIST, test images in a fixed random order; DLG's LeNet (three convolutions with sigmoid
and a dense layer) unless a row says otherwise. Every client has weights of its own: fresh ones from U[-0.5, 0.5], or, where a row
says "trained", one network after five epochs of Adam on the training images. CPL runs 15 iterations, IG 100. Each line has a mean or
a rate with its 95 % interval over clients. The first line of a mistake is the flattering one. One thread, about ten minutes in all.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from leakscope.attacks import Execution, analytic, cpl, ig
from leakscope.attacks.attack import Attack
from leakscope.attacks.aware import aware
from leakscope.clients import Client
from leakscope.core import random
from leakscope.core.model import Model
from leakscope.core.tree import Tree
from leakscope.core.types import Batch, LocalTraining, make_batch
from leakscope.data import load
from leakscope.defences import GaussianNoise, RandomMask
from leakscope.metrics import Context, Estimate, arrange, clean, iip_pixels, psnr, reidentification
from leakscope.metrics.interval import estimate_mean, estimate_rate
from leakscope.models import Torch, Uniform, build, draw_parameters, from_module, in_train_mode
from leakscope.play import AttackResult, Exposure, expose, judge, shared_weights
from leakscope.play import attack as run_attack
from leakscope.play.baselines import baselines, public_part

Line = tuple[str, str, Estimate]
DATA = "fashion_mnist"
TVS = (1e-4, 1e-2, 1e-1)
IG = 100
CPL = 15


@dataclass(frozen=True)
class Case:
    """One example: who holds what, on which network, and what the attacker knows."""

    clients: int
    samples: int = 1
    mix: str = "given"  # distinct: as many classes as samples; equal: one class
    first: int = 0
    activation: str = "sigmoid"
    pooling: str = "none"
    trained: bool = False
    client: Client = field(default_factory=Client)
    labels: bool = False
    local: bool = True

    def exposure(self) -> Exposure:
        """Return the clients' exposure."""
        settings = (("activation", self.activation), ("pooling", self.pooling))
        model = trained_network(settings) if self.trained else build("lenet_dlg", (1, 28, 28), 10, dict(settings))
        seeds = range(self.first, self.first + self.clients)
        drawn = draw_parameters(model, Uniform(0.5), random.key(list(seeds)))
        weights = shared_weights(model, self.clients) if self.trained else drawn
        batch = private(self.clients, self.samples, self.mix, self.first)
        return expose(model, self.client, weights, batch, seeds, labels=self.labels, local=self.local)


def private(clients: int, samples: int, mix: str = "given", first: int = 0) -> Batch:
    """Return the private batches of the clients."""
    data = load(DATA)
    order = torch.randperm(data.size("test"), generator=torch.Generator().manual_seed(0))
    labels = data.labels("test", order.tolist())
    if mix == "given":
        rows = order[first * samples : (first + clients) * samples].reshape(clients, samples)
    elif mix == "equal":
        rows = torch.stack(
            [order[labels == client % 10][client // 10 * samples :][:samples] for client in range(clients)]
        )
    else:
        classes = [order[labels == label] for label in range(samples)]
        rows = torch.stack([torch.stack([of_class[client] for of_class in classes]) for client in range(clients)])
    flat = rows.flatten().tolist()
    images, known = data.pictures("test", flat), data.labels("test", flat)
    return make_batch(images.reshape(clients, samples, 1, 28, 28), known.reshape(clients, samples), classes=10)


@functools.cache
def trained_network(settings: tuple[tuple[str, str], ...]) -> Model:
    """Return DLG's LeNet after five epochs."""
    return trained(build("lenet_dlg", (1, 28, 28), 10, dict(settings)))


def trained(model: Model, epochs: int = 5) -> Model:
    """Return the network after epochs of Adam (rate 0.002, batches of 64) on the training images, in train mode."""
    data, network = load(DATA), in_train_mode(model)
    weights = {name: value.clone().requires_grad_() for name, value in model.parameters.items()}
    buffers, adam = model.buffers, torch.optim.Adam(weights.values(), lr=2e-3)
    for part in torch.randperm(data.size("train"), generator=torch.Generator().manual_seed(0)).repeat(epochs).split(64):
        x, y = data.pictures("train", part.tolist()), data.labels("train", part.tolist())
        output, buffers = network.apply(weights, buffers, x, random.key(0))
        adam.zero_grad()
        nn.functional.cross_entropy(output, y).backward()
        adam.step()
    parameters: Tree = {name: value.detach() for name, value in weights.items()}
    kept = {name: value.detach() for name, value in buffers.items()}
    return replace(model.with_parameters(parameters), buffers=kept)


def attack(exposure: Exposure, method: Attack, *, informed: bool = False) -> AttackResult:
    """Return the result in a form that needs no tracing."""
    return run_attack(exposure, method, informed=informed, execution=Execution(form="native"))


@functools.cache
def under_noise(n: int, sigma: float) -> AttackResult:
    """Return CPL's result under noise, after all its iterations."""
    client = Client(defences=(GaussianNoise(sigma),))
    return attack(Case(n, client=client).exposure(), cpl(iterations=CPL, threshold=0.0))


def psnr_line(text: str, result: AttackResult) -> Line:
    """Return the mean PSNR over all samples."""
    return text, "PSNR, dB", result.summary.means["psnr"]


def recovered_line(text: str, result: AttackResult) -> Line:
    """Return the share of samples recovered."""
    return text, "recovered", result.summary.content


def iip_line(text: str, batch: Batch, result: AttackResult) -> Line:
    """Return the share of samples that their guess identifies among 100 images of the class."""
    shown = arrange(clean(result.reconstruction.inputs), result.scores.pairing)
    seen = Context(batch.labels, *public_part(load(DATA), "test"))
    return text, "IIP", estimate_rate(iip_pixels(batch.inputs, shown, seen) > 0, batch.mask)


def both(text: str, result: AttackResult) -> tuple[Line, Line]:
    """Return the share recovered and the mean PSNR."""
    return recovered_line(text, result), psnr_line(text, result)


def compare(flattering: Case, honest: Case, method: Attack, names: tuple[str, str]) -> Iterator[Line]:
    """Yield two cases under one attack."""
    for name, case in zip(names, (flattering, honest), strict=True):
        yield from both(name, attack(case.exposure(), method))


def batch_one(n: int) -> Iterator[Line]:
    """Yield batch 1 against batch 4, labels read off the update."""
    yield from compare(Case(n), Case(n, 4), ig(iterations=IG), ("batch 1", "batch 4"))


def fresh_weights(n: int) -> Iterator[Line]:
    """Yield fresh against trained weights."""
    yield from compare(Case(n), Case(n, trained=True), cpl(iterations=CPL), ("fresh weights", "trained weights"))


def sigmoid(n: int) -> Iterator[Line]:
    """Yield the smooth LeNet against ReLU and max pooling."""
    yield from compare(
        Case(n),
        Case(n, activation="relu", pooling="max"),
        cpl(iterations=CPL),
        ("sigmoid, strides", "ReLU, max pooling"),
    )


def fedsgd(n: int) -> Iterator[Line]:
    """Yield one gradient against the weights after 4 local steps, read as a gradient."""
    local = Client(local=LocalTraining(epochs=2, batch_size=1, rate=0.5))
    one, many = Case(n, 2, labels=True), Case(n, 2, labels=True, client=local)
    yield from compare(
        one, many, ig(iterations=IG), ("one gradient of 2 images", "weights after 4 local steps on them")
    )


def local_settings(n: int) -> Iterator[Line]:
    """Yield an attacker who knows the local training and simulates it against one who does not."""
    local = Client(local=LocalTraining(epochs=2, batch_size=1, rate=0.5))
    known = Case(n, 2, labels=True, client=local).exposure()
    method = aware(ig(iterations=IG), known.knowledge, simulate=True)
    yield psnr_line("epochs, batch size and rate known", attack(known, method))
    unknown = Case(n, 2, labels=True, client=local, local=False).exposure()
    yield psnr_line("not known", attack(unknown, ig(iterations=IG)))


def labels_given(n: int) -> Iterator[Line]:
    """Yield known labels against labels read off the update of a trained network."""
    for text, known in (("labels given", True), ("labels read off the update", False)):
        result = attack(Case(n, 4, trained=True, labels=known).exposure(), ig(iterations=IG))
        overlap = result.summary.label_set
        yield psnr_line(text, result)
        if overlap is not None:
            yield text, "labels right", overlap


def distinct_labels(n: int) -> Iterator[Line]:
    """Yield batches of 4 distinct classes, of any classes, of one class: division of one dense layer by its biases."""
    n, model = 4 * n, build("linear", (1, 28, 28), 10)
    weights = draw_parameters(model, Torch(), random.key(list(range(n))))
    for text, mix in (("4 different classes", "distinct"), ("any 4 images", "given"), ("4 of one class", "equal")):
        batch = private(n, 4, mix)
        result = attack(expose(model, Client(), weights, batch, range(n)), analytic())
        yield psnr_line(text, result)
        yield iip_line(text, batch, result)


def tuned_on_the_victim(n: int) -> Iterator[Line]:
    """Yield the best TV weight of each victim by the truth, the best on other clients, and the default."""

    def all_weights(first: int) -> Tensor:
        seen = Case(n, first=first, trained=True).exposure()
        return torch.stack([attack(seen, ig(iterations=IG, tv=tv)).scores.psnr for tv in TVS])

    victims, others = all_weights(0), all_weights(n)
    counted = torch.ones_like(victims[0], dtype=torch.bool)
    best = int(others.mean((1, 2)).argmax())
    per_client = victims.mean(2).argmax(0)
    chosen = victims[per_client, torch.arange(n)]
    yield "TV weight with the best PSNR for each victim", "PSNR, dB", estimate_mean(chosen, counted)
    yield f"TV weight best on {n} other clients ({TVS[best]:g})", "PSNR, dB", estimate_mean(victims[best], counted)
    yield f"TV weight by default ({TVS[0]:g})", "PSNR, dB", estimate_mean(victims[0], counted)


def restarts_by_truth(n: int) -> Iterator[Line]:
    """Yield the best of 4 starts by the truth, by the mismatch, and one start."""
    seen, method = Case(n, client=Client(defences=(GaussianNoise(0.01),))).exposure(), ig(iterations=IG)
    runs = [
        attack(replace(seen, seeds=tuple(1000 * start + seed for seed in seen.seeds)), method) for start in range(4)
    ]
    values = torch.stack([run.scores.psnr for run in runs])
    mismatch = torch.stack([run.reconstruction.mismatch for run in runs])
    trials, counted = torch.arange(n), torch.ones(n, 1, dtype=torch.bool)
    yield "best of 4 by the truth", "PSNR, dB", estimate_mean(values.amax(0), counted)
    yield "best of 4 by the mismatch", "PSNR, dB", estimate_mean(values[mismatch.argmin(0), trials], counted)
    yield "one start", "PSNR, dB", estimate_mean(values[0], counted)


def stopping_by_truth(n: int) -> Iterator[Line]:
    """Yield the best snapshot by the truth against the last guess, under noise."""
    n *= 2
    result = under_noise(n, 0.03)
    truth, shots = private(n, 1).inputs, result.reconstruction.snapshots
    reached = result.reconstruction.snapshots_at >= 0
    along = psnr(truth[:, None].expand_as(shots), clean(shots))[..., 0].where(reached, -torch.inf)
    counted = torch.ones(n, 1, dtype=torch.bool)
    best = torch.maximum(along.amax(1), result.scores.psnr[:, 0])
    yield "best guess along the way, by the truth", "PSNR, dB", estimate_mean(best[:, None], counted)
    yield "last guess", "PSNR, dB", estimate_mean(result.scores.psnr, counted)


def no_null(n: int) -> Iterator[Line]:
    """Yield baselines without any update that pass for a recovery of table rows."""
    data, rows = load("breast_cancer"), range(8 * n)
    images, labels = data.pictures("test", rows)[:, None], data.labels("test", rows)[:, None]
    batch = make_batch(images, labels, classes=data.classes)
    guesses = baselines(batch, *public_part(data, "test"), classes=data.classes, seeds=list(rows))
    for name in ("nearest_public", "class_mean", "prior_only"):
        yield recovered_line(f"rows of a table without an update: {name}", judge(batch, guesses[name]))


def means_over_successes(n: int) -> Iterator[Line]:
    """Yield the mean over recovered images against the mean over all."""
    result = under_noise(2 * n, 0.01)
    yield "over recovered images only", "PSNR, dB", result.summary.means_recovered["psnr"]
    yield from reversed(both("over all images", result))


def no_adaptive_attacker(n: int) -> Iterator[Line]:
    """Yield a defence against an attacker who does not know it and one who does; here the first line flatters the defence."""
    seen, method = Case(n, client=Client(defences=(RandomMask(0.5),))).exposure(), cpl(iterations=CPL)
    yield from both("half of the coordinates dropped, attacker unaware", attack(seen, method))
    yield from both("the same, attacker knows", attack(seen, aware(method, seen.known(informed=True)), informed=True))


def one_metric(n: int) -> Iterator[Line]:
    """Yield several metrics of two guesses with similar PSNR: the mean of the class and an attack under noise."""
    n = 2 * n
    batch, data = private(n, 1), load(DATA)
    public, labels = public_part(data, "test")
    guesses = baselines(batch, public, labels, classes=10, seeds=range(n))
    noisy = under_noise(n, 0.03)
    for text, result in (
        ("class mean, without an update", judge(batch, guesses["class_mean"])),
        ("CPL under noise 0.03", noisy),
    ):
        shown = arrange(clean(result.reconstruction.inputs), result.scores.pairing)
        yield psnr_line(text, result)
        yield text, "SSIM", result.summary.means["ssim"]
        yield iip_line(text, batch, result)
        yield text, "TPR at FPR 1 %", reidentification(batch.inputs, shown, batch.mask).tpr


def eval_mode(n: int) -> Iterator[Line]:
    """Yield batch norm by running statistics against batch norm by the statistics of the batch; the attacker knows the mode."""
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(1, 12, 5, 2, 2),
        nn.BatchNorm2d(12),
        nn.Sigmoid(),
        nn.Conv2d(12, 12, 5, 2, 2),
        nn.BatchNorm2d(12),
    ]
    module = nn.Sequential(*layers, nn.Sigmoid(), nn.Flatten(), nn.Linear(588, 10)).eval()
    model = trained(from_module(module, input_shape=(1, 28, 28)))
    for text, network in (("client in eval mode", model), ("client in train mode", in_train_mode(model))):
        seen = expose(network, Client(), shared_weights(network, n), private(n, 4), range(n), labels=True)
        yield from both(text, attack(seen, ig(iterations=IG)))


MISTAKES: dict[str, Callable[[int], Iterator[Line]]] = {
    part.__name__.replace("_", "-"): part
    for part in (
        eval_mode, labels_given, fresh_weights, distinct_labels, batch_one, sigmoid, fedsgd, local_settings, tuned_on_the_victim,
        restarts_by_truth, stopping_by_truth, no_null, means_over_successes, no_adaptive_attacker, one_metric,
    )
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("mistakes", nargs="*", metavar="MISTAKE", help=f"of {', '.join(MISTAKES)}; default: all")
    parser.add_argument("--clients", type=int, default=8)
    chosen = parser.parse_args()
    if unknown := sorted(set(chosen.mistakes) - set(MISTAKES)):
        parser.error(f"unknown mistake {unknown[0]!r}; known: {', '.join(MISTAKES)}")
    torch.set_num_threads(1)
    for name in chosen.mistakes or MISTAKES:
        began = time.process_time()
        print(name)
        for text, measure, value in MISTAKES[name](chosen.clients):
            interval = f"[{value.low:.3g}, {value.high:.3g}]"
            print(
                f"  {text:58} {measure:14} {value.value:6.3g} {interval:16} n={value.n} in {value.trials} clients",
                flush=True,
            )
        print(f"  ({time.process_time() - began:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
