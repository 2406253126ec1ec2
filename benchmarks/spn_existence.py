"""Theorem 2.1 of the SPN paper on DLNet and AlexNet: rank and condition of the Jacobian before each layer, both constants of bound (11).

LEAKSCOPE_DATA=... python benchmarks/spn_existence.py --images 3 --networks dlnet
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from leakscope.data import load
from leakscope.models.convolutional import alexnet
from leakscope.models.lenet import lenet_cpl
from leakscope_papers.theory.existence import inspect_existence

NETWORKS = {"dlnet": lenet_cpl, "alexnet": alexnet}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--images", type=int, default=3)
    arguments.add_argument("--networks", nargs="+", default=["dlnet"], choices=NETWORKS)
    arguments.add_argument("--layers", nargs="+", default=["conv1", "conv2", "conv3"])
    given = arguments.parse_args()
    data = load("cifar10")
    print("network layer inputs features rank condition constant printed (one line an image)")
    for kind in given.networks:
        torch.manual_seed(0)
        network = NETWORKS[kind](input_shape=(3, 32, 32), classes=10).double()
        assert isinstance(network, nn.Sequential)
        for weight in network.parameters():
            nn.init.uniform_(weight, -0.3, 0.3)
        for layer in given.layers:
            for number in range(given.images):
                x, y = data.pictures("test", number).double(), data.labels("test", number)
                seen = inspect_existence(network, layer, x, y, cross_entropy)
                print(
                    f"{kind} {layer} {seen.inputs} {seen.features} {seen.rank} {seen.condition:.3g} "
                    f"{seen.constant:.3g} {seen.printed:.3g}"
                )


if __name__ == "__main__":
    main()
