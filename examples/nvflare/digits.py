"""The task: bundled 8 x 8 digits, a small network, and what an audit needs to know of them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from leakscope import LocalTraining, Target, load

EXAMPLES = 8
TRAINING = LocalTraining(rate=0.5, epochs=1)  # one step on all examples a round


class Net(nn.Module):
    """A convolution and two dense layers for 8 x 8 images of ten digits."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, 10)
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return ten logits for each image."""
        return self.layers(images)


def private_digits(partition: int) -> tuple[Tensor, Tensor]:
    """Return the images and labels of one client."""
    data, chosen = load("digits"), slice(partition * EXAMPLES, (partition + 1) * EXAMPLES)
    return data.pictures("train", chosen), torch.as_tensor(data.labels("train", chosen))


def build() -> Target:
    """Return what an audit of the captures needs to know; `truth` is known because this is an example."""
    images, labels = private_digits(0)
    return Target(model=Net(), inputs=images, labels=labels, client=TRAINING, truth=private_digits)
