"""The networks by name."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from leakscope.core import random
from leakscope.core.model import Model
from leakscope.core.registry import lookup
from leakscope.core.tree import take
from leakscope.models.adapter import from_module
from leakscope.models.convolutional import alexnet, cnn_cifar, cnn_mnist, convnet, vgg16
from leakscope.models.dense import linear, mlp, mlp_sme
from leakscope.models.dropout import KeyedDropout
from leakscope.models.initialise import Torch, Transformer, draw_parameters
from leakscope.models.lenet import lenet_cpl, lenet_dlg, lenet_sme
from leakscope.models.resnet import resnet8, resnet20, resnet20_cpl, resnet20_dlg
from leakscope.models.resnet18 import resnet18
from leakscope.models.text_classifiers import bert_classifier, gpt_classifier
from leakscope.models.token_model import token_model
from leakscope.models.vit import vit
from leakscope.models.vit_b16 import vit_b16

MODELS: dict[str, Callable[..., nn.Module]] = {
    "linear": linear,
    "mlp": mlp,
    "lenet_dlg": lenet_dlg,
    "lenet_cpl": lenet_cpl,
    "dlnet": lenet_cpl,
    "resnet20": resnet20,
    "resnet20_dlg": resnet20_dlg,
    "resnet20_cpl": resnet20_cpl,
    "cnn_mnist": cnn_mnist,
    "cnn_cifar": cnn_cifar,
    "mlp_sme": mlp_sme,
    "lenet_sme": lenet_sme,
    "resnet8": resnet8,
    "vit": vit,
    "alexnet": alexnet,
    "vgg16": vgg16,
    "convnet": convnet,
    "resnet18": resnet18,
    "vit_b16": vit_b16,
}
TEXT_MODELS: dict[str, Callable[..., nn.Module]] = {"gpt": gpt_classifier, "bert": bert_classifier}  # of token numbers


def build_module(
    name: str, input_shape: Sequence[int], classes: int, settings: Mapping[str, object], *, seed: int = 0
) -> nn.Module:
    """Return a network of the catalogue as its builder makes it; one over tokens takes their numbers in any type.

    What the builder draws comes from `seed`. Torch's global generators are left as they were.
    """
    builder = lookup({**MODELS, **TEXT_MODELS}, name, "model")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would also seed those of CUDA
        module = builder(input_shape=input_shape, classes=classes, **settings)
    return token_model(module) if name in TEXT_MODELS else module


def build(
    name: str,
    input_shape: Sequence[int] = (1, 28, 28),
    classes: int = 10,
    settings: Mapping[str, object] | None = None,
    *,
    seed: int = 0,
) -> Model:
    """Return a network of the catalogue with PyTorch's initialisation drawn from `seed`, one of `TEXT_MODELS` with that of GPT-2.

    `settings` are the builder's other arguments. Norm layers are in eval mode; dropout, if set, is active.

    >>> model = build("lenet_dlg", (3, 32, 32), classes=100, settings={"activation": "tanh"})
    >>> model.parameters["head.weight"].shape
    torch.Size([100, 768])
    """
    builder = lookup({**MODELS, **TEXT_MODELS}, name, "model")
    chosen = dict(settings or {})
    known = {key: key for key in inspect.signature(builder).parameters if key not in ("input_shape", "classes")}
    for key in chosen:
        lookup(known, key, f"setting of {name}")
    module = build_module(name, input_shape, classes, chosen, seed=seed).eval()
    for layer in module.modules():
        if isinstance(layer, KeyedDropout | nn.Dropout):
            layer.train()
    example = _all_tokens(input_shape, chosen) if name in TEXT_MODELS else None
    model = from_module(module, input_shape=input_shape, name=name, example=example)
    scheme = Transformer() if name in TEXT_MODELS else Torch()
    return model.with_parameters(take(draw_parameters(model, scheme, random.key([seed])), 0))


def _all_tokens(input_shape: Sequence[int], settings: Mapping[str, object]) -> Tensor | None:
    """Return two sentences with the first and the last token of the vocabulary, which a network of another one cannot read."""
    words = settings.get("vocabulary")
    if not isinstance(words, int):
        return None
    return torch.linspace(0, words - 1, 2 * math.prod(input_shape)).round().reshape(2, *input_shape)
