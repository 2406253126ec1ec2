"""The features of a network: the input of its last dense layer, in eval mode."""

from __future__ import annotations

import torch
from torch import nn
from torch.testing import assert_close

from leakscope.models import build, features_of, from_module


def test_features_are_what_the_last_dense_layer_reads() -> None:
    body = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5))
    network = nn.Sequential(body, nn.Linear(3 * 36, 4)).train()
    model, inputs = from_module(network.eval(), input_shape=(1, 8, 8)), torch.rand(5, 1, 8, 8)
    found = features_of(model, model.parameters)(inputs)
    assert_close(found, body.eval()(inputs).detach())
    assert_close(features_of(model, model.parameters)(inputs[:1]), found[:1])  # no neighbours in the statistics


def test_a_head_without_bias_and_a_network_without_a_head() -> None:
    linear = from_module(nn.Sequential(nn.Flatten(), nn.Linear(4, 3, bias=False)), input_shape=(1, 2, 2))
    inputs = torch.rand(2, 1, 2, 2)
    assert_close(features_of(linear, linear.parameters)(inputs), inputs.flatten(1))
    module = nn.Sequential(nn.Conv2d(1, 3, 2), nn.Flatten())
    headless = from_module(module, input_shape=(1, 2, 2))
    assert headless.head is None
    assert_close(features_of(headless, headless.parameters)(inputs), module(inputs).detach())


def test_features_of_a_network_of_the_catalogue_depend_on_its_weights() -> None:
    model, inputs = build("lenet_cpl", (1, 28, 28), 10), torch.rand(2, 1, 28, 28)
    other = {name: 2 * value for name, value in model.parameters.items()}
    first, second = features_of(model, model.parameters)(inputs), features_of(model, other)(inputs)
    assert first.shape == second.shape == (2, model.parameters["head.weight"].shape[1])
    assert not torch.equal(first, second)
