"""SME's analyses: the plane of local gradients and the line between the weights (tables 1, 4, 5), trained networks (table 6).

Zhu, Yao and Blaschko 2023, arXiv:2306.00127. Round 1 is a fresh network for each client; a later round R is the global network of
our federation after R rounds, the same for all clients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from leakscope.attacks.distances import cosine
from leakscope.attacks.dlfa import SIMILARITY
from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.objectives import Match
from leakscope.attacks.simulate import ALPHA
from leakscope.clients import Client
from leakscope.core import random
from leakscope.core.tree import Tree, to
from leakscope.core.types import LocalTraining
from leakscope.metrics.interval import PSNR_CAP
from leakscope.play import attack, expose
from leakscope_papers.programs.pictures import Shown, first_client, keep_pictures
from leakscope_papers.programs.rows import Keep, Place, Say
from leakscope_papers.programs.settings import build_network, read_settings
from leakscope_papers.sme.networks import Ink, Trained, clients_of, in_ink, train_rounds, weights_at
from leakscope_papers.sme.settings import AttackSettings, Column, LineSettings, Networks, TrainedSettings
from leakscope_papers.theory.line import Lines, describe, sample_lines

COSINES, SHARES = "cosine along the line", "share along the steps"
PLACES = 101


def steps_of(samples: int, epochs: int, batch: int) -> int:
    """Return the local steps T = E ceil(N / B)."""
    return epochs * -(-samples // batch)


# -- tables 1, 4 and 5; figures 3, 4 and 7 to 10


def lines(settings: Mapping[str, object], keep: Keep, say: Say, device: str) -> None:
    """Store for each ink and kind of local training the clients' shares in the best plane and cosines on the line."""
    chosen, networks = read_settings(LineSettings, settings), read_settings(Networks, settings)
    for ink in chosen.inks:
        wanted: list[tuple[str, Place, Column]] = []
        for column in chosen.columns:
            steps = steps_of(chosen.samples, column.epochs, column.batch)
            where: Place = {"ink": ink, "samples": chosen.samples, **asdict(column), "local_steps": steps}
            key = f"{ink} E={column.epochs} B={column.batch} R={column.round}"
            if not keep.done(key, where):
                wanted.append((key, where, column))
        if wanted:
            data = in_ink(networks.data.name, ink)
            trained = _trained_networks(networks, data, [column.round for _, _, column in wanted], say, device)
            for key, where, column in wanted:
                sampled = _lines_of(chosen, networks, data, column, trained, device)
                keep.add(key, where, statistics(sampled), curves=curves_of(sampled))


def _trained_networks(
    settings: Networks, ink: Ink, rounds: Sequence[int], say: Say, device: str
) -> Mapping[int, Trained]:
    later = sorted({number for number in rounds if number > 1})
    return train_rounds(settings, ink, later, say, device) if later else {}


def _lines_of(
    settings: LineSettings, networks: Networks, ink: Ink, column: Column, trained: Mapping[int, Trained], device: str
) -> Lines:
    clients = settings.clients
    batch, model = clients_of(ink, settings.samples, clients), build_network(networks.model, ink.data)
    seeds = list(range(clients))
    return sample_lines(
        to(model, device=device),
        LocalTraining(epochs=column.epochs, batch_size=column.batch, rate=settings.rate),
        to(weights_at(column.round, model, trained, seeds), device=device),
        ink.scaling.scale(batch.inputs, len(ink.data.input_shape)).to(device),
        batch.labels.to(device),
        random.key(seeds, device=device),
        points=settings.points,
    )


def curves_of(sampled: Lines) -> dict[str, dict[str, list[float] | list[list[float]]]]:
    """Return the curves of figures 3, 4 and 7 to 10 by client: cosines over alpha, shares over at most `PLACES` of the steps."""
    steps = sampled.shares.shape[1]
    chosen = torch.linspace(0, steps - 1, min(steps, PLACES)).round().long()
    return {
        COSINES: {"x": sampled.alphas.tolist(), "y": sampled.cosines.double().tolist()},
        SHARES: {"x": (chosen + 1).tolist(), "y": sampled.shares.cpu()[:, chosen].double().tolist()},
    }


def statistics(sampled: Lines) -> dict[str, list[float]]:
    """Return the statistics of the lines in tables and figures, one number for each client; a `_deviation` is one for all.

    `top_inside` is 1 if the cosine is largest inside the line, `reversed_u` if it also rises up to there and falls after.
    `share_fluctuation` is the standard deviation of the share's change between steps; `objective_error` is IG's remaining loss at
    the true images (Eq. 2).
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
    """Return 1 for each row that rises to an inner maximum and then falls, else 0.

    Steps in the wrong direction count only above `slack` times the row's height, because ReLU networks give slightly jagged
    curves.

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


@dataclass(frozen=True, slots=True)
class AttackRow:
    """One attack on clients of the network after some rounds."""

    round: int
    samples: int
    epochs: int
    batch: int
    attack: AttackSettings

    @property
    def steps(self) -> int:
        """Return the local steps of a client."""
        return steps_of(self.samples, self.epochs, self.batch)

    @property
    def key(self) -> str:
        """Return the key of the row."""
        return f"{self.attack.name} R={self.round} N={self.samples} E={self.epochs}"

    @property
    def where(self) -> Place:
        """Return the place of the row."""
        local = {"samples": self.samples, "epochs": self.epochs, "batch": self.batch, "local_steps": self.steps}
        return {"round": self.round, **local, "attack": self.attack.name}


def trained(settings: Mapping[str, object], keep: Keep, say: Say, device: str) -> None:
    """Store the quality of attacks on clients of a network after some rounds, images of the first, and the network's accuracy."""
    chosen, networks = read_settings(TrainedSettings, settings), read_settings(Networks, settings)
    wanted = [row for row in _attack_rows(chosen) if not keep.done(row.key, row.where)]
    names = {f"accuracy R={number}": number for number in chosen.rounds if number > 1}
    accuracies = {key: number for key, number in names.items() if not keep.done(key, _accuracy_place(number))}
    if not wanted and not accuracies:
        return
    ink = in_ink(networks.data.name, chosen.ink)
    rounds = [*accuracies.values(), *(row.round for row in wanted)]
    trained = _trained_networks(networks, ink, rounds, say, device)
    for key, number in accuracies.items():
        correct, n = trained[number].correct, trained[number].n
        keep.add(key, _accuracy_place(number), {"accuracy": [1.0] * correct + [0.0] * (n - correct)})
    for row in wanted:
        values, shown = _quality(chosen, networks, ink, row, trained, device)
        if keep.directory is not None:
            keep_pictures(keep.directory, row.key, shown)
        keep.add(row.key, row.where, values)


def _accuracy_place(number: int) -> Place:
    return {"round": number, "attack": "none"}


def _attack_rows(settings: TrainedSettings) -> list[AttackRow]:
    rows = [
        AttackRow(number, samples, epochs, settings.batch, attack)
        for samples in settings.samples
        for epochs in settings.epochs
        for number in settings.rounds
        for attack in settings.attacks
    ]
    return [row for row in rows if row.steps <= settings.most_steps.get(row.attack.name, row.steps)]


def _quality(
    settings: TrainedSettings,
    networks: Networks,
    ink: Ink,
    row: AttackRow,
    trained: Mapping[int, Trained],
    device: str,
) -> tuple[dict[str, list[float]], Shown]:
    """Return every client's PSNR, similarity loss and (SME) alpha, their spread, and the images of the first client."""
    clients, model = settings.clients, build_network(networks.model, ink.data)
    batch, seeds, recipe = clients_of(ink, row.samples, clients), list(range(clients)), row.attack.build()
    weights = weights_at(row.round, model, trained, seeds, row.attack.weights)
    local = LocalTraining(epochs=row.epochs, batch_size=row.batch, rate=settings.rate)
    client = Client(local, scaling=ink.scaling)
    exposure = expose(model, client, weights, batch, seeds, labels=True, local=row.attack.name == "dlfa")
    result = attack(exposure, recipe, execution=Execution(device=device, form=row.attack.form))
    learned = result.reconstruction.learned
    values = {"psnr": result.scores.psnr.clamp_max(PSNR_CAP).mean(1)}
    by_cosine = isinstance(recipe.objective, Match) and recipe.objective.distance is cosine
    values |= {SIMILARITY: result.reconstruction.mismatch.cpu()} if by_cosine else similarity_of(learned)
    numbers = {name: value.double().tolist() for name, value in values.items()} | alphas_of(learned)
    if clients > 1:
        numbers |= {f"{name}_error": [float(v.double().std()) / clients**0.5] for name, v in values.items()}
    return numbers, first_client(batch, result.reconstruction, result.scores)


def similarity_of(learned: Tree) -> Tree:
    """Return the similarity loss an attack measured at its end (DLFA); {} for other attacks."""
    return {name: value.cpu() for name, value in learned.items() if name == SIMILARITY}


def alphas_of(learned: Tree) -> dict[str, list[float]]:
    """Return each client's final position of SME's surrogate on the line from w0 (0) to wT (1); {} for other attacks.

    >>> alphas_of({"alpha": torch.tensor([0.25, 0.75])})["final_alpha"]
    [0.25, 0.75]
    """
    if ALPHA not in learned:
        return {}
    alphas = learned[ALPHA].double().cpu()
    spread = {"final_alpha_deviation": [float(alphas.std())]} if len(alphas) > 1 else {}
    inside = ((alphas > 0) & (alphas < 1)).double()
    return {"final_alpha": alphas.tolist(), "alpha_inside": inside.tolist(), **spread}
