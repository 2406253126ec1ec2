"""Make docs/images/leak.png, the picture of docs/index.md, from a real run, and print the numbers beside it.

    python tools/readme_picture.py [--out docs/images/leak.png] [--images 32] [--steps 25]

CPL with its patterned start attacks the first pictures of the bundled Fashion-MNIST test part, one a client, each on
freshly drawn weights. The first eight are drawn, whatever became of them; the numbers are over all of them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.recipes import cpl
from leakscope.clients import Client, attacker_knowledge
from leakscope.core import random
from leakscope.core.types import Batch, Reconstruction, make_batch
from leakscope.data import load
from leakscope.metrics import Estimate, Scores, Summary, score, summarise
from leakscope.models import Uniform, build, draw_parameters
from leakscope.report.pictures import pixels

SHOWN, ZOOM, GAP, LEFT, TOP, FOOT = 8, 3, 8, 150, 12, 48
INK, PAPER = 40, 255


def attack(images: int, steps: int) -> tuple[Batch, Reconstruction, Scores, Summary, tuple[str, ...]]:
    """Return the private pictures, what the attack made of them, the scores and the class names."""
    data = load("fashion_mnist")
    pictures, labels = data.pictures("test", range(images)), data.labels("test", range(images))
    private = make_batch(pictures[:, None], labels[:, None], classes=data.classes)
    model, client, seeds = build("lenet_cpl", data.input_shape, data.classes), Client(), list(range(images))
    weights = draw_parameters(model, Uniform(0.5), random.key(seeds))
    seen = client.observe(model, weights, private, seeds)
    made = cpl(iterations=steps).run(
        model, seen, attacker_knowledge(model, client, private), seeds, Execution(form="native")
    )
    scores = score(private.inputs, private.labels, made.inputs, made.labels)
    summary = summarise(scores, outcomes=made.outcome, iterations=made.iterations)
    return private, made, scores, summary, data.class_names


def halfway(made: Reconstruction, trial: int) -> Tensor:
    """Return the snapshot nearest to half of the steps a trial took."""
    at = made.snapshots_at[trial]
    away = (at - int(made.iterations[trial]) / 2).abs()
    return made.snapshots[trial, int(torch.where(at < 0, torch.inf, away).argmin()), 0]


def draw(private: Batch, made: Reconstruction, scores: Scores, names: tuple[str, ...]) -> Image.Image:
    """Return the picture: truth, start, half-way and result below each other, one column a client."""
    shown = min(SHOWN, private.trials)
    rows = (
        ("private picture", [private.inputs[t, 0] for t in range(shown)]),
        ("attack starts here", [made.start[t, 0] for t in range(shown)]),
        ("half of its steps", [halfway(made, t) for t in range(shown)]),
        ("reconstruction", [made.inputs[t, 0] for t in range(shown)]),
    )
    side = ZOOM * private.inputs.shape[-1]
    sheet = Image.new("L", (LEFT + shown * (side + GAP), TOP + len(rows) * (side + GAP) + FOOT), PAPER)
    pen, large, small = ImageDraw.Draw(sheet), ImageFont.load_default(14), ImageFont.load_default(11)
    for number, (title, pictures) in enumerate(rows):
        y = TOP + number * (side + GAP)
        pen.text((8, y + side // 2 - 9), title, fill=INK, font=large)
        for column, picture in enumerate(pictures):
            tile = Image.fromarray(pixels(picture)[..., 0]).resize((side, side), Image.Resampling.NEAREST)
            sheet.paste(tile, (LEFT + column * (side + GAP), y))
    for column in range(shown):
        x, y = LEFT + column * (side + GAP), TOP + len(rows) * (side + GAP)
        pen.text((x, y), names[int(private.labels[column, 0])], fill=INK, font=small)
        words = f"{int(made.iterations[column])} steps\nMSE {float(scores.mse[column, 0]):.0e}"
        pen.multiline_text((x, y + 12), words, fill=INK, font=small, spacing=1)
    return sheet


def told_as(name: str, share: Estimate) -> str:
    """Return a rate with its interval and its n."""
    return f"| {name} | {share.value:.3f} | [{share.low:.3f}, {share.high:.3f}] | {share.n} |"


def main() -> None:
    """Run the attack, write the picture, print the numbers."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("docs/images/leak.png"))
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--steps", type=int, default=25)
    given = parser.parse_args()
    private, made, scores, summary, names = attack(given.images, given.steps)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    draw(private, made, scores, names).save(given.out, optimize=True)
    print("| measure | value | 95 % interval | n |\n|---|---|---|---|")
    print(told_as("content recovered", summary.content))
    print(told_as("attack converged", summary.convergence))
    if summary.label is not None:
        print(told_as("label right", summary.label))
    steps = summary.iterations.mean
    print(f"| steps, mean over all | {steps.value:.1f} | [{steps.low:.1f}, {steps.high:.1f}] | {steps.n} |")
    print(f"\n{given.out}: {given.out.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
