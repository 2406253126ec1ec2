"""What attacks on weight updates cost, and how well they do: SME against IG, against DLFA, against the usual loop.

    python benchmarks/sme.py cost                                   # an iteration of SME and of IG: operations, seconds
    python benchmarks/sme.py steps                                  # SME and DLFA over 10 .. 250 local steps
    python benchmarks/sme.py kept --device cuda                     # evaluations as they are, and recorded (on a CPU traced)
    python benchmarks/sme.py speed --device cuda                    # N = 50 on cnn_cifar against one client at a time
    python benchmarks/sme.py quality --data cifar100.npz --device cuda --clients 16

Imports torch, numpy and safetensors alone. Every command prints a table and, with --json FILE, writes what it measured.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from leakscope.attacks.attack import Matching
from leakscope.attacks.engine.forms import Evaluation, Evaluator
from leakscope.attacks.engine.loop import Engine
from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.engine.runner import run_problem
from leakscope.attacks.engine.state import Problem, Stop
from leakscope.attacks.optimisers.rules import moving
from leakscope.attacks.recipes import dlfa, ig_update, sme
from leakscope.attacks.simulate import ALPHA
from leakscope.clients import Client, attacker_knowledge
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.scaling import Scaling
from leakscope.core.tree import Tree, to
from leakscope.core.types import Batch, Knowledge, LocalTraining, Observation, make_batch
from leakscope.kernels.memory import peak_bytes
from leakscope.kernels.recordings import captured
from leakscope.metrics.image import psnr
from leakscope.models import Torch, build, draw_parameters

NEVER = 10**9
EVERY = "SME, alpha moved every {}th iteration"
WEIGHTS = "IG, the gradient in the weights too"
NETWORKS = {"cnn_cifar": ((3, 32, 32), 100), "cnn_mnist": ((1, 28, 28), 62)}
CIFAR100 = Scaling((0.5071, 0.4866, 0.4409), (0.2673, 0.2564, 0.2762))
FEMNIST = Scaling((0.96424,), (0.15768,))


@dataclass(frozen=True, slots=True)
class World:
    """Clients that trained for a while, and what the server saw of them."""

    model: Model
    batch: Batch
    observation: Observation
    knowledge: Knowledge
    seeds: list[int]


def play(
    network: str,
    batch: Batch,
    local: LocalTraining,
    device: str,
    *,
    scaling: Scaling,
    weights: Tree | None = None,
    settings: dict[str, object] | None = None,
) -> World:
    """Return the clients' updates; the labels and the local training are told (SME and IG do not look at the latter)."""
    shape, classes = NETWORKS[network]
    model = to(build(network, shape, classes, settings), device=device)
    seeds = list(range(batch.trials))
    batch = to(batch, device=device)
    first = draw_parameters(model, Torch(), random.key(seeds, device=device)) if weights is None else weights
    client = Client(local, scaling=scaling)
    seen = client.observe(model, first, batch, seeds)
    return World(model, batch, seen, attacker_knowledge(model, client, batch, labels=True), seeds)


def random_batch(network: str, trials: int, samples: int) -> Batch:
    """Return random pictures: cost does not depend on them."""
    shape, classes = NETWORKS[network]
    keys = random.key(list(range(trials)))
    labels = torch.arange(trials * samples).reshape(trials, samples) % classes
    return make_batch(random.uniform(keys, (samples, *shape)), labels, classes=classes)


def problem_of(how: Matching, w: World, device: str) -> Problem:
    """Return what the engine gets."""
    return how.prepare(w.model, w.observation, w.knowledge, w.seeds, Execution(device=device))[0]


def clock(device: str) -> float:
    """Return the time after all work on the device is done."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def seconds(f: Callable[[], object], device: str) -> float:
    """Return how long a call takes."""
    began = clock(device)
    f()
    return clock(device) - began


def times(f: Callable[[], object], number: int) -> None:
    """Call a function so many times."""
    for _ in range(number):
        f()


def quantiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median and the bounds of the middle 95 %."""
    found = torch.tensor(sorted(values), dtype=torch.float64).quantile(torch.tensor([0.5, 0.025, 0.975]).double())
    return float(found[0]), float(found[1]), float(found[2])


def interval_of_median(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the median: the order statistics that a fair coin would leave on either side of it."""
    n, ordered = len(values), sorted(values)
    below, mass = 0, 0.5**n
    while mass + math.comb(n, below + 1) * 0.5**n <= 0.025:
        below += 1
        mass += math.comb(n, below) * 0.5**n
    return (ordered[below], ordered[n - 1 - below]) if mass <= 0.025 else (-math.inf, math.inf)


def call_of(how: Matching, w: World, device: str, form: str, iterations: int = 1) -> Callable[[], object]:
    """Return the evaluations of so many iterations of all trials, traced already; what rests is not differentiated in."""
    problem = problem_of(how, w, device)
    turns = [moving(problem.unknowns, problem.rules, number) for number in range(iterations)]
    made = {
        turn: Evaluator(w.model, problem.unknowns, problem.facts, form, wanted=turn, trace_after=1)
        for turn in set(turns)
    }
    iteration = torch.zeros(len(w.seeds), dtype=torch.int64, device=device)

    def call() -> object:
        return [made[turn](problem.unknowns, iteration) for turn in turns]

    call()
    call()
    return call


def operations(call: Callable[[], object]) -> int:
    """Return the multiplications and additions of products and convolutions in a traced evaluation."""
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    with counter:
        call()
    return int(counter.get_total_flops())


# -- (a) one iteration of SME against one of IG


def cost(args: argparse.Namespace) -> dict[str, Any]:
    """Return operations and interleaved seconds of SME, with alpha in every iteration and in every k-th, and of two IGs.

    The second IG is SME with alpha held at 0. Everything is measured over whole cycles of alpha, k iterations. Operations are
    counted on one trial: the counter takes the grouped convolutions of many for full ones.
    """
    local, cycle, rarely = LocalTraining(epochs=2, rate=0.004), args.every, EVERY.format(args.every)
    one, w = (
        play(args.network, random_batch(args.network, trials, args.samples), local, device, scaling=Scaling())
        for trials, device in ((1, "cpu"), (args.trials, args.device))  # a recording's operations cannot be counted
    )
    form = args.form or ("im2col" if args.device == "cpu" else "compiled")
    attacks = {"SME": sme(), rarely: sme(alpha_every=cycle), "IG": ig_update(), WEIGHTS: sme(alpha=0.0, alpha_rate=0.0)}
    counted = form if form == "im2col" else "native"  # the counter sees neither other threads nor compiled code
    flops = {name: operations(call_of(how, one, "cpu", counted, cycle)) / cycle for name, how in attacks.items()}
    calls = {name: call_of(how, w, args.device, form, cycle) for name, how in attacks.items()}
    took: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(args.pairs):
        for name, call in calls.items():
            took[name].append(seconds(call, args.device) / cycle)
    rows = []
    for name, against in (("SME", "IG"), ("SME", WEIGHTS), (rarely, "IG")):
        more = flops[name] / flops[against]
        ratios = [a / b for a, b in zip(took[name], took[against], strict=True)]
        ratio, median = quantiles(ratios), interval_of_median(ratios)
        row = {"attack": name, "against": against, "operations": more, "seconds": ratio, "pairs": args.pairs}
        rows.append(row | {"interval_of_median": median})
        print(
            f"{name}, against {against}: {more:.3f} times the operations, {ratio[0]:.3f} times the seconds (median of {args.pairs} "
            f"interleaved cycles of {cycle}, its 95 % interval {median[0]:.3f} to {median[1]:.3f}; 95 % of them "
            f"[{ratio[1]:.3f}, {ratio[2]:.3f}]; {form})"
        )
    medians = {name: quantiles(values)[0] for name, values in took.items()}
    return {"network": args.network, "form": form, "rows": rows, "seconds": medians, "operations": flops}


# -- (b) SME against DLFA over the number of local steps


def steps(args: argparse.Namespace) -> dict[str, Any]:
    """Return seconds and peak bytes of one iteration of SME and of DLFA by local steps."""
    rows = []
    print(
        "| local steps | SME s | SME MB | DLFA s | DLFA MB | DLFA MB, all kept | DLFA / SME an iteration | total at 400 / 1000 |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for number in args.steps:
        local = LocalTraining(epochs=number, batch_size=args.samples, rate=0.004)
        w = play(args.network, random_batch(args.network, 1, args.samples), local, args.device, scaling=Scaling())
        row: dict[str, Any] = {"steps": number}
        for name, how in {"sme": sme(), "dlfa": dlfa(), "dlfa_kept": dlfa(segment=0)}.items():
            problem = problem_of(how, w, args.device)
            row[f"{name}_bytes"] = peak_bytes(evaluations(w, problem, "native", args.device))
            if name != "dlfa_kept":
                once = evaluations(w, problem, "native", args.device, kept=args.device == "cuda")
                times(once, 2)
                row[f"{name}_seconds"] = quantiles([seconds(once, args.device) for _ in range(args.repeats)])[0]
        ratio = row["dlfa_seconds"] / row["sme_seconds"]
        rows.append(row | {"ratio": ratio, "total": ratio * 400 / 1000})
        print(
            f"| {number} | {row['sme_seconds']:.4f} | {row['sme_bytes'] / 1e6:.0f} | {row['dlfa_seconds']:.3f} | "
            f"{row['dlfa_bytes'] / 1e6:.0f} | {row['dlfa_kept_bytes'] / 1e6:.0f} | {ratio:.0f} | {ratio * 0.4:.0f} |",
            flush=True,
        )
    return {"network": args.network, "samples": args.samples, "device": args.device, "rows": rows}


def evaluations(w: World, problem: Problem, form: str, device: str, *, kept: bool = False) -> Callable[[], Evaluation]:
    """Return an evaluation of all trials; `kept`: recorded on a CUDA device, traced by its second call on a CPU."""
    trace_after = 1 if kept and device == "cpu" else NEVER
    evaluator = Evaluator(w.model, problem.unknowns, problem.facts, form, trace_after=trace_after)
    zero = torch.zeros(len(w.seeds), dtype=torch.int64, device=device)
    if kept and device != "cpu":
        play = captured(evaluator, (problem.unknowns, zero))
        return lambda: play(problem.unknowns, zero)
    return lambda: evaluator(problem.unknowns, zero)


def kept(args: argparse.Namespace) -> dict[str, Any]:
    """Return interleaved seconds of an evaluation as it is and recorded (on a CPU traced), and how far their gradients differ."""
    rows = []
    print(
        "| attack | local steps | as it is, s | kept, s | made in, s | ratio | 95 % of the pairs | largest difference |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name, how, number in [("sme", sme(), 10), *(("dlfa", dlfa(), number) for number in args.steps)]:
        local = LocalTraining(epochs=number, batch_size=args.samples, rate=0.004)
        batch = random_batch(args.network, args.trials, args.samples)
        w = play(args.network, batch, local, args.device, scaling=Scaling())
        problem = problem_of(how, w, args.device)
        plain, fast = (evaluations(w, problem, "im2col", args.device, kept=kept) for kept in (False, True))
        expected, _ = plain(), fast()
        made = seconds(fast, args.device)
        found = fast()
        apart = max(float((found.gradient[n] - g).abs().max()) for n, g in expected.gradient.items())
        pairs = [(seconds(plain, args.device), seconds(fast, args.device)) for _ in range(args.pairs)]
        ratio = quantiles([a / b for a, b in pairs])
        slow, quick = (quantiles(column)[0] for column in zip(*pairs, strict=True))
        rows.append(
            {"attack": name, "steps": number, "seconds": [slow, quick], "made": made, "ratio": ratio, "apart": apart}
        )
        print(
            f"| {name} | {number} | {slow:.4f} | {quick:.4f} | {made:.1f} | {ratio[0]:.1f} | "
            f"{ratio[1]:.1f} to {ratio[2]:.1f} | {apart:.1e} |",
            flush=True,
        )
    return {"network": args.network, "samples": args.samples, "trials": args.trials, "pairs": args.pairs, "rows": rows}


# -- (c) against one client at a time, as the authors run it


def usual_loop(w: World, device: str) -> Callable[[], object]:
    """Return one iteration of SME on one client, written with torch.autograd and two Adams."""
    module, seen = w.model.apply.module, w.observation.rounds[0]  # type: ignore[attr-defined]
    names = list(seen.before)
    before, after = ({n: tree[n][0] for n in names} for tree in (seen.before, seen.sent))
    target = [before[n] - after[n] for n in names]
    length = torch.sqrt(sum((t.square().sum() for t in target), torch.zeros((), device=device)))
    x = torch.randn(w.batch.inputs[0].shape, device=device, requires_grad=True)
    alpha = torch.tensor(0.5, device=device, requires_grad=True)
    adams = [torch.optim.Adam([x], lr=1.0), torch.optim.Adam([alpha], lr=1e-3)]
    labels = w.batch.labels[0]

    def iteration() -> object:
        for adam in adams:
            adam.zero_grad()
        with torch.no_grad():
            point = {n: (1 - alpha) * before[n] + alpha * after[n] for n in names}
        point = {n: value.requires_grad_() for n, value in point.items()}
        loss = F.cross_entropy(torch.func.functional_call(module, point, (x,)), labels)
        slopes = torch.autograd.grad(loss, list(point.values()), create_graph=True)
        norm = torch.sqrt(sum((g.square().sum() for g in slopes), torch.zeros((), device=device)))
        cosine = sum(((g * t).sum() for g, t in zip(slopes, target, strict=True)), torch.zeros((), device=device))
        down, across = (x[..., 1:, :] - x[..., :-1, :]).abs().mean(), (x[..., 1:] - x[..., :-1]).abs().mean()
        (1 - cosine / norm / length + 0.01 * (down + across) / 2).backward()
        with torch.no_grad():
            grads = [value.grad * (after[n] - before[n]) for n, value in point.items() if value.grad is not None]
            alpha.grad = sum((g.sum() for g in grads), torch.zeros((), device=device))
        for adam in adams:
            adam.step()
        with torch.no_grad():
            x.clamp_(0, 1)
            alpha.clamp_(0, 1)
        return alpha

    return iteration


def speed(args: argparse.Namespace) -> dict[str, Any]:
    """Return trial-iterations per second of the engine and of the usual loop, and how near the arithmetic limit that is.

    A pair is a few iterations of the loop and a run of the engine, one after the other. Where an engine's tick goes is measured in a
    run of its own, because it waits for the device in between.
    """
    local = LocalTraining(epochs=2, batch_size=10, rate=0.004)
    w = play(args.network, random_batch(args.network, args.trials, args.samples), local, args.device, scaling=Scaling())
    form = args.form or ("compiled" if args.device == "cuda" else "im2col")
    one = play(args.network, random_batch(args.network, 1, args.samples), local, args.device, scaling=Scaling())
    flops = operations(call_of(sme(), one, args.device, "native"))
    rows = []
    for tf32 in (False, True) if args.device == "cuda" else (False,):
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = tf32
        loop, few = usual_loop(w, args.device), 5
        problem, stop = problem_of(sme(), w, args.device), Stop(iterations=args.iterations)
        Engine(w.model, problem, Stop(iterations=60), form).run()  # tracing and compiling
        timed = Engine(w.model, problem, stop, form)
        timed.run()
        slow, fast = [], []
        for pair in range(args.pairs + 1):
            took = seconds(partial(times, loop, few), args.device) / few
            engine = Engine(w.model, problem, stop, form)
            each = seconds(engine.run, args.device) / args.iterations / args.trials
            if pair:
                slow.append(took)
                fast.append(each)
        ratio = quantiles([a / b for a, b in zip(slow, fast, strict=True)])
        middle = interval_of_median([a / b for a, b in zip(slow, fast, strict=True)])
        row = {
            "tf32": tf32,
            "loop_per_s": 1 / quantiles(slow)[0],
            "engine_per_s": 1 / quantiles(fast)[0],
            "ratio": ratio[0],
            "low": ratio[1],
            "high": ratio[2],
            "interval_of_median": middle,
            "pairs": args.pairs,
            "teraflops": flops / quantiles(fast)[0] / 1e12,
            "tick_ms": 1e3 * quantiles(timed.seconds)[0],
        }
        rows.append(row)
        print(
            f"{'TF32' if tf32 else 'float32'}: loop {row['loop_per_s']:.1f}, engine {row['engine_per_s']:.1f} trial-iterations/s "
            f"({form}, {args.trials} trials, N = {args.samples}): {ratio[0]:.1f} times (median of {args.pairs} pairs, its 95 % interval "
            f"{middle[0]:.1f} to {middle[1]:.1f}; 95 % of them [{ratio[1]:.1f}, {ratio[2]:.1f}]); {row['teraflops']:.2f} TFLOP/s "
            f"in products; a tick {row['tick_ms']:.1f} ms",
            flush=True,
        )
    return {"network": args.network, "samples": args.samples, "trials": args.trials, "form": form, "rows": rows}


# -- (d) quality on real pictures


def assign(cost: np.ndarray[Any, Any]) -> list[int]:
    """Return for each row the column of the cheapest perfect matching (shortest augmenting paths)."""
    n = len(cost)
    u, v, match = np.zeros(n + 1), np.zeros(n + 1), np.zeros(n + 1, dtype=int)  # place 0 is the row being placed
    for row in range(1, n + 1):
        match[0], column = row, 0
        least, way, done = np.full(n + 1, np.inf), np.zeros(n + 1, dtype=int), np.zeros(n + 1, dtype=bool)
        while True:
            done[column] = True
            here = match[column]
            gap = cost[here - 1] - u[here] - v[1:]
            better = ~done[1:] & (gap < least[1:])
            least[1:][better], way[1:][better] = gap[better], column
            free = np.where(done, np.inf, least)
            free[0] = np.inf
            best = int(free.argmin())
            step = free[best]
            u[match[done]] += step
            v[done] -= step
            least[~done] -= step
            column = best
            if match[column] == 0:
                break
        while column:
            match[column], column = match[way[column]], way[column]
    columns = [0] * n
    for column in range(1, n + 1):
        columns[match[column] - 1] = column - 1
    return columns


def student(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t (scipy is not needed): the density added up, then bisection."""
    if freedom < 1:
        return math.nan
    t = np.linspace(0, 1000, 2_000_001)
    density = (1 + t**2 / freedom) ** (-(freedom + 1) / 2)
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)
    mass = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2 * (t[1] - t[0]))]) * scale
    return float(t[np.searchsorted(mass, 0.475)])


def mean_of(values: Tensor) -> tuple[float, float, float]:
    """Return the mean over clients and its 95 % interval."""
    mean, n = float(values.double().mean()), len(values)
    half = student(n - 1) * float(values.double().std()) / math.sqrt(n) if n > 1 else math.nan
    return mean, mean - half, mean + half


def paired_psnr(truth: Tensor, guess: Tensor) -> Tensor:
    """Return the PSNR of every true picture and its partner, T x N, paired by the least total squared error."""
    rows = []
    for true, made in zip(truth, guess.clamp(0, 1), strict=True):
        error = torch.stack([(t - made).square().flatten(1).mean(1) for t in true]).double().cpu().numpy()
        rows.append(psnr(true, made[torch.tensor(assign(error), device=made.device)]).cpu())
    return torch.stack(rows)


def pictures(args: argparse.Namespace) -> Batch:
    """Return the clients' pictures from an npz with x_train (N x H x W [x C], bytes) and y_train."""
    with np.load(args.data, allow_pickle=False) as file:
        raw, labels = file["x_train"], file["y_train"]
    number = args.clients * args.samples
    if number > len(raw):
        raise InputError(f"{args.clients} clients of {args.samples} need {number} pictures, {args.data} has {len(raw)}")
    order = random.permutation(random.key(args.seed), len(raw))[:number].numpy()
    x = torch.from_numpy(raw[order]).float() / 255
    x = x[:, None] if x.ndim == 3 else x.permute(0, 3, 1, 2)
    x = 1 - x if args.invert else x
    shape = (args.clients, args.samples)
    y = torch.from_numpy(labels[order].astype("int64"))
    return make_batch(x.unflatten(0, shape), y.reshape(shape), classes=NETWORKS[args.network][1])


def quality(args: argparse.Namespace) -> dict[str, Any]:
    """Return the mean PSNR of SME and IG over clients, with its interval, and where alpha ended."""
    batch = pictures(args)
    weights = None
    if args.weights is not None:
        from safetensors.torch import load_file

        held = load_file(str(args.weights))
        names = build(args.network, *NETWORKS[args.network]).parameters
        missing = sorted(set(names) - set(held))
        if missing:
            raise InputError(f"{args.weights} lacks {missing[0]!r}: it is a checkpoint of another network")
        weights = {n: held[n].to(args.device).expand(args.clients, *held[n].shape).contiguous() for n in names}
    local = LocalTraining(epochs=args.epochs, batch_size=args.batch, rate=args.rate)
    scaling = CIFAR100 if args.network == "cnn_cifar" else FEMNIST
    w = play(args.network, batch, local, args.device, scaling=scaling, weights=weights)
    recipes = {
        "sme": sme(iterations=args.iterations),
        "sme_every": sme(iterations=args.iterations, alpha_every=args.every),
        "ig": ig_update(iterations=args.iterations),
    }
    rows, each = [], {}
    for name in args.attacks:
        how = recipes[name]
        execution = Execution(device=args.device, tf32=args.tf32, form=args.form, chunk=args.chunk)
        problem, _ = how.prepare(w.model, w.observation, w.knowledge, w.seeds, execution)
        began = clock(args.device)
        made = run_problem(w.model, problem, how.stop, execution, "", how.most_evaluations())
        took = clock(args.device) - began
        found = paired_psnr(batch.inputs, scaling.unscale(made.unknowns["guess"].float(), 3))
        each[name] = found.mean(1)
        mean, low, high = mean_of(each[name])
        row: dict[str, Any] = {
            "attack": name,
            "psnr": mean,
            "low": low,
            "high": high,
            "by_client": [round(v, 2) for v in each[name].tolist()],
            "images": found.numel(),
            "similarity_loss": float(made.mismatch.mean()),
            "seconds": took,
        }
        if ALPHA in made.unknowns:
            row["alpha"] = [round(a, 4) for a in made.unknowns[ALPHA].tolist()]
        rows.append(row)
        print(
            f"{name}: PSNR {mean:.2f} dB [{low:.2f}, {high:.2f}] (95 %, {args.clients} clients, {found.numel()} "
            f"images), L_sim {row['similarity_loss']:.4f}, {took:.0f} s{', alpha ' + str(row['alpha']) if 'alpha' in row else ''}",
            flush=True,
        )
    result: dict[str, Any] = {"settings": {k: str(v) for k, v in vars(args).items() if k != "run"}, "rows": rows}
    result["gains"] = []
    for one, other in itertools.combinations(each, 2):
        mean, low, high = mean_of(each[one] - each[other])
        result["gains"].append({"of": one, "over": other, "mean": mean, "low": low, "high": high})
        print(f"{one} over {other}, client by client: {mean:+.2f} dB [{low:.2f}, {high:.2f}]")
    return result


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    top = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    kinds = top.add_subparsers(required=True)
    for name, run, network, samples in (
        ("cost", cost, "cnn_cifar", 4),
        ("steps", steps, "cnn_mnist", 10),
        ("kept", kept, "cnn_mnist", 10),
        ("speed", speed, "cnn_cifar", 50),
        ("quality", quality, "cnn_cifar", 10),
    ):
        one = kinds.add_parser(name, help=(run.__doc__ or "").split("\n")[0])
        one.set_defaults(run=run)
        one.add_argument("--network", default=network, choices=list(NETWORKS))
        one.add_argument("--samples", type=int, default=samples)
        one.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
        one.add_argument("--form", default=None)
        one.add_argument("--json", type=Path, default=None)
        if name in ("cost", "quality"):
            one.add_argument("--every", type=int, default=8, help="alpha moves in every so-many-th iteration")
        if name in ("cost", "speed", "kept"):
            one.add_argument("--pairs", type=int, default=20)
            one.add_argument("--trials", type=int, default={"cost": 1, "speed": 16, "kept": 8}[name])
        if name in ("steps", "kept"):
            one.add_argument(
                "--steps", type=int, nargs="+", default=[10, 25, 50, 100, 250] if name == "steps" else [10, 50]
            )
        if name == "steps":
            one.add_argument("--repeats", type=int, default=3)
        if name == "speed":
            one.add_argument("--iterations", type=int, default=50, help="of the engine, in a pair")
        if name == "quality":
            one.add_argument("--data", type=Path, required=True)
            one.add_argument("--clients", type=int, default=8)
            one.add_argument("--epochs", type=int, default=20)
            one.add_argument("--batch", type=int, default=10)
            one.add_argument("--rate", type=float, default=0.004)
            one.add_argument("--iterations", type=int, default=1000)
            one.add_argument("--attacks", nargs="+", default=["sme", "ig"], choices=["sme", "sme_every", "ig"])
            one.add_argument("--weights", type=Path, default=None, help="safetensors: w0 of every client")
            one.add_argument("--invert", action="store_true", help="dark ink on white, for EMNIST")
            one.add_argument("--tf32", action="store_true")
            one.add_argument("--chunk", type=int, default=None)
            one.add_argument("--seed", type=int, default=0)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one measurement."""
    args = parser().parse_args(arguments)
    if args.device == "cuda" and not torch.cuda.is_available():
        sys.stderr.write("this machine has no CUDA device; use --device cpu\n")
        return 2
    try:
        made = args.run(args)
    except InputError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if args.json is not None:
        kept = {"torch": torch.__version__, "device": args.device, "threads": torch.get_num_threads(), **made}
        args.json.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
