"""One column of CPL's table 2 at any size, and what it costs: CPL, DLG and IG on one data set.

    LEAKSCOPE_DATA=... python benchmarks/cpl_table2.py mnist --device cuda [--images 100] [--seeds 10] [--attacks cpl dlg ig]

Full size is 100 images x 10 seeds x 3 attacks. Weights, starts and labels as in docs/how-to/papers.md: CPL's LeNet with
uniform(-0.5, 0.5) for mnist and lfw_face, DLG's ResNet20 (sigmoid, no strides, batch statistics, PyTorch's first weights) for
cifar10 and cifar100. Steps are means over successes, as in the paper; IG's success is judged by content, since its loss is no distance.
Imports torch, numpy and safetensors only.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import replace
from pathlib import Path

import torch

from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.recipes import cpl, dlg, ig
from leakscope.clients import Client, attacker_knowledge
from leakscope.core import random
from leakscope.core.tree import map_tensors, take
from leakscope.core.types import Observation, Reconstruction, make_batch
from leakscope.data import load
from leakscope.metrics import score, summarise
from leakscope.models import Torch, Uniform, build, draw_parameters

NETWORK = {"mnist": "lenet_cpl", "lfw_face": "lenet_cpl", "cifar10": "resnet20_dlg", "cifar100": "resnet20_dlg"}


def main() -> None:
    """Run the column and print it as JSON lines."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data", choices=sorted(NETWORK))
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--attacks", nargs="+", default=["cpl", "dlg", "ig"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("--ig-iterations", type=int, default=4800)
    parser.add_argument("--threshold", type=float, default=1e-4)
    parser.add_argument("--chunk", type=int, default=None)
    parser.add_argument("--form", default=None)
    parser.add_argument("--init", default="", choices=["", "torch", "uniform"])
    parser.add_argument("--out", type=Path, default=None)
    asked = parser.parse_args()
    data = load(asked.data)
    settings = {"batch_statistics": True} if NETWORK[asked.data] == "resnet20_dlg" else None
    model = build(NETWORK[asked.data], data.input_shape, data.classes, settings)
    images = [i for i in range(asked.images) for _ in range(asked.seeds)]
    seeds = list(range(len(images)))
    pictures, labels = data.pictures("test", images), torch.as_tensor(data.labels("test", images))
    batch = make_batch(pictures[:, None], labels[:, None], classes=data.classes)
    client = Client()
    drawn = asked.init or ("uniform" if NETWORK[asked.data].startswith("lenet") else "torch")
    init = Uniform(0.5) if drawn == "uniform" else Torch()
    attacks = {
        "cpl": cpl(iterations=asked.iterations, threshold=asked.threshold),
        "dlg": dlg(iterations=asked.iterations, threshold=asked.threshold),
        "ig": ig(iterations=asked.ig_iterations),
    }
    knowledge = attacker_knowledge(model, client, batch)
    width = asked.chunk or 2000
    for name in asked.attacks:
        began, parts = time.perf_counter(), []
        for first in range(0, len(seeds), width):
            own = seeds[first : first + width]
            part = take(batch, slice(first, first + width))
            observation: Observation = client.observe(model, draw_parameters(model, init, random.key(own)), part, own)
            execution = Execution(device=asked.device, form=asked.form, chunk=asked.chunk)
            parts.append(attacks[name].run(model, observation, replace(knowledge, samples=1), own, execution))
        made: Reconstruction = parts[0] if len(parts) == 1 else _joined(parts)
        took = time.perf_counter() - began
        s = summarise(
            score(batch.inputs, batch.labels, made.inputs, made.labels),
            outcomes=made.outcome,
            iterations=made.iterations,
        )
        line = {
            "data": asked.data,
            "model": NETWORK[asked.data],
            "weights": drawn,
            "threshold": asked.threshold,
            "iterations": asked.ig_iterations if name == "ig" else asked.iterations,
            "attack": name,
            "trials": s.trials,
            "seconds": round(took, 1),
            "evaluations": int(made.evaluations.sum()),
            "converged": [s.convergence.value, s.convergence.low, s.convergence.high],
            "steps_of_converged": s.iterations_converged.mean.value,
            "label": s.label.value if s.label else None,
            "mse": s.means["mse"].value,
            "mismatch": float(made.mismatch.median()),
            "content": [s.content.value, s.content.low, s.content.high],
            "device": asked.device,
            "torch": torch.__version__,
        }
        text = json.dumps({k: None if isinstance(v, float) and math.isnan(v) else v for k, v in line.items()})
        print(text, flush=True)
        if asked.out is not None:
            with asked.out.open("a", encoding="utf-8") as lines:
                lines.write(text + "\n")


def _joined(parts: list[Reconstruction]) -> Reconstruction:
    return map_tensors(lambda *each: torch.cat(each), parts[0], *parts[1:])


if __name__ == "__main__":
    main()
