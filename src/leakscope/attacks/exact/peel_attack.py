"""The peeling attack: `peeling.peel` on the first dense layer of every client, with what the network says about each candidate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakscope.attacks.attack import check_observation
from leakscope.attacks.engine.plan import DEFAULT, Execution
from leakscope.attacks.exact.analytic import exact_result, labels_of, no_ratio, recover
from leakscope.attacks.exact.layer_probe import is_behind, read_layer, unit_of
from leakscope.attacks.exact.ledger import Peeled, Probe, Update
from leakscope.attacks.exact.newton import solve_batch
from leakscope.attacks.exact.peeling import WORK, peel
from leakscope.attacks.exact.spear import unmix
from leakscope.core.errors import InputError
from leakscope.core.model import Dense, HasNorms, Model
from leakscope.core.scaling import Scaling
from leakscope.core.short_repr import short_repr
from leakscope.core.tree import TINY, take
from leakscope.core.types import Knowledge, Observation, Outcome, Reconstruction, Round, Seeds, Shares, direction
from leakscope.learning.losses import LOSSES

APART = 1e-3  # root mean square between samples of two rounds that are two samples


@dataclass(frozen=True, slots=True)
class LayerInputs:
    """Inputs of a dense layer (T x N x F), labels and which are certified (T x N), and the unexplained share of its gradient (T)."""

    inputs: Tensor
    labels: Tensor
    proved: Tensor
    left: Tensor

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class Peeling:
    """Read a batch from a first dense layer with ReLU-like zeros: `divide` sample by sample (`peeling`), unmix the rest (`spear`).

    A trial is `PROVED` if each of its samples is certified; `Reconstruction.proved` says which are. The others are quotients of
    the gradient that is left, as in `analytic`, and prove nothing. Noise, dropout behind the layer, clipping of single examples, batch
    statistics and several local steps leave no certificate, nor do copies of a sample; after local steps the quotients of units that one
    sample alone activates are still that sample. `draws` is the number of starts of SPEAR (0: none).
    """

    name: str = "peeling"
    divide: bool = True
    draws: int = 2**10

    def __post_init__(self) -> None:
        if self.draws < 0:
            raise InputError(f"Peeling.draws must not be below 0, got {self.draws}")

    def run(
        self, model: Model, observation: Observation, knowledge: Knowledge, seeds: Seeds, execution: Execution = DEFAULT
    ) -> Reconstruction:
        """Return the samples of every trial; the mismatch is the share of the layer's gradient that no certified sample explains."""
        check_observation(model, observation, knowledge, seeds)
        entry = model.entry
        if (problem := no_ratio(model)) is not None:
            raise InputError(problem)
        if entry is None or entry.bias is None or {entry.weight, entry.bias} & model.private:
            raise InputError(
                f"peeling reads a first dense layer with a bias, and {model.name!r} shares none: use cpl or ig"
            )
        layers: object = model.apply
        if isinstance(layers, HasNorms) and model.in_mode("eval") is not model:
            raise InputError("peeling certifies single samples; batch norm in train mode normalises by the batch")
        read = self.read(model, entry, observation, knowledge, seeds, execution)
        shape = (*read.proved.shape, *knowledge.input_shape)
        pictures = knowledge.scaling.unscale(read.inputs.reshape(shape), len(knowledge.input_shape))
        result = exact_result(pictures, read.labels, read.left, 0.0)
        every = (read.proved if knowledge.present is None else read.proved | ~knowledge.present).all(1)
        outcome = torch.where(every.to(result.outcome.device), int(Outcome.PROVED), result.outcome)
        return replace(result, outcome=outcome, proved=read.proved)

    def read(
        self,
        model: Model,
        entry: Dense,
        observation: Observation,
        knowledge: Knowledge,
        seeds: Seeds,
        execution: Execution = DEFAULT,
    ) -> LayerInputs:
        """Return what the samples of every trial send into a dense layer: certified ones first, then quotients."""
        if knowledge.loss not in LOSSES:
            raise InputError(
                f"peeling certifies samples by a loss of {', '.join(LOSSES)}; this one is {knowledge.loss}"
            )
        inputs, certified, left = [], [], []
        for t in range(observation.trials):
            seen = take(observation, t)
            given = (seen.shares, model, entry, _of_trial(knowledge, t))
            ends = [self._certify_round(r, *given, seeds[t], execution) for r in seen.rounds]
            best = max(range(len(ends)), key=lambda i: len(ends[i].inputs))
            certified.append(_joined(ends)[: knowledge.samples])
            range_ = knowledge if not is_behind(model, entry) else _feature_range(ends[best], entry, knowledge)
            inputs.append(_filled([ends[best]] if certified[-1] else ends, certified[-1], range_, execution.over))
            sent = direction(seen.rounds[best], seen.shares)[entry.weight]
            left.append(ends[best].rest.weight.norm() / sent.double().norm())
        number = torch.tensor([len(samples) for samples in certified], device=sent.device)
        proved = torch.arange(knowledge.samples, device=sent.device) < number[:, None]
        rule = proved.long() if bool(proved.all()) else labels_of(model, observation, knowledge, seeds)
        labels = [_labels([label for _, label in samples], rule[t]) for t, samples in enumerate(certified)]
        rows = torch.stack(inputs).to(sent.dtype)
        return LayerInputs(rows, torch.stack(labels), proved, torch.stack(left).to(sent.dtype))

    def _certify_round(
        self,
        seen: Round,
        shares: Shares,
        model: Model,
        entry: Dense,
        knowledge: Knowledge,
        seed: int,
        execution: Execution,
    ) -> Peeled:
        """Return the certified samples of one round of one client, with the factor of the threat model, else with one that fits."""
        unit = unit_of(direction(seen, shares), entry) if is_behind(model, entry) else 1.0
        update, probe = read_layer(seen, shares, model, entry, knowledge, unit)
        limit = max(1, WORK // (knowledge.classes * len(update.bias)))
        over, known = execution.over, sample_weight(shares, knowledge)
        peeled = Peeled.none(update)
        for factor in dict.fromkeys((known, None)) if self.divide else ():
            peeled = peel(update, probe, factor=factor, most=knowledge.samples, limit=limit, over=over)
            if len(peeled.inputs):
                break
        if model.head is not None and entry.weight == model.head.weight and known is not None:
            peeled = _unmixed_head(update, peeled, probe, known, knowledge, over)
        elif self.draws and len(peeled.inputs) < knowledge.samples:
            given = {"samples": knowledge.samples, "draws": self.draws, "seed": seed}
            peeled = unmix(update, peeled, probe, factor=known, over=over, **given)
        rest = replace(peeled.rest, weight=peeled.rest.weight * unit)
        return replace(peeled, inputs=peeled.inputs * unit, rest=rest)


def _of_trial(knowledge: Knowledge, trial: int) -> Knowledge:
    """Return Knowledge with the number of samples of one client."""
    if knowledge.present is None:
        return knowledge
    return replace(knowledge, samples=max(1, int(knowledge.present[trial].sum())), present=None)


def sample_weight(shares: Shares, knowledge: Knowledge) -> float | None:
    """Return the weight of one sample in the update if the threat model says it: 1 / N of a mean, times the rate of one step."""
    if knowledge.bound is not None or knowledge.present is not None:
        return None
    if shares is Shares.GRADIENT:
        return 1 / knowledge.samples
    local = knowledge.local
    return None if local is None else float(local.length([knowledge.samples])[0]) / knowledge.samples


def _unmixed_head(
    update: Update, peeled: Peeled, probe: Probe, factor: float, knowledge: Knowledge, over: Callable[[], bool]
) -> Peeled:
    """Return the batch that explains a last layer, from the quotients of the classes with the least bias gradients; else `peeled`.

    With one sample a class the quotient is nearly its features: the others pull little at its row. No unit of a last layer is silent.
    """
    if len(peeled.inputs) >= knowledge.samples or knowledge.samples > len(update.bias):
        return peeled
    classes = update.bias.argsort()[: knowledge.samples]
    pulls = update.bias[classes, None]
    start = update.weight[classes] / torch.where(pulls.abs() < TINY**10, 1.0, pulls)
    return solve_batch(update, start, factor, probe, knowledge.classes, over) or peeled


def _feature_range(best: Peeled, layer: Dense, knowledge: Knowledge) -> Knowledge:
    """Return Knowledge with features as inputs; their range is taken from the quotients: twice the median of their largest values."""
    quotients = best.rest.weight.abs().amax(1) / best.rest.bias.abs().clamp_min(TINY**10)
    size = max(2 * float(quotients.median()), TINY)
    middle, reach = (0.0, size) if layer.nonnegative else (0.5, 2 * size)
    return replace(knowledge, input_shape=(best.rest.weight.shape[1],), scaling=Scaling((middle,), (1 / reach,)))


def _joined(ends: Sequence[Peeled]) -> list[tuple[Tensor, int]]:
    """Return the certified samples of all rounds with their labels: those of the richest round, then what others add."""
    samples: list[tuple[Tensor, int]] = []
    for end in sorted(ends, key=lambda end: -len(end.inputs)):
        known = [x for x, _ in samples]
        for x, label in zip(end.inputs, end.labels.tolist(), strict=True):
            if all(float((x - other).square().mean().sqrt()) > APART for other in known):
                samples.append((x, label))
    return samples


def _filled(
    ends: Sequence[Peeled], samples: Sequence[tuple[Tensor, int]], knowledge: Knowledge, over: Callable[[], bool]
) -> Tensor:
    """Return N x F inputs: the certified ones, then quotients of the gradients that are left."""
    rows = [x for x, _ in samples]
    missing = knowledge.samples - len(rows)
    if missing:
        weight, bias = (torch.cat([getattr(end.rest, name) for end in ends]) for name in ("weight", "bias"))
        rows += recover(weight[None], bias[None], replace(knowledge, samples=missing), over)[0].unbind()
    return torch.stack(rows)


def _labels(certified: Sequence[int], rule: Tensor) -> Tensor:
    """Return N labels: the certified ones, then those that a rule has left over."""
    rest = list((Counter(rule.tolist()) - Counter(certified)).elements())
    rest += rule.tolist()[: len(rule) - len(certified) - len(rest)]
    return torch.tensor([*certified, *rest][: len(rule)], device=rule.device)
