"""Images from the features that a dense layer gives away: read the layer's inputs exactly, then search images that have them.

For a network whose first dense layer lies behind convolutions, division, peeling and SPEAR recover what each sample sends into that
layer, with a certificate and its label (`exact/layer_probe.py`). One forward pass then relates an image to its features, so no second
derivative is needed. Kariyappa et al. 2023, Cocktail party attack, arXiv:2209.05578, section 4.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Unpack

import torch
from torch import Tensor

from leakscope.attacks.attack import Matching, check_observation
from leakscope.attacks.distances import SHORTEST, cosine
from leakscope.attacks.engine.plan import DEFAULT, Execution
from leakscope.attacks.exact.layer_probe import feature_layer
from leakscope.attacks.exact.peel_attack import Peeling
from leakscope.attacks.objectives import Match
from leakscope.attacks.priors import GUESS
from leakscope.attacks.settings import AdamSettings, adam_attack
from leakscope.attacks.simulate import OneGradient, network_key, present_of, targets_of, weights_of
from leakscope.attacks.view import Clock, Entering, Simulated, Simulator, View
from leakscope.core.errors import InputError
from leakscope.core.layer_inputs import noting
from leakscope.core.model import Dense, Model
from leakscope.core.padding import counting
from leakscope.core.short_repr import short_repr
from leakscope.core.signature import settings_of
from leakscope.core.tree import Tree
from leakscope.core.types import Knowledge, Observation, Reconstruction, Round, Seeds, direction

PROVED = "proved_features"


@dataclass(frozen=True, slots=True)
class LayerInput:
    """What enters a dense layer at the guess and the received weights; with `inner` also the update that it simulates."""

    layer: Dense
    inner: Simulator | None = None

    def __call__(self, model: Model, unknowns: Tree, seen: Round, knowledge: Knowledge, clock: Clock) -> Simulated:
        """Return the input of the layer; without `inner` an empty update."""
        guess = unknowns[GUESS]
        present = present_of(guess, knowledge)
        with counting(present), noting([self.layer.layer]) as inputs:
            output, _ = model.apply(weights_of(model, seen), seen.buffers, guess, network_key(model, clock))
        value = inputs[self.layer.layer]
        if value is None:
            raise InputError(f"the network does not run {self.layer.layer!r}")
        simulated = Simulated({}, output, targets_of(unknowns, knowledge, model.classes))
        if self.inner is not None:
            simulated = self.inner(model, unknowns, seen, knowledge, clock)
        return replace(simulated, entering=(Entering(self.layer, value, present),))


@dataclass(frozen=True, slots=True)
class FeatureMatch:
    """`mean over real i of 1 - cos(z(x_i), f_i)`, plus `gradient` times 1 - cos of the updates.

    f, N x F, are the features that the update gave away, z those of the guess.
    """

    features: Tensor
    gradient: float = 0.0

    __repr__ = short_repr

    def __call__(self, view: View) -> Tensor:
        """Return the mismatch."""
        (entering,) = view.simulated.entering
        z, f = entering.value, self.features
        lengths = (z.square().sum(-1) * f.square().sum(-1) + SHORTEST).sqrt()
        apart = 1 - (z * f).sum(-1) / lengths
        mean = (apart * entering.present).sum() / entering.present.sum().clamp_min(1)
        return mean + self.gradient * Match(cosine)(view) if self.gradient else mean


@dataclass(frozen=True, slots=True)
class FeatureInversion:
    """Recover the inputs of the first dense layer after other layers, then run `base` with `FeatureMatch` as its objective.

    `learned["proved_features"]` is the share of samples whose features the update certifies, hence their labels; the images are
    searched and never proved. Features that are not certified are quotients: those of one sample where a unit has it alone.
    """

    base: Matching
    reader: Peeling = field(default_factory=Peeling)
    gradient: float = 0.0
    name: str = "feature_inversion"

    def run(
        self, model: Model, observation: Observation, knowledge: Knowledge, seeds: Seeds, execution: Execution = DEFAULT
    ) -> Reconstruction:
        """Return the images of every trial; the mismatch is that of the features."""
        check_observation(model, observation, knowledge, seeds)
        model = model.in_mode(knowledge.norm)
        layer = feature_layer(model)
        if layer is None:
            raise InputError(
                f"{self.name} needs a trained dense layer with a bias after other layers, whose input determines the output of "
                f"{model.name!r}: use ig, or peeling where the first layer is dense"
            )
        first = replace(observation, rounds=observation.rounds[:1])  # other weights make other features
        if not bool(direction(first.rounds[0], first.shares)[layer.weight].any()):
            raise InputError(f"{self.name}: the update of {layer.weight} is 0 and gives no features")
        read = self.reader.read(model, layer, first, knowledge, seeds, execution)
        simulate = LayerInput(layer, OneGradient() if self.gradient else None)
        attack = replace(self.base, simulate=simulate, objective=FeatureMatch(read.inputs, self.gradient))
        result = attack.run(model, first, replace(knowledge, labels=read.labels), seeds, execution)
        present = torch.ones_like(read.proved) if knowledge.present is None else knowledge.present
        share = (read.proved & present).sum(1) / present.sum(1).clamp_min(1)
        return replace(result, learned={**result.learned, PROVED: share.cpu()})


@settings_of(adam_attack, without=("objective", "labels"), tv=0.1)
def feature_inversion(
    *, draws: int = 2**10, gradient: float = 0.0, **settings: Unpack[AdamSettings]
) -> FeatureInversion:
    """Recover the features of the first dense layer after convolutions exactly, then invert them to images.

    `draws` is that of peeling; `gradient` weighs 1 - cosine of the updates beside the features.

    Equation: `min over x in the box of mean_i 1 - cos(z(x_i), f_i) + tv TV(x)`, with f_i from peeling the dense layer that reads z.
    Reference: Kariyappa et al. 2023, Cocktail party attack, arXiv:2209.05578; features by Shariati and Alambardar Meybodi 2026.
    Works when: a trained dense layer with a bias reads features that keep the image (AlexNet, VGG); exact features as for peeling.
    Costs: as peeling, then 4800 evaluations with a first derivative.
    """
    if not gradient >= 0:
        raise InputError(f"feature_inversion(gradient=...) must not be below 0, got {gradient}")
    return FeatureInversion(adam_attack("feature_inversion", **settings), Peeling(draws=draws), gradient)
