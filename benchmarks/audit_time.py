"""How long an audit with all its attacks' published iterations takes: ResNet18 on CIFAR-10, 8 clients of 4, without remedies.

    LEAKSCOPE_DATA=... python benchmarks/audit_time.py [--device cuda] [--network resnet18] [--minutes 8]

Weights are fresh. The grade is *inconclusive* if the minutes did not do; `iterations` says what ran.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn

from leakscope import audit
from leakscope.core import random
from leakscope.data import load
from leakscope.models import Torch, build, draw_parameters


def main() -> None:
    """Run the audit and print its seconds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--examples", type=int, default=4)
    parser.add_argument("--minutes", type=float, default=8.0)
    asked = parser.parse_args()
    data = load("cifar10")
    model = build(asked.network, data.input_shape, data.classes)
    module: nn.Module = model.apply.module  # type: ignore[attr-defined]
    with torch.no_grad():
        for name, value in draw_parameters(model, Torch(), random.key([0])).items():
            module.get_parameter(name).copy_(value[0])
    module.to(asked.device)
    needed = range(2 * asked.clients * asked.examples)  # the other half is what baselines may know
    inputs, labels = data.pictures("test", needed), torch.as_tensor(data.labels("test", needed))
    began = time.perf_counter()
    result = audit(
        module,
        nn.CrossEntropyLoss(),
        inputs,
        labels,
        clients=asked.clients,
        examples=asked.examples,
        minutes=asked.minutes,
        remedies=False,
        progress=lambda event: print(f"{time.perf_counter() - began:7.1f} s  {event}", flush=True),
    )
    print(result)
    print(f"{asked.network}, {asked.clients} clients of {asked.examples}: {time.perf_counter() - began:.1f} s")


if __name__ == "__main__":
    main()
