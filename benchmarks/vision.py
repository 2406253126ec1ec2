"""What attacks on ResNet18 get back: clients in train and eval mode, with and without sent buffers, beside null baselines.

    LEAKSCOPE_DATA=... python benchmarks/vision.py --device cuda --steps 10000 --out vision.tmp --minutes 9
    LEAKSCOPE_DATA=... python benchmarks/vision.py --steps 5 --trials 1 --width 8 --data cifar10 --batches 1   # on a CPU
    python benchmarks/vision.py --out vision.tmp --merge    # rows of OUT join benchmarks/vision.jsonl, the table

One line of OUT/results.jsonl is one attack in one setting, all trials of which run as one batch. A call again does the settings that
neither OUT nor the table has, in the order of the arguments, and continues inside the one that `--minutes` or a kill has cut: keep
OUT between calls. A part of the table: `--data cifar10 --batches 1 --clients sent --attacks ig`. Fresh weights, one set a trial; labels are
known to every attacker; rows are mean +- standard deviation over trials. An attacker who gets buffers adds the prior on batch
statistics (`--bn`); gradinversion has it always. A client in eval mode changes no buffer, so it is one setting. Imports torch, numpy,
scipy and safetensors alone.
"""

from __future__ import annotations

import argparse
import itertools
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from leakscope.attacks.attack import Matching
from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.recipes import ig
from leakscope.attacks.vision import gradinversion, modern
from leakscope.clients import Client
from leakscope.core import random
from leakscope.core.model import Mode
from leakscope.core.pairing import pair, squared_distances
from leakscope.core.tree import to
from leakscope.core.types import Batch, make_batch
from leakscope.data import Dataset, load
from leakscope.metrics.context import Context
from leakscope.metrics.identification import iip_pixels
from leakscope.models import Torch, build, draw_parameters
from leakscope.play import AttackResult, Exposure, attack, expose, judge
from leakscope.play.baselines import baselines, public_part
from stored_rows import add_rows, holds, merge_rows, read_lines, read_rows

CLIENTS: dict[str, tuple[Mode, bool]] = {"sent": ("train", True), "eval": ("eval", False), "train": ("train", False)}
ATTACKS = ("ig", "modern", "gradinversion")
TABLE = Path(__file__).with_suffix(".jsonl")
PLAIN = ("steps", "trials", "width", "group", "tv", "bn", "tf32")


@dataclass(frozen=True)
class Setting:
    """One line of the table."""

    data: str
    batch: int
    norm: str
    buffers: bool
    attack: str


def settings_of(args: argparse.Namespace) -> Iterator[Setting]:
    """Yield every setting asked for, baselines first."""
    for batch, data in itertools.product(args.batches, args.data):
        yield Setting(data, batch, "", False, "baselines")
        for client, name in itertools.product(args.clients, args.attacks):
            yield Setting(data, batch, *CLIENTS[client], name)


def private_batch(data: Dataset, batch: int, trials: int) -> Batch:
    """Return test images spread over the set, so that labels differ."""
    places = torch.linspace(0, data.size("test") - 1, batch * trials).long()
    inputs = data.pictures("test", places).reshape(trials, batch, *data.input_shape)
    return make_batch(inputs, data.labels("test", places).reshape(trials, batch), classes=data.classes)


def exposed(setting: Setting, args: argparse.Namespace, data: Dataset) -> Exposure:
    """Return the updates of the clients of a setting."""
    seeds = list(range(args.trials))
    model = build("resnet18", data.input_shape, data.classes, {"stem": "small", "width": args.width})
    weights = draw_parameters(model, Torch(), random.key(seeds))
    model, weights = to((model, weights), device=args.device)
    norm: Mode = "train" if setting.norm == "train" else "eval"
    client = Client(scaling=data.statistics, norm=norm, sends_buffers=setting.buffers)
    return expose(model, client, weights, private_batch(data, setting.batch, args.trials), seeds, labels=True)


def method_of(setting: Setting, args: argparse.Namespace) -> Matching:
    """Return the attack of a setting."""
    bn = args.bn if setting.buffers else 0.0
    makers: dict[str, Callable[[], Matching]] = {
        "ig": lambda: ig(iterations=args.steps, tv=args.tv, bn=bn),
        "modern": lambda: modern(iterations=args.steps, bn=bn),
        "gradinversion": lambda: gradinversion(iterations=args.steps, group=args.group),
    }
    return makers[setting.attack]()


def rows_of(setting: Setting, args: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Yield the results of a setting: one of an attack, three of the baselines."""
    data = load(setting.data)
    truth = private_batch(data, setting.batch, args.trials)
    public, labels = public_part(data, "test")
    context = Context(truth.labels, public, labels)
    if setting.attack == "baselines":
        seeds = list(range(args.trials))
        null = baselines(truth, public, labels, classes=data.classes, seeds=seeds, scaling=data.statistics)
        for name, reconstruction in null.items():
            result = judge(truth, reconstruction)
            yield {"result": name, **scores_of(result, truth, context)}
        return
    name = "-".join(str(value) for value in asdict(setting).values())
    work = Path(args.out) / f"{name}-{args.steps}"
    execution = Execution(device=args.device, directory=work, tf32=args.tf32, save_every=args.save_every)
    result = attack(exposed(setting, args, data), method_of(setting, args), execution=execution)
    yield {
        "result": setting.attack,
        **scores_of(result, truth, context),
        "mismatch": [round(value, 6) for value in result.reconstruction.mismatch.tolist()],
        "seconds": round(result.seconds, 1),
    }


def scores_of(result: AttackResult, truth: Batch, context: Context) -> dict[str, object]:
    """Return PSNR, SSIM and the share of images that are nearer to their guess than 99 public images of their class (chance 0.01)."""
    guesses = result.reconstruction.inputs.cpu()
    places = [pair(squared_distances(*both)) for both in zip(truth.inputs, guesses, strict=True)]
    paired = torch.stack([each[place] for each, place in zip(guesses, places, strict=True)])
    identified = means(iip_pixels(truth.inputs, paired, context))
    return {"psnr": means(result.scores.psnr), "ssim": means(result.scores.ssim), "iip": identified}


def means(scores: Tensor | None) -> list[float]:
    """Return the mean over the images of each trial."""
    return [] if scores is None else [round(value, 4) for value in scores.double().mean(1).tolist()]


def spread(values: object) -> str:
    """Return mean and standard deviation over trials."""
    numbers = torch.tensor(values if isinstance(values, list) else [], dtype=torch.float64)
    if not len(numbers):
        return "-"
    return f"{float(numbers.mean()):.2f} +- {float(numbers.std()) if len(numbers) > 1 else 0:.2f}"


def show(rows: list[dict[str, object]]) -> None:
    """Print the rows as a table."""
    print(
        f"{'data':10} {'batch':>5} {'client':6} {'buffers':8} {'attack':15} {'steps':>6} {'n':>3}  {'PSNR':16} {'SSIM':16} IIP"
    )
    for row in rows:
        n = len(row["psnr"]) if isinstance(row["psnr"], list) else 0
        sent = {True: "sent", False: "not sent"}[bool(row["buffers"])] if row["norm"] else ""
        text = (
            f"{row['data']:10} {row['batch']:>5} {row['norm']:6} {sent:8} {row['result']:15} {row['steps']:>6} {n:>3}"
        )
        print(f"{text}  {spread(row['psnr']):16} {spread(row['ssim']):16} {spread(row['iip'])}")


def options() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", nargs="+", default=["cifar10", "lfw_face"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS, default=list(ATTACKS))
    parser.add_argument(
        "--clients", nargs="+", choices=CLIENTS, default=list(CLIENTS), help="sent: in train mode, with its buffers"
    )
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--width", type=int, default=64, help="filters of the first stage")
    parser.add_argument("--group", type=int, default=4, help="guesses of gradinversion")
    parser.add_argument("--tv", type=float, default=0.2, help="weight of ig's total variation")
    parser.add_argument(
        "--bn", type=float, default=1e-3, help="weight of ig's and modern's prior where buffers are sent"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tf32", action="store_true", help="the attacker computes with TF32")
    parser.add_argument("--out", default="vision.tmp")
    parser.add_argument(
        "--minutes", type=float, default=0.0, help="stop after so long; the next call continues; 0: never"
    )
    parser.add_argument("--save-every", type=float, default=30.0, help="seconds between saved states of an attack")
    parser.add_argument("--table", type=Path, default=TABLE, help="file of the rows that are not done again")
    parser.add_argument("--merge", action="store_true", help="add the rows of OUT to the table, print it and end")
    return parser


def stop(*_: object) -> None:
    """End the run: the time is over."""
    raise KeyboardInterrupt


def main() -> int:
    """Run what is missing and print all of it."""
    args = options().parse_args()
    path, began = Path(args.out) / "results.jsonl", time.monotonic()
    stored = read_rows(path.parent)
    if args.merge:
        show(merge_rows(args.table, stored, [*Setting.__dataclass_fields__, *PLAIN, "result"]))
        return 0
    stored += read_lines(args.table)
    plain = {name: getattr(args, name) for name in PLAIN}
    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 60 * args.minutes)
    try:
        for setting in settings_of(args):
            mine = {**asdict(setting), **plain}
            if holds(stored, mine):
                continue
            done = [{**mine, **row} for row in rows_of(setting, args)]
            add_rows(path, done)
            stored += done
            show(done)
            print(f"{time.monotonic() - began:.0f} s", flush=True)
    except KeyboardInterrupt:
        print(f"stopped after {time.monotonic() - began:.0f} s: the same call continues")
    show(stored)
    return 0


if __name__ == "__main__":
    sys.exit(main())
