"""SME and IG on a real client of CIFAR-100 after 20 local steps, in small: the paper's order of the two."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.recipes import ig_update, sme
from leakscope.clients import Client, attacker_knowledge
from leakscope.core import random
from leakscope.core.scaling import Scaling
from leakscope.core.types import LocalTraining, make_batch
from leakscope.data import load
from leakscope.metrics import score
from leakscope.models import Torch, build, draw_parameters

SCALING = Scaling((0.5071, 0.4866, 0.4409), (0.2673, 0.2564, 0.2762))


@pytest.mark.slow
@pytest.mark.real_data
def test_sme_reconstructs_better_than_ig_after_twenty_local_steps(data_directory: Path) -> None:
    data, samples = load("cifar100", data_directory), 4
    inputs, labels = data.pictures("test", range(samples)), torch.as_tensor(data.labels("test", range(samples)))
    private = make_batch(inputs[None], labels[None], classes=100)
    model = build("cnn_cifar", (3, 32, 32), 100)
    client = Client(LocalTraining(epochs=20, rate=0.004), scaling=SCALING)
    seen = client.observe(model, draw_parameters(model, Torch(), random.key([0])), private, [0])
    blind = attacker_knowledge(model, client, private, local=False)  # neither labels nor local training
    psnr, mismatch = {}, {}
    for attack in (sme(iterations=80), ig_update(iterations=80)):
        made = attack.run(model, seen, blind, [0], Execution(form="loop"))
        scores = score(private.inputs, private.labels, made.inputs, made.labels)
        psnr[attack.name], mismatch[attack.name] = float(scores.psnr.mean()), float(made.mismatch)
        assert sorted(made.labels[0].tolist()) == sorted(labels.tolist())
    assert psnr["sme"] > psnr["ig_update"] + 1
    assert mismatch["sme"] < 0.7 * mismatch["ig_update"]
