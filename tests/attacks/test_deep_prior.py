"""The deep image prior: the generator, and an attack on its weights, agree with plain torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from leakscope.attacks import deep_prior
from leakscope.attacks.deep_prior import NOISE, THETA, Generator
from leakscope.attacks.engine.plan import Execution
from leakscope.clients import Client
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.scaling import Scaling
from leakscope.core.types import Knowledge, make_batch
from leakscope.models import from_module
from leakscope.play import Exposure, expose

SHAPE = (3, 12, 9)
SCALING = Scaling((0.4, 0.5, 0.6), (0.2, 0.3, 0.4))
WIDTH = 4


def written_out(theta: Tensor) -> nn.Sequential:
    """Return the generator for SHAPE as torch's layers, with the given weights: 4, 8 and 16 pixels a side."""
    net = nn.Sequential(
        nn.ConvTranspose2d(NOISE, 2 * WIDTH, 4, bias=False), nn.BatchNorm2d(2 * WIDTH), nn.LeakyReLU(0.2),
        nn.ConvTranspose2d(2 * WIDTH, WIDTH, 4, 2, 1, bias=False), nn.BatchNorm2d(WIDTH), nn.LeakyReLU(0.2),
        nn.ConvTranspose2d(WIDTH, 3, 4, 2, 1, bias=False), nn.Tanh(),
    )  # fmt: skip
    nn.utils.vector_to_parameters(theta, net.parameters())
    return net


def pictures(net: nn.Module, z: Tensor) -> Tensor:
    made = (1 + net(z.flatten(1)[:, :NOISE, None, None])[..., :12, :9]) / 2
    return SCALING.scale(made, 3)


def victim() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.Sigmoid(), nn.Flatten(), nn.Linear(80, 3))


def exposure(trials: int = 2) -> Exposure:
    model = from_module(victim(), input_shape=SHAPE)
    inputs = random.uniform(random.key(list(range(trials))), (2, *SHAPE))
    batch = make_batch(inputs, torch.tensor([[0, 2]] * trials), classes=3)
    weights = {name: value.expand(trials, *value.shape) for name, value in model.parameters.items()}
    return expose(model, Client(scaling=SCALING), weights, batch, list(range(trials)), labels=True)


def known(shape: tuple[int, ...] = SHAPE) -> Knowledge:
    return Knowledge(input_shape=shape, classes=3, samples=2, scaling=SCALING)


def test_the_generator_is_that_of_torchs_layers() -> None:
    generator, z = Generator(WIDTH), random.normal(random.key(1), (2, *SHAPE))
    theta = generator.start(random.key(0), known())
    net = written_out(theta)
    assert theta.numel() == sum(value.numel() for value in net.parameters())
    assert_close(generator(theta, z, known()), pictures(net, z))
    assert torch.equal(net[1].weight, torch.ones(2 * WIDTH))
    assert torch.equal(net[4].bias, torch.zeros(WIDTH))
    assert float(net[0].weight.detach().std()) == pytest.approx(0.02, rel=0.05)


def test_the_attack_is_a_plain_loop_over_the_weights_of_the_generator() -> None:
    one, attack = exposure(1), deep_prior(width=WIDTH, iterations=8)
    problem, _ = attack.prepare(one.model, one.observation, one.knowledge, [0])
    result = attack.run(one.model, one.observation, one.knowledge, [0], Execution(form="native"))
    net, z, model = written_out(problem.unknowns[THETA][0]), problem.unknowns["guess"][0], victim()
    observed = torch.cat([value.flatten() for value in one.observation.rounds[0].sent.values()])
    optimiser, trace = torch.optim.Adam(net.parameters(), lr=1e-3), []
    for _ in range(9):
        loss = nn.functional.cross_entropy(model(pictures(net, z)), one.batch.labels[0])
        gradient = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        flat = torch.cat([value.flatten() for value in gradient])
        mismatch = 1 - flat @ observed / flat.norm() / observed.norm()
        trace.append(float(mismatch.detach()))
        optimiser.zero_grad()
        mismatch.backward()
        made = pictures(net, z).detach()
        optimiser.step()
    assert_close(result.trace[0, :9].double(), torch.tensor(trace, dtype=torch.float64), rtol=1e-3, atol=1e-6)
    assert_close(SCALING.scale(result.inputs[0], 3), made, rtol=1e-3, atol=1e-4)
    assert trace[-1] < trace[0]


def test_a_trial_has_the_same_bits_alone_and_among_others() -> None:
    many, attack, plain = exposure(), deep_prior(width=WIDTH, iterations=4), Execution(form="native")
    together = attack.run(many.model, many.observation, many.knowledge, [0, 1], plain)
    alone = many.select(torch.tensor([1]))
    single = attack.run(alone.model, alone.observation, alone.knowledge, [1], plain)
    assert torch.equal(together.inputs[1], single.inputs[0])
    assert not torch.equal(together.start[0], together.start[1])
    assert float(together.inputs.min()) >= 0
    assert float(together.inputs.max()) <= 1


@pytest.mark.parametrize("shape", [(12,), (3, 4)])
def test_inputs_that_are_no_pictures_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError):
        Generator().start(random.key(0), known(shape))


def test_a_width_of_none_is_refused() -> None:
    with pytest.raises(InputError):
        deep_prior(width=0)
