"""find_shortfall: None where attacks can share a vmap, what is lacking and one sentence where they cannot."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from leakscope.core.model import Model
from leakscope.models import Lack, build, find_shortfall, from_module
from small_parts import Attention


class Last(nn.Module):
    """The last step of a recurrent layer, then a dense layer."""

    def __init__(self, read: nn.RNNBase) -> None:
        super().__init__()
        self.read = read
        self.head = nn.Linear(read.hidden_size, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.read(x)[0][:, -1])


class Deciding(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if x.sum().item() > 0 else -x)


class Masking(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y + y[y > 0].sum()


class Bag(nn.Module):
    """A sum over a bag of words has no second derivative."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(4, 3, mode="max")
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x) * self.words((x * 0).long())


def norms() -> nn.Module:
    body = (nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.GroupNorm(2, 4), nn.MaxPool2d(2), nn.Flatten())
    return nn.Sequential(*body, nn.LayerNorm(4), nn.Linear(4, 3))


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (norms().eval(), (1, 4, 4)),
        (Attention(), (3, 8)),
        (Attention().eval().double(), (3, 8)),
        (nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval(), None),
        (nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5), nn.Linear(5, 3)), (4,)),
        (torch.func.replace_all_batch_norm_modules_(norms()), (1, 4, 4)),
    ],
)
def test_good_models_have_no_problem(module: nn.Module, shape: tuple[int, ...] | None) -> None:
    if shape is None:
        module, shape = nn.Sequential(module, nn.Flatten(), nn.Linear(12, 3)), (3, 4)
    assert find_shortfall(from_module(module, input_shape=shape)) is None


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM, nn.RNN])
def test_recurrent_layers_work_or_are_named(kind: type[nn.RNNBase]) -> None:
    """On the CPU torch writes them as plain products, which vmap can do; the fused kernels of a GPU it cannot."""
    shortfall = find_shortfall(from_module(Last(kind(4, 5, batch_first=True)), input_shape=(3, 4)))
    assert shortfall is None or kind.__name__ in shortfall.sentence


@pytest.mark.parametrize("name", ["linear", "mlp", "lenet_dlg", "dlnet", "cnn_mnist"])
def test_the_catalogue_has_no_problem(name: str) -> None:
    assert find_shortfall(build(name, (1, 8, 8), 3)) is None


@pytest.mark.parametrize(
    ("module", "shape", "lack", "named"),
    [
        (Deciding(4, 3), (4,), Lack.VMAP, ("layer Deciding", "tensor's value")),
        (nn.Sequential(nn.Linear(4, 4), Deciding(4, 3)), (4,), Lack.VMAP, ("layer Deciding", "of Sequential")),
        (Masking(4, 3), (4,), Lack.VMAP, ("layer Masking", "boolean mask")),
        (norms(), (1, 4, 4), Lack.VMAP, ("Sequential", "batch norm", "eval()")),
        (Bag(), (4,), Lack.SECOND, ("Bag", "_embedding_bag_backward")),
    ],
)
def test_a_shortfall_names_the_layer_in_one_sentence(
    module: nn.Module, shape: tuple[int, ...], lack: Lack, named: tuple[str, ...]
) -> None:
    shortfall = find_shortfall(from_module(module, input_shape=shape))
    assert shortfall is not None
    assert shortfall.lack is lack
    assert all(word in shortfall.sentence for word in named)
    assert "\n" not in shortfall.sentence


def test_an_error_from_the_derivative_names_the_recurrent_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where the fused recurrent kernel runs forward but has no second derivative."""
    model = from_module(Last(nn.GRU(4, 5, batch_first=True)), input_shape=(3, 4))

    def refuse(model: Model, w: object, x: Tensor, key: Tensor) -> Tensor:
        raise RuntimeError("no derivative of '_fused_backward'.")

    monkeypatch.setattr("leakscope.models.vmapping._gradient_norm", refuse)
    shortfall = find_shortfall(model)
    assert shortfall is not None
    assert shortfall.lack is Lack.SECOND
    assert all(word in shortfall.sentence for word in ("layer GRU", "_fused_backward"))


def test_memory_errors_are_not_called_shortfalls() -> None:
    def exhausted(p: object, b: object, x: Tensor, k: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        raise torch.OutOfMemoryError("no room")

    with pytest.raises(torch.OutOfMemoryError):
        find_shortfall(Model("big", exhausted, {"w": torch.zeros(2)}, {}, (2,), 2))
