"""Null baselines: attacks that ignore the update. An attack that does no better has shown no leak.

`ClassMean` returns the mean public image of a class. `PriorOnly` runs a matching attack with its objective set to 0. The third
baseline, the nearest public image, needs the private data and is in `leakscope.play.baselines`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from leakscope.attacks.attack import Matching
from leakscope.attacks.engine.plan import DEFAULT, DTYPES, Execution
from leakscope.attacks.engine.state import Stop
from leakscope.attacks.priors import GUESS, Norm, TotalVariation
from leakscope.attacks.simulate import targets_of
from leakscope.attacks.view import Clock, Prior, Simulated, View
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.short_repr import short_repr
from leakscope.core.tree import Tree
from leakscope.core.types import IMAGE_RANK, Knowledge, Observation, Outcome, Reconstruction, Round, Seeds, Shares

BASELINES = ("class_mean", "prior_only", "nearest_public")
TEXT_BASELINES = ("frequent_tokens", "unigram", "bigram", "nearest_public")  # of sentences
_AT_ONCE = 2**22  # values of a public set summed per block


def class_mean(public: Tensor, labels: Tensor, *, classes: int) -> ClassMean:
    """Return the attack that answers with class means of `public` (P x input_shape in [0, 1]); the overall mean for absent classes."""
    check_public(public, labels, classes)
    number = torch.bincount(labels, minlength=classes)
    total = public.new_zeros((classes, public[0].numel()), dtype=torch.float64)
    size = max(1, _AT_ONCE // public[0].numel())
    for pictures, named in zip(public.split(size), labels.split(size), strict=True):
        total.index_add_(0, named, pictures.flatten(1).double())
    overall = total.sum(0) / len(public)
    means = torch.where(number[:, None] > 0, total / number[:, None].clamp_min(1), overall)
    shape = public.shape[1:]
    return ClassMean(means.reshape(classes, *shape).cpu(), overall.reshape(shape).cpu(), int(number.argmax()))


class _WithoutUpdate(Protocol):
    """An attack that guesses from Knowledge and seeds alone."""

    __slots__ = ()

    def guess(self, knowledge: Knowledge, seeds: Seeds, execution: Execution = DEFAULT) -> Reconstruction:
        """Return the guess of every trial."""

    def run(
        self, model: Model, observation: Observation, knowledge: Knowledge, seeds: Seeds, execution: Execution = DEFAULT
    ) -> Reconstruction:
        """Return the guess; network and update are not read."""
        del model
        check_seeds(observation.trials, seeds)
        return self.guess(knowledge, seeds, execution)


@dataclass(frozen=True, slots=True, eq=False)
class ClassMean(_WithoutUpdate):
    """The mean public image (in [0, 1]) of each sample's class; without known labels the overall mean and the commonest class."""

    means: Tensor
    overall: Tensor
    commonest: int
    name: str = "class_mean"
    __repr__ = short_repr

    def guess(self, knowledge: Knowledge, trials: int | Seeds, execution: Execution = DEFAULT) -> Reconstruction:
        """Return the means for a number of trials (or one per seed), from Knowledge alone."""
        trials = trials if isinstance(trials, int) else len(trials)
        shape, dtype = tuple(self.overall.shape), DTYPES[execution.dtype]
        if tuple(knowledge.input_shape) != shape:
            raise InputError(f"the public pictures are {shape}, Knowledge.input_shape is {knowledge.input_shape}")
        if knowledge.labels is None:
            labels = torch.full((trials, knowledge.samples), self.commonest)
            return guessed(self.overall.to(dtype).expand(*labels.shape, *shape).clone(), labels)
        labels = knowledge.labels.cpu()
        if int(labels.max()) >= len(self.means):
            raise InputError(f"Knowledge.labels names class {int(labels.max())}, the means know {len(self.means)}")
        return guessed(self.means.to(dtype)[labels], labels)


def silent(view: View) -> Tensor:
    """Return 0 for any update: the objective of an attacker without the update."""
    return view.unknowns[GUESS].new_zeros(())


def simulate_nothing(model: Model, unknowns: Tree, seen: Round, knowledge: Knowledge, clock: Clock) -> Simulated:
    """Return an empty update and the targets as output; no network is run."""
    del seen, clock
    targets = targets_of(unknowns, knowledge, model.classes)
    return Simulated({}, targets, targets)


@dataclass(frozen=True, slots=True)
class PriorOnly(_WithoutUpdate):
    """`attack` without its objective: start, priors, optimiser, rules and iterations are kept.

    The engine gets a network without parameters and an empty update, so neither can influence the result; priors on the network's
    output are 0. All iterations run, and the mismatch is NaN. For inputs that are not images Norm of the same weight replaces
    TotalVariation. Unknown labels are drawn uniformly from the trial's seed.
    """

    attack: Matching
    name: str = "prior_only"

    def guess(self, knowledge: Knowledge, seeds: Seeds, execution: Execution = DEFAULT) -> Reconstruction:
        """Return the start after optimising the priors, from Knowledge and seeds alone."""
        shape, classes = tuple(knowledge.input_shape), knowledge.classes
        if knowledge.labels is None:
            knowledge = replace(knowledge, labels=draw_labels(seeds, knowledge.samples, classes))
        nothing = Model("nothing", _no_network, {}, {}, shape, classes)
        unseen = Observation((Round({}, {}, {}),), Shares.GRADIENT, torch.full((len(seeds),), knowledge.samples))
        plain = replace(execution, form=execution.form or "native")  # no network to benchmark forms for
        result = self._silenced(shape).run(nothing, unseen, replace(knowledge, loss="cross_entropy"), seeds, plain)
        return replace(
            result,
            mismatch=torch.full_like(result.mismatch, torch.nan),
            trace=torch.full_like(result.trace, torch.nan),
            trace_at=torch.full_like(result.trace_at, -1),
        )

    def _silenced(self, shape: tuple[int, ...]) -> Matching:
        return replace(
            self.attack,
            name=self.name,
            simulate=simulate_nothing,
            objective=silent,
            priors=tuple(_fitting(prior, shape) for prior in self.attack.priors),
            labels="known",
            stop=Stop(iterations=self.attack.stop.iterations),
            restarts=1,
            tv_weights=(),
        )


def draw_labels(seeds: Seeds, samples: int, classes: int) -> Tensor:
    """Return T x N labels, uniform over the classes, from each trial's seed."""
    drawn = random.uniform(random.fold(random.key(list(seeds)), "null labels"), (samples,), torch.float64)
    return (drawn * classes).to(torch.int64)


def guessed(pictures: Tensor, labels: Tensor) -> Reconstruction:
    """Return images (T x N x ...) and labels as a Reconstruction without iterations and with mismatch NaN."""
    T = len(pictures)
    zeros = torch.zeros(T, dtype=torch.int64)
    unknown = pictures.new_full((T,), torch.nan)
    return Reconstruction(
        inputs=pictures,
        labels=labels,
        start=pictures,
        mismatch=unknown,
        iterations=zeros,
        evaluations=zeros,
        outcome=torch.full((T,), int(Outcome.EXHAUSTED)),
        trace=unknown[:, None],
        trace_at=torch.full((T, 1), -1),
        snapshots=pictures[:, None],
        snapshots_at=zeros[:, None],
    )


def check_public(public: Tensor, labels: Tensor, classes: int) -> None:
    """Raise for an invalid public set: shape, dtype, values outside [0, 1], label range."""
    if public.ndim < 2 or 0 in public.shape or labels.shape != public.shape[:1]:
        raise InputError(
            f"a public set needs pictures P x ... and labels P, none empty, "
            f"got {tuple(public.shape)} and {tuple(labels.shape)}"
        )
    if not public.is_floating_point() or labels.is_floating_point():
        raise InputError(
            f"public pictures must be floating numbers in [0, 1] and labels whole ones, got {public.dtype} and {labels.dtype}"
        )
    low, high = float(public.min()), float(public.max())
    if not (low >= -1e-6 and high <= 1 + 1e-6):  # false for NaN as well
        raise InputError(f"public pictures must lie in the box [0, 1], got values in [{low:.4g}, {high:.4g}]")
    if int(labels.min()) < 0 or int(labels.max()) >= classes:
        raise InputError(
            f"public labels must lie in 0..{classes - 1} for {classes} classes, got {int(labels.min())}..{int(labels.max())}"
        )


def check_seeds(trials: int, seeds: Sequence[int]) -> None:
    """Raise if the number of seeds is not the number of trials."""
    if len(seeds) != trials:
        raise InputError(f"one seed per trial: {trials} trials, {len(seeds)} seeds")


def _fitting(prior: Prior, shape: tuple[int, ...]) -> Prior:
    if isinstance(prior, TotalVariation) and len(shape) < IMAGE_RANK:
        return Norm(prior.weight)
    return prior


def _no_network(parameters: Tree, buffers: Tree, x: Tensor, key: Tensor) -> tuple[Tensor, Tree]:
    del parameters, buffers, key
    raise RuntimeError(f"a baseline runs no network (asked for {len(x)} inputs)")
