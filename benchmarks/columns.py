"""How convolutions become products on a GPU: columns by torch's `unfold`, by one copy of a view, and compiled, side by side.

    python benchmarks/columns.py --trials 384

One row for each network: the milliseconds of one evaluation of all trials (the gradient of the matching objective in the
guess), recorded and played in one launch; rounds go over all ways in turn, and the middle one and 95 % of the rounds' ratios
stand in the table. Compiling takes minutes for deep networks (`--no-compiled` leaves it out). Needs a CUDA device; imports
torch, numpy and safetensors alone.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from leakscope.attacks.engine.forms import Evaluation, Evaluator
from leakscope.kernels.im2col import Im2col
from leakscope.studies.bench_cases import CASES, Case, Setup, set_up

DLNET = replace(CASES["lenet"], name="dlnet", network="dlnet", classes=10)
NETWORKS: dict[str, Case] = {"lenet": CASES["lenet"], "dlnet": DLNET, "resnet20": CASES["resnet20"]}


class Unfolding(Evaluator):
    """An evaluation whose columns are made by torch's own `unfold`."""

    def _lifted(self) -> Callable[..., tuple[Tensor, ...]]:
        lifted: Callable[..., tuple[Tensor, ...]] = torch.func.vmap(self._one, randomness="error")

        def call(*flat: Tensor) -> tuple[Tensor, ...]:
            with Im2col(compiled=True):
                return lifted(*flat)

        return call


def ways(setup: Setup, compiled: bool) -> dict[str, Callable[[], Evaluation]]:
    """Return each way's evaluation of all trials."""
    zero = torch.zeros(len(setup.seeds), dtype=torch.int64, device="cuda")

    def of(kind: type[Evaluator], form: str) -> Callable[[], Evaluation]:
        evaluator = kind(setup.model, setup.problem.unknowns, setup.problem.facts, form, trace_after=1)
        return lambda: evaluator(setup.problem.unknowns, zero)

    made = {"native": of(Evaluator, "native"), "unfold": of(Unfolding, "im2col"), "view": of(Evaluator, "im2col")}
    return made | ({"compiled": of(Evaluator, "compiled")} if compiled else {})


def milliseconds(f: Callable[[], Evaluation], repeat: int) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(repeat):
        f()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / repeat * 1e3


def quantiles(values: list[float]) -> list[float]:
    at = torch.tensor([0.5, 0.025, 0.975], dtype=torch.float64)
    return [float(q) for q in torch.tensor(values, dtype=torch.float64).quantile(at)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("networks", nargs="*", default=list(NETWORKS), metavar="NETWORK", help=", ".join(NETWORKS))
    parser.add_argument("--trials", type=int, default=384, help="trials at once (384)")
    parser.add_argument("--rounds", type=int, default=20, help="rounds over all ways (20)")
    parser.add_argument("--no-compiled", dest="compiled", action="store_false", help="leave the compiled form out")
    args = parser.parse_args()
    strange = [name for name in args.networks if name not in NETWORKS]
    if strange:
        parser.error(f"no network is called {strange[0]!r}; there are {', '.join(NETWORKS)}")
    if not torch.cuda.is_available():
        sys.exit("no CUDA device is here: the three ways differ on one alone")
    print(
        "| network | way | ready after, s | an evaluation, ms | of unfold's time | gradients apart |\n|---|---|---|---|---|---|"
    )
    for name in args.networks:
        setup = set_up(NETWORKS[name], "cuda", args.trials)
        took: dict[str, list[float]] = {}
        ready: dict[str, float] = {}
        found: dict[str, Tensor] = {}
        calls = ways(setup, args.compiled)
        for way, call in calls.items():
            began = time.perf_counter()
            found[way] = [call() for _ in range(4)][-1].gradient["guess"].clone()
            torch.cuda.synchronize()
            ready[way], took[way] = time.perf_counter() - began, []
        repeat = {way: max(1, int(100 / milliseconds(call, 1))) for way, call in calls.items()}
        for _ in range(args.rounds):
            for way, call in calls.items():
                took[way].append(milliseconds(call, repeat[way]))
        for way, values in took.items():
            ratio = quantiles([mine / other for mine, other in zip(values, took["unfold"], strict=True)])
            apart = float((found[way] - found["native"]).abs().max() / found["native"].abs().max())
            print(
                f"| {name} | {way} | {ready[way]:.1f} | {quantiles(values)[0]:.2f} | "
                f"{ratio[0]:.2f} [{ratio[1]:.2f}, {ratio[2]:.2f}] | {apart:.1e} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
