"""Every registered defence says how strong it is tried, and the stronger of the two changes an update by more."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch

from leakscope.core import random
from leakscope.core.tree import count, norm, subtract
from leakscope.defences import DEFENCES, Sign
from leakscope.defences.stack import begin, protect
from leakscope.defences.strengths import Unit, strengths_of


@pytest.mark.parametrize("name", [name for name, kind in DEFENCES.items() if kind is not Sign])
def test_the_stronger_changes_an_update_by_more(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    update = {"weight": torch.randn(6, 40, generator=generator), "bias": torch.randn(6, generator=generator)}
    length = float(norm(update))
    units = {Unit.ONE: 1.0, Unit.COORDINATE: length / math.sqrt(count(update)), Unit.LENGTH: length}
    found = strengths_of(DEFENCES[name])
    assert found is not None
    changed = []
    for strength in (found.weak, found.strong):
        value = strength if found.unit is Unit.ONE else strength * units[found.unit]
        defence = DEFENCES[name](**{found.setting: value})
        made, _ = protect((defence,), update, begin((defence,), update), random.key(1))
        changed.append(float(norm(subtract(made, update))))
    assert 0 < changed[0] < changed[1]


def test_what_declares_no_strength_has_none() -> None:
    @dataclass(frozen=True)
    class Plain:
        level: float = 1.0

    assert strengths_of(Sign) is None
    assert strengths_of(Plain) is None
    assert strengths_of(print) is None
