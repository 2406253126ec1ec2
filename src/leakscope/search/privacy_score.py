"""The privacy score of a policy: how alike the gradients grow on the straight way from noise to the transformed picture.

Gao et al. 2021; "[Re] ... automatic transformation search", Eq. 2 and 3. With x0 noise, x'(i) = (1 - i) x0 + i T(x),

    S_pri(T) = mean over x of the area under i -> cos(grad l(x'(i), y), grad l(T(x), y)),   i from 0 to 1.

Lower is better: an attacker who walks this way sees less until late. Two readings, both offered:

| | the authors' runs (default) | Eq. 2 and 3 |
|---|---|---|
| cosine | one for each parameter tensor, their mean | one over all parameters |
| area | trapezoid over 21 points | sum over j = 0 .. K-1, divided by K, with K = 20 |

The last point is T(x) itself, so its gradient costs nothing more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from leakscope.attacks.im2col import Im2col
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.scaling import Scaling
from leakscope.core.tree import TINY, Tree
from leakscope.defences.on_data import Transform
from leakscope.learning.gradients import loss_and_gradient
from leakscope.learning.losses import LOSSES, one_hot
from leakscope.search.sample_gradients import sample_gradients


@dataclass(frozen=True, slots=True)
class Line:
    """How the area is taken: over `points` on the line, per tensor or globally, by trapezoids or as Eq. 2's left sum.

    `at_once` is how many pictures (times `points`) are differentiated together: a bound on memory, without effect on scores.
    """

    points: int = 21
    per_tensor: bool = True
    trapezoid: bool = True
    at_once: int = 8

    def __post_init__(self) -> None:
        if self.points < 2:
            raise InputError(f"Line.points must be at least 2, got {self.points}")
        if self.at_once < 1:
            raise InputError(f"Line.at_once must be at least 1, got {self.at_once}")


def area(similarity: Tensor, *, trapezoid: bool = True) -> Tensor:
    """Return the area under similarities at evenly spaced points (... x points) of [0, 1].

    >>> curve = torch.tensor([0.0, 0.5, 1.0])
    >>> float(area(curve)), float(area(curve, trapezoid=False))
    (0.5, 0.25)
    """
    left, right = similarity[..., :-1], similarity[..., 1:]
    return ((left + right) / 2 if trapezoid else left).mean(-1)


def similarities(model: Model, targets: Tensor, starts: Tensor, labels: Tensor, line: Line = Line()) -> Tensor:  # noqa: B008  frozen
    """Return the cosine at every point of every line, P x points, for P lines from `starts` to `targets` (network space)."""
    size = line.at_once
    parts = zip(targets.split(size), starts.split(size), labels.split(size), strict=True)
    return torch.cat([_similarities(model, target, start, label, line) for target, start, label in parts])


def _similarities(model: Model, targets: Tensor, starts: Tensor, labels: Tensor, line: Line) -> Tensor:
    """Return `similarities` of so few lines that all their gradients are held at once: every point is an example of its own."""
    way = torch.linspace(0, 1, line.points, dtype=targets.dtype, device=targets.device)
    inputs = torch.lerp(starts[:, None], targets[:, None], way[:, None, None, None]).flatten(0, 1)
    labels = labels.repeat_interleave(line.points)
    gradients = None
    if not inputs.is_cuda:

        def total(output: Tensor) -> Tensor:
            return F.cross_entropy(output, labels, reduction="sum")

        gradients = sample_gradients(model, total, inputs)
    if gradients is None:
        gradients = _gradients(model, inputs, labels)
    return _cosines(gradients, len(targets), per_tensor=line.per_tensor)


def _gradients(model: Model, inputs: Tensor, labels: Tensor) -> Tree:
    """Return the gradient at every input, each a lane of its own: for any network, and faster than batches on CUDA."""
    truth = one_hot(labels, model.classes, inputs.dtype)
    here = torch.ones(1, dtype=torch.bool, device=inputs.device)
    key = torch.zeros((), dtype=torch.int64, device=inputs.device)

    def gradient(x: Tensor, y: Tensor) -> Tree:
        made, _, _, _ = loss_and_gradient(
            model, LOSSES["cross_entropy"], model.parameters, model.buffers, x[None], y[None], here, key
        )
        return made

    # a weight gradient for each point is a grouped convolution, which CUDA does slowly and products do well
    with Im2col() if inputs.is_cuda else contextlib.nullcontext():
        made: Tree = torch.func.vmap(gradient)(inputs, truth)
    return made


def _cosines(gradients: Tree, lines: int, *, per_tensor: bool) -> Tensor:
    """Return the cosine of every point's gradient with that of the last point of its line, lines x points."""
    products, lengths = [], []
    for value in gradients.values():
        flat = value.reshape(lines, -1, value[0].numel())
        products.append((flat @ flat[:, -1, :, None]).squeeze(-1))
        lengths.append(torch.linalg.vector_norm(flat, dim=-1))
    product, length = torch.stack(products), torch.stack(lengths)
    if not per_tensor:
        product, length = product.sum(0, keepdim=True), torch.linalg.vector_norm(length, dim=0, keepdim=True)
    return (product / (length * length[..., -1:]).clamp_min(TINY)).mean(0)


def privacy_scores(
    model: Model,
    pictures: Tensor,
    labels: Tensor,
    transforms: Sequence[Transform],
    *,
    scaling: Scaling,
    seed: int = 0,
    line: Line = Line(),  # noqa: B008  frozen
) -> Tensor:
    """Return S_pri of every policy, on the same pictures (P x C x H x W in [0, 1]), noise and draws of signs.

    `model` holds the weights that gradients are taken at: a network trained for a while on a part of the data.
    """
    if len(pictures) != len(labels) or not len(pictures):
        raise InputError(f"one label for each picture, at least one: got {len(pictures)} and {len(labels)}")
    keys = random.fold(
        random.fold(random.key(seed, device=pictures.device), "privacy score").expand(len(pictures)),
        torch.arange(len(pictures), device=pictures.device),
    )
    noise = random.uniform(random.fold(keys, "noise"), pictures.shape[1:]).to(pictures.dtype)
    starts = scaling.scale(noise, 3)
    seen = torch.cat([how.change(pictures, how.draw(keys)) for how in transforms])
    many = len(transforms)
    made = similarities(
        model, scaling.scale(seen, 3), starts.repeat(many, 1, 1, 1), labels.to(pictures.device).repeat(many), line
    )
    return area(made, trapezoid=line.trapezoid).reshape(many, -1).mean(1)
