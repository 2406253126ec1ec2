"""Tests of dense layers with ReLU on the client's own sample: units that one example activates alone, and what peeling reads back.

A unit that one example activates holds that example in its gradient. Trap weights and soliton biases (Shariati and Alambardar Meybodi
2026) make such units many. Peeling recall measures the leak itself, with the received weights and, to compare, with fresh ones.
"""

from __future__ import annotations

import copy
import warnings
from contextlib import ExitStack
from dataclasses import replace

import torch
from torch import Tensor, nn

from leakscope.attacks.exact.peel_attack import Peeling
from leakscope.auditing.static.dense_lines import has_zeros
from leakscope.auditing.target import Target, UntestedError, make_subject
from leakscope.clients import Client
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.tree import Tree
from leakscope.core.types import make_batch
from leakscope.models import Structure, draw_parameters
from leakscope.models.initialise import Torch
from leakscope.play import expose
from leakscope.play.exposure import shared_weights
from leakscope.scanning.dense_rows import largest
from leakscope.scanning.findings import Reading
from leakscope.scanning.own_batch import run_network

UNITS = 16  # of a layer: the share of fewer says little


def unit_degrees(module: nn.Module, inputs: Tensor, structure: Structure) -> Reading:
    """Return the largest share of a layer's units that exactly one example activates."""
    layers = [each.name for each in structure.layers if has_zeros(each) is True]
    net = copy.deepcopy(module).eval()
    dense = {name: layer for name, layer in net.named_modules() if name in layers and isinstance(layer, nn.Linear)}
    active: dict[str, Tensor] = {}
    with ExitStack() as hooks, torch.no_grad():
        for name, layer in dense.items():
            if layer.out_features >= UNITS:

                def note(_: nn.Module, __: object, output: Tensor, name: str = name) -> None:
                    active[name] = (output.reshape(len(inputs), -1, output.shape[-1]) > 0).any(1).sum(0)

                hooks.enter_context(layer.register_forward_hook(note))
        if dense:
            run_network(net, inputs)
    return largest(Reading(float((degrees == 1).float().mean()), name) for name, degrees in active.items())


def peeling_recall(target: Target, fresh: int = 2) -> tuple[float, float | None] | None:
    """Return the share of the sample that peeling certifies with the received weights, and the most with `fresh` draws.

    None: peeling cannot read this network. The second is None where the network cannot be drawn anew.
    """
    if target.inputs is None or not target.inputs.is_floating_point():
        return None
    given = replace(target, model=copy.deepcopy(target.model).eval(), client=None, defences=(), aggregate=1)
    try:
        subject = make_subject(replace(given, examples=len(target.inputs)))
    except UntestedError:
        return None
    model, client = subject.model, Client(loss=subject.client.loss, scaling=subject.client.scaling)
    batch = make_batch(subject.inputs[None], subject.labels[None], classes=model.classes)

    def recall(weights: Tree) -> float:
        exposure = expose(model, client, weights, batch, (0,))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about labels of what is not certified, which do not count here
            result = Peeling(draws=0).run(model, exposure.observation, exposure.knowledge, (0,))
        return 0.0 if result.proved is None else float(result.proved.float().mean())

    try:
        received = recall(shared_weights(model, 1))
    except InputError:
        return None
    try:
        drawn = [draw_parameters(model, Torch(), random.key([seed])) for seed in range(1, fresh + 1)]
    except InputError:
        return received, None
    return received, max(map(recall, drawn))
