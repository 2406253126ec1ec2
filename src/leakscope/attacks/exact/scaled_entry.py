"""Exact attacks on a first dense layer that reads the input shifted and scaled, as normalisation in `forward` or batch norm leave it.

Where each channel (or column) of the layer's input is `a x + b` with a > 0, and a and b do not depend on the data, the input follows
from the layer's. The attack then runs on the network as a function of what the layer reads, and its result is scaled back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from leakscope.attacks.attack import Attack
from leakscope.attacks.engine.plan import DEFAULT, Execution
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.layer_inputs import noting
from leakscope.core.model import Apply, Dense, HasNorms, Mode, Model
from leakscope.core.scaling import Scaling
from leakscope.core.short_repr import short_repr
from leakscope.core.tree import Tree, map_tensors, take, to
from leakscope.core.types import Knowledge, Observation, Reconstruction, Seeds

SAME = 1e-9  # relative difference that rounding of float64 explains


@dataclass(frozen=True, slots=True)
class AtScaledEntry:
    """An exact attack on the first dense layer behind a fixed scaling of the input, see `read_scaled_entry`."""

    base: Attack

    @property
    def name(self) -> str:
        """Return the name of the attack."""
        return self.base.name

    def run(
        self, model: Model, observation: Observation, knowledge: Knowledge, seeds: Seeds, execution: Execution = DEFAULT
    ) -> Reconstruction:
        """Return the reconstruction of every trial; the rounds of one must scale the input alike."""
        results = []
        for t in range(observation.trials):
            seen, known = take((observation, knowledge), torch.tensor([t], device=observation.samples.device))
            view, known = self._view(model, seen, known)
            results.append(self.base.run(view, seen, known, [seeds[t]], execution))
        return map_tensors(lambda *parts: torch.cat(parts), results[0], *results[1:])

    def _view(self, model: Model, observation: Observation, knowledge: Knowledge) -> tuple[Model, Knowledge]:
        """Return the network and the knowledge of one client as if what its first dense layer reads were the input."""
        views = []
        for seen in observation.rounds:
            before, buffers = take((seen.before, seen.buffers), 0)
            sent = replace(model, parameters=model.parameters | before, buffers=model.buffers | buffers)
            views.append(read_scaled_entry(sent, knowledge.scaling))
        first = views[0]
        if first is None or any(view is None or view.scaling != first.scaling for view in views):
            raise InputError(f"{model.name!r} scales its inputs differently from round to round")
        view = replace(first.network, parameters=model.parameters, buffers=model.buffers)
        return view, replace(knowledge, scaling=_joined(knowledge.scaling, first.scaling))


class ScaledEntry(NamedTuple):
    """A network as a function of what its first dense layer reads, and the scaling of its input to that."""

    network: Model
    scaling: Scaling


@dataclass(frozen=True, slots=True)
class _Scaled:
    """A network's `apply` on what its first dense layer reads: the scaled input."""

    apply: Apply
    scaling: Scaling

    __repr__ = short_repr

    def __call__(self, parameters: Tree, buffers: Tree, x: Tensor, key: Tensor) -> tuple[Tensor, Tree]:
        """Return the output for N scaled inputs, and the buffers after the call."""
        return self.apply(parameters, buffers, self.scaling.unscale(x, x.ndim - 1), key)

    def in_mode(self, mode: Mode) -> _Scaled:
        """Return the function with its batch norms in a mode; itself if they are."""
        apply = self.apply.in_mode(mode) if isinstance(self.apply, HasNorms) else self.apply
        return self if apply is self.apply else replace(self, apply=apply)


def read_scaled_entry(model: Model, scaling: Scaling) -> ScaledEntry | None:
    """Return the network as a function of what its widest first dense layer reads; None if none reads a scaled input.

    Also None where a layer reads the input itself (`Model.entry`): there is nothing to scale back. `scaling` is that of the images.
    """
    if model.entry is not None:
        return None
    shared = [layer for layer in model.dense if not {layer.weight, layer.bias} & model.private]
    size = math.prod(model.input_shape)
    wide = [layer for layer in shared if model.parameters[layer.weight].shape[1] == size]
    for layer in sorted(wide, key=lambda layer: -len(model.parameters[layer.weight])):
        if (before := _scaling_before(model, layer, scaling)) is not None:
            entry = replace(layer, nonnegative=all(mean <= 0 for mean in _joined(scaling, before).mean))
            return ScaledEntry(replace(model, apply=_Scaled(model.apply, before), entry=entry), before)
    return None


def _scaling_before(model: Model, layer: Dense, scaling: Scaling) -> Scaling | None:
    """Return the scaling from the network's input to that of a layer, by channel or column; None if there is none."""
    shape = model.input_shape
    drawn = random.uniform(random.key(0), (3, *shape), torch.float64)
    ends = torch.stack([torch.zeros_like(drawn[0]), torch.ones_like(drawn[0]), drawn[0]])
    x, other = (scaling.scale(images, len(shape)).flatten(1) for images in (ends, drawn[1:]))
    read, again = (
        _layer_inputs(model, layer, x),
        _layer_inputs(model, layer, other),
    )  # batch norm in train mode is not fixed
    if read is None or again is None:
        return None
    factor = (read[1] - read[0]) / (x[1] - x[0])
    shift = read[0] - factor * x[0]
    channels = [each.reshape(shape[0], -1) for each in (factor, shift)]
    factor, shift = (each[:, :1].expand_as(each).flatten() for each in channels)
    if not all(
        torch.allclose(factor * xs + shift, seen, rtol=SAME, atol=SAME) for xs, seen in ((x, read), (other, again))
    ):
        return None
    factors, shifts = (each[:, 0].tolist() for each in channels)
    if not all(SAME < each < 1 / SAME for each in factors):
        return None
    means = tuple(-b / a for a, b in zip(factors, shifts, strict=True))
    return Scaling(means, tuple(1 / each for each in factors))


def _layer_inputs(model: Model, layer: Dense, x: Tensor) -> Tensor | None:
    """Return what a layer reads of each of N flat inputs, in float64; None unless each example has a finite row."""
    exact = to(model, dtype=torch.float64)
    device = exact.parameters[layer.weight].device
    inputs = x.unflatten(1, model.input_shape).to(device)
    with torch.no_grad(), noting([layer.layer]) as entering:
        exact.apply(exact.parameters, exact.buffers, inputs, random.key(0, device))
    seen = entering[layer.layer]
    return seen.cpu() if seen is not None and seen.shape == x.shape and bool(seen.isfinite().all()) else None


def _joined(outer: Scaling, inner: Scaling) -> Scaling:
    """Return `inner` after `outer` as one scaling."""
    channels = max(len(outer.mean), len(inner.mean))
    means, stds, shifts, factors = (
        values * (channels // len(values)) for values in (outer.mean, outer.std, inner.mean, inner.std)
    )
    return Scaling(
        tuple(m + s * shift for m, s, shift in zip(means, stds, shifts, strict=True)),
        tuple(s * factor for s, factor in zip(stds, factors, strict=True)),
    )
