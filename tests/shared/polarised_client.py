"""Three clients with a private head, and an attack's own mismatch at given unknowns."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from leakscope.attacks.attack import Matching
from leakscope.attacks.engine.forms import Evaluation, Evaluator
from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.view import Clock, View
from leakscope.core import random
from leakscope.core.model import Model
from leakscope.core.tree import Tree, lift, to
from leakscope.core.types import Batch, Knowledge, Observation, make_batch
from leakscope.models import Uniform, build, draw_parameters

SEEDS, CLASSES, BITS = [1, 2, 3], 4, 8


def private_data(samples: int) -> tuple[Model, Tree, Batch]:
    """Return network, weights and private batch of three clients, in float64."""
    model = to(build("lenet_dlg", (1, 8, 8), CLASSES, {"width": 2}), dtype=torch.float64)
    generator = torch.Generator().manual_seed(3)
    x = torch.rand((3, samples, 1, 8, 8), generator=generator, dtype=torch.float64)
    batch = make_batch(x, torch.randint(CLASSES, (3, samples), generator=generator), classes=CLASSES)
    weights = to(draw_parameters(model, Uniform(0.5), random.key(SEEDS)), dtype=torch.float64)
    return model, weights, batch


def mismatch(attack: Matching, model: Model, seen: Observation, knowledge: Knowledge, unknowns: Tree) -> Tensor:
    """Return the attack's own objective at these unknowns."""

    def one(attack: Any, unknowns: Tree, seen: Any, knowledge: Knowledge, key: Tensor) -> Tensor:
        clock = Clock(torch.tensor(0), key)
        made = attack.simulate(model, unknowns, seen, knowledge, clock)
        return attack.objective(View(unknowns, made, seen.sent, seen, knowledge, clock))

    return lift(one)(attack, unknowns, seen.rounds[0], knowledge, random.key(SEEDS))


def evaluations(attack: Matching, model: Model, seen: Observation, knowledge: Knowledge) -> list[Evaluation]:
    """Return what every form of evaluation gives at the start; the first is native."""
    problem, _ = attack.prepare(model, seen, knowledge, SEEDS, Execution(form="native", dtype="float64"))
    zero = torch.zeros(3, dtype=torch.int64)
    forms = ("native", "im2col", "parallel", "loop")
    return [Evaluator(model, problem.unknowns, problem.facts, form)(problem.unknowns, zero) for form in forms]
