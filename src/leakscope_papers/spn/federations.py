"""SPN's federated accuracies: table 11 (DLNet by strength), figures 7, 28 and 29 (by the number of clients, and clients alone).

Fan et al. 2020, arXiv:2006.11601, tables 2 and 3. In the figures clients share weights after one local epoch (FedAvg), so noise
and selection act on the change of the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from leakscope.clients import Client
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.registry import lookup
from leakscope.core.tree import take, to
from leakscope.core.types import LocalTraining
from leakscope.data import Dataset
from leakscope.defences import GaussianNoise, Sparsify
from leakscope.defences.on_model import Polarisation
from leakscope.federated import (
    Averaging,
    Decay,
    Everyone,
    Federation,
    Form,
    Holdings,
    deal,
    measure_utility,
    parameters_of,
    train_federation,
)
from leakscope.kernels.per_client import client_by_client
from leakscope.models import INITS, draw_parameters
from leakscope.sweep.objects import load_data
from leakscope.training.file import TRAINING_KINDS
from leakscope_papers.programs.rows import Keep, Place, Say
from leakscope_papers.programs.settings import build_network, read_settings
from leakscope_papers.spn.settings import FederationSettings, Mechanism, Trained
from leakscope_papers.spn.training import kept_curve

ALONE = "standalone"


# -- table 11


def strengths(settings: Mapping[str, object], keep: Keep, say: Say, device: str) -> None:
    """Store the accuracy under every strength of every curve, as 0 or 1 for each test image."""
    trained = read_settings(Trained, settings)
    name = trained.data.name
    for curve in trained.curves:
        rows: list[tuple[str, Place]] = [
            (f"{curve.title} {strength:g}", {"data": name, "model": trained.model.name, **curve.place(strength)})
            for strength in curve.strengths
        ]
        missing = [number for number, row in enumerate(rows) if not keep.done(*row)]
        if not missing:
            continue
        say(f"{name}, {curve.title}")
        right = kept_curve(trained, curve, load_data(name), keep.directory, say, device)
        for number in missing:
            keep.add(*rows[number], {"accuracy": right[number].double().tolist()})


# -- figures 7, 28 and 29

DEFENDED: dict[str, Callable[[Mechanism], Client]] = {
    "fedavg": lambda _: Client(),
    "spn": lambda mechanism: Client(on_model=Polarisation(_strength(mechanism, "alpha2"))),
    "dp": lambda mechanism: Client(defences=(GaussianNoise(_strength(mechanism, "sigma")),)),
    "ppdl": lambda mechanism: Client(defences=(Sparsify(share=_strength(mechanism, "share")),)),
    ALONE: lambda _: Client(),
}


def _strength(mechanism: Mechanism, name: str) -> float:
    if name not in mechanism.strengths:
        raise InputError(f"mechanism {mechanism.kind} needs {name}")
    return mechanism.strengths[name]


def federations(settings: Mapping[str, object], keep: Keep, say: Say, device: str) -> None:
    """Store the test accuracy for every number of clients and every mechanism.

    The numbers are 0 or 1 for each test image; for standalone models one accuracy for each client.
    """
    chosen = read_settings(FederationSettings, settings)
    data: Dataset | None = None
    for clients in chosen.clients:
        for mechanism in chosen.mechanisms:
            where: Place = {
                "data": chosen.data.name,
                "model": chosen.model.name,
                "clients": clients,
                "defence": mechanism.kind,
                "attack": "none",
                **mechanism.strengths,
            }
            key = " ".join([mechanism.kind, *(f"{value:g}" for value in mechanism.strengths.values()), f"N={clients}"])
            if keep.done(key, where):
                continue
            data = data or load_data(chosen.data.name, chosen.data.size)
            values = _standing_alone if mechanism.kind == ALONE else _federated
            keep.add(key, where, {"accuracy": values(chosen, data, clients, mechanism, say, device)})


def _federated(
    settings: FederationSettings, data: Dataset, clients: int, mechanism: Mechanism, say: Say, device: str
) -> list[float]:
    correct, n = _trained(settings, data, _dealt(settings, data, clients), mechanism, device)
    say(f"  {mechanism.kind}, {clients} clients: {correct / n:.1%} of {n:,}")
    return [1.0] * correct + [0.0] * (n - correct)


def _standing_alone(
    settings: FederationSettings, data: Dataset, clients: int, mechanism: Mechanism, say: Say, device: str
) -> list[float]:
    """Return the accuracies of the first few clients' models, each trained only on its own data."""
    whole = _dealt(settings, data, clients)
    accuracies = []
    for client in range(min(settings.standalone, clients)):
        alone = replace(whole, shares=whole.shares[client : client + 1])
        correct, n = _trained(settings, data, alone, mechanism, device)
        accuracies.append(correct / n)
    say(f"  {len(accuracies)} of {clients} clients alone: {sum(accuracies) / len(accuracies):.1%}")
    return accuracies


def _dealt(settings: FederationSettings, data: Dataset, clients: int) -> Holdings:
    wanted = settings.examples
    groups = None if data.groups_train is None else data.groups_train[:wanted]
    part = replace(data, x_train=data.x_train[:wanted], y_train=data.y_train[:wanted], groups_train=groups)
    return deal(part, TRAINING_KINDS["partition"].build(settings.partition, clients=clients), seed=settings.seed)


def _trained(
    settings: FederationSettings, data: Dataset, holdings: Holdings, mechanism: Mechanism, device: str
) -> tuple[int, int]:
    """Return how many test images the final global model classifies correctly, and of how many."""
    local = LocalTraining(epochs=1, batch_size=settings.batch, rate=settings.rate, momentum=settings.momentum)
    client = lookup(DEFENDED, mechanism.kind, "mechanism")(mechanism)
    federation = Federation(
        client=replace(client, local=local, scaling=data.scaling),
        selection=Everyone(),
        server=Averaging(),
        decay=Decay(factor=0.5, at=settings.halved_at),
        seed=settings.seed,
        together=settings.together,
    )
    model = to(build_network(settings.model, data), device=device)
    first = take(draw_parameters(model, INITS[settings.init](), random.key([settings.seed])), 0)
    form, weights = Form(client_by_client, traced=device == "cuda"), to(first, device=device)
    state = train_federation(federation, model, holdings, settings.rounds, weights=weights, form=form)
    used = measure_utility(model, parameters_of(model, state), state.buffers, data, scaling=data.scaling)
    return used.correct, used.n
