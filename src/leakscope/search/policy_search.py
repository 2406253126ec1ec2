"""A policy search: draw, score in groups on any engine, keep; every group lands when it is done, and a cut search goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from leakscope.core.errors import InputError
from leakscope.data import Dataset, load
from leakscope.defences.on_data import Transform
from leakscope.models.checkpoint import pack_checkpoint
from leakscope.search.optuna_search import OptunaSearch
from leakscope.search.random_search import Candidate, draw_policies
from leakscope.search.records import (
    NONE,
    Found,
    claim,
    found_of,
    read_finished,
    read_groups,
    read_scores,
    write_scores,
)
from leakscope.search.scoring import Group, examples_of, score_group
from leakscope.search.settings import PolicySearch, read_search
from leakscope.search.utility import Recipe, Schedule, load_trained, train_network
from leakscope.store.lock import locked
from leakscope.sweep.engines import Engine, Needs, local, never

__all__ = [
    "METHODS",
    "Candidate",
    "Found",
    "PolicySearch",
    "compare_methods",
    "read_finished",
    "read_search",
    "run_search",
]

LOCK, NETWORK = "search.lock", "network"
METHODS: tuple[Literal["random"], Literal["optuna"]] = ("random", "optuna")


def run_search(
    said: PolicySearch,
    directory: Path,
    *,
    engine: Engine | None = None,
    device: str = "cpu",
    say: Callable[[str], None] = lambda _: None,
    stop: Callable[[], bool] = never,
    network: Path | None = None,
) -> Found:
    """Return what a search found; what the directory holds already is not scored again. `stop` ends it after a group.

    The network that gradients are taken at is trained in `network`, if given: searches of one recipe may share it.
    """
    data = _check_data(said)
    directory.mkdir(parents=True, exist_ok=True)
    with locked(directory / LOCK):
        claim(said, directory)
        known = read_scores(directory)

        def train() -> bytes:
            return _network(said, data, network or directory / NETWORK, device, say)

        if said.method == "random":
            wanted = _random(said, directory, known, train, engine or local(), device, say, stop)
        else:
            wanted = _optuna(said, directory, known, train, device, say, stop)
    return found_of(said, known, wanted)


def compare_methods(
    said: PolicySearch,
    directory: Path,
    *,
    engine: Engine | None = None,
    device: str = "cpu",
    say: Callable[[str], None] = lambda _: None,
    stop: Callable[[], bool] = never,
) -> dict[str, Found]:
    """Return what random search and Optuna found in as many candidates each: same scores, same network, same seed."""
    OptunaSearch(said.seed)  # says at once where Optuna is missing
    return {
        method: run_search(
            replace(said, method=method),
            directory / method,
            engine=engine,
            device=device,
            say=lambda line, method=method: say(f"{method}: {line}"),  # type: ignore[misc]
            stop=stop,
            network=directory / NETWORK,
        )
        for method in METHODS
    }


def _random(
    said: PolicySearch,
    directory: Path,
    known: dict[str, Candidate],
    train: Callable[[], bytes],
    engine: Engine,
    device: str,
    say: Callable[[str], None],
    stop: Callable[[], bool],
) -> list[str]:
    """Return the policies that random search draws, after scoring those that are not known yet, on the engine."""
    wanted = [NONE, *draw_policies(said.candidates, said.seed, shortest=said.shortest, longest=said.longest)]
    missing = [policy for policy in wanted if policy not in known]
    if not missing:
        return wanted
    network = train()
    cuts = [tuple(missing[i : i + said.group]) for i in range(0, len(missing), said.group)]
    needs = Needs(gpus=1 if device == "cuda" else 0)
    groups = ((_group(said, cut, device, network), needs) for cut in cuts)
    for group, made in engine(score_group, groups, stop=stop):
        _land(directory, group.name, made, known, said, say)
    return wanted


def _optuna(
    said: PolicySearch,
    directory: Path,
    known: dict[str, Candidate],
    train: Callable[[], bytes],
    device: str,
    say: Callable[[str], None],
    stop: Callable[[], bool],
) -> list[str]:
    """Return the policies that Optuna asked for, group after group: each group hears of all before it."""
    study = OptunaSearch(said.seed, shortest=said.shortest, longest=said.longest, sampler=said.sampler)
    before: list[Candidate] = []
    for made in read_groups(directory):
        study.replay([each for each in made if each.policy != NONE], before)
        before += made
    network = b""
    while not stop():
        left = said.candidates - sum(policy != NONE for policy in known)
        asked = study.ask(min(said.group, left), list(known.values())) if left > 0 else []
        cut = ((NONE,) if NONE not in known else ()) + tuple(asked)
        if not cut:
            break
        network = network or train()
        group = _group(said, cut, device, network)
        scored = score_group(group)
        _land(directory, group.name, scored, known, said, say)
        study.tell([each for each in scored if each.policy != NONE])
    return list(known)


def _check_data(said: PolicySearch) -> Dataset:
    data = load(said.data)
    if data.kind != "image":
        raise InputError(f"PolicySearch.data must hold pictures, {said.data} holds tables")
    last = max(said.first + (said.images - 1) * said.stride, said.batches * said.batch_size - 1)
    if last >= data.size("test"):
        raise InputError(
            f"the search needs test pictures up to number {last}, {said.data} has {data.size('test')}: lower images, stride, "
            "first, batches or batch_size"
        )
    return data


def _network(said: PolicySearch, data: Dataset, directory: Path, device: str, say: Callable[[str], None]) -> bytes:
    """Return the network that gradients are taken at, after training it (or taking up its training)."""
    examples = examples_of(data)
    augment = Transform(crop=4, flip=True)
    recipe = Recipe(said.model, (("width", said.width),), augment, Schedule(epochs=said.epochs), said.seed, said.share)
    trained = load_trained(recipe, examples, directory)
    if trained is None or len(trained.history) < said.epochs:
        say(f"training {said.model} on {round(said.share * len(examples.x_train))} examples for {said.epochs} epochs")
        trained = train_network(recipe, examples, device=device, directory=directory)
    say(f"trained: test accuracy {trained.history[-1].test_accuracy:.3f}")
    return pack_checkpoint(trained.model, trained.model.parameters, trained.model.buffers, {})


def _group(said: PolicySearch, policies: tuple[str, ...], device: str, network: bytes) -> Group:
    return Group(f"{policies[0]}-and-{len(policies) - 1}-more", said, policies, device, network)


def _land(
    directory: Path,
    name: str,
    made: Sequence[Candidate],
    known: dict[str, Candidate],
    said: PolicySearch,
    say: Callable[[str], None],
) -> None:
    """Save a group, take it into what is known, and say so."""
    write_scores(directory, name, made, len(known))
    known |= {each.policy: each for each in made}
    best = min(made, key=lambda each: each.privacy)
    total = said.candidates + 1
    say(f"{len(known)}/{total} policies scored, best of the last {best.policy} {best.privacy:.4f}")
