"""One operation on a batch of images, byte for byte as Pillow computes it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from leakscope.core.errors import InputError
from leakscope.defences.on_data import tones
from leakscope.defences.on_data.operations import Operation
from leakscope.learning.resample import rotated, sheared_down, translated

GREY = 128  # fill of a rotation's corners; other operations fill with black
CHANNELS = (1, 3)

_BLENDS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "brightness": tones.brightness,
    "contrast": tones.contrast,
    "color": tones.color,
    "sharpness": tones.sharpness,
}
_PLAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "invert": tones.invert,
    "autocontrast": tones.autocontrast,
    "equalize": tones.equalize,
}


def apply(pictures: Tensor, operation: Operation, signs: Tensor) -> Tensor:
    """Return images (N x C x H x W, bytes or in [0, 1]) after an operation on their bytes; `signs` (N x +-1) for signed operations."""
    check_pictures(pictures)
    if pictures.is_floating_point():
        return to_unit(_on_bytes(to_bytes(pictures), operation, signs), pictures.dtype)
    return _on_bytes(pictures, operation, signs)


def _on_bytes(pictures: Tensor, operation: Operation, signs: Tensor) -> Tensor:
    kind, magnitude = operation.kind, operation.magnitude
    strength = magnitude * signs.to(device=pictures.device, dtype=torch.float64)
    if kind in _BLENDS:
        return _BLENDS[kind](pictures, 1 + strength)
    if kind in _PLAIN:
        return _PLAIN[kind](pictures)
    if kind == "solarize":
        return tones.solarize(pictures, magnitude)
    if kind == "posterize":
        return tones.posterize(pictures, int(magnitude))
    if kind == "rotate":
        return rotated(pictures, magnitude, GREY)
    nothing = torch.zeros_like(strength)
    if kind == "translate_x":
        return translated(pictures, strength * pictures.shape[-1], nothing)
    if kind == "translate_y":
        return translated(pictures, nothing, strength * pictures.shape[-2])
    if kind == "shear_y":
        return sheared_down(pictures.to(torch.float64), strength).clamp(0, 255).to(torch.uint8)
    raise InputError(f"unknown operation {kind!r}")


def to_bytes(pictures: Tensor) -> Tensor:
    """Return images in [0, 1] as bytes, rounded."""
    return (pictures * 255).round().clamp(0, 255).to(torch.uint8)


def to_unit(pictures: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return bytes as numbers in [0, 1]."""
    return pictures.to(dtype) / 255


def check_pictures(pictures: Tensor) -> None:
    """Raise unless the tensor is a batch of grey or colour images, as bytes or in [0, 1]."""
    if pictures.ndim < 4 or pictures.shape[-3] not in CHANNELS:
        raise InputError(
            f"transformations need pictures of 1 or 3 channels, N x C x H x W, got shape {tuple(pictures.shape)}"
        )
    if pictures.dtype != torch.uint8 and not pictures.is_floating_point():
        raise InputError(f"transformations need bytes or numbers in [0, 1], got {pictures.dtype}")
