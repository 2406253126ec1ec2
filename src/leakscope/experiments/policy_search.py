"""A policy search: draw, score in groups on any engine, keep; every group lands when it is done, and a cut search goes on."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from leakscope.core.errors import InputError
from leakscope.data import Dataset, load
from leakscope.defences.on_data import Transform
from leakscope.experiments.engines import Engine, Needs, local, never
from leakscope.experiments.policy_scoring import Group, examples_of, score_group
from leakscope.experiments.policy_settings import PolicySearch, read_search
from leakscope.models.checkpoint import pack_checkpoint
from leakscope.search.front import front, hypervolume
from leakscope.search.optuna_search import OptunaSearch
from leakscope.search.random_search import Candidate, Selection, draw_policies, select
from leakscope.search.utility import Recipe, Schedule, train_network
from leakscope.store.durable import replacing
from leakscope.store.lock import locked

__all__ = ["Found", "PolicySearch", "read_search", "run_search"]

SETTINGS, SCORES, LOCK, NETWORK = "search.json", "scores", "search.lock", "network"
NONE = "none"
MAY_CHANGE = ("keep", "threshold", "group", "candidates")


@dataclass(frozen=True, slots=True)
class Found:
    """The end of a search: all candidates in the order drawn, no policy as a reference, and what was kept."""

    candidates: tuple[Candidate, ...]
    reference: Candidate | None
    selection: Selection
    left: int = 0

    @property
    def front(self) -> tuple[Candidate, ...]:
        """Return the candidates that none beats on both scores."""
        return tuple(front(self.candidates))

    @property
    def area(self) -> float | None:
        """Return how much of the plane the candidates rule beyond no policy; compares searches of equal cost."""
        return None if self.reference is None else hypervolume(self.candidates, self.reference)


def run_search(
    said: PolicySearch,
    directory: Path,
    *,
    engine: Engine | None = None,
    device: str = "cpu",
    say: Callable[[str], None] = lambda _: None,
    stop: Callable[[], bool] = never,
) -> Found:
    """Return what a search found; what the directory holds already is not scored again. `stop` ends it after a group."""
    data = _check_data(said)
    directory.mkdir(parents=True, exist_ok=True)
    with locked(directory / LOCK):
        _claim(said, directory)
        known = _known(directory)
        if said.method == "random":
            wanted = _random(said, data, directory, known, engine or local(), device, say, stop)
        else:
            wanted = _optuna(said, data, directory, known, device, say, stop)
    scored = tuple(known[policy] for policy in wanted if policy in known and policy != NONE)
    chosen = select(scored, threshold=said.threshold, keep=said.keep)
    return Found(scored, known.get(NONE), chosen, max(said.candidates - len(scored), 0) + (NONE not in known))


def _random(
    said: PolicySearch,
    data: Dataset,
    directory: Path,
    known: dict[str, Candidate],
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
    network = _network(said, data, directory, device, say)
    cuts = [tuple(missing[i : i + said.group]) for i in range(0, len(missing), said.group)]
    needs = Needs(gpus=1 if device == "cuda" else 0)
    groups = ((_group(said, cut, device, network), needs) for cut in cuts)
    for group, made in engine(score_group, groups, stop=stop):
        _land(directory, group.name, made, known, said, say)
    return wanted


def _optuna(
    said: PolicySearch,
    data: Dataset,
    directory: Path,
    known: dict[str, Candidate],
    device: str,
    say: Callable[[str], None],
    stop: Callable[[], bool],
) -> list[str]:
    """Return the policies that Optuna asked for, group after group: each group hears of all before it."""
    study = OptunaSearch(said.seed, shortest=said.shortest, longest=said.longest)
    study.tell([each for each in known.values() if each.policy != NONE])
    network = b""
    while not stop():
        left = said.candidates - sum(policy != NONE for policy in known)
        asked = study.ask(min(said.group, left), list(known.values())) if left > 0 else []
        cut = ((NONE,) if NONE not in known else ()) + tuple(asked)
        if not cut:
            break
        network = network or _network(said, data, directory, device, say)
        group = _group(said, cut, device, network)
        made = score_group(group)
        _land(directory, group.name, made, known, said, say)
        study.tell([each for each in made if each.policy != NONE])
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


def _claim(said: PolicySearch, directory: Path) -> None:
    """Write the settings down, or refuse a directory that holds another search."""
    plain = {name: value for name, value in dataclasses.asdict(said).items() if name not in MAY_CHANGE}
    path = directory / SETTINGS
    if path.exists():
        if json.loads(path.read_text(encoding="utf-8")) != plain:
            raise InputError(f"{directory} holds another search; use an empty directory or the same file")
        return
    with replacing(path) as file:
        file.write(json.dumps(plain, indent=1).encode())


def _network(said: PolicySearch, data: Dataset, directory: Path, device: str, say: Callable[[str], None]) -> bytes:
    """Return the network that gradients are taken at, after training it (or taking up its training)."""
    examples = examples_of(data)
    augment = Transform(crop=4, flip=True)
    recipe = Recipe(said.model, (("width", said.width),), augment, Schedule(epochs=said.epochs), said.seed, said.share)
    say(f"training {said.model} on {round(said.share * len(examples.x_train))} examples for {said.epochs} epochs")
    trained = train_network(recipe, examples, device=device, directory=directory / NETWORK)
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
    folder = directory / SCORES
    folder.mkdir(exist_ok=True)
    with replacing(folder / f"{name}.json") as file:
        about = {"order": len(known), "candidates": [dataclasses.asdict(each) for each in made]}
        file.write(json.dumps(about).encode())
    known |= {each.policy: each for each in made}
    best = min(made, key=lambda each: each.privacy)
    total = said.candidates + 1
    say(f"{len(known)}/{total} policies scored, best of the last {best.policy} {best.privacy:.4f}")


def _known(directory: Path) -> dict[str, Candidate]:
    """Return what a directory holds, in the order it was scored."""
    landed: list[tuple[int, list[Candidate]]] = []
    for path in sorted((directory / SCORES).glob("*.json")):
        try:
            about = json.loads(path.read_text(encoding="utf-8"))
            landed.append((int(about["order"]), [Candidate(**each) for each in about["candidates"]]))
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(f"{path} is not readable ({error}); delete it to score its policies again") from None
    return {each.policy: each for _, made in sorted(landed, key=lambda pair: pair[0]) for each in made}
