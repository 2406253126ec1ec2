"""Whole attacks with recorded ticks and without, on a CUDA device: every tensor of the result must have the same bits.

python benchmarks/cuda_ticks.py [FORM ...]     exits 1 if any case differs
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from leakscope.attacks.attack import Matching
from leakscope.attacks.dlfa import dlfa
from leakscope.attacks.engine.loop import Engine
from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.engine.state import Finished, Problem, Progress
from leakscope.attacks.optimisers import SGD, Adagrad, Adam
from leakscope.attacks.recipes import cpl, dlg, ig, matching
from leakscope.attacks.surrogate import sme
from leakscope.clients import Client, attacker_knowledge
from leakscope.core import random
from leakscope.core.model import Model
from leakscope.core.tree import flat_names
from leakscope.core.types import LocalTraining, Observation, make_batch
from leakscope.kernels.checkpoint import Checkpoint
from leakscope.models import Torch, Uniform, build, draw_parameters

TRIALS = 5
WEIGHTS = LocalTraining(epochs=2, batch_size=2, rate=0.01)


def problem_of(
    attack: Matching,
    *,
    network: str = "lenet_cpl",
    samples: int = 1,
    local: LocalTraining | None = None,
    rounds: int = 1,
) -> tuple[Model, Problem]:
    """Return random images attacked on random weights, on the device."""
    model = build(network, (1, 28, 28), 10, {"width": 4} if network == "resnet20" else None)
    seeds = list(range(TRIALS))
    keys = random.key(seeds)
    inputs = random.uniform(random.fold(keys, "inputs"), (samples, 1, 28, 28))
    labels = (random.uniform(random.fold(keys, "labels"), (samples,)) * 10).long()
    batch = make_batch(inputs, labels, classes=10)
    client = Client(local=local) if local else Client()
    seen = []
    for number in range(rounds):
        init = Torch() if network == "resnet20" else Uniform(0.5)
        weights = draw_parameters(model, init, random.fold(keys, number))
        seen.append(client.observe(model, weights, batch, seeds))
    observation = Observation(tuple(r for s in seen for r in s.rounds), seen[0].shares, seen[0].samples)
    knowledge = attacker_knowledge(model, client, batch)
    problem, _ = attack.prepare(model, observation, knowledge, seeds, Execution(device="cuda"))
    return model, problem


def end_of(model: Model, problem: Problem, attack: Matching, form: str, *, record: bool, cut: bool = False) -> Finished:
    """Return the end of all trials; `cut` stops the run on the way and resumes it from its checkpoint."""
    if not cut:
        return Engine(model, problem, attack.stop, form, record=record).run()
    with tempfile.TemporaryDirectory() as folder:
        kept = Checkpoint(Path(folder) / "chunk.safetensors", "stamp", 0.0)

        def stop(progress: Progress) -> None:
            if progress.evaluations >= 64:
                raise KeyboardInterrupt

        with contextlib.suppress(KeyboardInterrupt):
            Engine(model, problem, attack.stop, form, record=record, checkpoint=kept, progress=stop).run()
        return Engine(model, problem, attack.stop, form, record=record, checkpoint=kept).run()


CASES: dict[str, tuple[Matching, dict[str, object]]] = {
    "adam (ig)": (ig(iterations=70), {}),
    "adam, 4 images": (ig(iterations=66), {"samples": 4}),
    "adam, ResNet": (ig(iterations=40), {"network": "resnet20", "samples": 2}),
    "sgd with momentum": (matching(optimiser=SGD(0.1, momentum=0.9), iterations=66), {}),
    "adagrad": (matching(optimiser=Adagrad(0.1), iterations=66), {}),
    "l-bfgs, ends early, compaction (cpl)": (cpl(iterations=20, threshold=1e-3), {}),
    "l-bfgs, labels optimised (dlg)": (dlg(iterations=8), {}),
    "patience": (matching(optimiser=Adam(0.1), iterations=200, patience=5), {}),
    "restarts": (ig(iterations=70, restarts=2), {}),
    "two rounds": (ig(iterations=70), {"rounds": 2}),
    "rests (sme, alpha every 8)": (sme(iterations=66, alpha_every=8), {"samples": 4, "local": WEIGHTS}),
    "simulated training (dlfa)": (dlfa(iterations=40), {"samples": 4, "local": WEIGHTS}),
}


def differing(a: Finished, b: Finished) -> list[str]:
    """Return the names of the tensors that differ in any bit."""
    left, right = flat_names(a), flat_names(b)
    return [name for name in left if not torch.equal(left[name].nan_to_num(7.7), right[name].nan_to_num(7.7))]


def main(forms: Sequence[str] = ()) -> int:
    wrong = 0
    torch.backends.cudnn.deterministic = True  # else two plain runs of convolutions differ by themselves
    for name, (attack, settings) in CASES.items():
        model, problem = problem_of(attack, **settings)  # type: ignore[arg-type]
        for form in forms or ("native", "im2col", "loop"):
            plain = end_of(model, problem, attack, form, record=False)
            again = differing(end_of(model, problem, attack, form, record=False), plain)
            engine = Engine(model, problem, attack.stop, form)
            differ = differing(engine.run(), plain)
            cut = (
                []
                if form != "native"
                else differing(end_of(model, problem, attack, form, record=True, cut=True), plain)
            )
            note = "same bits" if not differ else f"DIFFER: {', '.join(differ)}"
            note += f"; resumed DIFFER: {', '.join(cut)}" if cut else ""
            note += f"; plain runs DIFFER by themselves: {', '.join(again)}" if again else ""
            note += "" if engine.recorded else "; NOT RECORDED"
            wrong += bool(differ or cut or not engine.recorded)
            print(f"{name:40} {form:8} {int(plain.iteration.max()):4} iterations: {note}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
