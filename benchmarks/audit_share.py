"""At which share of its authors' iterations the verdict of an audit stops changing, on ten networks of the catalogue.

    python benchmarks/audit_share.py [clients] [--out FILE] [--only NAME ...]

    python benchmarks/audit_share.py --read FILE ...

Every network gets the whole suite at 1/64, 1/32, ... 1 of the iterations that the attacks' authors run, on digits. A row gives
the grade at each share and the smallest share from which on the grade, and whether it is a good one (A, B), no longer changes.
`--out` keeps every verdict as it comes, as a line of JSON, and a second run with as many clients goes on after them, also after it was
killed in the middle of a line; `--read` prints the table of such files.
`auditing.attempts.ENOUGH_SHARE` is chosen from the table, which is in docs/reference/audit.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from leakscope.auditing import Target
from leakscope.auditing.attack_runs import (
    LabelReading,
    expose_clients,
    null_runs,
    plan_exposure,
    public_examples,
    read_labels,
    run_with,
)
from leakscope.auditing.target import make_subject
from leakscope.auditing.verdict import grade
from leakscope.core.types import LocalTraining
from leakscope.data import load
from leakscope.models import MODELS

SHARES = tuple(Fraction(1, 2**power) for power in range(6, -1, -1))
STEPS = LocalTraining(epochs=2, batch_size=2, rate=0.05)
WIDE, MIDDLE = 0.5, 0.2  # weights drawn from [-0.5, 0.5], as the authors of DLG do for their LeNet; and narrower


class Case(NamedTuple):
    """A network, the examples of a client, the side of its pictures, its local training, and the width of the weights."""

    network: str
    examples: int = 1
    side: int = 8
    local: LocalTraining | None = None
    wide: float | None = None  # None: torch's first weights
    activation: str | None = None  # None: the network's own
    trained: int = 0  # steps of Adam on 1,000 other digits, 64 at a time


CASES = {
    "lenet_dlg": Case("lenet_dlg"),
    "lenet_dlg, 4 examples": Case("lenet_dlg", 4),
    "lenet_dlg, weights 0.12": Case("lenet_dlg", wide=0.12),
    "lenet_dlg, weights 0.15": Case("lenet_dlg", wide=0.15),
    "lenet_dlg, weights 0.18": Case("lenet_dlg", wide=0.18),
    "lenet_dlg, 2 examples, weights 0.2": Case("lenet_dlg", 2, wide=MIDDLE),
    "lenet_dlg, 4 examples, weights 0.2": Case("lenet_dlg", 4, wide=MIDDLE),
    "lenet_dlg, wide weights": Case("lenet_dlg", wide=WIDE),
    "lenet_dlg, trained": Case("lenet_dlg", trained=200),
    "lenet_dlg, tanh, 8 examples": Case("lenet_dlg", 8, activation="tanh"),
    "lenet_cpl": Case("lenet_cpl"),
    "lenet_cpl, 4 examples": Case("lenet_cpl", 4),
    "lenet_cpl, weights 0.15": Case("lenet_cpl", wide=0.15),
    "lenet_cpl, weights 0.2": Case("lenet_cpl", wide=MIDDLE),
    "lenet_cpl, weights 0.25": Case("lenet_cpl", wide=0.25),
    "lenet_cpl, 2 examples, weights 0.25": Case("lenet_cpl", 2, wide=0.25),
    "lenet_cpl, 4 examples, weights 0.25": Case("lenet_cpl", 4, wide=0.25),
    "lenet_cpl, wide weights": Case("lenet_cpl", wide=WIDE),
    "lenet_cpl, trained": Case("lenet_cpl", trained=200),
    "cnn_mnist": Case("cnn_mnist"),
    "cnn_mnist, 2 examples, trained": Case("cnn_mnist", 2, trained=200),
    "cnn_mnist, 4 examples, trained": Case("cnn_mnist", 4, trained=200),
    "cnn_mnist, 8 examples, trained": Case("cnn_mnist", 8, trained=200),
    "cnn_mnist, 16 examples, trained": Case("cnn_mnist", 16, trained=200),
    "cnn_cifar": Case("cnn_cifar"),
    "cnn_cifar, 8 examples, 12 x 12, trained": Case("cnn_cifar", 8, 12, trained=200),
    "cnn_cifar, 4 examples, 12 x 12, trained": Case("cnn_cifar", 4, 12, trained=200),
    "convnet, 9 x 9": Case("convnet", side=9),
    "convnet, 8 examples, 12 x 12, trained": Case("convnet", 8, 12, trained=200),
    "resnet8": Case("resnet8"),
    "resnet8, 8 examples, trained": Case("resnet8", 8, trained=200),
    "resnet20, 16 x 16, trained": Case("resnet20", side=16, trained=200),
    "resnet20_dlg": Case("resnet20_dlg"),
    "vit": Case("vit"),
    "vit, 8 examples, trained": Case("vit", 8, trained=200),
    "mlp, 16 examples": Case("mlp", 16),
    "mlp_sme, 4 examples in local steps": Case("mlp_sme", 4, local=STEPS),
    "lenet_sme, 4 examples in local steps, 12 x 12": Case("lenet_sme", 4, 12, STEPS),
}
GOOD = ("A", "B")
Verdict = tuple[str, int]  # the grade, and the number of recovered examples of the best attack


def target_of(case: Case, device: str) -> Target:
    """Return what is audited."""
    data = load("digits")
    inputs, labels = digits(case, range(96))
    torch.manual_seed(0)
    settings = {} if case.activation is None else {"activation": case.activation}
    model = MODELS[case.network](input_shape=tuple(inputs.shape[1:]), classes=data.classes, **settings)
    for weight in model.parameters() if case.wide is not None else ():
        nn.init.uniform_(weight, -case.wide, case.wide)
    train(model, *digits(case, range(96, 1096)), case.trained)
    return Target(
        model=model.eval().to(device), inputs=inputs, labels=labels, examples=case.examples, client=case.local
    )


def digits(case: Case, rows: range) -> tuple[Tensor, Tensor]:
    """Return images and labels."""
    data = load("digits")
    inputs, labels = data.pictures("train", rows), torch.as_tensor(data.labels("train", rows))
    if case.side != inputs.shape[-1]:
        inputs = functional.interpolate(inputs, size=case.side, mode="bilinear").clamp(0, 1)
    return inputs, labels


def train(model: nn.Module, inputs: Tensor, labels: Tensor, steps: int) -> None:
    """Train in place."""
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(steps):
        rows = torch.arange(64 * step, 64 * step + 64) % len(inputs)
        optimiser.zero_grad()
        functional.cross_entropy(model(inputs[rows]), labels[rows]).backward()
        optimiser.step()


def verdicts(name: str, clients: int, device: str, shares: Sequence[Fraction]) -> Iterator[Verdict]:
    """Yield the verdict at every share."""
    subject = make_subject(target_of(CASES[name], device))
    exposure = expose_clients(subject, clients, 0)
    entries, _ = plan_exposure(exposure, unmatched=subject.unmatched)
    nulls, _ = null_runs(exposure, public_examples(subject, exposure.trials, 0))
    reading = read_labels(exposure)
    read = reading if isinstance(reading, LabelReading) else None
    for share in shares:
        runs = [run_with(exposure, entry, max(1, round(share * (entry.most or 0)))) for entry in entries]
        yield str(grade(runs, nulls, read)), max(int(run.recovered.sum()) for run in runs)


def settled(values: list[str]) -> Fraction:
    """Return the smallest share from which on the values no longer change."""
    last = max((place for place, value in enumerate(values) if value != values[-1]), default=-1)
    return SHARES[last + 1]


def row(name: str, found: Sequence[Verdict]) -> str:
    """Return a row of the table; shares that were not run are empty."""
    grades = [each for each, _ in found]
    good = ["good" if each in GOOD else "bad" for each in grades]
    cells = [f"{each} ({recovered})" for each, recovered in found] + ["-"] * (len(SHARES) - len(found))
    ends = [str(settled(each)) if len(found) == len(SHARES) else "not settled" for each in (grades, good)]
    return f"| {name} | {' | '.join([*cells, *ends])} |"


def read(files: Sequence[Path], clients: int | None = None) -> dict[str, list[Verdict]]:
    """Return the verdicts in the files by case, each from the first share on without a gap; None: of any number of clients."""
    kept: dict[str, dict[Fraction, Verdict]] = {}
    for file in files:
        for line in file.read_text("utf-8").splitlines() if file.exists() else ():
            stored = stored_line(line)
            if stored is not None and clients in (None, stored["clients"]):
                verdict = str(stored["grade"]), int(stored["recovered"])
                kept.setdefault(stored["case"], {})[Fraction(stored["share"])] = verdict
    return {
        name: [found[share] for share in itertools.takewhile(found.__contains__, SHARES)]
        for name, found in kept.items()
    }


def stored_line(line: str) -> dict[str, Any] | None:
    """Return what a line stores; None for one that a killed run left unfinished."""
    try:
        stored = json.loads(line)
    except json.JSONDecodeError:
        return None
    return stored if isinstance(stored, dict) else None


def store(file: Path, **stored: object) -> None:
    """Append a verdict as a line of its own, on the disk before the next is computed."""
    torn = file.exists() and file.stat().st_size > 0 and not file.read_bytes().endswith(b"\n")
    with file.open("a", encoding="utf-8") as out:
        out.write("\n" * torn + json.dumps(stored) + "\n")
        out.flush()
        os.fsync(out.fileno())


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, a row as soon as it is known."""
    parser = argparse.ArgumentParser()
    parser.add_argument("clients", nargs="?", type=int, default=8)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--read", nargs="*", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--good-only", action="store_true", help="leave a case that is not A or B at the first share")
    parser.add_argument("--only", nargs="*", default=list(CASES))
    given = parser.parse_args(arguments)
    print(f"| network | {' | '.join(map(str, SHARES))} | grade settled | word settled |")
    print("|---" * (len(SHARES) + 3) + "|")
    for name, found in read(given.read or ()).items():
        print(row(name, found))
    kept = {} if given.out is None else read([given.out], given.clients)
    for name in given.only if given.read is None else ():
        found = kept.get(name, [])
        shares = SHARES[len(found) :]
        done = not shares or bad(given.good_only, found)
        for share, verdict in (
            () if done else zip(shares, verdicts(name, given.clients, given.device, shares), strict=True)
        ):
            found = [*found, verdict]
            if given.out is not None:
                word, recovered = verdict
                store(given.out, case=name, clients=given.clients, share=str(share), grade=word, recovered=recovered)
            if bad(given.good_only, found):
                break
        print(row(name, found), flush=True)


def bad(good_only: bool, found: Sequence[Verdict]) -> bool:
    """Return whether a case is left because its first grade is not good."""
    return good_only and bool(found) and found[0][0] not in GOOD


if __name__ == "__main__":
    main()
