"""SRATTA: samples of secure sums over rounds of FedAvg, and which of them share a client. Marchand et al. 2023, ICML, arXiv:2306.07644.

For a first dense layer before a ReLU, unit j of a round's summed update is `G_j = sum_i c_ij x_i`, `h_j = sum_i c_ij` over the samples
that activated it in any local step of any client. Three steps:

1. A unit that one sample activated gives `x = G_j / h_j`. It is certified by other rounds: weights have moved, so the shares of a mixture
   have changed and its quotient with them, while a sample's stays. Mixtures of two samples that meet by chance lie between other
   quotients, a sample does not. (The authors' code asks an oracle that knows the data.)
2. Least squares over the certified samples give every c_ij. Units that they do not explain to rounding are left out.
3. A sample that was silent on unit j at the weights of the round (`w_j x + b_j < 0`) but has `c_ij != 0` was woken by local steps, which
   move w_j only by samples of its own client that were awake. If the awake ones of that unit are all of one client, so is the woken one.

Differences from the paper: the certificate of 1; least squares in place of orthogonal matching pursuit, because there are fewer samples
than inputs; silence and coefficients count only beyond their rounding errors.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.attacks.exact.joint_solution import errors_of
from leakscope.attacks.exact.peeling import distinct_rows, near_rows
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.short_repr import short_repr
from leakscope.core.tree import take, to
from leakscope.core.types import Knowledge, Observation, Shares, direction

EPS = {torch.float64: 1e-14, torch.float32: 1e-6}  # relative error of a unit's update, with a margin
REPEATS = {torch.float64: 2, torch.float32: 3}  # rounds that must give the same quotient
SHADOW = 16  # random directions in which quotients are compared
COARSE = 3e-4  # error of a quotient, relative to its size, above which it is no candidate
MOST = 4096  # candidates, those with the smallest errors
CLEAR = 10.0  # errors by which a coefficient or a unit's value is not zero
FAR = 20.0  # errors by which a quotient is not another
WORKS_FOR = "a first dense layer with a bias whose units can be silent (ReLU)"


@dataclass(frozen=True, slots=True)
class Linked:
    """Certified samples (M x ..., in [0, 1]), in how many rounds each was read (M), and the number of its client (M), equal where linked.

    A number that no other sample has means that nothing links the sample, not that it is its client's only one.
    """

    inputs: Tensor
    rounds: Tensor
    clients: Tensor

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class _Layer:
    """The first layer in one round, in float64: weights before, update of weights and biases, error of a unit's update relative to 1."""

    weight: Tensor
    bias: Tensor
    moved: Tensor
    moved_bias: Tensor
    error: Tensor
    repeats: int

    __repr__ = short_repr


def link_samples(model: Model, observation: Observation, knowledge: Knowledge, *, trial: int = 0) -> Linked:
    """Return the samples of one trial's rounds that certify themselves, and their clients; rounds need local steps to link any."""
    entry = model.entry
    if entry is None or entry.bias is None or {entry.weight, entry.bias} & model.private:
        raise InputError(f"sratta reads {WORKS_FOR}, and {model.name!r} shares none")
    layers = _layers(take(observation, trial), entry.weight, entry.bias)
    rows, rounds = _certified(layers, knowledge)
    clients = torch.arange(len(rows))
    if 0 < len(rows) < rows.shape[1]:
        clients = _link(rows, layers)
    shape = tuple(knowledge.input_shape)
    return Linked(knowledge.scaling.unscale(rows.unflatten(-1, shape), len(shape)), rounds, clients)


def _layers(seen: Observation, weight: str, bias: str) -> list[_Layer]:
    """Return the first layer of every round with weights of its own: rounds that repeat weights certify nothing."""
    layers: list[_Layer] = []
    for each in seen.rounds:
        dtype = each.sent[weight].dtype
        if dtype not in EPS:
            raise InputError(f"sratta needs updates in float32 or float64; {weight} is {dtype}")
        before, moved = (to(tree, dtype=torch.float64) for tree in (each.before, direction(each, seen.shares)))
        if any(torch.equal(before[weight], layer.weight) for layer in layers):
            continue
        size = moved[weight].abs().amax(1) + moved[bias].abs()
        if seen.shares is Shares.WEIGHTS:  # a difference of weights has their rounding
            size = size + before[weight].abs().amax(1) + before[bias].abs()
        layers.append(
            _Layer(before[weight], before[bias], moved[weight], moved[bias], EPS[dtype] * size, REPEATS[dtype])
        )
    return layers


def _certified(layers: list[_Layer], knowledge: Knowledge) -> tuple[Tensor, Tensor]:
    """Return the quotients that several rounds share and that lie between no others (M x F), and the number of those rounds."""
    rows = torch.cat([layer.moved / layer.moved_bias[:, None] for layer in layers])
    error = torch.cat([layer.error / layer.moved_bias.abs() for layer in layers])
    number = torch.arange(len(layers)).repeat_interleave(len(layers[0].bias)).to(rows.device)
    shape = tuple(knowledge.input_shape)
    shown = knowledge.scaling.unscale(rows.unflatten(-1, shape), len(shape)).flatten(1)
    inside = (shown - shown.clamp(0, 1)).square().mean(1).sqrt() <= CLEAR * error
    chosen = (inside & (error < COARSE)).nonzero()[:, 0]
    chosen = chosen[error[chosen].argsort()][:MOST]
    rows, error, number = rows[chosen], error[chosen], number[chosen]
    near, free = near_rows(rows, error), torch.ones(len(rows), dtype=torch.bool, device=rows.device)
    places, counts = [], []
    for j in range(len(rows)):
        group = near[j] & free
        free = free & ~group
        shared = len(number[group].unique())
        if shared >= layers[0].repeats and not _between(j, rows, error):
            places.append(j)
            counts.append(shared)
    kept = distinct_rows(rows[places], 0)
    return rows[places][kept], torch.tensor(counts, dtype=torch.int64)[kept.cpu()]


def _between(place: int, rows: Tensor, error: Tensor) -> bool:
    """Return whether a row lies on the line between two others, within their errors: then it is a mixture of two samples."""
    directions = torch.randn(rows.shape[1], SHADOW, generator=torch.Generator().manual_seed(1), dtype=rows.dtype)
    shadow, allowed = rows @ directions.to(rows.device) / SHADOW**0.5, error * rows.norm(dim=1).clamp_min(1.0)
    apart = shadow - shadow[place]
    length, allowed = apart.norm(dim=1), allowed + allowed[place]
    far = length > FAR * allowed
    unit = apart[far] / length[far, None]
    slack = 3 * allowed[far] / length[far]  # sine of the angle that errors allow
    cosine = unit @ unit.mT
    return bool(((cosine < 0) & (1 - cosine.square() <= (slack + slack[:, None]).square())).any())


def _link(rows: Tensor, layers: list[_Layer]) -> Tensor:
    """Return the number of each sample's client: of the first sample that it is linked with."""
    atoms = torch.cat([rows, torch.ones_like(rows[:, :1])], 1)
    clients = torch.arange(len(rows))
    units = [unit for layer in layers for unit in _woken(atoms, layer)]
    changed = True
    while changed:
        changed = False
        for awake, woken in units:
            groups = clients[awake].unique()
            joined = clients[awake | woken].unique()
            if len(groups) == 1 and len(joined) > 1:
                clients[torch.isin(clients, joined)] = int(joined.min())
                changed = True
    return clients


def _woken(atoms: Tensor, layer: _Layer) -> list[tuple[Tensor, Tensor]]:
    """Return which samples were awake and which were woken, for every unit of a round that the samples explain (M each)."""
    target = torch.cat([layer.moved, layer.moved_bias[:, None]], 1)
    shares: Tensor = torch.linalg.lstsq(atoms.mT, target.mT).solution  # M x K
    left = (target.mT - atoms.mT @ shares).square().mean(0).sqrt()
    explained = (left <= layer.error) & (layer.moved_bias.abs() > CLEAR * layer.error)
    bounds = errors_of(atoms.mT, 1.0)[:, None] * layer.error * atoms.shape[1] ** 0.5
    active = shares.abs() > CLEAR * bounds
    value = atoms @ torch.cat([layer.weight, layer.bias[:, None]], 1).mT
    margin = COARSE * (atoms.abs() @ torch.cat([layer.weight, layer.bias[:, None]], 1).abs().mT) / atoms.shape[1] ** 0.5
    awake, woken = active & (value >= -margin), active & (value < -margin)
    places = (explained & woken.any(0) & awake.any(0)).nonzero()[:, 0].tolist()
    return [(awake[:, j].cpu(), woken[:, j].cpu()) for j in places]
