"""The images of a program's row: one client's images and their reconstructions, in a file beside the rows."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from leakscope.core.errors import InputError
from leakscope.core.types import Batch, Reconstruction
from leakscope.metrics.scoring import Scores, clean
from leakscope.metrics.success import DEFAULT_RULE
from leakscope.store.disk import clear_errors, replacing

FOLDER = "pictures"
NAMES = ("truth", "guess", "psnr", "recovered")


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """N private images and the guesses paired with them (N x C x H x W, bytes), with PSNR and whether recovered (N)."""

    truth: Tensor
    guess: Tensor
    psnr: Tensor
    recovered: Tensor


def first_client(truth: Batch, reconstruction: Reconstruction, scores: Scores) -> Shown:
    """Return the images of the first client, each with the guess it was scored against."""
    kept = scores.scored[0].cpu()
    guess = reconstruction.inputs[0].cpu()[scores.pairing[0].cpu()]
    return Shown(
        _bytes(truth.inputs[0].cpu()[kept]),
        _bytes(guess[kept]),
        scores.psnr[0].cpu()[kept].float(),
        DEFAULT_RULE.recovered(scores)[0].cpu()[kept].to(torch.uint8),
    )


def keep_pictures(directory: Path, key: str, shown: Shown) -> None:
    """Write the images of a row atomically."""
    from safetensors.torch import save

    path = _path(directory, key)
    with clear_errors(directory, "earlier rows are saved"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(save({name: getattr(shown, name).contiguous() for name in NAMES}))


def read_pictures(directory: Path, key: str) -> Shown | None:
    """Return the images of a row, None if none were stored."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    path = _path(directory, key)
    if not path.is_file():
        return None
    try:
        tensors = load(path.read_bytes())
        shown = Shown(*(tensors[name] for name in NAMES))
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        raise InputError(f"{path} holds no pictures of a row ({type(error).__name__})") from None
    if not _fits(shown):
        raise InputError(f"{path} holds no pictures of a row (their shapes or kinds differ)")
    return shown


def _fits(shown: Shown) -> bool:
    pictures = shown.truth.dtype == shown.guess.dtype == torch.uint8 and shown.truth.shape == shown.guess.shape
    number = shown.truth.shape[:1]
    return pictures and shown.truth.ndim == 4 and shown.psnr.shape == shown.recovered.shape == number and number[0] > 0


def _path(directory: Path, key: str) -> Path:
    """Return the path of a row's images; a key may contain characters that a file name cannot."""
    return directory / FOLDER / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.safetensors"


def _bytes(pictures: Tensor) -> Tensor:
    return (clean(pictures) * 255).round().to(torch.uint8)
