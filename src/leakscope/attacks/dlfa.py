"""DLFA: simulate every local step, on one copy of the samples per epoch, and keep the copies alike.

Data leakage in federated averaging (Dimitrov, Balunovic, Konstantinov and Vechev 2022, arXiv:2206.12395). The order of the
client's batches is unknown. So each epoch e gets N guesses, trained on in an order that the attacker draws, and statistics that
do not depend on the order (a mean, a maximum over the samples) must agree between epochs:

    ramp(k) / T * sum_l e^-l ||(w0 - w~T)_l - (w0 - wT)_l||^2 / eta^2  +  lambda_inv L_inv  +  TV  +  box,
    L_inv = 1 / E^2 sum_e sum_f mean (g(x_e) - g(x_f))^2

Layers l are counted from the input; TV and box are sums over the pixels, averaged over images. After the last iteration the
copies are paired with those of the first epoch and averaged. The attacker must know epochs, batch size and rate. The similarity
loss `1 - cos` of SME's paper is measured at the end, on the copies before averaging; it is not minimised.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from leakscope.attacks.attack import Matching
from leakscope.attacks.distances import cosine
from leakscope.attacks.engine.state import Stop
from leakscope.attacks.objectives import Match, local_steps
from leakscope.attacks.optimisers import Adam, Exponential, Rule
from leakscope.attacks.priors import GUESS, TotalVariation
from leakscope.attacks.simulate import LABEL, LocalSteps, present_of
from leakscope.attacks.starts import Normal
from leakscope.attacks.view import Clock, Prior, Simulated, View
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.pairing import pair, squared_distances
from leakscope.core.tree import Tree, squared_norm, subtract
from leakscope.core.types import Knowledge, LocalTraining, Round
from leakscope.learning.local import draw_order

COPIES = "copies"
SIMILARITY = "similarity_loss"  # 1 - cos of simulated and observed weight change, measured at the end


def local_of(knowledge: Knowledge) -> LocalTraining:
    """Return the client's local training settings; raise if the attacker does not know them."""
    if knowledge.local is None:
        raise InputError(
            "dlfa simulates every local step: it needs Knowledge.local (epochs, batch size, rate), which is not known; "
            "sme and ig need none of them"
        )
    return knowledge.local


def every_copy(unknowns: Tree, epochs: int) -> Tensor:
    """Return all guesses, E x N x input: `guess` for the first epoch, `copies` for the others."""
    return torch.cat([unknowns[GUESS][None], unknowns[COPIES]])[:epochs]


@dataclass(frozen=True, slots=True)
class CopiesStart:
    """N(0, 1) for the copies of the epochs after the first (one unused copy if there is only one epoch)."""

    def __call__(self, key: Tensor, knowledge: Knowledge) -> Tensor:
        """Return (E - 1) x N x input."""
        number = max(local_of(knowledge).epochs - 1, 1)
        return random.normal(key, (number, knowledge.samples, *knowledge.input_shape))


@dataclass(frozen=True, slots=True)
class EpochCopies:
    """The inner simulation of all local steps, with a separate copy of the samples in each epoch.

    `inner.segment` None recomputes about sqrt(T) steps at a time in the backward pass (memory grows with sqrt(T)); 0 keeps all.
    """

    inner: LocalSteps = field(default_factory=LocalSteps)

    def __call__(self, model: Model, unknowns: Tree, seen: Round, knowledge: Knowledge, clock: Clock) -> Simulated:
        """Return the simulated change of the weights; output and targets are those of the first epoch's copy."""
        local, guess = local_of(knowledge), unknowns[GUESS]
        samples, present = guess.shape[0], present_of(guess, knowledge)
        order = draw_order(local, samples, clock.key, present) if knowledge.order is None else knowledge.order
        epoch = torch.arange(order.shape[0], device=order.device) // (order.shape[0] // local.epochs)
        shifted_order = torch.where(order < 0, order, order + samples * epoch[:, None])
        wide = {**unknowns, GUESS: every_copy(unknowns, local.epochs).flatten(0, 1)}
        if LABEL in unknowns:
            wide[LABEL] = unknowns[LABEL].repeat(local.epochs, 1)
        labels = None if knowledge.labels is None else knowledge.labels.repeat(local.epochs)
        copied = replace(
            knowledge,
            samples=samples * local.epochs,
            labels=labels,
            present=present.repeat(local.epochs),
            order=shifted_order,
        )
        segment = math.isqrt(order.shape[0]) if self.inner.segment is None else self.inner.segment
        return replace(self.inner, segment=segment, shown=samples)(model, wide, seen, copied, clock)


@dataclass(frozen=True, slots=True)
class LayerMatch:
    """`ramp / T sum_l e^-l ||difference of layer l / rate||^2`: the first layers count most; T is the client's number of steps.

    The ramp goes geometrically from its first to its second value over the first half of `iterations`, then stays constant.
    """

    ramp: tuple[float, float] = (1.0, 1.0)
    iterations: int = 400

    needs: ClassVar[tuple[str, ...]] = ("local",)

    def __post_init__(self) -> None:
        if not min(self.ramp) > 0:
            raise InputError(f"LayerMatch.ramp must be above 0 at both ends, got {self.ramp}")

    @property
    def sees_length(self) -> bool:
        """Return that the value changes with the length of an update."""
        return True

    def __call__(self, view: View) -> Tensor:
        """Return the mismatch of one trial in one round."""
        local = local_of(view.knowledge)
        gap = subtract(view.simulated.update, view.observed)
        layers = list(dict.fromkeys(name.rpartition(".")[0] for name in gap))
        total = torch.stack(
            [math.exp(-layers.index(n.rpartition(".")[0])) * squared_norm({n: v}) for n, v in gap.items()]
        ).sum()
        steps = local_steps(local, view.knowledge)
        return self.factor(view.clock.iteration.to(total.dtype)) * total / (local.rate**2 * steps)

    def factor(self, iteration: Tensor) -> Tensor:
        """Return the ramp at an iteration (a floating tensor of any shape)."""
        first, last = self.ramp
        share = ((iteration + 1) / max(self.iterations // 2, 1)).clamp_max(1.0)
        return first * torch.exp(math.log(last / first) * share)


@dataclass(frozen=True, slots=True)
class EveryCopy:
    """A prior that sums over images, averaged over the guesses of all epochs."""

    inner: Prior

    def __call__(self, view: View) -> Tensor:
        """Return the penalty per image."""
        everything = every_copy(view.unknowns, local_of(view.knowledge).epochs).flatten(0, 1)
        return self.inner(replace(view, unknowns={**view.unknowns, GUESS: everything})) / everything.shape[0]


@dataclass(frozen=True, slots=True)
class OutOfRange:
    """`weight` times the squared distance of every pixel from [0, 1], summed over the guess in image space."""

    weight: float | Tensor = 2.0

    def __call__(self, view: View) -> Tensor:
        """Return the penalty."""
        picture = view.knowledge.scaling.unscale(view.unknowns[GUESS], len(view.knowledge.input_shape))
        return self.weight * (picture - picture.clamp(0, 1)).square().sum()


@dataclass(frozen=True, slots=True)
class OrderInvariant:
    """`weight / E^2 sum_e sum_f mean (g(x_e) - g(x_f))^2`, with g a statistic that does not depend on the order of the samples.

    'mean' is the mean image (DLFA on FEMNIST); 'features' the largest response over the samples of `filters` random 3x3 filters
    (CIFAR-100), drawn once from the trial's key. Uses `sum_ef (a_e - a_f)^2 = 2 E sum_e (a_e - mean a)^2`.
    """

    weight: float | Tensor = 1000.0
    statistic: Literal["mean", "features"] = "mean"
    filters: int = 96

    def __post_init__(self) -> None:
        if self.statistic not in ("mean", "features"):
            raise InputError(f"OrderInvariant.statistic must be 'mean' or 'features', got {self.statistic!r}")

    def __call__(self, view: View) -> Tensor:
        """Return the penalty."""
        epochs = local_of(view.knowledge).epochs
        copies = every_copy(view.unknowns, epochs)
        if self.statistic == "features":
            copies = self._responses(copies, view.clock.key)
        present = present_of(view.unknowns[GUESS], view.knowledge)
        each = _over_samples(copies.flatten(2), present, largest=self.statistic == "features")
        return self.weight * 2 * (each - each.mean(0)).square().mean()

    def _responses(self, copies: Tensor, key: Tensor) -> Tensor:
        channels = copies.shape[2]
        drawn = random.normal(random.fold(key, "order_invariant"), (self.filters, channels, 3, 3), copies.dtype)
        responses: Tensor = F.conv2d(copies.flatten(0, 1), drawn / math.sqrt(9 * channels), padding=1)
        return responses.reshape(*copies.shape[:2], *responses.shape[1:])


def _over_samples(values: Tensor, present: Tensor, *, largest: bool) -> Tensor:
    """Return the maximum or the mean over the present samples of E x N x D."""
    mask = present[None, :, None]
    if largest:
        return torch.where(mask, values, -torch.inf).amax(1)
    return torch.where(mask, values, 0).sum(1) / present.sum().clamp_min(1)


def average_copies(unknowns: Tree, knowledge: Knowledge) -> Tree:
    """Return the unknowns with the guess replaced by the mean over epochs; the pairing with the first epoch maximises the total PSNR."""
    epochs, rank = local_of(knowledge).epochs, len(knowledge.input_shape)
    guesses = []
    for trial in range(unknowns[GUESS].shape[0]):
        copies = every_copy({name: value[trial] for name, value in unknowns.items()}, epochs)
        present = None if knowledge.present is None else knowledge.present[trial]
        slots = torch.arange(copies.shape[1]) if present is None else present.cpu().nonzero()[:, 0]
        slots = slots.to(copies.device)
        if not len(slots):
            guesses.append(copies[0])
            continue
        filled = copies[:, slots]
        first = knowledge.scaling.unscale(filled[0], rank)
        paired = [filled[0]]
        for later in filled[1:]:
            cost = squared_distances(first, knowledge.scaling.unscale(later, rank)).clamp_min(1e-12).log10()
            paired.append(later[pair(cost).to(later.device)])
        guesses.append(copies[0].index_copy(0, slots, torch.stack(paired).mean(0)))
    return {**unknowns, GUESS: torch.stack(guesses)}


def dlfa(
    *,
    rate: float = 0.4,
    decay: float = 0.995,
    decay_every: int = 10,
    ramp: tuple[float, float] = (1.0, 2.0),
    tv: float = 1e-3,
    box: float = 2.0,
    invariant: float = 1000.0,
    statistic: Literal["mean", "features"] = "mean",
    segment: int | None = None,
    labels: str = "auto",
    iterations: int = 400,
    restarts: int = 1,
) -> Matching:
    """Data leakage in federated averaging (Dimitrov et al. 2022): all local steps simulated, one copy of the samples per epoch.

    Needs `Knowledge.local`. Settings are the authors' for FEMNIST; for CIFAR-100 they use rate 0.1, decay 0.997 every 20, ramp
    (4, 2), tv 2e-4, box 10, invariant 6.075, statistic 'features'. The rate falls smoothly by `decay` over every `decay_every`
    iterations. `segment` local steps are recomputed at a time in the backward pass (None: about their square root; 0: none).
    """
    for name, value in (("tv", tv), ("box", box), ("invariant", invariant)):
        if not value >= 0:
            raise InputError(f"dlfa({name}=...) must not be below 0, got {value}")
    if segment is not None and segment < 0:
        raise InputError(f"dlfa(segment=...) must not be below 0, got {segment}")
    if decay_every < 1 or not 0 < decay <= 1:
        raise InputError(f"dlfa needs decay in (0, 1] and decay_every of at least 1, got {decay}, {decay_every}")
    priors: list[Prior] = []
    if tv:
        priors.append(EveryCopy(TotalVariation(tv, power=2, circular=True, total=True)))
    if box:
        priors.append(EveryCopy(OutOfRange(box)))
    if invariant:
        priors.append(OrderInvariant(invariant, statistic))
    moving = Rule(schedule=Exponential(decay ** (1 / decay_every)))
    return Matching(
        "dlfa",
        simulate=EpochCopies(LocalSteps(segment)),
        objective=LayerMatch(ramp, iterations),
        priors=tuple(priors),
        start=Normal(),
        labels=labels,
        optimiser=Adam(rate),
        rules={GUESS: moving, COPIES: moving},
        extras={COPIES: CopiesStart()},
        stop=Stop(iterations=iterations),
        restarts=restarts,
        finish=average_copies,
        measures={SIMILARITY: Match(distance=cosine)},
    )
