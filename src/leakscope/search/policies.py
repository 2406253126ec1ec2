"""Inspecting policies: the table of operations, each step on real images, and both PSNRs of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.short_repr import short_repr
from leakscope.data import Dataset, Part, load
from leakscope.defences.on_data import OPERATIONS, Operation, Transform, apply, parse_policies, picture_keys
from leakscope.defences.on_data.applying import to_bytes
from leakscope.defences.on_data.policy import Policy
from leakscope.metrics import PSNR_CAP, Estimate, arrange, clean, estimate_mean, match, psnr
from leakscope.store import Run

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

MOST_PICTURES = 64
SIDE, GAP, CAPTION = 112, 8, 18


def operation_rows() -> list[tuple[str, str, str]]:
    """Return (index, operation in words, what an image draws) of all operations."""
    return [(str(i), op.words, "sign" if op.signed else "") for i, op in enumerate(OPERATIONS)]


def draw_policy(text: str, data: str, number: int, seed: int, out: Path) -> list[str]:
    """Write a PNG with every step of every policy of `text` on real images; return the steps in words."""
    if not 1 <= number <= MOST_PICTURES:
        raise InputError(f"--images must be in 1..{MOST_PICTURES}, got {number}")
    policies = parse_policies(text)
    if not policies:
        raise InputError("policy none has no step to draw; name one such as 3-1-7")
    pictures = _pictures(load(data), number)
    draws = Transform().draw(picture_keys(random.key(seed), number))
    blocks = [(str(policy), _steps(pictures, policy, draws.signs), policy.operations) for policy in policies]
    try:
        _sheet(blocks).save(out, "PNG")
    except OSError as error:
        raise InputError(f"cannot write {out} ({error.strerror or error})") from None
    return [f"{policy}: " + ", then ".join(op.words for op in policy.operations) for policy in policies]


@dataclass(frozen=True, slots=True, eq=False)
class Walk:
    """One policy on images: its operations in words, and the images (N x C x H x W bytes) before and after each."""

    policy: str
    words: tuple[str, ...]
    steps: tuple[Tensor, ...]

    __repr__ = short_repr


def walks_of(policies: Sequence[str], data: str, *, number: int, seed: int = 0) -> list[Walk]:
    """Return every distinct policy (hybrids split) on the first `number` test images of a data set, all with the same draws of signs."""
    source = load(data)
    first = to_bytes(source.pictures("test", range(min(number, source.size("test")))))
    signs = Transform().draw(picture_keys(random.key(seed), len(first))).signs
    return [
        Walk(str(policy), tuple(op.words for op in policy.operations), tuple(_steps(first, policy, signs)))
        for policy in dict.fromkeys(each for text in policies for each in parse_policies(text))
    ]


@dataclass(frozen=True, slots=True)
class BothPsnr:
    """The PSNR of a run's cell in dB: against the private images, and against what the clients' networks saw."""

    axes: Mapping[str, object]
    private: Estimate
    seen: Estimate


def both_psnr(directory: Path) -> list[BothPsnr]:
    """Return both PSNRs of every cell of a run with transformed images, with n and 95 % intervals.

    `private` compares the reconstruction with x, which measures privacy; `seen` compares the attack's estimate of T(x) with T(x),
    as the papers report. Each pairs the images of a batch by its own comparison.
    """
    run = Run.open(directory)
    rows = []
    for cell in run.cells():
        trials = [run.tensors(record.trial) for record in run.records(cell=cell.id)]
        trials = [tensors for tensors in trials if "transformed" in tensors]
        if trials:
            private = [(each["truth"], clean(each["inputs"][each["pairing"]])) for each in trials]
            seen = [(each["transformed"], _paired(each["transformed"], clean(each["seen"]))) for each in trials]
            rows.append(BothPsnr(cell.axes, _cell_psnr(private), _cell_psnr(seen)))
    if not rows:
        raise InputError(f"{directory} holds no trial whose client transformed its pictures (client.on_data)")
    return rows


def _paired(truth: Tensor, guess: Tensor) -> Tensor:
    """Return the guesses of one trial (N x ...) matched to the true images."""
    every = torch.ones(1, len(truth), dtype=torch.bool)
    return arrange(guess[None], match(truth[None], guess[None], every))[0]


def _cell_psnr(pairs: list[tuple[Tensor, Tensor]]) -> Estimate:
    values = torch.stack([psnr(x, y).clamp_max(PSNR_CAP) for x, y in pairs])
    return estimate_mean(values, torch.ones_like(values, dtype=torch.bool))


def _pictures(data: Dataset, number: int) -> Tensor:
    if data.kind != "image":
        raise InputError(f"policies transform pictures; {data.name} holds tables")
    part: Part = "test" if data.size("test") else "train"
    if number > data.size(part):
        raise InputError(f"--images must be at most {data.size(part)} for {data.name}, got {number}")
    return to_bytes(data.pictures(part, range(number)))


def _steps(pictures: Tensor, policy: Policy, signs: Tensor) -> list[Tensor]:
    """Return the images before the first step and after each."""
    steps = [pictures]
    for number, op in enumerate(policy.operations):
        steps.append(apply(steps[-1], op, signs[:, number]))
    return steps


def _sheet(blocks: list[tuple[str, list[Tensor], tuple[Operation, ...]]]) -> Image.Image:
    """Return one image: a block of rows for each policy, a row for each image, a column for each step."""
    from PIL import Image, ImageDraw

    columns = max(len(steps) for _, steps, _ in blocks)
    rows = sum(len(steps[0]) for _, steps, _ in blocks)
    size = GAP + columns * (SIDE + GAP), len(blocks) * CAPTION * 2 + GAP + rows * (SIDE + GAP)
    sheet = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(sheet)
    top = 0
    for name, steps, operations in blocks:
        for column, title in enumerate([f"policy {name}", *(op.words for op in operations)]):
            first, _, rest = title.partition(" ")
            pen.text((GAP + column * (SIDE + GAP), top + 4), first, fill="black")
            pen.text((GAP + column * (SIDE + GAP), top + CAPTION), rest, fill="black")
        top += 2 * CAPTION
        for row in range(len(steps[0])):
            for column, step in enumerate(steps):
                sheet.paste(_image(step[row]), (GAP + column * (SIDE + GAP), top))
            top += SIDE + GAP
    return sheet


def _image(picture: Tensor) -> Image.Image:
    from PIL import Image

    plane = torch.movedim(picture, 0, -1).numpy()
    plain = Image.fromarray(plane[..., 0] if plane.shape[2] == 1 else plane)
    return plain.resize((SIDE, SIDE), Image.Resampling.NEAREST)
