"""ResNet18 and ViT-B/16 hold what torchvision's hold, name by name, and compute the same."""

from __future__ import annotations

import pytest
import torch

from leakscope.models import MODELS


@pytest.mark.parametrize(
    ("name", "numbers", "some"),
    [
        ("resnet18", 11_689_512, {"layer2.0.downsample.0.weight": (128, 64, 1, 1), "fc.weight": (1000, 512)}),
        (
            "vit_b16",
            86_567_656,
            {
                "encoder.pos_embedding": (1, 197, 768),
                "encoder.layers.encoder_layer_11.self_attention.in_proj_weight": (2304, 768),
                "encoder.layers.encoder_layer_0.mlp.3.weight": (768, 3072),
                "heads.head.weight": (1000, 768),
            },
        ),
    ],
)
def test_the_shapes_are_those_torchvision_documents(name: str, numbers: int, some: dict[str, tuple[int, ...]]) -> None:
    with torch.device("meta"):
        module = MODELS[name]()
    parameters = dict(module.named_parameters())
    assert sum(p.numel() for p in parameters.values()) == numbers
    assert {key: tuple(parameters[key].shape) for key in some} == some


@pytest.mark.parametrize(("name", "theirs"), [("resnet18", "resnet18"), ("vit_b16", "vit_b_16")])
def test_the_state_dict_of_torchvision_loads_and_gives_the_same_logits(name: str, theirs: str) -> None:
    models = pytest.importorskip("torchvision.models", exc_type=(ImportError, RuntimeError))  # type: ignore[call-arg]
    torch.manual_seed(0)
    other, ours = models.get_model(theirs).eval(), MODELS[name]().eval()
    ours.load_state_dict(other.state_dict())
    x = torch.rand(2, 3, 224, 224)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), other(x), rtol=1e-4, atol=1e-4)
