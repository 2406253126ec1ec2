"""Small networks and a defence that tests of several rooms use."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leakscope.core.model import Model
from leakscope.core.tree import Tree, to
from leakscope.models import build

CLASSES = 3


def network(name: str = "lenet_dlg") -> Model:
    shape, chosen = {
        "lenet_dlg": ((1, 8, 8), {"width": 2}),
        "mlp": ((4,), {"hidden": (5,), "activation": "tanh"}),
        "resnet20": ((1, 8, 8), None),
    }[name]
    return to(build(name, shape, CLASSES, chosen), dtype=torch.float64)


class Attention(nn.Module):
    """Self-attention over five or so tokens of eight numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attend(x, x, x, need_weights=False)[0].mean(1))


@dataclass(frozen=True)
class Affine:
    """A defence whose order shows: x -> a x + b."""

    a: float
    b: float

    def protect_update(self, update: Tree, key: Tensor) -> Tree:
        return {name: self.a * value + self.b for name, value in update.items()}
