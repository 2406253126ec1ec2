"""A round of clients as one batch against one client after the other, on the same data, orders and weights.

    python benchmarks/federation.py [--pairs 10] [--threads 2] [small_mlp] [small_lenet] [dlnet]

The loop is what one writes with torch alone: for every client load the global weights into a module, run its local steps with
`torch.optim`, add its weights to the mean. The batch is `play_round`, in the form that a training would choose; its first rounds
run through torch's function transforms, later ones as a traced graph (`federated.traced`), and both are timed. All three take turns
in one process, so that noise of a shared machine hits them alike; ratios are taken within a turn, and their median and the range
of 95 % of the turns are printed. Their results are compared first. `dlnet` trains as table 2 of SPN: Adam, rate 0.001, batches of
32, one epoch.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from leakscope.training.world import World

from leakscope.clients import Client
from leakscope.core import random
from leakscope.core.model import Model
from leakscope.core.tree import Tree
from leakscope.core.types import LocalTraining
from leakscope.data import Dataset
from leakscope.data.partition import IID
from leakscope.federated import Everyone, Federation, Holdings, State, begin, client_seeds, deal, groups_of, play_round
from leakscope.federated.traced import TRACE_AFTER
from leakscope.learning.local import draw_order
from leakscope.models import build
from leakscope.training.objects import FORMS, choose_form

GOAL = 3.0


@dataclass(frozen=True, slots=True)
class Case:
    """A network, how many clients of how many pictures, and their local training."""

    network: str
    shape: tuple[int, int, int]
    clients: int
    examples: int
    local: LocalTraining
    together: int


CASES = {
    "small_mlp": Case("mlp", (1, 8, 8), 50, 20, LocalTraining(epochs=2, batch_size=5, rate=0.1), 50),
    "small_lenet": Case("lenet_dlg", (1, 8, 8), 50, 20, LocalTraining(epochs=2, batch_size=5, rate=0.1), 50),
    "dlnet": Case(
        "dlnet", (1, 28, 28), 100, 100, LocalTraining(epochs=1, batch_size=32, rate=0.001, optimiser="adam"), 50
    ),
}


def pictures(case: Case) -> Dataset:
    """Return pictures of noise: time does not depend on what is in them."""
    number = case.clients * case.examples
    generator = np.random.default_rng(0)
    x = generator.integers(0, 256, (number, *case.shape), dtype=np.uint8)
    y = generator.integers(0, 10, number)
    names = tuple("0123456789")
    return Dataset(name="noise", kind="image", x_train=x, y_train=y, x_test=x[:10], y_test=y[:10], class_names=names)


def orders_of(federation: Federation, holdings: Holdings) -> list[torch.Tensor]:
    """Return the batches of each client, drawn beforehand: a loop would draw them with a faster generator than ours."""
    local = federation.client.local
    assert local is not None
    keys = random.fold(random.key(client_seeds(federation, 0, range(holdings.clients))), "client")
    return [draw_order(local, len(share), key) for share, key in zip(holdings.shares, keys, strict=True)]


def one_by_one(
    federation: Federation, model: Model, holdings: Holdings, state: State, orders: list[torch.Tensor]
) -> Tree:
    """Return the weights after a round, client after client."""
    module = copy.deepcopy(model.apply.module)  # type: ignore[attr-defined]
    local = federation.client.local
    assert local is not None
    total = {name: torch.zeros_like(value) for name, value in state.weights.items()}
    everything = int(holdings.counts.sum())
    for client, order in enumerate(orders):
        x = holdings.data.pictures("train", holdings.shares[client])
        y = holdings.data.labels("train", holdings.shares[client])
        module.load_state_dict(state.weights)
        made = torch.optim.Adam if local.optimiser == "adam" else torch.optim.SGD
        optimiser = made(module.parameters(), lr=local.rate)
        for row in order:
            batch = row[row >= 0]
            optimiser.zero_grad()
            F.cross_entropy(module(x[batch]), y[batch]).backward()
            optimiser.step()
        for name, value in module.named_parameters():
            total[name].add_(value.detach(), alpha=len(x) / everything)
    return total


def compare(name: str, told: argparse.Namespace) -> str:
    case = CASES[name]
    model = build(case.network, case.shape, 10)
    data = pictures(case)
    holdings = deal(data, IID(clients=case.clients))
    federation = Federation(client=Client(local=case.local), selection=Everyone(), together=case.together)
    state = begin(federation, model, holdings.clients)
    name_of = choose_form(World(federation, model, model, holdings, data, state.weights), state, print)
    form = FORMS[name_of]

    orders = orders_of(federation, holdings)

    def at_once(traced: bool) -> Tree:
        played = play_round(federation, model, holdings, state, form=replace(form, traced=traced and form.traced))
        return played[0].weights

    def slowly() -> Tree:
        return one_by_one(federation, model, holdings, state, orders)

    ways = (slowly, lambda: at_once(False), lambda: at_once(True))
    groups = list(groups_of(range(case.clients), holdings.counts, case.together, told.threads if form.split else 1))
    took = [seconds(ways[2]) for _ in range(TRACE_AFTER // len(groups) + 2)]  # the longest of them traced
    loop, first, later = (way() for way in ways)
    apart = max(float((a - b).abs().max()) for a, b in zip(later.values(), loop.values(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(first.values(), later.values(), strict=True))
    turns = [[seconds(way) for way in ways] for _ in range(told.pairs)]
    medians = [statistics.median(each) for each in zip(*turns, strict=True)]
    before, ratios = ([turn[0] / turn[way] for turn in turns] for way in (1, 2))
    low, high = np.quantile(ratios, [0.025, 0.975])
    ratio = statistics.median(ratios)
    met = "met" if ratio >= GOAL else "not met"
    cells = [name, f"{case.clients} x {case.examples}", name_of, f"{medians[0]:.3f}", f"{medians[1]:.3f}"]
    cells += [f"{statistics.median(before):.2f}", f"{medians[2]:.3f}", f"{ratio:.2f}", f"{low:.2f} to {high:.2f}"]
    cells += [f"{max(took) - medians[1]:.1f}", f"{told.pairs}", f"goal {GOAL:g} {met}", f"{apart:.1e}"]
    return f"| {' | '.join(cells)} |"


def seconds(way: Callable[[], Tree]) -> float:
    """Return how long one round takes."""
    began = time.perf_counter()
    way()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("cases", nargs="*", default=[], help=f"{', '.join(CASES)}; all if none is named")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    told = parser.parse_args()
    torch.set_num_threads(told.threads)
    print(f"torch {torch.__version__}, {told.threads} threads, load of the machine {os.getloadavg()[0]:.1f}")
    print(
        "| case | clients x pictures | form | loop, s | transformed, s | ratio | traced, s | ratio | 95 % of turns | tracing, s | n | "
        "goal | largest difference |"
    )
    print("|" + "---|" * 13)
    for name in told.cases or CASES:
        print(compare(name, told), flush=True)


if __name__ == "__main__":
    main()
