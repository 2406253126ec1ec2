"""CAP on CIFAR-10, batch 1, with DLNet: every curve of the SPN paper's table 1 as one batch, strengths inside.

    python benchmarks/spn.py --data cifar10.npz --out spn.json [--images 100] [--device cuda] [--curves dp,spn]
    python benchmarks/spn.py --out spn.json --page spn.html [--accuracy accuracy.json]

Weights are drawn from uniform(-0.3, 0.3) for each image, labels are optimised beside the picture, the start is patterned
(table 2 and algorithm 5). The same images, weights, starts and draws are used at every strength. Each (curve, attack) is
written to the JSON as soon as it is done and skipped when it is there. Images are spread over the queries, so that tracing has
10 owners alike. PPDL adds its noise first and then sends the largest 5 or 30 % of what results: the other way round noise
would fill what was left out. `rmse` is of the guess clamped to [0, 1], `rmse_raw` of the guess as the attack left it, at
most 10. Measuring needs torch, numpy and safetensors alone; `--page` also scipy, jinja2 and pillow.

Attackers: `unaware` is algorithm 5; `aware` was told of the defence (of SPN: learns what the private head pulls at the
features); for SPN also `dummy` (a dummy head and dummy codes among the unknowns: 50,000 more of them a trial) and `head`
(compares the public head alone).

Accuracies come from federated training (`spn_accuracy.py`). Without a file of measured ones ({curve: {strength: accuracy}})
the page takes those of the paper's table 11 and says so; Laplacian noise has none there and takes those of DP at the same
number.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leakscope.analysis.characteristic import Rule, bias_ratio
from leakscope.attacks.attack import Matching
from leakscope.attacks.aware import aware
from leakscope.attacks.plan import Execution
from leakscope.attacks.polarised import DummyPolarised, spn_aware, spn_head, spn_unaware
from leakscope.clients import Client, tell_defences, told
from leakscope.core import random
from leakscope.core.model import Model
from leakscope.core.tree import Tree, dot, lift, norm
from leakscope.core.types import Batch, Knowledge, Outcome, make_batch
from leakscope.defences import GaussianNoise, LaplaceNoise, Sparsify
from leakscope.defences.on_model import Polarisation
from leakscope.inference.tracing import nearest, partition, spread
from leakscope.models import Uniform, build, draw_parameters

SIGMAS = (1e-4, 1e-3, 1e-2, 1e-1, 5e-1)
ALPHAS = (1e-4, 1e-3, 1e-2, 1e-1, 2e-1, 3e-1, 4e-1, 5e-1)
RANGE, OWNERS, CAP = 0.3, 10, 10.0
NONE, UNAWARE, AWARE, DUMMY, HEAD = "none", "unaware", "aware", "dummy", "head"
TABLE_11 = {  # CIFAR-10 column
    "dp": {5e-1: 0.4205, 1e-1: 0.5808, 1e-2: 0.6853, 1e-3: 0.7027, 1e-4: 0.7025},
    "ppdl5": {5e-1: 0.3783, 1e-1: 0.5184, 1e-2: 0.6081, 1e-3: 0.5906, 1e-4: 0.5814},
    "ppdl30": {5e-1: 0.4250, 1e-1: 0.5672, 1e-2: 0.6783, 1e-3: 0.6672, 1e-4: 0.6686},
    "spn": {5e-1: 0.6583, 4e-1: 0.6594, 3e-1: 0.6814, 2e-1: 0.6898, 1e-1: 0.6897, 1e-2: 0.6970, 1e-3: 0.6968, 1e-4: 0.7154},
}  # fmt: skip


@dataclass(frozen=True)
class CurveKind:
    """A defence with a grid of strengths: the client at one strength for each trial, and the attackers it meets."""

    grid: tuple[float, ...]
    client: Callable[[Tensor], Client]
    attackers: tuple[str, ...] = (UNAWARE, AWARE)
    accuracy: str = "dp"


def polarised(bits: int) -> CurveKind:
    return CurveKind(
        ALPHAS,
        lambda s: Client(on_model=Polarisation(s, bits=bits, spread=RANGE)),
        (UNAWARE, AWARE, DUMMY, HEAD),
        "spn",
    )


CURVES: dict[str, CurveKind] = {
    NONE: CurveKind((0.0,), lambda _: Client(), (UNAWARE,)),
    "dp": CurveKind(SIGMAS, lambda s: Client(defences=(GaussianNoise(s),))),
    "laplace": CurveKind(SIGMAS, lambda s: Client(defences=(LaplaceNoise(scale=s),))),
    "laplace_equal": CurveKind(SIGMAS, lambda s: Client(defences=(LaplaceNoise(s),))),
    "ppdl5": CurveKind(SIGMAS, lambda s: Client(defences=(GaussianNoise(s), Sparsify(share=0.05))), accuracy="ppdl5"),
    "ppdl30": CurveKind(SIGMAS, lambda s: Client(defences=(GaussianNoise(s), Sparsify(share=0.3))), accuracy="ppdl30"),
    "spn": polarised(64),
    "spn32": polarised(32),
    "spn128": polarised(128),
}
USUAL = (NONE, "dp", "laplace", "ppdl5", "ppdl30", "spn")


@dataclass(frozen=True)
class Setup:
    """What every curve shares: network, images with their weights and seeds, queries and which of them the images are."""

    model: Model
    batch: Batch
    weights: Tree
    seeds: list[int]
    queries: Tensor
    source: Tensor

    def repeated(self, times: int) -> tuple[Batch, Tree, list[int]]:
        """Return the same trials once for every strength, strength by strength."""
        many = {name: value.repeat(times, *[1] * (value.ndim - 1)) for name, value in self.weights.items()}
        batch = Batch(
            *(t.repeat(times, *[1] * (t.ndim - 1)) for t in (self.batch.inputs, self.batch.labels, self.batch.mask))
        )
        return batch, many, self.seeds * times


def load_setup(path: Path, images: int, queries: int) -> Setup:
    """Return the setup of an .npz with x_test (N x 32 x 32 x 3 bytes) and y_test."""
    with np.load(path, allow_pickle=False) as file:
        pictures, labels = file["x_test"][:queries], file["y_test"][:queries]
    stack = torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 255
    source = spread(images, len(stack))
    batch = make_batch(stack[source][:, None], torch.from_numpy(labels).long()[source][:, None], classes=10)
    model, seeds = build("dlnet", tuple(stack.shape[1:]), 10), list(range(images))
    return Setup(model, batch, draw_parameters(model, Uniform(RANGE), random.key(seeds)), seeds, stack, source)


def attack_of(kind: str, client: Client, knowledge: Knowledge, strengths: Tensor, iterations: int) -> Matching:
    """Return the attacker: algorithm 5's, one who knows the defence, one with a dummy head, one who reads the public head alone."""
    if kind == UNAWARE:
        return spn_unaware(iterations=iterations)
    if kind == HEAD:
        return spn_head(iterations=iterations)
    if kind == DUMMY and client.on_model is not None:
        made = spn_aware(bits=client.on_model.bits, spread=client.on_model.spread, iterations=iterations)
        return replace(made, simulate=DummyPolarised(1.0, strengths, 1.0))
    return aware(spn_unaware(iterations=iterations, labels="auto"), knowledge)


def measure(setup: Setup, name: str, attacker: str, iterations: int, execution: Execution) -> dict[str, Any]:
    """Return one curve against one attacker as plain data, a row for each strength."""
    began, kind, n = time.perf_counter(), CURVES[name], len(setup.seeds)
    strengths = torch.tensor(kind.grid).repeat_interleave(n)
    batch, weights, seeds = setup.repeated(len(kind.grid))
    client = kind.client(strengths)
    seen = client.observe(setup.model, weights, batch, seeds)
    plain = Client().observe(setup.model, weights, batch, seeds)
    ratio = bias_ratio(plain.rounds[0].sent, seen.rounds[0].sent)
    knowledge = told(setup.model, client, batch)
    if attacker == AWARE:
        knowledge = tell_defences(knowledge, client, seen)
    attack = attack_of(attacker, client, knowledge, strengths, iterations)
    made = attack.run(setup.model, seen, knowledge, seeds, execution)
    shown, finite = Rule().distances(batch.inputs, made.inputs)
    raw, _ = Rule(shown=False, cap=CAP).distances(batch.inputs, made.inputs)
    wrong = (made.labels != batch.labels).double()
    rows = []
    for number, strength in enumerate(kind.grid):
        own = slice(number * n, (number + 1) * n)
        rows.append(
            {
                "strength": strength,
                "ratio": plain_numbers(ratio[own]),
                "rmse": plain_numbers(shown[own, 0]),
                "rmse_raw": plain_numbers(raw[own, 0]),
                "label_wrong": plain_numbers(wrong[own, 0]),
                "finite": plain_numbers(finite[own, 0].double()),
                "diverged": int((made.outcome[own] == int(Outcome.DIVERGED)).sum()),
                "converged": int((made.outcome[own] == int(Outcome.CONVERGED)).sum()),
                "mismatch": plain_numbers(made.mismatch[own]),
                "tracing": traced(setup, made.inputs[own, 0].clamp(0, 1)),
            }
        )
    return {
        "curve": name,
        "attack": attacker,
        "images": n,
        "iterations": iterations,
        "queries": len(setup.queries),
        "cap_of_raw": CAP,
        "seconds": time.perf_counter() - began,
        "rows": rows,
        "examples": [
            made.inputs[k * n, 0].clamp(0, 1).nan_to_num(0.5).mul(255).round().int().tolist() for k in range(len(rows))
        ],
        "truth": batch.inputs[0, 0].mul(255).round().int().tolist(),
    }


def traced(setup: Setup, found: Tensor) -> dict[str, float]:
    """Return the shares of queries given a wrong owner: all, and those that have a reconstruction."""
    if len(found) < OWNERS:
        return {}
    owner = partition(len(setup.queries), OWNERS)
    place = nearest(setup.queries, found)
    wrong = (torch.where(place < 0, -1, owner[setup.source[place.clamp_min(0)]]) != owner).double()
    return {"all": float(wrong.mean()), "reconstructed": float(wrong[setup.source].mean())}


def cosines(setup: Setup, bits: int = 64) -> dict[str, float]:
    """Return the mean cosine over images between the gradients of the CE and of the polarization loss (figure 4)."""
    parts = []
    for alpha1, alpha2 in ((1.0, 0.0), (0.0, 1.0)):
        client = Client(on_model=Polarisation(alpha2, alpha1, bits=bits, spread=RANGE))
        parts.append(client.observe(setup.model, setup.weights, setup.batch, setup.seeds).rounds[0].sent)
    head = setup.model.head
    backbone = [name for name in parts[0] if head is None or name not in (head.weight, head.bias)]
    groups = {name: [name] for name in backbone}
    groups |= {
        f"all {end}es" if end == "bias" else "all weights": [n for n in backbone if n.endswith(end)]
        for end in ("weight", "bias")
    }

    def cosine(one: Tree, other: Tree) -> Tensor:
        return dot(one, other) / (norm(one) * norm(other)).clamp_min(1e-30)

    return {
        title: float(lift(cosine)({n: parts[0][n] for n in names}, {n: parts[1][n] for n in names}).mean())
        for title, names in groups.items()
    }


def plain_numbers(values: Tensor) -> list[float | None]:
    return [round(float(v), 6) if np.isfinite(float(v)) else None for v in values]


def run(args: argparse.Namespace) -> None:
    """Measure what is not in the file yet, writing after every curve."""
    setup = load_setup(args.data, args.images, args.queries)
    done: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {"results": []}
    done["cosines"] = cosines(setup)
    print("cosine of CE and polarization gradients:", {k: round(v, 3) for k, v in done["cosines"].items()}, flush=True)
    execution = Execution(device=args.device, form=args.form, chunk=args.chunk)
    for name in args.curves.split(","):
        for attacker in CURVES[name].attackers:
            key = (name, attacker, args.images, args.iterations)
            if key in {(r["curve"], r["attack"], r["images"], r["iterations"]) for r in done["results"]}:
                continue
            made = measure(setup, name, attacker, args.iterations, execution)
            done["results"].append(made)
            args.out.write_text(json.dumps(done))
            for row in made["rows"]:
                print(f"{name:14} {attacker:8} {line(row)}  ({made['seconds']:.0f} s the curve)", flush=True)


def line(row: dict[str, Any]) -> str:
    ratio = [r for r in row["ratio"] if r is not None]
    middle = f"{float(np.median(ratio)):8.3g}" if ratio else "    none"
    tracing = " ".join(f"{k} {v:.3f}" for k, v in row["tracing"].items())
    return (
        f"strength {row['strength']:<7g} ratio {middle} rMSE {np.mean(row['rmse']):.3f} label wrong "
        f"{np.mean(row['label_wrong']):.2f} tracing {tracing or '-'} converged {row['converged']} diverged {row['diverged']}"
    )


def write_page(args: argparse.Namespace) -> None:
    """Write the page of a measured file; accuracies from the file given, else from the paper's table 11."""
    from leakscope.analysis.characteristic import Characteristic, Point, measured, region
    from leakscope.metrics.interval import Estimate, wilson
    from leakscope.report.characteristic_page import CharacteristicPage, Example, write

    done = json.loads(args.out.read_text())
    told_ = json.loads(args.accuracy.read_text()) if args.accuracy else None
    curves, examples = [], []
    for made in done["results"]:
        if made["curve"] == NONE:
            continue
        known = accuracies(made["curve"], told_)
        points: dict[str, list[Point]] = {"rMSE": [], "membership": [], "tracing, all queries": []}
        for number, row in enumerate(made["rows"]):
            ratio = torch.tensor([np.inf if r is None else r for r in row["ratio"]])
            accuracy, finite = known[row["strength"]], torch.tensor(row["finite"]).bool()
            points["rMSE"].append(measured(row["strength"], ratio, accuracy, torch.tensor(row["rmse"]), finite))
            wrong = torch.tensor(row["label_wrong"]).bool()
            points["membership"].append(measured(row["strength"], ratio, accuracy, wrong, finite))
            if row["tracing"]:
                share, n = row["tracing"]["all"], made["queries"]
                whole = Estimate(share, *wilson(share, n), n, n)
                points["tracing, all queries"].append(Point(row["strength"], float(ratio.median()), accuracy, whole))
            middle = float(ratio.median())
            examples.append(
                Example(
                    truth=torch.tensor(made["truth"]) / 255,
                    guess=torch.tensor(made["examples"][number]) / 255,
                    defence=f"{made['curve']} {row['strength']:g}, {made['attack']}",
                    region=region(middle),
                    ratio=middle,
                    distance=row["rmse"][0],
                )
            )
        curves += [
            Characteristic(made["curve"], made["attack"], distance, tuple(own), Rule().words)
            for distance, own in points.items()
            if own
        ]
    ranked = sorted((c for c in curves if c.distance == "rMSE"), key=lambda c: -c.cap.value)
    order = ", ".join(f"{c.defence} ({c.attack}) {c.cap.value:.3f}" for c in ranked)
    page = CharacteristicPage(
        title="Privacy-preserving characteristics, CIFAR-10",
        headline=f"CAP of reconstruction, best first: {order}",
        explanation=f"DLNet, batch 1, {done['results'][0]['images']} images a strength. Accuracies: "
        + (f"{args.accuracy.name}." if args.accuracy else "published, table 11 of the SPN paper, not measured."),
        curves=tuple(curves),
        examples=tuple(examples),
        command=f"python benchmarks/spn.py --out {args.out.name} --page {args.page.name}",
        facts=tuple((f"cosine of gradients, {k}", f"{v:.3f}") for k, v in done["cosines"].items()),
    )
    print(write(page, args.page))


def accuracies(curve: str, given: dict[str, dict[str, float]] | None) -> dict[float, float]:
    if given is not None and curve in given:
        return {float(strength): value for strength, value in given[curve].items()}
    return TABLE_11[CURVES[curve].accuracy]


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, help="an .npz with x_test and y_test")
    parser.add_argument("--out", type=Path, required=True, help="the JSON to write, or to go on with")
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("--curves", default=",".join(USUAL), help=f"of {', '.join(CURVES)}")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--form", default=None)
    parser.add_argument("--chunk", type=int, default=None)
    parser.add_argument("--page", type=Path, help="write the page of a measured file instead")
    parser.add_argument("--accuracy", type=Path, help="measured accuracies, {curve: {strength: accuracy}}")
    args = parser.parse_args(words)
    if args.page:
        write_page(args)
    else:
        run(args)


if __name__ == "__main__":
    main()
