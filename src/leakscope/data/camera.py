"""One large grey photograph from scikit-image, for attacks at 512 x 512 (CPL, figure 7, attacks a chest X-ray of this size)."""

from __future__ import annotations

import numpy as np

from leakscope.core.errors import InputError
from leakscope.data.dataset import Dataset, image_set

CLASS_NAMES = ("other", "photographer")  # "other" is empty: a cross entropy of one class has no gradient


def camera() -> Dataset:
    """Return a set of one test image, 1 x 512 x 512, with label 1."""
    try:
        from skimage import data
    except ImportError:
        raise InputError(
            "data set 'camera' comes with scikit-image, which is not installed: run `pip install scikit-image`, "
            "or set LEAKSCOPE_DATA to a directory with camera.npz"
        ) from None
    picture = np.asarray(data.camera(), dtype=np.uint8)[None, None]  # type: ignore[no-untyped-call]
    nothing, one = (picture[:0], np.zeros(0, np.int64)), (picture, np.ones(1, np.int64))
    return image_set("camera", nothing, one, CLASS_NAMES, "skimage.data.camera")
