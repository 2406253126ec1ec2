"""SME's analyses: the plane of local gradients and the line between the weights (tables 1, 4, 5), trained networks (table 6).

Zhu, Yao and Blaschko 2023, arXiv:2306.00127. Round 1 is a fresh network, drawn anew for each client; a later round R is the global
network of our own federation after R rounds, the same for all clients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from leakscope.analysis.line import Lines, describe, sample_lines
from leakscope.attacks.attack import Matching
from leakscope.attacks.distances import cosine
from leakscope.attacks.dlfa import SIMILARITY
from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.objectives import Match
from leakscope.attacks.simulate import ALPHA
from leakscope.clients import Client, told
from leakscope.core import random
from leakscope.core.tree import Tree, to
from leakscope.core.types import LocalTraining
from leakscope.metrics import score
from leakscope.metrics.interval import PSNR_CAP
from leakscope.scenario.pieces import KINDS
from leakscope_papers.programs.pictures import Shown, first_client, keep_pictures
from leakscope_papers.programs.rows import Keep, Place
from leakscope_papers.sme.world import (
    Ink,
    Trained,
    clients_of,
    every_client,
    first_weights,
    in_ink,
    network_of,
    train_rounds,
)

Say = Callable[[str], None]
COSINES, SHARES = "cosine along the line", "share along the steps"
PLACES = 101


def steps_of(samples: int, epochs: int, batch: int) -> int:
    """Return the local steps T = E ceil(N / B)."""
    return epochs * -(-samples // batch)


# -- tables 1, 4 and 5; figures 3, 4 and 7 to 10


def lines(settings: Mapping[str, Any], keep: Keep, say: Say, device: str) -> None:
    """Keep for each ink and kind of local training what clients show: shares in the best plane, cosines on the line."""
    for ink in settings["inks"]:
        wanted: list[tuple[str, Place, Mapping[str, Any]]] = []
        for one in settings["columns"]:
            steps = steps_of(settings["samples"], one["epochs"], one["batch"])
            where: Place = {"ink": ink, "samples": settings["samples"], **one, "local_steps": steps}
            key = f"{ink} E={one['epochs']} B={one['batch']} R={one['round']}"
            if not keep.done(key, where):
                wanted.append((key, where, one))
        if wanted:
            data = in_ink(settings["data"]["name"], ink)
            networks = _networks(settings, data, [one["round"] for _, _, one in wanted], say, device)
            for key, where, one in wanted:
                sampled = _lines_of(settings, data, one, networks, device)
                keep.add(key, where, statistics(sampled), curves=curves_of(sampled))


def _networks(
    settings: Mapping[str, Any], ink: Ink, rounds: Sequence[int], say: Say, device: str
) -> Mapping[int, Trained]:
    later = sorted({number for number in rounds if number > 1})
    return train_rounds(settings, ink, later, say, device) if later else {}


def _lines_of(
    settings: Mapping[str, Any], ink: Ink, one: Mapping[str, Any], networks: Mapping[int, Trained], device: str
) -> Lines:
    clients = settings["clients"]
    batch, model = clients_of(ink, settings["samples"], clients), network_of(settings, ink.data)
    seeds = list(range(clients))
    fresh = one["round"] == 1
    weights = first_weights(model, "pytorch", seeds) if fresh else every_client(networks[one["round"]].weights, clients)
    local = LocalTraining(epochs=one["epochs"], batch_size=one["batch"], rate=settings["rate"])
    return sample_lines(
        to(model, device=device),
        local,
        to(weights, device=device),
        ink.scaling.scale(batch.inputs, len(ink.data.input_shape)).to(device),
        batch.labels.to(device),
        random.key(seeds, device=device),
        points=settings["points"],
    )


def curves_of(sampled: Lines) -> dict[str, dict[str, list[Any]]]:
    """Return what figures 3, 4 and 7 to 10 draw, client by client: cosines over alpha, shares over at most `PLACES` of the steps."""
    steps = sampled.shares.shape[1]
    chosen = torch.linspace(0, steps - 1, min(steps, PLACES)).round().long()
    return {
        COSINES: {"x": sampled.alphas.tolist(), "y": sampled.cosines.double().tolist()},
        SHARES: {"x": (chosen + 1).tolist(), "y": sampled.shares.cpu()[:, chosen].double().tolist()},
    }


def statistics(sampled: Lines) -> dict[str, list[float]]:
    """Return what tables and figures say of the lines, one number for each client; a `_deviation` is one for all.

    `top_inside` is 1 where the cosine is greatest at a place inside the line, `reversed_u` where it also rises up to there and falls
    from there on; `share_fluctuation` is the standard deviation of the share's change from step to step; `objective_error` is what IG
    is left with at the true pictures (Eq. 2).
    """
    measured = {
        "least_share": sampled.least_share,
        "cosine_before": sampled.at_before,
        "cosine_greatest": sampled.greatest,
        "cosine_after": sampled.cosines[:, -1],
        "cosine_least": sampled.cosines.amin(1),
        "cosine_mean": sampled.cosines.mean(1),
        "best_alpha": sampled.best_alpha,
        "mean_share": sampled.mean_share,
        "reversed_u": reversed_u(sampled.cosines),
        "top_inside": (sampled.best_alpha > 0) & (sampled.best_alpha < 1),
        "objective_error": (1 - sampled.at_before).clamp_min(0),  # rounding
    }
    if sampled.shares.shape[1] > 2:
        measured["share_fluctuation"] = sampled.shares.diff(dim=1).std(1)
    values = {name: value.double().tolist() for name, value in measured.items()}
    spread = {name: row.deviation for name, row in describe(sampled).items() if row.n > 1}
    return values | {f"{name}_deviation": [spread[name]] for name in PRINTED if name in spread}


PRINTED = ("least_share", "cosine_before", "cosine_greatest")


def reversed_u(curves: Tensor, *, slack: float = 0.05) -> Tensor:
    """Return 1 for each row that rises to a place inside and falls from there on, else 0.

    Steps the wrong way count from `slack` of the row's height on: a network with ReLUs has kinks, and its curve wiggles a little.

    >>> reversed_u(torch.tensor([[0.1, 0.5, 0.3], [0.1, 0.2, 0.3], [0.5, 0.1, 0.4]])).tolist()
    [1.0, 0.0, 0.0]
    """
    wide = curves.double()
    change, least = wide.diff(dim=1), slack * (wide.amax(1) - wide.amin(1))[:, None]
    place = torch.arange(change.shape[1], device=curves.device)
    top = curves.argmax(1)[:, None]
    rising = torch.where(place < top, change >= -least, change <= least).all(1)
    inside = (top[:, 0] > 0) & (top[:, 0] < curves.shape[1] - 1)
    return (rising & inside).double()


# -- table 6


def trained(settings: Mapping[str, Any], keep: Keep, say: Say, device: str) -> None:
    """Keep the quality of attacks on clients of a network after some rounds, pictures of the first, and the network's accuracy."""
    wanted = [row for row in _attack_rows(settings) if not keep.done(row[0], row[1])]
    names = {f"accuracy R={number}": number for number in settings["rounds"] if number > 1}
    accuracies = {key: number for key, number in names.items() if not keep.done(key, _accuracy_place(number))}
    if not wanted and not accuracies:
        return
    ink = in_ink(settings["data"]["name"], settings.get("ink"))
    networks = _networks(
        settings, ink, [*accuracies.values(), *(int(str(row[1]["round"])) for row in wanted)], say, device
    )
    for key, number in accuracies.items():
        network = networks[number]
        keep.add(
            key, _accuracy_place(number), {"accuracy": [1.0] * network.correct + [0.0] * (network.n - network.correct)}
        )
    for key, where, attack in wanted:
        values, shown = _quality(settings, ink, where, attack, networks, device)
        if keep.directory is not None:
            keep_pictures(keep.directory, key, shown)
        keep.add(key, where, values)


def _accuracy_place(number: int) -> Place:
    return {"round": number, "attack": "none"}


def _attack_rows(settings: Mapping[str, Any]) -> list[tuple[str, Place, Mapping[str, Any]]]:
    """Return key, place and attack of every row."""
    rows = []
    for samples in settings["samples"]:
        for epochs in settings["epochs"]:
            for number in settings["rounds"]:
                for attack in settings["attacks"]:
                    steps = steps_of(samples, epochs, settings["batch"])
                    where: Place = {
                        "round": number,
                        "samples": samples,
                        "epochs": epochs,
                        "batch": settings["batch"],
                        "local_steps": steps,
                        "attack": attack["name"],
                    }
                    if steps <= settings.get("most_steps", {}).get(attack["name"], steps):
                        rows.append((f"{attack['name']} R={number} N={samples} E={epochs}", where, attack))
    return rows


def _quality(
    settings: Mapping[str, Any],
    ink: Ink,
    where: Mapping[str, Any],
    attack: Mapping[str, Any],
    networks: Mapping[int, Trained],
    device: str,
) -> tuple[dict[str, list[float]], Shown]:
    """Return PSNR, similarity loss and, of SME, alpha of every client, and their spread; the pictures of the first client."""
    clients, model = settings["clients"], network_of(settings, ink.data)
    batch, seeds = clients_of(ink, where["samples"], clients), list(range(clients))
    how = dict(attack)
    init, form = how.pop("weights", "pytorch"), how.pop("form", None)
    recipe: Matching = KINDS["attack"].build(how)
    fresh = where["round"] == 1
    weights = first_weights(model, init, seeds) if fresh else every_client(networks[where["round"]].weights, clients)
    client = Client(
        LocalTraining(epochs=where["epochs"], batch_size=where["batch"], rate=settings["rate"]), scaling=ink.scaling
    )
    seen = client.observe(model, weights, batch, seeds)
    knowledge = told(model, client, batch, labels=True, local=attack["name"] == "dlfa")
    reconstruction = recipe.run(model, seen, knowledge, seeds, Execution(device=device, form=form))
    scores = score(batch.inputs, batch.labels, reconstruction.inputs.cpu(), reconstruction.labels.cpu())
    values = {"psnr": scores.psnr.clamp_max(PSNR_CAP).mean(1)}
    by_cosine = isinstance(recipe.objective, Match) and recipe.objective.distance is cosine
    values |= {SIMILARITY: reconstruction.mismatch.cpu()} if by_cosine else similarity_of(reconstruction.learned)
    rows = {name: value.double().tolist() for name, value in values.items()} | alphas_of(reconstruction.learned)
    if clients > 1:
        rows |= {f"{name}_error": [float(v.double().std()) / clients**0.5] for name, v in values.items()}
    return rows, first_client(batch, reconstruction, scores)


def similarity_of(learned: Tree) -> Tree:
    """Return the similarity loss that an attack measured at its end (DLFA); nothing for other attacks."""
    return {name: value.cpu() for name, value in learned.items() if name == SIMILARITY}


def alphas_of(learned: Tree) -> dict[str, list[float]]:
    """Return where SME's surrogates ended on the line from w0 (0) to wT (1), client by client; nothing for other attacks.

    >>> alphas_of({"alpha": torch.tensor([0.25, 0.75])})["final_alpha"]
    [0.25, 0.75]
    """
    if ALPHA not in learned:
        return {}
    alphas = learned[ALPHA].double().cpu()
    spread = {"final_alpha_deviation": [float(alphas.std())]} if len(alphas) > 1 else {}
    inside = ((alphas > 0) & (alphas < 1)).double()
    return {"final_alpha": alphas.tolist(), "alpha_inside": inside.tolist(), **spread}
