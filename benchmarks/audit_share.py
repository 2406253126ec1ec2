"""At which share of its authors' iterations the verdict of an audit stops changing, on ten networks of the catalogue.

    python benchmarks/audit_share.py [clients] [--out FILE] [--only NAME ...]

Every network gets the whole suite at 1/64, 1/32, ... 1 of the iterations that the attacks' authors run, on 8 x 8 digits. A row gives
the grade at each share and the smallest share from which on the grade, and whether it is a good one (A, B), no longer changes.
`--out` keeps finished rows as JSON lines, and a second run goes on after them. `auditing.verdict.ENOUGH` is chosen from the table,
which is in docs/audit.md.
"""

from __future__ import annotations

import argparse
import json
import time
from fractions import Fraction
from pathlib import Path

import torch

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
CASES: dict[str, tuple[str, int, LocalTraining | None]] = {  # name: network, examples of a client, its local training
    "lenet_dlg": ("lenet_dlg", 1, None),
    "lenet_dlg, 4 examples": ("lenet_dlg", 4, None),
    "lenet_cpl": ("lenet_cpl", 1, None),
    "lenet_cpl, 2 examples": ("lenet_cpl", 2, None),
    "cnn_mnist": ("cnn_mnist", 1, None),
    "cnn_cifar": ("cnn_cifar", 1, None),
    "convnet": ("convnet", 1, None),
    "resnet8": ("resnet8", 1, None),
    "resnet20_dlg": ("resnet20_dlg", 1, None),
    "vit": ("vit", 1, None),
    "vit, 4 examples": ("vit", 4, None),
    "mlp, 16 examples": ("mlp", 16, None),
    "mlp_sme, local steps": ("mlp_sme", 4, STEPS),
    "lenet_sme, local steps": ("lenet_sme", 4, STEPS),
}
GOOD = ("A", "B")


def verdicts(name: str, clients: int) -> list[tuple[str, int]]:
    """Return the grade and the number of recovered examples of the best attack at every share."""
    network, examples, local = CASES[name]
    data = load("digits")
    inputs, labels = data.pictures("train", range(96)), torch.as_tensor(data.labels("train", range(96)))
    torch.manual_seed(0)
    model = MODELS[network](input_shape=tuple(inputs.shape[1:]), classes=data.classes).eval()
    subject = make_subject(Target(model=model, inputs=inputs, labels=labels, examples=examples, client=local))
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
    parser.add_argument("clients", nargs="?", type=int, default=4)
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
