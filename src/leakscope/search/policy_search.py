"""A policy search: draw candidates, score them in groups on any engine, select. Each group is saved, so a search can be resumed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from leakscope.attacks.engine.plan import Execution
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.tree import to
from leakscope.data import Dataset, load
from leakscope.defences.on_data import Transform
from leakscope.kernels.heap import keep_freed
from leakscope.models.checkpoint import pack_checkpoint, with_values
from leakscope.search.accuracy_score import accuracy_scores
from leakscope.search.candidates import Candidate, draw_policies
from leakscope.search.optuna_search import OptunaSearch
from leakscope.search.privacy_score import Line, attack_scores, privacy_scores
from leakscope.search.records import NONE, SearchResult, claim, read_groups, read_scores, result_of, write_scores
from leakscope.search.settings import PolicySearch
from leakscope.search.utility import Examples, Recipe, Schedule, first_model, load_trained, train_network
from leakscope.store.disk import locked
from leakscope.sweep.engines import Engine, Needs, local, never

LOCK, NETWORK = "search.lock", "network"
METHODS: tuple[Literal["random"], Literal["optuna"]] = ("random", "optuna")


def run_search(
    search: PolicySearch,
    directory: Path,
    *,
    engine: Engine | None = None,
    device: str = "cpu",
    say: Callable[[str], None] = lambda _: None,
    stop: Callable[[], bool] = never,
    network: Path | None = None,
) -> SearchResult:
    """Return the result of a search, resumed from the directory; `stop` ends it after a group; searches may share a trained `network`."""
    data = _check_data(search)
    directory.mkdir(parents=True, exist_ok=True)
    with locked(directory / LOCK):
        claim(search, directory)
        known = read_scores(directory)

        def train() -> bytes:
            return _network(search, data, network or directory / NETWORK, device, say)

        run = _Run(search, directory, known, train, device, say, stop)
        wanted = _random(run, engine or local()) if search.method == "random" else _optuna(run)
    return result_of(search, known, wanted)


def compare_methods(
    search: PolicySearch,
    directory: Path,
    *,
    engine: Engine | None = None,
    device: str = "cpu",
    say: Callable[[str], None] = lambda _: None,
    stop: Callable[[], bool] = never,
) -> dict[str, SearchResult]:
    """Return the results of random search and Optuna with equal numbers of candidates, scores, network and seed."""
    OptunaSearch(search.seed)  # raises at once if Optuna is missing
    return {
        method: run_search(
            replace(search, method=method),
            directory / method,
            engine=engine,
            device=device,
            say=lambda line, method=method: say(f"{method}: {line}"),  # type: ignore[misc]
            stop=stop,
            network=directory / NETWORK,
        )
        for method in METHODS
    }


@dataclass(frozen=True, slots=True)
class _Run:
    """A running search: settings, directory, the scores so far, and the function that trains the network when needed."""

    search: PolicySearch
    directory: Path
    known: dict[str, Candidate]
    train: Callable[[], bytes]
    device: str
    say: Callable[[str], None]
    stop: Callable[[], bool]

    def group(self, policies: tuple[str, ...], network: bytes) -> Group:
        """Return a group of policies to score together."""
        return Group(f"{policies[0]}-and-{len(policies) - 1}-more", self.search, policies, self.device, network)

    def land(self, name: str, scored: Sequence[Candidate]) -> None:
        """Save a group's scores and report progress."""
        write_scores(self.directory, name, scored, len(self.known))
        self.known.update({each.policy: each for each in scored})
        best = min(scored, key=lambda each: each.privacy)
        total = self.search.candidates + 1
        self.say(f"{len(self.known)}/{total} policies scored, best of the last {best.policy} {best.privacy:.4f}")


def _random(run: _Run, engine: Engine) -> list[str]:
    """Return the policies that random search draws, after scoring the unknown ones on the engine."""
    search = run.search
    wanted = [NONE, *draw_policies(search.candidates, search.seed, shortest=search.shortest, longest=search.longest)]
    missing = [policy for policy in wanted if policy not in run.known]
    if not missing:
        return wanted
    network = run.train()
    cuts = [tuple(missing[i : i + search.group]) for i in range(0, len(missing), search.group)]
    needs = Needs(gpus=1 if run.device.startswith("cuda") else 0)
    groups = ((run.group(cut, network), needs) for cut in cuts)
    for group, scored in engine(score_group, groups, stop=run.stop):
        run.land(group.name, scored)
    return wanted


def _optuna(run: _Run) -> list[str]:
    """Return the policies that Optuna asked for, group after group; each group uses the scores of all earlier ones."""
    search, known = run.search, run.known
    study = OptunaSearch(search.seed, shortest=search.shortest, longest=search.longest, sampler=search.sampler)
    before: list[Candidate] = []
    for scored in read_groups(run.directory):
        study.replay([each for each in scored if each.policy != NONE], before)
        before += scored
    network = b""
    while not run.stop():
        left = search.candidates - sum(policy != NONE for policy in known)
        asked = study.ask(min(search.group, left), list(known.values())) if left > 0 else []
        cut = ((NONE,) if NONE not in known else ()) + tuple(asked)
        if not cut:
            break
        network = network or run.train()
        group = run.group(cut, network)
        scored = score_group(group)
        run.land(group.name, scored)
        study.tell([each for each in scored if each.policy != NONE])
    return list(known)


def _check_data(search: PolicySearch) -> Dataset:
    data = load(search.data)
    if data.kind != "image":
        raise InputError(f"PolicySearch.data must hold pictures, {search.data} holds tables")
    last = max(search.first + (search.images - 1) * search.stride, search.batches * search.batch_size - 1)
    if last >= data.size("test"):
        raise InputError(
            f"the search needs test pictures up to number {last}, {search.data} has {data.size('test')}: lower images, stride, "
            "first, batches or batch_size"
        )
    return data


def _network(search: PolicySearch, data: Dataset, directory: Path, device: str, say: Callable[[str], None]) -> bytes:
    """Return the network at which gradients are taken, trained or resumed."""
    examples = examples_of(data)
    augment = Transform(crop=4, flip=True)
    recipe = Recipe(
        search.model, (("width", search.width),), augment, Schedule(epochs=search.epochs), search.seed, search.share
    )
    trained = load_trained(recipe, examples, directory)
    if trained is None or len(trained.history) < search.epochs:
        say(
            f"training {search.model} on {round(search.share * len(examples.x_train))} examples for {search.epochs} epochs"
        )
        trained = train_network(recipe, examples, device=device, directory=directory)
    say(f"trained: test accuracy {trained.history[-1].test_accuracy:.3f}")
    return pack_checkpoint(trained.model, trained.model.parameters, trained.model.buffers, {})


@dataclass(frozen=True, slots=True)
class Group:
    """Policies that are scored together, with all inputs; `network` holds the trained values as safetensors."""

    name: str
    search: PolicySearch
    policies: tuple[str, ...]
    device: str
    network: bytes = field(repr=False)


def score_group(group: Group) -> list[Candidate]:
    """Return the scores of a group; all groups of a search use the same images, noise and draws."""
    search, device = group.search, group.device
    if device == "cpu":
        keep_freed()
    data, trained, fresh = _world(search, device, group.network)
    hows, scaling = [Transform(policy) for policy in group.policies], data.statistics
    places = range(search.first, search.first + search.images * search.stride, search.stride)
    x, y = data.pictures("test", places), data.labels("test", places)
    if search.score == "privacy":
        line = Line(search.points, search.per_tensor, search.trapezoid)
        privacy = privacy_scores(
            to(trained, device=device), x.to(device), y.to(device), hows, scaling=scaling, seed=search.seed, line=line
        )  # fmt: skip
    else:
        how = Execution(device=device)
        privacy = attack_scores(
            trained, x, y, hows, scaling=scaling, seed=search.seed, iterations=search.iterations, execution=how
        )
    accuracy = accuracy_scores(fresh, _batches(search, data, device), hows, scaling=scaling, seed=search.seed)
    return [Candidate(*each) for each in zip(group.policies, privacy.tolist(), accuracy.tolist(), strict=True)]


@functools.lru_cache(maxsize=2)
def _world(search: PolicySearch, device: str, network: bytes) -> tuple[Dataset, Model, Model]:
    """Return the data, the trained network on the CPU and the untrained one on the device, cached."""
    from safetensors.torch import load as unpack

    data, settings = load(search.data), {"width": search.width}
    fresh = first_model(search.model, data.input_shape, data.classes, settings, seed=search.seed + 1)
    return data, with_values(fresh, unpack(network), {}, "the trained network"), to(fresh, device=device)


def examples_of(data: Dataset) -> Examples:
    """Return a data set as bytes for training."""
    return Examples(
        torch.from_numpy(data.x_train.copy()),
        data.labels("train", slice(None)),
        torch.from_numpy(data.x_test.copy()),
        data.labels("test", slice(None)),
        data.classes,
        data.statistics,
    )


def _batches(search: PolicySearch, data: Dataset, device: str) -> Sequence[tuple[Tensor, Tensor]]:
    cuts = [range(i * search.batch_size, (i + 1) * search.batch_size) for i in range(search.batches)]
    return [(data.pictures("test", c).to(device), data.labels("test", c).to(device)) for c in cuts]
