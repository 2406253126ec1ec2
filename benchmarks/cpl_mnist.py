"""CPL's base case beside the paper's numbers: MNIST, CPL's LeNet, uniform(-0.5, 0.5), threshold 1e-4, 300 steps.

    LEAKSCOPE_DATA=... python benchmarks/cpl_mnist.py [--images 100] [--device cuda]

Random start is N(0, 1), as DLG draws it. Weights are drawn anew for every trial. The paper's iteration counts are means
over successes (tables 2 and 5); so are ours here, and labelled so.
"""

from __future__ import annotations

import argparse
import time

import torch

from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.recipes import cpl, dlg
from leakscope.attacks.starts import Normal
from leakscope.clients import Client, attacker_knowledge
from leakscope.core import random
from leakscope.core.types import make_batch
from leakscope.data import load
from leakscope.metrics import score, summarise
from leakscope.models import Uniform, build, draw_parameters

PAPER = {"CPL patterned": (1.0, 11.5, 1.0), "CPL random": (None, 18.4, None), "DLG": (0.686, 18.4, 0.951)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    told_ = parser.parse_args()
    data = load("mnist")
    n = told_.images
    inputs, labels = data.pictures("test", range(n)), torch.as_tensor(data.labels("test", range(n)))
    batch = make_batch(inputs[:, None], labels[:, None], classes=10)
    model = build("lenet_cpl", (1, 28, 28), 10)
    seeds = [told_.seed + i for i in range(n)]
    weights = draw_parameters(model, Uniform(0.5), random.key(seeds))
    client = Client()
    observation, knowledge = client.observe(model, weights, batch, seeds), attacker_knowledge(model, client, batch)
    attacks = {
        "CPL patterned": cpl(iterations=told_.iterations),
        "CPL random": cpl(start=Normal(), iterations=told_.iterations),
        "DLG": dlg(iterations=told_.iterations),
    }
    print(
        "| attack | n | converged (95 %) | paper | steps of converged, mean (min-max) | paper | label | content (95 %) | s |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for name, attack in attacks.items():
        began = time.perf_counter()
        made = attack.run(model, observation, knowledge, seeds, Execution(device=told_.device))
        took = time.perf_counter() - began
        s = summarise(
            score(batch.inputs, batch.labels, made.inputs, made.labels),
            outcomes=made.outcome,
            iterations=made.iterations,
        )
        paper = PAPER[name]
        label = s.label.value if s.label else float("nan")
        print(
            f"| {name} | {s.trials} | {s.convergence.value:.3f} [{s.convergence.low:.3f}, {s.convergence.high:.3f}] | "
            f"{paper[0] if paper[0] is not None else '-'} | {s.iterations_converged.mean.value:.2f} "
            f"({s.iterations_converged.least:.0f}-{s.iterations_converged.greatest:.0f}) | {paper[1]} | {label:.3f} | "
            f"{s.content.value:.3f} [{s.content.low:.3f}, {s.content.high:.3f}] | {took:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
