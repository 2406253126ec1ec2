"""The accuracy score of a policy: how well an untrained network separates the transformed images.

Gao et al. 2021 after Mellor et al. 2021; "[Re] ... automatic transformation search", Eq. 4. J_n is the gradient of the summed
logits of a randomly initialised network (norm layers in eval mode) by image n; v_i are the eigenvalues of the correlation matrix
of a batch's J_n; e = 1e-5:
    Eq. 4:                S_acc = 1/N sum_i ( log(v_i + e) + 1 / (v_i + e) )
    the authors' runs:    S_acc =    - sum_i ( log(v_i + e) + 1 / (v_i + e) )
The runs average ten batches of 100 test images, using the first image of each label. In that form higher is better, and the
threshold -85 applies only to it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.scaling import Scaling
from leakscope.defences.on_data import Transform
from leakscope.kernels.batch_graph import BatchGraph, batch_graph
from leakscope.kernels.cores import on_cores
from leakscope.kernels.graph_cache import graph_at_call, graph_key
from leakscope.kernels.sample_gradients import input_gradients

EPSILON = 1e-5
THRESHOLD = -85.0
AT_ONCE = 64  # images of all policies per thread: a bound on memory


def first_of_each_label(labels: Tensor) -> Tensor:
    """Return the indices of the first image of every label, in order.

    >>> first_of_each_label(torch.tensor([3, 1, 3, 2, 1])).tolist()
    [0, 1, 3]
    """
    same = labels[:, None] == labels[None, :]
    return (~same.tril(-1).any(1)).nonzero().squeeze(1)


def jacobian(model: Model, like: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the function from inputs to their gradients J_n (one row each), traced for inputs like these where possible."""
    graph = None if like.is_cuda else _graph(model, like)

    def rows(inputs: Tensor) -> Tensor:
        if graph is not None:
            return graph(inputs).flatten(1)
        gradients = None if inputs.is_cuda else input_gradients(model, torch.sum, inputs)
        return (_each(model, inputs) if gradients is None else gradients).flatten(1)

    return rows


def _graph(model: Model, like: Tensor) -> Callable[[Tensor], Tensor] | None:
    """Return the traced gradient graph of a batch of inputs, cached while the network's values are the same."""
    values = (*model.parameters.values(), *model.buffers.values())
    key = graph_key("input gradients", same=(model.apply,), constants=values, flat=(like[:0],))
    return graph_at_call(key, trace_after=0, trace=lambda: _traced(model, like))


def _traced(model: Model, like: Tensor) -> BatchGraph | None:
    """Return the graph in channels-last layout, which is faster, else in the usual one; None if it cannot be traced."""
    layouts = (torch.channels_last, torch.contiguous_format) if like.ndim == 4 else (torch.contiguous_format,)
    for layout in layouts:
        parameters = {
            name: value.contiguous(memory_format=layout) if value.ndim == 4 else value
            for name, value in model.parameters.items()
        }
        gradients = functools.partial(input_gradients, model.with_parameters(parameters), torch.sum)
        graph = batch_graph(gradients, like.shape[1:], like.dtype, layout)
        if graph is not None:
            return graph
    return None


def _each(model: Model, inputs: Tensor) -> Tensor:
    """Return the gradients by vmap over the inputs, for any network."""
    key = torch.zeros((), dtype=torch.int64, device=inputs.device)

    def total(x: Tensor) -> Tensor:
        output, _ = model.apply(model.parameters, model.buffers, x[None], key)
        return output.sum()

    gradients: Tensor = torch.func.vmap(torch.func.grad(total))(inputs)
    return gradients


def correlation(rows: Tensor) -> Tensor:
    """Return the correlation matrix of rows (... x N x D) in float64, as numpy.corrcoef; 0 for a constant row."""
    centred = rows.double() - rows.double().mean(-1, keepdim=True)
    length = centred.square().sum(-1, keepdim=True).sqrt()
    unit = torch.where(length > 0, centred / length.clamp_min(1e-300), 0.0)
    return unit @ unit.mT


def score_of(eigenvalues: Tensor, *, authors: bool = True) -> Tensor:
    """Return the score of eigenvalues (... x N): the authors' negated sum, or Eq. 4's mean."""
    lifted = eigenvalues.clamp_min(0) + EPSILON
    each = lifted.log() + 1 / lifted
    return -each.sum(-1) if authors else each.mean(-1)


def accuracy_scores(
    model: Model,  # with random weights
    batches: Sequence[tuple[Tensor, Tensor]],
    transforms: Sequence[Transform],
    *,
    scaling: Scaling,
    seed: int = 0,
    authors: bool = True,
) -> Tensor:
    """Return S_acc of every policy, the mean over batches of (images N x C x H x W in [0, 1], labels N), with the same draws for all."""
    if not batches:
        raise InputError("the accuracy score needs at least one batch of pictures")
    scores = torch.zeros(len(transforms), dtype=torch.float64, device=batches[0][0].device)
    threads = 1 if scores.is_cuda else torch.get_num_threads()
    for number, (pictures, labels) in enumerate(batches):
        chosen = pictures[first_of_each_label(labels)]
        key = random.fold(random.fold(random.key(seed, device=chosen.device), "accuracy score"), number)
        keys = random.fold(key.expand(len(chosen)), torch.arange(len(chosen), device=chosen.device))
        seen = scaling.scale(torch.cat(_changed(chosen, keys, transforms, threads)), 3)
        parts = min(len(seen), -(-len(seen) // (AT_ONCE * threads)) * threads)
        rows = torch.cat(on_cores(jacobian(model, seen), seen.tensor_split(parts), threads))
        related = correlation(rows.unflatten(0, (len(transforms), len(chosen))))
        scores += score_of(torch.linalg.eigvalsh(related), authors=authors) / len(batches)
    return scores


def _changed(pictures: Tensor, keys: Tensor, transforms: Sequence[Transform], threads: int) -> list[Tensor]:
    """Return the images transformed by each policy; policies with the same kind of draws share them."""
    alike = [(len(how.policies), how.crop) for how in transforms]
    draws = {kind: how.draw(keys) for kind, how in dict(zip(alike, transforms, strict=True)).items()}

    def change(number: int) -> Tensor:
        return transforms[number].change(pictures, draws[alike[number]])

    return on_cores(change, range(len(transforms)), threads)
