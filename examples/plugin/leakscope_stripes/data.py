"""A data set: stripes, flat or upright. This one is drawn; `forms` would name files to read instead."""

import numpy as np

from leakscope.data import Dataset, Source

SIDE, TRAIN, TEST = 12, 64, 32


def draw_stripes() -> Dataset:
    """Return images of stripes, half of them flat and half upright, the same ones in every process."""
    generator = np.random.default_rng(0)
    labels = np.arange(TRAIN + TEST) % 2
    images = generator.integers(0, 256, (TRAIN + TEST, 1, SIDE, 1), dtype=np.uint8).repeat(SIDE, axis=3)
    images[labels == 1] = images[labels == 1].transpose(0, 1, 3, 2)
    return Dataset(
        name="stripes",
        kind="image",
        x_train=images[:TRAIN],
        y_train=labels[:TRAIN],
        x_test=images[TRAIN:],
        y_test=labels[TRAIN:],
        class_names=("flat", "upright"),
    )


STRIPES = Source(
    description="Stripes, flat or upright: 64 + 32 small images",
    kind="image",
    shape=(1, SIDE, SIDE),
    classes=2,
    terms="public domain",
    origin="drawn by this package",
    forms=(),
    make=draw_stripes,
)
