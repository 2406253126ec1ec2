"""Accuracies for the curves of `spn.py`: DLNet trained federatedly under every strength of a curve, strengths inside the batch.

    python benchmarks/spn_accuracy.py --data cifar10.npz --out accuracy.json [--rounds 3000] [--device cuda]
    python benchmarks/spn.py --out spn.json --page spn.html --accuracy accuracy.json

10 clients with equal parts of the training pictures, uniform(-0.3, 0.3), batches of 32, Adam of rate 0.001 (table 2). All
strengths of a curve begin at the same weights and see the same pictures in the same order. What is shared, and so what a
defence acts on:

- `--sharing gradient` (default): in every round each client sends the gradient of one batch, the server steps by Adam along
  the mean; a private head takes its own Adam step at its client. This is what `spn.py` attacks, so sigma and share mean the
  same in both.
- `--sharing weights`: one local epoch of Adam, the change of the weights is sent, FedAvg or round robin (`--server`), as in
  appendix C. Noise then lands on a change of about 0.001 a step: the same sigma is a far stronger defence.

The paper trains 300 rounds of one epoch (about 47,000 steps). Accuracies are written every `--every` rounds, so a run that is
cut leaves what it has. Needs torch and numpy alone.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leakscope.clients import Client
from leakscope.core import random
from leakscope.core.model import Model
from leakscope.core.tree import Tree, lift, map_tensors
from leakscope.core.types import LocalTraining
from leakscope.learning.tree_adam import Adam
from leakscope.models import Uniform, build, draw_parameters
from spn import CURVES, NONE, RANGE, USUAL

CLIENTS, BATCH = 10, 32
AT_ONCE = 500
GRADIENT = "gradient"


class Pictures:
    """The pictures of an .npz on a device: parts of the clients K x n x 3 x 32 x 32, and the test pictures."""

    def __init__(self, path: Path, examples: int | None, tests: int | None, device: str) -> None:
        with np.load(path, allow_pickle=False) as file:
            x, y, self.x_test, self.y_test = (file[name] for name in ("x_train", "y_train", "x_test", "y_test"))
        order = random.permutation(random.fold(random.key(0), "clients"), len(x))[:examples].numpy()
        each = len(order) // CLIENTS
        chosen = order[: each * CLIENTS]
        self.x = _picture(x[chosen], device).unflatten(0, (CLIENTS, each))
        self.y = torch.from_numpy(y[chosen]).long().to(device).unflatten(0, (CLIENTS, each))
        self.x_test, self.y_test = (
            _picture(self.x_test[:tests], device),
            torch.from_numpy(self.y_test[:tests]).long().to(device),
        )


def _picture(pixels: np.ndarray[Any, Any], device: str) -> Tensor:
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).to(device).float() / 255


class Training:
    """S strengths of one curve trained at once; weights lead with S, private parameters with S x K."""

    def __init__(self, curve: str, data: Pictures, sharing: str, device: str) -> None:
        kind = CURVES[curve]
        self.grid, self.data, self.sharing = kind.grid, data, sharing
        strengths = torch.tensor(kind.grid, device=device)[:, None].expand(-1, CLIENTS)
        local = LocalTraining(batch_size=BATCH, rate=0.001, optimiser="adam")
        if sharing == GRADIENT:
            local = LocalTraining(rate=1.0)  # one step of SGD with rate 1: what is sent is the gradient itself
        self.client: Client = replace(kind.client(strengths), local=local)
        self.public = build("dlnet", tuple(data.x.shape[2:]), 10)
        guard = self.client.on_model
        self.model: Model = self.public if guard is None else guard.polarise(self.public)
        first = draw_parameters(self.public, Uniform(RANGE), random.key([0], device))
        self.weights: Tree = {n: w.expand(len(kind.grid), *w.shape[1:]) for n, w in first.items()}
        clients = random.fold(random.key(0, device), torch.arange(CLIENTS, device=device))
        own = {} if guard is None else guard.draw(self.model, clients)
        self.private: Tree = {n: v.expand(len(kind.grid), *v.shape) for n, v in own.items()}
        self.server, self.own = Adam(0.001), Adam(0.001)

    def play(self, number: int, who: Sequence[int]) -> None:
        """Let these clients answer from the same weights, and take the mean of what they send."""
        index = torch.tensor(list(who), device=self.data.x.device)
        size, many = len(self.grid), len(index)
        keys = random.fold(random.fold(random.key(number, index.device), "round"), index)
        x, y = self._pictures(index, keys)
        picked = map_tensors(lambda t: t[:, index], (self.client.defences, self.client.on_model, self.private))
        common = {n: w[:, None].expand(size, many, *w.shape[1:]) for n, w in self.weights.items()}
        shared = [t.expand(size, *t.shape) for t in (x, y, torch.ones_like(y, dtype=torch.bool), keys)]

        def one(
            defences: Any, guard: Any, weights: Tree, x: Tensor, y: Tensor, m: Tensor, k: Tensor
        ) -> tuple[Tree, Tree]:
            memory = tuple({} for _ in defences)
            answer = self.client.answer(self.model, defences, memory, weights, {}, x, y, m, k, guard=guard)
            return answer.update, {name: answer.weights[name] for name in self.private}

        sent, kept = lift(lift(one))(*picked[:2], {**common, **picked[2]}, *shared)
        mean = {n: v.mean(1) for n, v in sent.items()}
        if self.sharing == GRADIENT:
            self.weights = self.server.step(self.weights, mean)
            gradient = {n: v - kept[n] for n, v in self.private.items()}
            self.private = self.own.step(self.private, gradient)
        else:
            self.weights = {n: w - mean[n] for n, w in self.weights.items()}
            self.private = {n: v.index_copy(1, index, kept[n]) for n, v in self.private.items()}

    def _pictures(self, index: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Return what each client works on in this round: a batch, or all it has."""
        if self.sharing != GRADIENT:
            return self.data.x[index], self.data.y[index]
        places = (random.uniform(random.fold(keys, "batch"), (BATCH,)) * self.data.y.shape[1]).long()
        return self.data.x[index[:, None], places], self.data.y[index[:, None], places]

    def accuracies(self) -> list[float]:
        """Return the share of test pictures that each strength's global model names rightly."""
        right = torch.zeros(len(self.grid), device=self.data.x.device)
        key = random.key(0, right.device)
        with torch.no_grad():
            for x, y in zip(self.data.x_test.split(AT_ONCE), self.data.y_test.split(AT_ONCE), strict=True):
                said = lift(lambda w, x=x: self.public.apply(w, {}, x, key)[0].argmax(-1))(self.weights)
                right += (said == y).sum(1)
        return [round(float(r) / len(self.data.y_test), 4) for r in right]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--curves", default=",".join(USUAL))
    parser.add_argument("--sharing", choices=(GRADIENT, "weights"), default=GRADIENT)
    parser.add_argument("--server", choices=("fedavg", "round_robin"), default="fedavg", help="for --sharing weights")
    parser.add_argument("--rounds", type=int, default=3000)
    parser.add_argument("--every", type=int, default=500)
    parser.add_argument(
        "--examples", type=int, default=None, help="training pictures in all; every one of them if left out"
    )
    parser.add_argument("--tests", type=int, default=None)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    data = Pictures(args.data, args.examples, args.tests, args.device)
    done: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {}
    in_turn = args.sharing != GRADIENT and args.server == "round_robin"
    turns = [[k] for k in range(CLIENTS)] if in_turn else [list(range(CLIENTS))]
    for curve in args.curves.split(","):
        training, began = Training(curve, data, args.sharing, args.device), time.perf_counter()
        for number in range(1, args.rounds + 1):
            for turn in turns:
                training.play(number, turn)
            if number % args.every and number != args.rounds:
                continue
            found = training.accuracies()
            done[curve] = {str(strength): value for strength, value in zip(training.grid, found, strict=True)}
            done[f"{curve} settings"] = {
                "sharing": args.sharing,
                "server": args.server,
                "rounds": number,
                "examples": int(data.y.numel()),
                "tests": len(data.y_test),
            }
            args.out.write_text(json.dumps(done, indent=1))
            took = time.perf_counter() - began
            print(f"{curve if curve != NONE else 'no defence'} round {number}: {found} ({took:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
