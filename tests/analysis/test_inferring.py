"""What an update gives away besides pictures: estimates that are right where they claim to know, and silent elsewhere."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from leakscope.analysis.inferring import Inferred, Sure, infer
from leakscope.core.types import Shares
from leakscope.data import load
from leakscope.models import from_module


def dense() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(24, 15), nn.Tanh(), nn.Linear(15, 6))


def conv(*, norm: bool = False) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3) if norm else nn.Identity()]
    return nn.Sequential(*layers, nn.Tanh(), nn.Flatten(), nn.Linear(72, 6))


def trained(
    module: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    steps: int = 1,
    rate: float = 0.1,
    noise: float = 0.0,
    kind: type[torch.optim.Optimizer] = torch.optim.SGD,
) -> Inferred:
    """Return what is inferred from a client that trained with plain torch."""
    model = from_module(module.eval(), input_shape=tuple(x.shape[1:]))
    module.train()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    optimiser = kind(module.parameters(), lr=rate)  # type: ignore[call-arg]
    for _ in range(steps):
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        optimiser.step()
    sent = {name: value.clone() for name, value in module.state_dict().items()}
    sent = {n: v + noise * torch.randn_like(v) if v.is_floating_point() else v for n, v in sent.items()}
    return infer(model, before, sent, shares=Shares.WEIGHTS)


def client(seed: int, samples: int, classes: int = 6, shape: tuple[int, ...] = (1, 4, 6)) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(samples, *shape, generator=generator)
    return x, torch.randint(classes, (samples,), generator=generator)


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 999), samples=st.integers(1, 10), steps=st.integers(1, 4))
def test_a_dense_first_layer_counts_the_examples_whatever_the_steps(seed: int, samples: int, steps: int) -> None:
    torch.manual_seed(seed)
    made = trained(dense(), *client(seed, samples), steps=steps, rate=0.5)
    assert made.samples.value == samples
    assert made.samples.sure is Sure.ABOUT


def test_a_full_rank_claims_nothing() -> None:
    torch.manual_seed(0)
    for made in (
        trained(dense(), *client(0, 40)),
        trained(dense(), *client(0, 3), noise=0.01),
        trained(dense(), *client(0, 3), kind=torch.optim.Adam, steps=5),
    ):
        assert made.samples.value is None
        assert made.samples.sure is Sure.UNKNOWN


def relu(seed: int, units: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, units), nn.ReLU(), nn.Linear(units, 6))


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("seed", range(3))
def test_units_of_relu_sleep_on_digits(seed: int, steps: int) -> None:
    """64 digits, 32 units, some of which no digit wakes; and corners of the picture that are always empty."""
    digits, chosen = load("digits"), range(seed * 64, seed * 64 + 64)
    x, y = digits.pictures("train", chosen), torch.as_tensor(digits.labels("train", chosen))
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    assert trained(network, x, y, steps=steps).samples.value is None


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 9999), samples=st.integers(32, 64), steps=st.integers(1, 4))
def test_units_of_relu_that_sleep_do_not_make_a_full_rank_a_number_of_examples(
    seed: int, samples: int, steps: int
) -> None:
    made = trained(relu(seed, 32), *client(seed, samples, shape=(1, 8, 8)), steps=steps)
    assert made.samples.value is None
    assert "full" in made.samples.why


def test_inputs_that_are_always_zero_do_not_either() -> None:
    x, y = client(0, 40)
    x[..., 2:] = 0  # 8 of 24 are left
    torch.manual_seed(0)
    assert trained(dense(), x, y).samples.value is None


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 9999), samples=st.integers(1, 8))
def test_relu_hides_no_number_that_a_layer_can_show(seed: int, samples: int) -> None:
    made = trained(relu(seed, 64), *client(seed, samples, shape=(1, 8, 8)), rate=0.5)
    assert made.samples.value == samples


def test_a_change_that_is_no_number_claims_nothing() -> None:
    torch.manual_seed(0)
    model = from_module(dense(), input_shape=(1, 4, 6))
    large = {name: torch.full_like(value, 3e38) for name, value in model.parameters.items()}
    made = infer(model, large, {name: -value for name, value in large.items()}, shares=Shares.WEIGHTS)
    assert (made.samples.value, made.rate_times_steps.value, made.labels) == (None, None, None)


def test_after_several_steps_a_last_layer_alone_claims_nothing() -> None:
    torch.manual_seed(0)
    made = trained(conv(), *client(0, 2), steps=3)
    assert (made.samples.value, made.samples.sure) == (None, Sure.UNKNOWN)
    assert "last layer" in made.samples.why


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 999), samples=st.integers(1, 4))
def test_a_gradient_counts_examples_by_its_last_layer(seed: int, samples: int) -> None:
    torch.manual_seed(seed)
    module = conv()
    model = from_module(module, input_shape=(1, 4, 6))
    x, y = client(seed, samples)
    names = [name for name, _ in module.named_parameters()]
    gradient = torch.autograd.grad(nn.functional.cross_entropy(module(x), y), list(module.parameters()))
    made = infer(model, dict(module.state_dict()), dict(zip(names, gradient, strict=True)), shares=Shares.GRADIENT)
    assert made.samples.value == samples
    assert made.steps.value == 1
    assert made.rate.value is None


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 999), samples=st.integers(1, 8), steps=st.integers(1, 5))
def test_labels_are_counted_where_a_class_is_missing(seed: int, samples: int, steps: int) -> None:
    torch.manual_seed(seed)
    x, y = client(seed, samples, classes=4)  # 4 and 5 never occur
    made = trained(dense(), x, y, steps=steps, rate=0.05)
    counts = made.counts(samples)
    assert counts is not None
    assert int(counts.sum()) == samples
    assert int((counts - torch.bincount(y, minlength=6)).abs().sum()) <= 2  # one label, at the worst
    product = made.rate_times_steps.value
    assert product is not None
    assert 0.5 < product / (0.05 * steps) < 2


def test_with_inputs_like_the_clients_the_rate_is_exact() -> None:
    torch.manual_seed(0)
    module, (x, _) = dense(), client(3, 5)
    y = torch.tensor([0, 1, 1, 2, 0])
    model = from_module(module, input_shape=(1, 4, 6))
    before = {n: v.clone() for n, v in module.state_dict().items()}
    gradient = torch.autograd.grad(nn.functional.cross_entropy(module(x), y), list(module.parameters()))
    sent = {n: before[n] - 1e-3 * g for n, g in zip(before, gradient, strict=True)}
    made = infer(model, before, sent, shares=Shares.WEIGHTS, public=x)
    assert made.rate_times_steps.value == pytest.approx(1e-3, rel=1e-2)
    assert made.labels is not None
    torch.testing.assert_close(made.labels, torch.tensor([2, 2, 1, 0, 0, 0]).double() / 5, rtol=0, atol=0.01)


@pytest.mark.parametrize("steps", [1, 7])
def test_batch_norm_tells_the_number_of_steps_and_so_the_rate(steps: int) -> None:
    torch.manual_seed(0)
    x, y = client(1, 4, classes=3)
    made = trained(conv(norm=True), x, y, steps=steps, rate=0.02)
    assert made.steps.value == steps
    assert made.steps.sure is Sure.EXACT
    assert made.rate.value == pytest.approx(0.02, rel=0.5)


def test_without_a_counter_rate_and_steps_are_not_told_apart() -> None:
    torch.manual_seed(0)
    made = trained(dense(), *client(1, 4), steps=3)
    assert made.steps.value is None
    assert (made.rate.value, made.rate.sure) == (None, Sure.UNKNOWN)


def test_one_step_of_adam_shows_its_rate_and_hides_the_labels() -> None:
    torch.manual_seed(0)
    made = trained(dense(), *client(1, 4), rate=0.003, kind=torch.optim.Adam)
    assert made.rate.value == pytest.approx(0.003, rel=0.02)
    assert made.labels is None
    assert made.samples.value is None
    assert "Adam" in made.labels_why


def test_what_cannot_be_read_is_said() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 6, (4, 6)), nn.Flatten())
    made = trained(module, *client(0, 2))
    assert made.samples.value is None
    assert made.labels is None
    assert "not known" in str(made.samples)
    zero = infer(
        from_module(dense(), input_shape=(1, 4, 6)),
        dict(dense().state_dict()),
        {n: torch.zeros_like(v) for n, v in dense().state_dict().items()},
        shares=Shares.GRADIENT,
    )
    assert zero.samples.value is None


@pytest.mark.slow
def test_a_network_that_tells_inputs_apart_gives_no_labels() -> None:
    torch.manual_seed(0)
    module, (x, y) = dense(), client(0, 30)
    optimiser = torch.optim.SGD(module.parameters(), lr=1.0)
    for _ in range(400):
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        optimiser.step()
    made = trained(module, *client(1, 4))
    assert made.labels is None
    assert made.rate_times_steps.value is None
    assert "distinguishes inputs" in made.labels_why
    assert made.samples.value == 4  # the rank does not care
