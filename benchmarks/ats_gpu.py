"""Transformation policies on CIFAR-100 with one GPU: what the paper's claims come to with our engine.

    python benchmarks/ats_gpu.py --data cifar100.npz --out runs/ats --device cuda [--parts train,a,b,c,d]

Needs torch, numpy and safetensors alone. Trains a ResNet20 of width 16 (crop and flip, no policy), then

  a  the enhanced attack against the default one on 3-1-7 and 43-18-18
  b  all 50 operations alone: privacy score, and PSNR of the default attack
  c  privacy score against PSNR over random policies
  d  the attacker who knows the policy against the enhanced one
  t  table 1 and figure 4: a network for each policy, trained with it; its accuracy, and PSNR of default and enhanced attack
  e  (not by default) privacy and accuracy score of many random policies

PSNR is taken against T(x), as published, and against x. Every finished unit is in results.json at once: a run that was cut
goes on where it was, and `--parts none` prints what is there. Intervals are 95 % bootstrap intervals over pictures (a, d) or
policies (b, c).
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leakscope.attacks.attack import Attack
from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.known_policy import ig_policy
from leakscope.attacks.recipes import ig
from leakscope.attacks.translate import BOUNDS, ig_shift
from leakscope.clients import Client, attacker_knowledge, knowledge_of_defences
from leakscope.core import random
from leakscope.core.model import Model
from leakscope.core.scaling import Scaling
from leakscope.core.tree import map_tensors, to
from leakscope.core.types import Batch, Knowledge, Observation, make_batch
from leakscope.data.npz import read_npz
from leakscope.defences.on_data import OPERATIONS, Transform
from leakscope.metrics.image import psnr
from leakscope.models import draw_parameters
from leakscope.models.initialise import Given
from leakscope.search.accuracy_score import accuracy_scores
from leakscope.search.privacy_score import Line, privacy_scores
from leakscope.search.utility import Epoch, Examples, Recipe, Schedule, Trained, first_model, train_network

COLOUR = Scaling((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))  # CIFAR-100
GREY = Scaling((0.286,), (0.353,))  # Fashion-MNIST
PUBLISHED_ORDER = (3, 15, 1, 26, 12, 43, 25, 13, 4, 39)
ATTACKED = ("3-1-7", "43-18-18")
PLAIN = Transform(crop=4, flip=True)


@dataclass(frozen=True)
class Bench:
    """What every part needs."""

    told: argparse.Namespace
    examples: Examples
    results: dict[str, Any]

    @property
    def out(self) -> Path:
        return Path(self.told.out)

    def unit(self, name: str, make: Callable[[], Any]) -> Any:
        """Return a unit's result, made now unless it is already there."""
        if name not in self.results:
            began = time.perf_counter()
            made = make()
            self.results[name] = made
            self.results.setdefault("seconds", {})[name] = round(time.perf_counter() - began, 1)
            write(self.out / "results.json", self.results)
            print(f"{name}: {self.results['seconds'][name]} s", flush=True)
        return self.results[name]


def write(path: Path, value: Any) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    os.replace(part, path)


# -- training


def train(bench: Bench, name: str, recipe: Recipe) -> Trained:
    def watch(epoch: Epoch) -> None:
        if epoch.number % 10 == 9 or epoch.number + 1 == recipe.schedule.epochs:
            print(f"{name} epoch {epoch.number + 1}: loss {epoch.loss:.3f}, test {epoch.test_accuracy:.3f}", flush=True)

    made = train_network(
        recipe, bench.examples, device=bench.told.device, directory=bench.out / name, watch=watch, save_every=10
    )
    bench.unit(f"train/{name}", lambda: {"epochs": len(made.history), "test_accuracy": made.history[-1].test_accuracy})
    return made


def attacked_model(bench: Bench) -> Model:
    """Return the network that is attacked: trained on all examples."""
    schedule = Schedule().shortened(bench.told.epochs)
    recipe = Recipe("resnet20", (("width", bench.told.width),), PLAIN, schedule)
    return train(bench, f"full-{bench.told.epochs}", recipe).model


def scoring_model(bench: Bench) -> Model:
    """Return the network of the privacy score: half of the examples (a tenth of CIFAR-100's), 50 epochs at rate 0.1."""
    schedule = Schedule(epochs=bench.told.score_epochs, milestones=())
    recipe = Recipe("resnet20", (("width", bench.told.width),), PLAIN, schedule, seed=1, share=0.5)
    return train(bench, f"score-{bench.told.score_epochs}", recipe).model


# -- attacks


def private(bench: Bench, number: int) -> Batch:
    """Return the first test pictures, one a client."""
    x = bench.examples.x_test[:number].float() / 255
    return make_batch(x[:, None], bench.examples.y_test[:number, None], classes=bench.examples.classes)


@dataclass(frozen=True)
class Faced:
    """Many clients with their policies: truth, what their networks saw, what the server saw, what it is told."""

    truth: Tensor
    moved: Tensor
    seen: Observation
    knowledge: Knowledge
    seeds: list[int]


def face(model: Model, batch: Batch, policies: Sequence[str], *, aware: bool = False) -> Faced:
    """Return the clients of every policy on the same pictures with the same draws, as one batch."""
    seeds = list(range(batch.trials))
    weights = draw_parameters(model, Given(), random.key(seeds))
    parts, moved = [], []
    knowledge: list[Knowledge] = []
    for policy in policies:
        client = Client(scaling=COLOUR if model.input_shape[0] == 3 else GREY, on_data=Transform(policy))
        observation = client.observe(model, weights, batch, seeds)
        own = attacker_knowledge(model, client, batch, labels=True)
        knowledge.append(knowledge_of_defences(own, client, observation) if aware else own)
        parts.append(observation)
        moved.append(client.transformed(batch, seeds).inputs)
    seen, know = map_tensors(
        lambda *each: torch.cat(each), (parts[0], knowledge[0]), *zip(parts[1:], knowledge[1:], strict=True)
    )
    many = len(policies)
    return Faced(batch.inputs.repeat(many, 1, 1, 1, 1), torch.cat(moved), seen, know, seeds * many)


def attack(bench: Bench, model: Model, how: Attack, faced: Faced, form: str | None, title: str) -> dict[str, Any]:
    """Return the PSNR of every lane against T(x) and against x; pictures are kept beside the results."""
    last = [time.monotonic()]

    def progress(state: Any) -> None:
        if time.monotonic() - last[0] > 30:
            last[0] = time.monotonic()
            print(f"  {title} step {state.iteration}", flush=True)

    execution = Execution(device=bench.told.device, form=form, progress=progress)
    made = how.run(model, faced.seen, faced.knowledge, faced.seeds, execution)
    seen = made.inputs if made.seen is None else made.seen
    np.savez_compressed(
        bench.out / f"pictures-{title}.npz",
        **{
            name: (value.clamp(0, 1) * 255).round().to(torch.uint8).squeeze(1).numpy()
            for name, value in {"x": faced.truth, "T": faced.moved, "seen": seen, "inputs": made.inputs}.items()
        },
    )
    return {
        "psnr_T": psnr(faced.moved, seen.clamp(0, 1)).flatten().tolist(),
        "psnr_x": psnr(faced.truth, made.inputs.clamp(0, 1)).flatten().tolist(),
        "psnr_x_as_seen": psnr(faced.truth, seen.clamp(0, 1)).flatten().tolist(),
        "mismatch": made.mismatch.tolist(),
        "iterations": bench.told.iterations,
    }


def plain_psnr(bench: Bench, model: Model, policies: Sequence[str], images: int) -> dict[str, dict[str, list[float]]]:
    """Return the default attack's PSNR for every policy; groups of equal width, so that one compiled program serves all."""
    each = max(1, bench.told.lanes // images)
    wanted = list(dict.fromkeys(policies))
    for first in range(0, len(wanted), each):
        group = wanted[first : first + each]
        padded = group + [group[-1]] * (each - len(group) if len(wanted) > each else 0)
        name = f"plain/{images}/{bench.told.iterations}/{group[0]}..{group[-1]}/{len(group)}"

        def make(padded: list[str] = padded, group: list[str] = group, first: int = first) -> dict[str, Any]:
            faced = face(model, private(bench, images), padded)
            made = attack(
                bench, model, ig(iterations=bench.told.iterations), faced, bench.told.form, f"plain-{images}-{first}"
            )
            cut = {
                key: np.reshape(value, (-1, images)).tolist() for key, value in made.items() if isinstance(value, list)
            }
            return {policy: {key: rows[i] for key, rows in cut.items()} for i, policy in enumerate(group)}

        bench.unit(name, make)
    found: dict[str, dict[str, list[float]]] = {}
    for name, value in bench.results.items():
        if name.startswith(f"plain/{images}/{bench.told.iterations}/"):
            found |= value
    return found


# -- parts


def part_a(bench: Bench) -> None:
    """Enhanced against default: PSNR against T(x) and x, on the same pictures."""
    model, images = attacked_model(bench), bench.told.images
    plain_psnr(bench, model, [*ATTACKED, "none"], images)

    def enhanced() -> dict[str, Any]:
        faced = face(model, private(bench, images), ATTACKED)
        x, y = (torch.tensor([BOUNDS[p][i] for p in ATTACKED]).repeat_interleave(images) for i in (0, 1))
        how = ig_shift(bound_x=x, bound_y=y, iterations=bench.told.iterations)
        made = attack(bench, model, how, faced, bench.told.form_map, "enhanced")
        cut = {key: np.reshape(value, (-1, images)).tolist() for key, value in made.items() if isinstance(value, list)}
        return {policy: {key: rows[i] for key, rows in cut.items()} for i, policy in enumerate(ATTACKED)}

    bench.unit(f"enhanced/{images}/{bench.told.iterations}", enhanced)


def scores(bench: Bench, model: Model, policies: Sequence[str], number: int = 100) -> None:
    """Score policies: S_pri on test pictures 200 + 5 i, S_acc on ten batches of 100, untrained network."""
    device = bench.told.device
    wanted = [policy for policy in policies if policy not in bench.results.setdefault("scores", {})]
    data = bench.examples
    places = torch.arange(number) * 5 + 200
    x, y = (data.x_test[places].float() / 255).to(device), data.y_test[places].to(device)
    fresh = to(
        first_model("resnet20", tuple(x.shape[1:]), data.classes, {"width": bench.told.width}, seed=7), device=device
    )
    batches = [
        ((data.x_test[i : i + 100].float() / 255).to(device), data.y_test[i : i + 100].to(device))
        for i in range(0, min(1000, len(data.x_test)), 100)
    ]
    there = to(model, device=device)
    for first in range(0, len(wanted), 10):
        group = wanted[first : first + 10]
        hows = [Transform(policy) for policy in group]
        privacy = [
            privacy_scores(
                there, x, y, hows, scaling=data.scaling, line=Line(per_tensor=each, at_once=bench.told.at_once)
            )
            for each in (True, False)
        ]
        accuracy = accuracy_scores(fresh, batches, hows, scaling=data.scaling)
        for i, policy in enumerate(group):
            one = {
                "privacy": float(privacy[0][i]),
                "privacy_global": float(privacy[1][i]),
                "accuracy": float(accuracy[i]),
            }
            bench.results["scores"][policy] = one
        write(bench.out / "results.json", bench.results)
        print(f"scores: {first + len(group)} of {len(wanted)} policies", flush=True)


def part_b(bench: Bench) -> None:
    """All 50 operations alone."""
    every = [str(i) for i in range(len(OPERATIONS))]
    scores(bench, scoring_model(bench), [*every, "none"])
    plain_psnr(bench, attacked_model(bench), every, bench.told.images_each)


def random_policies(number: int, seed: int) -> list[str]:
    """Return random policies of three operations, none twice."""
    drawn = (random.uniform(random.key(seed), (4 * number, 3)) * len(OPERATIONS)).long().tolist()
    return list(dict.fromkeys("-".join(map(str, each)) for each in drawn))[:number]


def part_c(bench: Bench) -> None:
    """Privacy score against PSNR."""
    policies = random_policies(bench.told.policies, seed=11)
    scores(bench, scoring_model(bench), [*policies, *ATTACKED, "none"])
    plain_psnr(bench, attacked_model(bench), policies, bench.told.images)


def part_d(bench: Bench) -> None:
    """The attacker who knows the policy."""
    part_a(bench)
    model, images = attacked_model(bench), bench.told.images
    for policy in ATTACKED:

        def make(policy: str = policy) -> dict[str, Any]:
            faced = face(model, private(bench, images), [policy], aware=True)
            how = ig_policy(iterations=bench.told.iterations)
            return attack(bench, model, how, faced, bench.told.form_map, f"known-{policy}")

        bench.unit(f"known/{policy}/{images}/{bench.told.iterations}", make)


def join(faced: Sequence[Faced]) -> Faced:
    """Return several groups of clients as one batch; each has the weights and buffers of its own network."""
    first, *rest = [(f.truth, f.moved, f.seen, f.knowledge) for f in faced]
    truth, moved, seen, knowledge = map_tensors(lambda *each: torch.cat(each), first, *rest)
    return Faced(truth, moved, seen, knowledge, [seed for f in faced for seed in f.seeds])


def part_t(bench: Bench) -> None:
    """Networks trained with their policies, attacked under them."""
    chosen, images = bench.told.table.split(","), bench.told.images
    policies = ["none", *chosen, "+".join(chosen)]
    models = {}
    for policy in policies:
        schedule = Schedule().shortened(bench.told.epochs)
        recipe = Recipe("resnet20", (("width", bench.told.width),), Transform(policy, crop=4, flip=True), schedule)
        models[policy] = train(bench, f"policy-{policy}-{bench.told.epochs}", recipe).model

    def attacked(how: Attack, chosen: Sequence[str], title: str, form: str | None) -> dict[str, Any]:
        faced = join([face(models[policy], private(bench, images), [policy]) for policy in chosen])
        made = attack(bench, models["none"], how, faced, form, title)
        cut = {key: np.reshape(value, (-1, images)).tolist() for key, value in made.items() if isinstance(value, list)}
        return {policy: {key: rows[i] for key, rows in cut.items()} for i, policy in enumerate(chosen)}

    steps = bench.told.iterations
    name = f"{images}/{steps}/{'/'.join(policies)}"
    bench.unit(
        f"table/default/{name}", lambda: attacked(ig(iterations=steps), policies, "table-default", bench.told.form)
    )
    bounds = [BOUNDS.get(policy, (1.1, 0.4)) for policy in policies[1:]]
    x, y = (torch.tensor([bound[i] for bound in bounds]).repeat_interleave(images) for i in (0, 1))
    enhanced = ig_shift(bound_x=x, bound_y=y, iterations=steps)
    bench.unit(
        f"table/enhanced/{name}", lambda: attacked(enhanced, policies[1:], "table-enhanced", bench.told.form_map)
    )


def part_e(bench: Bench) -> None:
    """Scores of many random policies."""
    scores(bench, scoring_model(bench), [*random_policies(bench.told.many, seed=13), "none"])


# -- what it comes to


def bootstrap(
    value: Callable[..., float], *columns: Sequence[float], times: int = 10_000
) -> tuple[float, float, float]:
    """Return a value with its 95 % percentile interval over resampled rows."""
    rows = np.column_stack([np.asarray(column, dtype=float) for column in columns])
    draw = np.random.default_rng(0).integers(0, len(rows), (times, len(rows)))
    made = np.array([value(*rows[index].T) for index in draw])
    low, high = np.nanpercentile(made, [2.5, 97.5])
    return float(value(*rows.T)), float(low), float(high)


def pearson(a: Any, b: Any) -> float:
    a, b = np.asarray(a) - np.mean(a), np.asarray(b) - np.mean(b)
    length = np.sqrt((a * a).sum() * (b * b).sum())
    return float((a * b).sum() / length) if length > 0 else float("nan")


def spearman(a: Any, b: Any) -> float:
    return pearson(ranks(a), ranks(b))


def ranks(values: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return ranks; equal values share their mean rank."""
    values = np.asarray(values, dtype=float)
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return ((ends - counts + ends - 1) / 2)[inverse]


def said(made: tuple[float, float, float]) -> str:
    return f"{made[0]:.3f} [{made[1]:.3f}, {made[2]:.3f}]"


def mean(a: Any) -> float:
    return float(np.mean(a))


def gain(a: Any, b: Any) -> float:
    return float(np.mean(np.asarray(a) - np.asarray(b)))


def summary(bench: Bench) -> list[str]:
    """Return what the results say, in lines."""
    kept, t = bench.results, bench.told
    lines = [
        f"{name}: test accuracy {value['test_accuracy']:.4f} after {value['epochs']} epochs"
        for name, value in kept.items()
        if name.startswith("train/")
    ]
    plain: dict[str, Any] = {}
    alone: dict[str, Any] = {}
    for name, value in kept.items():
        if name.startswith(f"plain/{t.images}/{t.iterations}/"):
            plain |= value
        if name.startswith(f"plain/{t.images_each}/{t.iterations}/"):
            alone |= value
    better = kept.get(f"enhanced/{t.images}/{t.iterations}", {})
    for policy in ATTACKED:
        known = kept.get(f"known/{policy}/{t.images}/{t.iterations}")
        for against in ("psnr_T", "psnr_x"):
            for title, value in (
                ("default", plain.get(policy)),
                ("enhanced", better.get(policy)),
                ("knows the policy", known),
            ):
                if value:
                    lines.append(
                        f"{policy} {against} {title}: {said(bootstrap(mean, value[against]))} dB, n = {len(value[against])}"
                    )
            if policy in plain and policy in better:
                made = bootstrap(gain, better[policy][against], plain[policy][against])
                lines.append(f"{policy} {against} enhanced - default: {said(made)} dB")
            if known and policy in better:
                made = bootstrap(gain, known[against], better[policy][against])
                lines.append(f"{policy} {against} knows the policy - enhanced: {said(made)} dB")
    for name, value in kept.items():
        if name.startswith("table/"):
            for policy, found in value.items():
                against = [f"{key} {said(bootstrap(mean, found[key]))}" for key in ("psnr_T", "psnr_x")]
                n = len(found["psnr_T"])
                lines.append(
                    f"trained with its policy, {name.split('/')[1]}, {policy}: {', '.join(against)} dB, n = {n}"
                )
    return lines + score_lines(kept.get("scores", {}), plain, alone)


def score_lines(scored: dict[str, Any], plain: dict[str, Any], alone: dict[str, Any]) -> list[str]:
    lines = []
    single = [str(i) for i in range(len(OPERATIONS)) if str(i) in scored]
    if len(single) == len(OPERATIONS):
        order = sorted(single, key=lambda p: scored[p]["privacy"])
        lines.append(
            "best ten alone by privacy score: " + ", ".join(f"{p} {OPERATIONS[int(p)].kind}" for p in order[:10])
        )
        lines.append(
            "worst ten alone by privacy score: " + ", ".join(f"{p} {OPERATIONS[int(p)].kind}" for p in order[-10:])
        )
        ours = [scored[str(p)]["privacy"] for p in PUBLISHED_ORDER]
        lines.append(f"rank correlation with the published ten: {said(bootstrap(spearman, ours, range(10)))}, n = 10")
    if single and all(p in alone for p in single):
        order = sorted(single, key=lambda p: mean(alone[p]["psnr_T"]))
        lines.append(
            "best ten alone by PSNR against T(x): " + ", ".join(f"{p} {OPERATIONS[int(p)].kind}" for p in order[:10])
        )
        made = bootstrap(spearman, [scored[p]["privacy"] for p in single], [mean(alone[p]["psnr_T"]) for p in single])
        lines.append(f"operations alone, privacy score against PSNR: Spearman {said(made)}, n = {len(single)}")
    both = [p for p in scored if p.count("-") == 2 and p in plain and p not in ATTACKED]
    for against in ("psnr_T", "psnr_x") if len(both) > 2 else ():
        for kind in ("privacy", "privacy_global"):
            x, y = [scored[p][kind] for p in both], [mean(plain[p][against]) for p in both]
            lines.append(
                f"{kind} against {against}: Pearson {said(bootstrap(pearson, x, y))}, "
                f"Spearman {said(bootstrap(spearman, x, y))}, n = {len(both)} policies"
            )
    many = [p for p in scored if p.count("-") == 2 and p not in ATTACKED]
    if many and "none" in scored:
        none = scored["none"]
        worse = mean(
            [scored[p]["privacy"] > none["privacy"] and scored[p]["accuracy"] < none["accuracy"] for p in many]
        )
        average = mean([scored[p]["privacy"] for p in many])
        lines.append(
            f"privacy score: none {none['privacy']:.3f}, random {average:.3f} (n = {len(many)}); published .32 and .38"
        )
        lines.append(f"worse than none on both scores: {worse:.3f} of {len(many)}")
    lines += [
        f"{p}: privacy {scored[p]['privacy']:.3f}, accuracy {scored[p]['accuracy']:.1f}"
        for p in ATTACKED
        if p in scored
    ]
    return lines


def read_examples(path: str, limit: int | None) -> Examples:
    data = read_npz(path)
    part = slice(0, limit)
    return Examples(
        torch.from_numpy(np.array(data.x_train[part])),
        torch.from_numpy(np.array(data.y_train[part])),
        torch.from_numpy(np.array(data.x_test)),
        torch.from_numpy(np.array(data.y_test)),
        data.classes,
        COLOUR if data.input_shape[0] == 3 else GREY,
    )


PARTS = {"a": part_a, "b": part_b, "c": part_c, "d": part_d, "t": part_t, "e": part_e}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", required=True, help="cifar100.npz with x_train, y_train, x_test, y_test")
    parser.add_argument("--out", required=True, help="directory of results; a cut run goes on there")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--parts", default="train,a,d,c,b,t", help="in this order; none prints what is there")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=60, help="of the attacked network; milestones in proportion")
    parser.add_argument("--score-epochs", type=int, default=50)
    parser.add_argument("--images", type=int, default=20, help="pictures of parts a, c and d")
    parser.add_argument("--images-each", type=int, default=8, help="pictures of part b")
    parser.add_argument("--iterations", type=int, default=2500)
    parser.add_argument("--policies", type=int, default=30, help="random policies of part c")
    parser.add_argument(
        "--table", default="3-1-7,43-18-18", help="policies of part t; 19-15-45,2-43-21 on Fashion-MNIST"
    )
    parser.add_argument("--many", type=int, default=1500, help="random policies of part e")
    parser.add_argument("--lanes", type=int, default=400, help="clients attacked at once by the default attack")
    parser.add_argument("--at-once", type=int, default=50, help="pictures of a privacy score at once")
    parser.add_argument("--form", default=None, help="form of the default attack; measured if not given")
    parser.add_argument("--form-map", default=None, help="form of the other attacks; measured if not given")
    parser.add_argument("--examples", type=int, default=None, help="only so many training examples")
    chosen = parser.parse_args()
    out = Path(chosen.out)
    out.mkdir(parents=True, exist_ok=True)
    there = out / "results.json"
    results = json.loads(there.read_text(encoding="utf-8")) if there.exists() else {}
    same = {name: getattr(chosen, name) for name in ("width", "epochs", "score_epochs", "examples")}
    if results.setdefault("settings", same) != same and chosen.parts != "none":
        parser.error(f"{out} holds results of {results['settings']}, not of {same}: use another --out")
    bench = Bench(chosen, read_examples(chosen.data, chosen.examples), results)
    for part in chosen.parts.split(","):
        if part == "train":
            attacked_model(bench)
            scoring_model(bench)
        elif part in PARTS:
            PARTS[part](bench)
        elif part != "none":
            parser.error(f"--parts must be of train, {', '.join(PARTS)} or none, got {part!r}")
    print("\n".join(summary(bench)))


if __name__ == "__main__":
    main()
