"""The client: trains on its own digits and sends its weights. NVFlare runs this script for every site."""

from __future__ import annotations

import nvflare.client as flare
import torch
from digits import TRAINING, Net, private_digits
from torch import nn


def main() -> None:
    """Train whenever the server sends a model."""
    flare.init()
    partition = int(flare.get_site_name().rpartition("-")[2]) - 1  # the simulator names its sites site-1, site-2, ...
    images, labels = private_digits(partition)
    network = Net()
    while flare.is_running():
        model = flare.receive()
        if model is None:
            break
        network.load_state_dict({name: torch.as_tensor(value) for name, value in model.params.items()})
        optimiser = torch.optim.SGD(network.parameters(), lr=TRAINING.rate)
        for _ in range(TRAINING.epochs):
            optimiser.zero_grad()
            nn.functional.cross_entropy(network(images), labels).backward()
            optimiser.step()
        meta = {"num-examples": len(images), "partition-id": partition}
        flare.send(flare.FLModel(params=network.state_dict(), meta=meta))


if __name__ == "__main__":
    main()
