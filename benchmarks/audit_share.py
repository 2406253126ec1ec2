"""At which share of its authors' iterations the verdict of an audit stops changing, on ten networks of the catalogue.

    python benchmarks/audit_share.py [clients] [--out FILE] [--only NAME ...]

Every network gets the whole suite at 1/64, 1/32, ... 1 of the iterations that the attacks' authors run, on 8 x 8 digits. A row gives
the grade at each share and the smallest share from which on the grade, and whether it is a good one (A, B), no longer changes.
`--out` keeps finished rows as JSON lines, and a second run goes on after them. `auditing.attempts.ENOUGH_SHARE` is chosen from the table,
which is in docs/reference/audit.md.
"""

from __future__ import annotations

import argparse
import json
import time
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn
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
WIDE = 0.5  # weights drawn from [-0.5, 0.5], as the authors of DLG do for their LeNet


class Case(NamedTuple):
    """A network, the examples of a client, the side of its pictures, its local training, and the width of the weights."""

    network: str
    examples: int = 1
    side: int = 8
    local: LocalTraining | None = None
    wide: float | None = None  # None: torch's first weights


CASES = {
    "lenet_dlg": Case("lenet_dlg"),
    "lenet_dlg, 4 examples": Case("lenet_dlg", 4),
    "lenet_cpl": Case("lenet_cpl"),
    "lenet_cpl, 4 examples": Case("lenet_cpl", 4),
    "cnn_mnist": Case("cnn_mnist"),
    "cnn_cifar": Case("cnn_cifar"),
    "convnet, 9 x 9": Case("convnet", side=9),
    "resnet8": Case("resnet8"),
    "resnet20_dlg": Case("resnet20_dlg"),
    "vit": Case("vit"),
    "mlp, 16 examples": Case("mlp", 16),
    "mlp_sme, 4 examples in local steps": Case("mlp_sme", 4, local=STEPS),
    "lenet_sme, 4 examples in local steps, 12 x 12": Case("lenet_sme", 4, 12, STEPS),
    "lenet_dlg, wide weights": Case("lenet_dlg", wide=WIDE),
    "lenet_cpl, wide weights": Case("lenet_cpl", wide=WIDE),
    "lenet_cpl, 2 examples, wide weights": Case("lenet_cpl", 2, wide=WIDE),
}
GOOD = ("A", "B")


def verdicts(name: str, clients: int) -> list[tuple[str, int]]:
    """Return the grade and the number of recovered examples of the best attack at every share."""
    case, data = CASES[name], load("digits")
    inputs, labels = data.pictures("train", range(96)), torch.as_tensor(data.labels("train", range(96)))
    inputs = functional.interpolate(inputs, size=case.side, mode="bilinear").clamp(0, 1) if case.side != 8 else inputs
    torch.manual_seed(0)
    model = MODELS[case.network](input_shape=tuple(inputs.shape[1:]), classes=data.classes).eval()
    for weight in model.parameters() if case.wide is not None else ():
        nn.init.uniform_(weight, -case.wide, case.wide)
    target = Target(model=model, inputs=inputs, labels=labels, examples=case.examples, client=case.local)
    subject = make_subject(target)
    exposure = expose_clients(subject, clients, 0)
    entries, _ = plan_exposure(exposure, unmatched=subject.unmatched)
    nulls, reading = null_runs(exposure, public_examples(subject, exposure.trials, 0)), read_labels(exposure)
    read = reading if isinstance(reading, LabelReading) else None
    rows = []
    for share in SHARES:
        runs = [run_with(exposure, entry, max(1, round(share * (entry.most or 0)))) for entry in entries]
        rows.append((str(grade(runs, nulls, read)), max(int(run.recovered.sum()) for run in runs)))
    return rows


def settled(values: list[str]) -> Fraction:
    """Return the smallest share from which on the values no longer change."""
    last = max((place for place, value in enumerate(values) if value != values[-1]), default=-1)
    return SHARES[last + 1]


def row(name: str, found: list[tuple[str, int]]) -> str:
    """Return a row of the table."""
    grades = [each for each, _ in found]
    good = ["good" if each in GOOD else "bad" for each in grades]
    cells = " | ".join(f"{each} ({recovered})" for each, recovered in found)
    return f"| {name} | {cells} | {settled(grades)} | {settled(good)} |"


def main() -> None:
    """Print the table, a row as soon as it is known."""
    parser = argparse.ArgumentParser()
    parser.add_argument("clients", nargs="?", type=int, default=8)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", nargs="*", default=list(CASES))
    given = parser.parse_args()
    kept = (
        {} if given.out is None or not given.out.exists() else dict(map(json.loads, given.out.read_text().splitlines()))
    )
    print(f"| network | {' | '.join(map(str, SHARES))} | grade settled | word settled |")
    print("|---" * (len(SHARES) + 3) + "|")
    for name in given.only:
        began = time.perf_counter()
        found = [tuple(each) for each in kept[name]] if name in kept else verdicts(name, given.clients)
        if given.out is not None and name not in kept:
            with given.out.open("a") as file:
                file.write(json.dumps([name, found]) + "\n")
        print(row(name, found), f"{time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
