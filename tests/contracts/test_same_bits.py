"""A trial's float32 run has the same bits alone, among others and permuted; the slow tier has it for every form and larger networks."""

from __future__ import annotations

import pytest
import torch

from leakscope.attacks import LBFGS, OPTIMISERS, Adam, Execution, Matching, cpl, ig, matching
from leakscope.clients import Client, attacker_knowledge
from leakscope.core import random
from leakscope.core.tree import flat_names, take
from leakscope.core.types import Reconstruction, make_batch
from leakscope.models import Uniform, build, draw_parameters

SEEDS = [11, 12, 13]
SHAPE, CLASSES = (1, 8, 8), 4
MODEL = build("lenet_dlg", SHAPE, CLASSES, {"width": 2})
BATCH = make_batch(random.uniform(random.key(1), (3, 1, *SHAPE)), torch.tensor([[0], [3], [1]]), classes=CLASSES)
OBSERVED = Client().observe(MODEL, draw_parameters(MODEL, Uniform(0.5), random.key(SEEDS)), BATCH, SEEDS)
KNOWN = attacker_knowledge(MODEL, Client(), BATCH)
ATTACKED: dict[str, Matching] = {
    "adam": ig(iterations=2),
    "lbfgs": cpl(optimiser=LBFGS(inner=5), iterations=1),
    **{
        name: matching(optimiser=make(), iterations=2) for name, make in OPTIMISERS.items() if make not in (Adam, LBFGS)
    },
}


def attacked(attack: Matching, trials: list[int]) -> dict[str, torch.Tensor]:
    """Return every tensor of the reconstructions of some trials."""
    torch.set_num_threads(1)
    seeds = [SEEDS[i] for i in trials]
    observed, known = take((OBSERVED, KNOWN), torch.tensor(trials))
    reconstruction: Reconstruction = attack.run(MODEL, observed, known, seeds, Execution(form="native"))
    return flat_names(reconstruction)


@pytest.mark.parametrize("name", ATTACKED)
def test_a_trial_has_the_same_bits_alone_among_others_and_permuted(name: str) -> None:
    attack = ATTACKED[name]
    everyone = attacked(attack, [0, 1, 2])
    for trials in ([2], [2, 0, 1]):
        for field, value in attacked(attack, trials).items():
            assert torch.equal(value.nan_to_num(), everyone[field][trials].nan_to_num()), field
    assert (everyone["evaluations"] > 1).all()
    assert not torch.equal(everyone["inputs"], everyone["start"])
