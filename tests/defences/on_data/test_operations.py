"""Each of the 50 operations against Pillow's own, on real pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from leakscope.core.errors import InputError
from leakscope.data import load
from leakscope.defences.on_data.applying import apply, to_bytes, to_unit
from leakscope.defences.on_data.operations import OPERATIONS, Operation, operation
from leakscope.learning.resample import sheared_down

ENHANCERS = {
    "brightness": ImageEnhance.Brightness,
    "contrast": ImageEnhance.Contrast,
    "color": ImageEnhance.Color,
    "sharpness": ImageEnhance.Sharpness,
}
PRINTED = {
    1: 0.333, 2: 6.667, 3: 0.4532, 4: 0.0556, 5: 0.1667, 6: 0.0667, 7: 0.1007, 10: 0.1667, 11: 6, 12: 0.1667, 13: 0.2778,
    14: 0.5, 15: 0.5, 18: 0.3889, 19: 0.2778, 20: 0.2778, 21: 0.2518, 24: 0.1511, 25: 0.3333, 26: 0.3333, 27: 0.4444,
    28: 256, 34: 0.2778, 37: 142.2, 38: 0.1667, 39: 0, 40: 227.6, 42: 0.1511, 43: 0.1511, 45: 227.6, 48: 0.1511,
}  # fmt: skip
KINDS = [
    "invert",
    "contrast",
    "rotate",
    "translate_x",
    "sharpness",
    "sharpness",
    "shear_y",
    "translate_y",
    "autocontrast",
    "equalize",
    "shear_y",
    "posterize",
    "color",
    "brightness",
    "sharpness",
    "brightness",
    "equalize",
    "equalize",
    "contrast",
    "sharpness",
    "color",
    "translate_x",
    "equalize",
    "autocontrast",
    "translate_y",
    "sharpness",
    "brightness",
    "color",
    "solarize",
    "invert",
    "equalize",
    "autocontrast",
    "equalize",
    "equalize",
    "color",
    "equalize",
    "autocontrast",
    "solarize",
    "brightness",
    "color",
    "solarize",
    "autocontrast",
    "translate_y",
    "translate_y",
    "autocontrast",
    "solarize",
    "equalize",
    "invert",
    "translate_y",
    "autocontrast",
]
EACH = pytest.mark.parametrize("index", range(50), ids=lambda i: f"{i}-{OPERATIONS[i].kind}")


def with_pillow(image: Image.Image, op: Operation, sign: int) -> Image.Image:
    """The operation as the authors call it, for one picture."""
    black = (0, 0, 0) if image.mode == "RGB" else 0
    side, v = image.size, op.magnitude
    if op.kind in ENHANCERS:
        return ENHANCERS[op.kind](image).enhance(1 + v * sign)
    if op.kind == "shear_y":
        matrix = (1, 0, 0, v * sign, 1, 0)
        return image.transform(side, Image.Transform.AFFINE, matrix, Image.Resampling.BICUBIC, fillcolor=black)
    if op.kind == "translate_x":
        return image.transform(side, Image.Transform.AFFINE, (1, 0, v * side[0] * sign, 0, 1, 0), fillcolor=black)
    if op.kind == "translate_y":
        return image.transform(side, Image.Transform.AFFINE, (1, 0, 0, 0, 1, v * side[1] * sign), fillcolor=black)
    if op.kind == "rotate":
        turned = image.convert("RGBA").rotate(v)
        grey = Image.new("RGBA", turned.size, (128,) * 4)
        return Image.composite(turned, grey, turned).convert(image.mode)
    if op.kind == "posterize":
        return ImageOps.posterize(image, int(v))
    if op.kind == "solarize":
        return ImageOps.solarize(image, v)
    return {"invert": ImageOps.invert, "autocontrast": ImageOps.autocontrast, "equalize": ImageOps.equalize}[op.kind](
        image
    )


def between_bytes(before: Tensor, image: Image.Image, op: Operation, sign: int) -> np.ndarray[Any, Any]:
    """Where a value falls on a whole number but for rounding: there Pillow's byte depends on whether its compiler fused a
    product and a sum into one operation, as it does on ARM."""
    if op.kind in ENHANCERS:
        enhancer = ENHANCERS[op.kind](image)
        plain, whole = (np.asarray(picture, dtype=np.float64) for picture in (enhancer.degenerate, image))
        exact = plain + (1 + op.magnitude * sign) * (whole - plain)
    elif op.kind == "shear_y":
        sheared = sheared_down(before[None].double(), torch.tensor([op.magnitude * sign]).double())[0]
        exact = sheared.permute(1, 2, 0).numpy()
    else:
        return np.zeros((*before.shape[1:], before.shape[0]), dtype=bool)
    return (np.abs(exact - np.round(exact)) < 1e-4).reshape(*before.shape[1:], before.shape[0])


def compare(pictures: Tensor, op: Operation) -> None:
    for sign in (1, -1) if op.signed else (1,):
        ours = apply(pictures, op, torch.full((len(pictures),), sign))
        assert ours.dtype == torch.uint8
        for one, before in zip(ours, pictures, strict=True):
            plane = before.permute(1, 2, 0).numpy()
            image = Image.fromarray(plane[..., 0] if plane.shape[2] == 1 else plane)
            theirs = np.asarray(with_pillow(image, op, sign)).reshape(plane.shape)
            gap = np.abs(one.permute(1, 2, 0).numpy().astype(int) - theirs.astype(int))
            told = f"{(gap > 0).mean():.4f} of the bytes differ, the most by {gap.max()}"
            assert gap.max() <= 1, told
            assert not gap[~between_bytes(before, image, op, sign)].any(), told


def bundled() -> list[Tensor]:
    return [to_bytes(load(name).pictures("test", slice(0, 12))) for name in ("fashion_mnist", "digits")]


@EACH
def test_an_operation_is_pillows_on_bundled_pictures(index: int) -> None:
    for pictures in bundled():
        compare(pictures, operation(index))


@EACH
def test_an_operation_is_pillows_on_colour_pictures(index: int, data_directory: Path) -> None:
    compare(to_bytes(load("cifar100", data_directory).pictures("test", slice(0, 24))), operation(index))
    compare(to_bytes(load("lfw_128", data_directory).pictures("test", slice(0, 1))), operation(index))


@EACH
def test_the_table_is_the_published_one(index: int) -> None:
    assert operation(index).kind == KINDS[index]
    assert operation(index).magnitude == pytest.approx(PRINTED.get(index, 0.0), rel=2e-3, abs=1e-12)


@EACH
def test_pictures_do_not_feel_their_neighbours_and_floats_agree_with_bytes(index: int) -> None:
    pictures = torch.randint(0, 256, (6, 3, 9, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(index))
    signs = torch.tensor([1, -1, 1, 1, -1, -1])
    together = apply(pictures, operation(index), signs)
    for i in range(6):
        assert torch.equal(together[i : i + 1], apply(pictures[i : i + 1], operation(index), signs[i : i + 1]))
    for dtype in (torch.float32, torch.float64):
        made = apply(to_unit(pictures, dtype), operation(index), signs)
        assert made.dtype == dtype
        assert torch.equal(to_bytes(made), together)


def test_signs_are_drawn_for_the_kinds_the_authors_name() -> None:
    fixed = {"rotate", "posterize", "solarize", "autocontrast", "equalize", "invert"}
    assert {op.kind for op in OPERATIONS if not op.signed} == fixed


def test_a_colour_operation_leaves_a_grey_picture_alone() -> None:
    (pictures, _) = bundled()
    assert torch.equal(apply(pictures, operation(27), torch.ones(len(pictures))), pictures)


def test_flat_pictures_survive() -> None:
    flat = torch.full((2, 3, 8, 8), 77, dtype=torch.uint8)
    for kind in ("autocontrast", "equalize"):
        assert torch.equal(apply(flat, Operation(kind), torch.ones(2)), flat)


@pytest.mark.parametrize("index", [-1, 50, 1000])
def test_an_index_outside_the_table_is_refused(index: int) -> None:
    with pytest.raises(InputError, match=rf"0\.\.49, got {index}"):
        operation(index)


@pytest.mark.parametrize("shape", [(2, 2, 8, 8), (2, 4, 8, 8), (3, 8, 8), (4, 30)])
def test_other_than_one_or_three_channels_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="1 or 3 channels"):
        apply(torch.zeros(shape, dtype=torch.uint8), operation(0), torch.ones(shape[0]))


def test_whole_numbers_that_are_no_bytes_are_refused() -> None:
    with pytest.raises(InputError, match=r"\[0, 1\], got torch.int64"):
        apply(torch.zeros(1, 3, 8, 8, dtype=torch.int64), operation(0), torch.ones(1))
