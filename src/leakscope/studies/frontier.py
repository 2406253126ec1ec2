"""The privacy frontier: epsilon, accuracy and measured leakage of the same federated runs, DP-SGD beside other defences.

Every run trains the same small network on bundled digits from the same weights. In each round all clients share one protected
gradient; the server steps along the mean, as far as without protection (a server would tune its rate). The leak is what an
informed attacker recovers from the first updates of some clients. Clients hold one example, the worst case; with DP-SGD each
clips and noises its gradient. Epsilon is that of one client over all rounds; other defences have none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leakscope.attacks.aware import aware
from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.recipes import cpl
from leakscope.clients import Client, attacker_knowledge, knowledge_of_defences
from leakscope.clients.private import PrivateClient
from leakscope.core import random
from leakscope.core.devices import find_device
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.pages import notebook_html, write_page
from leakscope.core.progress import ProgressOption, reporting
from leakscope.core.short_repr import short_repr
from leakscope.core.tree import Tree, count, lift, norm, take, to
from leakscope.core.types import Batch, Knowledge, Observation, make_batch
from leakscope.data import load
from leakscope.defences import Clip, Defence, GaussianNoise, LowRank, Quantise, Sign, Sparsify
from leakscope.federated import train_by_gradients
from leakscope.metrics.interval import Estimate, estimate_rate
from leakscope.models import Torch, draw_parameters, from_module
from leakscope.play import AttackResult, Exposure
from leakscope.play import attack as run_attack

EpsilonOf = Callable[[PrivateClient, int, int], float]  # (client, examples, rounds): `integrations.opacus`
DP = "DP-SGD"
UNDEFENDED = "undefended"
ATTACKED = 8  # clients, if there are as many


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierSettings:
    """Size of the runs."""

    clients: int = 256
    rounds: int = 40
    rate: float = 0.5
    attacked: int = ATTACKED
    iterations: int = 40
    bound: float = 1.0  # DP-SGD's clipping bound, in units of the median first gradient norm
    multipliers: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)  # DP-SGD's noise multipliers
    seed: int = 0

    def __post_init__(self) -> None:
        if self.clients < 1:
            raise InputError(f"clients must be at least 1, got {self.clients}")
        if not 1 <= self.attacked <= self.clients:
            raise InputError(f"attacked must lie in 1..{self.clients}, the number of clients, got {self.attacked}")
        if min(self.rounds, self.iterations) < 1 or not self.multipliers or not self.bound > 0 or not self.rate > 0:
            raise InputError("a frontier needs rounds, iterations, a rate, a bound and a noise multiplier above 0")


@dataclass(frozen=True, slots=True, eq=False)
class Point:
    """One run: defence, strength, epsilon (None: no guarantee), test accuracy, and the attack on its clients."""

    family: str
    strength: str
    epsilon: float | None
    accuracy: Estimate
    run: AttackResult

    __repr__ = short_repr


@dataclass(frozen=True, slots=True, eq=False)
class Frontier:
    """All points, the private examples that were attacked, and the settings."""

    points: tuple[Point, ...]
    truth: Batch
    seeds: tuple[int, ...]
    settings: FrontierSettings

    __repr__ = short_repr
    _repr_html_ = notebook_html
    write = write_page


def measure_frontier(
    settings: FrontierSettings,
    epsilon_of: EpsilonOf | None = None,
    *,
    device: str | torch.device | None = None,
    progress: ProgressOption = None,
) -> Frontier:
    """Return accuracy and leakage of DP-SGD and of other defences; `epsilon_of(client, examples, rounds)` is the promise."""
    stage = _Stage(settings, find_device(device))
    runs: list[tuple[str, str, Client | PrivateClient]] = [(UNDEFENDED, "", Client())]
    for multiplier in settings.multipliers:
        private = PrivateClient(bound=settings.bound * stage.length, multiplier=multiplier)
        runs.append((DP, f"multiplier {multiplier:g}", private))
    runs += [(family, strength, Client(defences=d)) for family, strength, d in _defences(stage.length, stage.size)]
    points = []
    with reporting(progress) as report:
        for number, (family, strength, client) in enumerate(runs):
            report("frontier", f"{family} {strength}".strip(), done=number, total=len(runs))
            promise = None
            if epsilon_of is not None and isinstance(client, PrivateClient):
                promise = epsilon_of(client, 1, settings.rounds)
            points.append(stage.point(family, strength, client, promise))
    truth = to(take(stage.batch, slice(0, settings.attacked)), device="cpu")
    return Frontier(tuple(points), truth, stage.attacked_seeds, settings)


def _defences(length: float, size: float) -> list[tuple[str, str, tuple[Defence, ...]]]:
    """Return (family, strength, stack) of the papers' defences, in units of the median gradient."""
    noise = [("Gaussian noise", f"sigma {f * size:.2g}", (GaussianNoise(f * size),)) for f in (0.1, 1.0, 10.0)]
    both = ("clip and noise", f"sigma {size:.2g}", (Clip(0.5 * length), GaussianNoise(size)))
    sparse = [("sparsify", f"drop {d:g}", (Sparsify(d),)) for d in (0.5, 0.9, 0.99)]
    coarse = [("quantise", f"{b} bits", (Quantise(b),)) for b in (8, 4, 2)]
    return [*noise, both, *sparse, *coarse, ("low rank", "rank 1", (LowRank(1),)), ("sign", "", (Sign(),))]


class _Stage:
    """The network, clients and test set of all runs, and the step lengths of the undefended one."""

    def __init__(self, settings: FrontierSettings, device: torch.device) -> None:
        self.settings = settings
        data = load("digits")
        chosen = range(settings.clients)
        if settings.clients > data.size("train"):
            raise InputError(f"there are {data.size('train')} digits for clients, got {settings.clients} clients")
        labels = torch.as_tensor(data.labels("train", chosen))
        self.batch = make_batch(data.pictures("train", chosen)[:, None], labels[:, None], classes=10)
        self.test = data.pictures("test", slice(None)), torch.as_tensor(data.labels("test", slice(None)))
        self.model, self.weights = _network(settings.seed)
        if device.type != "cpu":
            parts = to((self.batch, self.test, self.model, self.weights), device=device)
            self.batch, self.test, self.model, self.weights = parts
        self.lengths: tuple[float, ...] = ()
        first = Client().observe(self.model, self._many(self.weights), self.batch, self._seeds(0))
        self.length = float(lift(norm)(first.rounds[0].sent).median())
        self.size = self.length / math.sqrt(count(self.weights))

    @property
    def attacked_seeds(self) -> tuple[int, ...]:
        """Return the first-round seeds of the attacked clients."""
        return tuple(self._seeds(0)[: self.settings.attacked])

    def point(
        self,
        family: str,
        strength: str,
        client: Client | PrivateClient,
        epsilon: float | None,
    ) -> Point:
        """Return one run: trained, tested, attacked."""
        first, weights = self._train(client)
        run = self._attack(f"{family} {strength}".strip(), client, first)
        return Point(family, strength, epsilon, self._accuracy(weights), run)

    def _train(self, client: Client | PrivateClient) -> tuple[Observation, Tree]:
        """Return the server's observation of the first round, and the final weights."""
        seen: list[Observation] = []

        def answer(weights: Tree, number: int) -> Tree:
            observed = client.observe(self.model, self._many(weights), self.batch, self._seeds(number))
            if not seen:
                seen.append(observed)
            return observed.rounds[0].sent

        settings = self.settings
        steps = train_by_gradients(
            self.weights, answer, settings.rounds, rate=settings.rate, lengths=self.lengths or None
        )
        self.lengths = self.lengths or steps.lengths
        return seen[0], steps.weights

    def _attack(self, name: str, client: Client | PrivateClient, first: Observation) -> AttackResult:
        few = slice(0, self.settings.attacked)
        seen, truth = take(first, few), to(take(self.batch, few), device="cpu")
        knowledge = _knowledge(self.model, client, truth, seen)
        plain = client if isinstance(client, Client) else Client()
        exposure = Exposure(self.model, plain, truth, self.attacked_seeds, seen, knowledge)
        method = aware(cpl(iterations=self.settings.iterations), knowledge)
        note = f"CPL, knows the defence; {self.settings.iterations} iterations at most"
        return run_attack(
            exposure, method, name=name, note=note, execution=Execution(device=str(exposure.device), form="native")
        )

    def _accuracy(self, weights: Tree) -> Estimate:
        x, y = self.test
        with torch.no_grad():
            output = self.model.apply(weights, {}, x, random.key(0, device=x.device))[0]
        right = (output.argmax(1) == y)[:, None].cpu()
        return estimate_rate(right, torch.ones_like(right))

    def _many(self, weights: Tree) -> Tree:
        return {n: w.expand(self.settings.clients, *w.shape) for n, w in weights.items()}

    def _seeds(self, number: int) -> list[int]:
        return [(self.settings.seed * 10_000 + number) * 10_000 + k for k in range(self.settings.clients)]


def _knowledge(model: Model, client: Client | PrivateClient, truth: Batch, seen: Observation) -> Knowledge:
    """Return the knowledge of an informed attacker."""
    if isinstance(client, PrivateClient):
        plain = Client(loss=client.loss, scaling=client.scaling)
        return client.inform(attacker_knowledge(model, plain, truth), truth.trials)
    return knowledge_of_defences(attacker_knowledge(model, client, truth), client, seen)


def _network(seed: int) -> tuple[Model, Tree]:
    """Return a small network for 8 x 8 digits and its initial weights."""
    module = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.Tanh(), nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.Tanh(), nn.Flatten(),
        nn.Linear(128, 10),
    )  # fmt: skip
    model = from_module(module, input_shape=(1, 8, 8), name="digits network")
    drawn: dict[str, Tensor] = draw_parameters(model, Torch(), random.key([seed]))
    return model, {name: value[0] for name, value in drawn.items()}


def dominated(points: Sequence[Point]) -> list[bool]:
    """Return for each point whether another is at least as accurate, leaks no more, and is better in one of the two."""

    def leaks(point: Point) -> tuple[float, float]:
        return (point.run.summary.content.value, point.run.summary.means["psnr"].value)

    return [
        any(
            other is not point
            and other.accuracy.value >= point.accuracy.value
            and leaks(other) <= leaks(point)
            and (other.accuracy.value > point.accuracy.value or leaks(other) < leaks(point))
            for other in points
        )
        for point in points
    ]
