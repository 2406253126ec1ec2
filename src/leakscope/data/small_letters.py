"""EMNIST's letters made to resemble FEMNIST: dark ink on white, small in their frame.

FEMNIST is not always available; EMNIST ByClass has the same 62 classes. EMNIST's letters fill 20 of 28 pixels, light on black
(mean .174, deviation .332); FEMNIST's mean .964 and deviation .158 belong to much smaller letters on white, and PSNR depends on
that. Shrunk to 13 of 28 pixels and inverted, EMNIST nearly has FEMNIST's mean and deviation.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from leakscope.data.dataset import Dataset
from leakscope.data.npz import read_npz
from leakscope.data.resizing import resize

SIDE = 13
AT_ONCE = 4096
Bytes = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]


def read_small_letters(path: Path) -> Dataset:
    """Return the letters of an .npz file of light ink on black as small dark letters on white."""
    data = read_npz(path, name="emnist_as_femnist")
    return replace(data, x_train=shown_small(data.x_train), x_test=shown_small(data.x_test))


def shown_small(pictures: Bytes) -> Bytes:
    """Return bytes N x 1 x H x W of light ink on black as dark ink on white, shrunk to `SIDE` pixels in the middle of the frame."""
    height, width = pictures.shape[-2:]
    top, left = (height - SIDE) // 2, (width - SIDE) // 2
    frame = (left, width - SIDE - left, top, height - SIDE - top)
    shrunk = np.empty_like(pictures)
    for first in range(0, len(pictures), AT_ONCE):
        some = torch.from_numpy(pictures[first : first + AT_ONCE].astype(np.float32)) / 255
        shrunk[first : first + AT_ONCE] = (255 * (1 - F.pad(resize(some, SIDE), frame))).round().to(torch.uint8).numpy()
    return shrunk
