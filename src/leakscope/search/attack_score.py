"""The privacy of a policy by a real attack on a sample, instead of by the privacy score, which need not follow PSNR."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from leakscope.attacks.engine.plan import DEFAULT, Execution
from leakscope.attacks.recipes import ig
from leakscope.clients import Client, told
from leakscope.core import random
from leakscope.core.model import Model
from leakscope.core.scaling import Scaling
from leakscope.core.tree import map_tensors
from leakscope.core.types import make_batch
from leakscope.defences.on_data import Transform
from leakscope.metrics.image import psnr
from leakscope.models import draw_parameters
from leakscope.models.initialise import Given


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
    """Return the mean PSNR (dB, lower is more private) of `ig` against the private pictures, for every policy.

    All policies are attacked as one batch: the same pictures, one a client, the same draws and starts, labels told.
    Compared with x, not with T(x): what the attacker wants is the picture that the client holds.
    """
    batch = make_batch(pictures[:, None], labels[:, None], classes=model.classes)
    seeds = [seed + i for i in range(batch.trials)]
    weights = draw_parameters(model, Given(), random.key(seeds))
    parts = []
    for transform in transforms:
        client = Client(scaling=scaling, on_data=transform)
        parts.append((client.observe(model, weights, batch, seeds), told(model, client, batch, labels=True)))
    seen, knowledge = map_tensors(lambda *each: torch.cat(each), parts[0], *parts[1:])
    reconstruction = ig(iterations=iterations).run(model, seen, knowledge, seeds * len(transforms), execution)
    truth = batch.inputs.repeat(len(transforms), 1, 1, 1, 1)
    return psnr(truth, reconstruction.inputs.clamp(0, 1)).reshape(len(transforms), -1).mean(1)
