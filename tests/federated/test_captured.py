"""Recorded kernels: constants are moved before the recording, and it gives the bits of the function it was made of."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from leakscope.core import random
from leakscope.core.tree import Tree, lift
from leakscope.federated.captured import _on_device, captured


def _noisy(weights: Tree, key: Tensor) -> Tree:
    drawn = random.normal(random.fold(key, 3), (4,))
    return {
        name: value + drawn + torch.tensor([1.0, 2.0, 3.0, 4.0], device=value.device) for name, value in weights.items()
    }


def test_a_graph_fetches_no_constant_from_the_host_and_gives_the_same_bits() -> None:
    weights, keys = {"w": torch.randn(3, 4)}, random.key([0, 1, 2])
    plain = make_fx(lambda w, k: lift(_noisy)({"w": w}, k)["w"])(weights["w"], keys)
    fetches = [node for node in plain.graph.nodes if node.target is torch.ops.aten.lift_fresh_copy.default]
    assert fetches, "the example must hold a constant"
    settled = _on_device(plain)
    assert not [node for node in settled.graph.nodes if node.target is torch.ops.aten.lift_fresh_copy.default]
    for seed in (3, 9):
        other = torch.randn(3, 4), random.key([seed, seed + 1, seed + 2])
        assert torch.equal(settled(*other), lift(_noisy)({"w": other[0]}, other[1])["w"])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_recording_gives_the_bits_of_the_function_for_new_arguments() -> None:
    one = {"w": torch.randn(3, 4, device="cuda")}, random.key([0, 1, 2], "cuda")
    replay = captured(lift(_noisy), one)
    for seed in (3, 9):
        new = {"w": torch.randn(3, 4, device="cuda")}, random.key([seed, seed + 1, seed + 2], "cuda")
        assert torch.equal(replay(*new)["w"], lift(_noisy)(*new)["w"])
