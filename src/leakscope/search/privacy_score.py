"""The privacy score of a policy: gradient similarity along the line from noise to the transformed image. Lower is better.

Gao et al. 2021; "[Re] ... automatic transformation search", Eq. 2 and 3. With x0 noise, x'(i) = (1 - i) x0 + i T(x),
    S_pri(T) = mean over x of the area under i -> cos(grad l(x'(i), y), grad l(T(x), y)),   i from 0 to 1.

| | the authors' runs (default) | Eq. 2 and 3 |
|---|---|---|
| cosine | mean of one for each parameter tensor | one over all parameters |
| area | trapezoid over 21 points | sum over j = 0 .. K-1, divided by K, with K = 20 |
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from leakscope.attacks.engine.plan import DEFAULT, Execution
from leakscope.attacks.recipes import ig
from leakscope.clients import Client, attacker_knowledge
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.scaling import Scaling
from leakscope.core.tree import TINY, Tree, map_tensors
from leakscope.core.types import make_batch
from leakscope.defences.on_data import Transform
from leakscope.kernels.cores import on_cores
from leakscope.kernels.im2col import Im2col
from leakscope.kernels.sample_gradients import read_gradients
from leakscope.learning.gradients import loss_and_gradient
from leakscope.learning.losses import LOSSES, one_hot
from leakscope.metrics.image import psnr
from leakscope.models import draw_parameters
from leakscope.models.initialise import Given


@dataclass(frozen=True, slots=True)
class Line:
    """How the area is computed: from `points` on the line, per tensor or globally, by trapezoids or as Eq. 2's left sum."""

    points: int = 21
    per_tensor: bool = True
    trapezoid: bool = True
    at_once: int = 8  # lines differentiated together: bounds memory, does not change scores

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


def fans(model: Model, targets: Tensor, starts: Tensor, labels: Tensor, line: Line = Line()) -> Tensor:
    """Return the cosines on the lines from each of P starts to its M targets (P x M x C x H x W), P x M x points."""
    across = _part_sizes(targets.shape[1], line.at_once)
    threads = 1 if targets.is_cuda else torch.get_num_threads()
    along = _part_sizes(len(targets), max(line.at_once // across[0], 1), times=threads if len(across) % threads else 1)

    def work(part: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        return _fans(model, *part, line)

    parts = [
        (some, start, label)
        for whole, start, label in zip(targets.split(along), starts.split(along), labels.split(along), strict=True)
        for some in whole.split(across, 1)
    ]
    cosines = on_cores(work, parts, threads)  # small kernels gain little from a second thread
    step = len(across)
    return torch.cat([torch.cat(cosines[i : i + step], 1) for i in range(0, len(cosines), step)])


def _part_sizes(number: int, most: int, times: int = 1) -> list[int]:
    """Return sizes of at most `most` that sum to `number` and differ by at most one; their number is a multiple of `times`.

    >>> _part_sizes(20, 8), _part_sizes(20, 8, 2), _part_sizes(1, 8, 2)
    ([7, 7, 6], [5, 5, 5, 5], [1])
    """
    parts = min(number, -(-number // (most * times)) * times)
    return [number // parts + (i < number % parts) for i in range(parts)]


def _fans(model: Model, targets: Tensor, starts: Tensor, labels: Tensor, line: Line) -> Tensor:
    """Return `fans` of a part, differentiated at once with every point as one example."""
    way = torch.linspace(0, 1, line.points, dtype=targets.dtype, device=targets.device)[1:]
    points = torch.lerp(starts[:, None, None], targets[:, :, None], way[:, None, None, None])
    inputs = torch.cat([starts, points.flatten(0, 2)])
    labels = torch.cat([labels, labels.repeat_interleave(points[0, :, :, 0, 0, 0].numel())])
    cosines = _Cosines((*targets.shape[:2], len(way)))

    def total(output: Tensor) -> Tensor:
        return F.cross_entropy(output, labels, reduction="sum")

    if inputs.is_cuda or not read_gradients(model, total, inputs, cosines.read):
        cosines = _Cosines(cosines.shape)
        for name, gradient in _gradients(model, inputs, labels).items():
            cosines.read(name, gradient)
    return cosines.cosines(per_tensor=line.per_tensor)


def _gradients(model: Model, inputs: Tensor, labels: Tensor) -> Tree:
    """Return the gradient at every input by vmap: for any network, and faster than batches on CUDA."""
    truth = one_hot(labels, model.classes, inputs.dtype)
    mask = torch.ones(1, dtype=torch.bool, device=inputs.device)
    key = torch.zeros((), dtype=torch.int64, device=inputs.device)

    def gradient(x: Tensor, y: Tensor) -> Tree:
        gradients, _, _, _ = loss_and_gradient(
            model, LOSSES["cross_entropy"], model.parameters, model.buffers, x[None], y[None], mask, key
        )
        return gradients

    # a weight gradient for each point is a grouped convolution: slow on CUDA, faster as matrix products
    with Im2col() if inputs.is_cuda else contextlib.nullcontext():
        gradients: Tree = torch.func.vmap(gradient)(inputs, truth)
    return gradients


class _Cosines:
    """Accumulates products and norms of gradients, one parameter tensor at a time, without storing the gradients."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        self.shape = shape  # starts, lines from each, points after the start; gradients at the starts come first
        self.products: dict[str, Tensor] = {}
        self.lengths: dict[str, Tensor] = {}

    def read(self, name: str, gradients: Tensor) -> None:
        """Add the gradients of one parameter (examples x its shape): products with each line's last gradient, and norms."""
        starts, lines, _ = self.shape
        inner = sorted(range(1, gradients.ndim), key=gradients.stride, reverse=True)  # in memory order, to avoid a copy
        flat = gradients.permute(0, *inner).flatten(1)
        length = torch.linalg.vector_norm(flat, dim=1)
        way = flat[starts:].unflatten(0, (starts * lines, -1))
        ends = way[:, -1]
        first = ends.unflatten(0, (starts, lines)) @ flat[:starts, :, None]
        rest = (way @ ends[:, :, None]).reshape(self.shape)
        self.products[name] = torch.cat([first, rest], 2)
        begin = length[:starts, None, None].expand(starts, lines, 1)
        self.lengths[name] = torch.cat([begin, length[starts:].reshape(self.shape)], 2)

    def cosines(self, *, per_tensor: bool) -> Tensor:
        """Return the cosine of every point's gradient with that of its line's last point, starts x lines x points."""
        product = torch.stack([self.products[name] for name in sorted(self.products)])
        length = torch.stack([self.lengths[name] for name in sorted(self.products)])
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
    line: Line = Line(),
) -> Tensor:
    """Return S_pri of every policy, on the same images (P x C x H x W in [0, 1]), noise and draws of signs."""
    if len(pictures) != len(labels) or not len(pictures):
        raise InputError(f"one label for each picture, at least one: got {len(pictures)} and {len(labels)}")
    keys = random.fold(
        random.fold(random.key(seed, device=pictures.device), "privacy score").expand(len(pictures)),
        torch.arange(len(pictures), device=pictures.device),
    )
    noise = random.uniform(random.fold(keys, "noise"), pictures.shape[1:]).to(pictures.dtype)
    seen = torch.stack([how.change(pictures, how.draw(keys)) for how in transforms], 1)
    cosines = fans(model, scaling.scale(seen, 3), scaling.scale(noise, 3), labels.to(pictures.device), line)
    return area(cosines, trapezoid=line.trapezoid).mean(0)


def attack_scores(
    model: Model,
    pictures: Tensor,
    labels: Tensor,
    transforms: Sequence[Transform],
    *,
    scaling: Scaling,
    seed: int = 0,
    iterations: int = 1200,
    execution: Execution = DEFAULT,
) -> Tensor:
    """Return the mean PSNR (dB, lower is more private) of `ig` with known labels for every policy, against x, not T(x)."""
    batch = make_batch(pictures[:, None], labels[:, None], classes=model.classes)
    seeds = [seed + i for i in range(batch.trials)]
    weights = draw_parameters(model, Given(), random.key(seeds))
    parts = []
    for transform in transforms:
        client = Client(scaling=scaling, on_data=transform)
        parts.append(
            (client.observe(model, weights, batch, seeds), attacker_knowledge(model, client, batch, labels=True))
        )
    seen, knowledge = map_tensors(lambda *each: torch.cat(each), parts[0], *parts[1:])  # all policies as one batch
    reconstruction = ig(iterations=iterations).run(model, seen, knowledge, seeds * len(transforms), execution)
    truth = batch.inputs.repeat(len(transforms), 1, 1, 1, 1)
    return psnr(truth, reconstruction.inputs.clamp(0, 1)).reshape(len(transforms), -1).mean(1)
