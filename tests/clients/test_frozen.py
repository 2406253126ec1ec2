"""Frozen layers are a property of the client: updates hold what is trained, and attacks work on that part alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.recipes import analytic, idlg, ig, linear_system, peeling
from leakscope.clients import Client
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.types import LocalTraining, make_batch
from leakscope.models import adapt, from_module
from leakscope.play import attack, expose, shared_weights
from leakscope.play.attacking import AttackResult

torch.set_num_threads(1)
SHAPE, CLASSES = (1, 6, 6), 4


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.Sigmoid(), nn.Flatten(), nn.Linear(144, 12), nn.Sigmoid(), nn.Linear(12, CLASSES)
    )  # fmt: skip


def frozen_backbone() -> Model:
    module = network().requires_grad_(False)
    module[-1].requires_grad_(True)
    return from_module(module, input_shape=SHAPE)


def adapted() -> Model:
    module = adapt(network(), rank=2, layers=("3", "5"))
    for layer in module.modules():
        if type(layer).__name__ == "LowRank":
            nn.init.normal_(layer.outer.weight)  # after a first round
    return from_module(module, input_shape=SHAPE)


MODELS = {"head": frozen_backbone, "adapters": adapted}


def played(model: Model, method: object, local: LocalTraining | None = None, samples: int = 1) -> AttackResult:
    generator = torch.Generator().manual_seed(0)
    inputs: Tensor = torch.rand(2, samples, *SHAPE, generator=generator)
    batch = make_batch(inputs, torch.arange(2 * samples).reshape(2, samples) % CLASSES, classes=CLASSES)
    exposure = expose(model, Client(local=local), shared_weights(model, 2), batch, [0, 1])
    sent = exposure.observation.rounds[0].sent
    assert sent.keys() == model.parameters.keys()
    if model.head is None:
        exposure = exposure.with_labels()
    return attack(exposure, method, execution=Execution(form="native"))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize("local", [None, LocalTraining(epochs=3, rate=0.1)])
def test_matching_attacks_fit_the_shared_part(name: str, local: LocalTraining | None) -> None:
    result = played(MODELS[name](), ig(iterations=8), local)
    trace = result.reconstruction.trace
    assert bool(result.reconstruction.inputs.isfinite().all())
    assert bool((result.reconstruction.mismatch < trace[:, 0]).all())


def test_the_label_is_read_off_a_trained_head() -> None:
    result = played(frozen_backbone(), idlg(iterations=1))
    assert result.reconstruction.labels.flatten().tolist() == [0, 1]


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize("method", [analytic, linear_system, peeling])
def test_exact_attacks_on_a_layer_that_is_not_sent_say_so_in_one_line(name: str, method: Callable[[], object]) -> None:
    with pytest.raises(InputError) as caught:
        played(MODELS[name](), method())
    assert "\n" not in str(caught.value)


def test_labels_behind_an_adapted_head_are_refused_in_one_line() -> None:
    model = adapted()
    batch = make_batch(torch.rand(1, 1, *SHAPE), torch.zeros(1, 1, dtype=torch.int64), classes=CLASSES)
    exposure = expose(model, Client(), shared_weights(model, 1), batch, [0])
    with pytest.raises(InputError) as caught:
        attack(exposure, idlg(iterations=1))
    assert "\n" not in str(caught.value)
