"""What must hold on a GPU: evaluations agree with the CPU and do not depend on their neighbours; whole runs agree in rates; recorded
ticks have the bits of plain ones (cuda_ticks.py). Exits 1 where ticks differ.

python benchmarks/cuda_check.py
"""

from __future__ import annotations

import sys
import time

import torch

from cuda_ticks import main as compare_ticks
from leakscope.attacks.engine.forms import Evaluator
from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.recipes import cpl
from leakscope.clients import Client, attacker_knowledge
from leakscope.core import random
from leakscope.core.tree import lift, take, to
from leakscope.core.types import Outcome, make_batch
from leakscope.data import load
from leakscope.kernels.recordings import captured
from leakscope.metrics import score, summarise
from leakscope.models import Uniform, build, draw_parameters


def main() -> None:
    trials = 100
    data = load("fashion_mnist")
    model = build("lenet_cpl", (1, 28, 28), 10)
    seeds = list(range(trials))
    inputs, labels = data.pictures("test", range(trials)), torch.as_tensor(data.labels("test", range(trials)))
    batch = make_batch(inputs[:, None], labels[:, None], classes=10)
    keys = random.key(seeds)
    for name, draw in (("uniform", random.uniform), ("normal", random.normal)):
        here, there = draw(keys, (1000,)), draw(keys.cuda(), (1000,)).cpu()
        print(f"{name} draws on CPU and GPU: {int((here != there).sum())} of {here.numel()} differ")
    drawing = lift(lambda k: random.normal(random.fold(k, "noise"), (1000,)))
    recorded, later = captured(drawing, (keys.cuda(),)), random.key([seed + trials for seed in seeds]).cuda()
    print(
        f"a recording of draws and the draws: {int((recorded(later) != drawing(later)).sum())} of {trials * 1000} differ"
    )
    client = Client()
    weights = draw_parameters(model, Uniform(0.5), keys)
    observation, knowledge = client.observe(model, weights, batch, seeds), attacker_knowledge(model, client, batch)

    results = {}
    for device in ("cpu", "cuda"):
        how = Execution(device=device, dtype="float64")
        problem, _ = cpl().prepare(model, to(observation, dtype=torch.float64), knowledge, seeds, how)
        for form in ("native", "im2col", "loop", *(("compiled",) if device == "cuda" else ())):
            zero = torch.zeros(trials, dtype=torch.int64, device=device)
            evaluate = Evaluator(model, problem.unknowns, problem.facts, form)
            made = evaluate(problem.unknowns, zero)
            results[device, form] = made.gradient["guess"].cpu()
            if device == "cuda":
                again = evaluate(problem.unknowns, zero).gradient["guess"].cpu()
                differ = int((again != results[device, form]).sum())
                print(f"an evaluation ({form}) twice: {differ} of {again.numel()} differ")
                play = captured(Evaluator(model, problem.unknowns, problem.facts, form), (problem.unknowns, zero))
                again = play(problem.unknowns, zero).gradient["guess"].cpu()
                differ = int((again != results[device, form]).sum())
                print(f"a recorded evaluation ({form}) and the evaluation: {differ} of {again.numel()} differ")
        if device == "cuda":
            one = take(problem, torch.tensor([7], device=device))
            alone = Evaluator(model, one.unknowns, one.facts, "im2col")(one.unknowns, zero[:1]).gradient["guess"].cpu()
            whole = results[device, "im2col"][7:8]
            print(
                f"a trial alone and among {trials} on the GPU: {float((alone - whole).abs().max() / whole.abs().max()):.1e}"
            )
    first = results["cpu", "native"]
    for (device, form), value in results.items():
        gap = float((value - first).abs().max() / first.abs().max())
        print(f"one evaluation, float64, {device:4} {form:8}: {gap:.1e} from cpu native")

    for device, form in (("cpu", "native"), ("cuda", "im2col"), ("cuda", "compiled")):
        began = time.perf_counter()
        how = Execution(device=device, form=form)
        made = cpl(iterations=40).run(model, observation, knowledge, seeds, how)
        took = time.perf_counter() - began
        summary = summarise(
            score(batch.inputs, batch.labels, made.inputs, made.labels),
            outcomes=made.outcome,
            iterations=made.iterations,
        )
        share = summary.convergence
        print(
            f"CPL, {trials} trials, {device:4} {form:8}: converged {share.value:.2f} [{share.low:.2f}, {share.high:.2f}], "
            f"median steps {float(made.iterations[made.outcome == Outcome.CONVERGED].double().median()):.0f}, {took:.1f} s"
        )


if __name__ == "__main__":
    differ = compare_ticks(["native", "loop"])
    main()
    sys.exit(differ)
