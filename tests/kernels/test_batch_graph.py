"""A recorded function is the function: at every number of examples, with shared memory and writing in place, or it is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from leakscope.core.model import Model
from leakscope.core.tree import to
from leakscope.kernels.batch_graph import SIZES, batch_graph, laid_out
from leakscope.kernels.sample_gradients import input_gradients
from leakscope.models import build, from_module
from leakscope.search.accuracy_score import jacobian

pytestmark = pytest.mark.slow

KERNEL = torch.randn(2, 2, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def pictures(number: int, shape: tuple[int, ...]) -> Tensor:
    return torch.randn(number, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(number))


def by_input(model: Model) -> Callable[[Tensor], Tensor | None]:
    return lambda x: input_gradients(model, torch.sum, x)


def one_at_a_time(model: Model, inputs: Tensor) -> Tensor:
    rows = []
    for x in inputs:
        one = x[None].clone().requires_grad_(True)
        output, _ = model.apply(model.parameters, model.buffers, one, torch.tensor(0))
        rows.append(torch.autograd.grad(output.sum(), one)[0])
    return torch.cat(rows)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    ("name", "given_settings"),
    [("resnet20", {"width": 2}), ("convnet", {"width": 2}), ("lenet_dlg", {}), ("mlp", {})],
)
def test_a_networks_gradients_are_those_of_one_at_a_time(
    name: str, given_settings: dict[str, int], layout: torch.memory_format
) -> None:
    model = to(build(name, (3, 32, 32), 3, given_settings), dtype=torch.float64)
    graph = batch_graph(by_input(model), (3, 32, 32), torch.float64, layout)
    assert graph is not None
    for number in (1, *SIZES, 7):
        inputs = pictures(number, (3, 32, 32))
        torch.testing.assert_close(graph(inputs), one_at_a_time(model, inputs), rtol=1e-9, atol=1e-12)


class Viewing(nn.Module):
    """A network that calls view() on pictures, which it cannot where channels are last, and writes in place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.last = nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4), nn.Linear(4 * 6 * 5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x))
        x += 1
        x.relu_()
        return self.last(x.view(len(x), -1))


def test_pictures_that_are_viewed_cannot_have_channels_last() -> None:
    model = to(from_module(Viewing().eval(), input_shape=(2, 8, 7)), dtype=torch.float64)
    inputs = pictures(5, (2, 8, 7))
    assert batch_graph(by_input(model), (2, 8, 7), torch.float64, torch.channels_last) is None
    graph = batch_graph(by_input(model), (2, 8, 7), torch.float64)
    assert graph is not None
    torch.testing.assert_close(graph(inputs), one_at_a_time(model, inputs), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(
        jacobian(model, inputs)(inputs), one_at_a_time(model, inputs).flatten(1), rtol=1e-9, atol=1e-12
    )


STEPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "conv": lambda a, _: torch.conv2d(a, KERNEL, padding=1),
    "relu": lambda a, _: a.relu(),
    "add": lambda a, b: a + b,
    "add twice": lambda a, b: torch.add(a, b, alpha=2),
    "add a column": lambda a, b: a + torch.conv2d(b, KERNEL, padding=(1, 0)),
    "rectify": lambda a, b: torch.ops.aten.threshold_backward(a, b, 0),
    "write": lambda a, b: a.add_(b),
    "rectify in place": lambda a, _: a.relu_(),
    "same memory": lambda a, _: a.view_as(a),
    "detached": lambda a, _: a.detach(),
    "two parts": lambda a, b: torch.stack(torch.stack([a, b]).unbind(0)).sum(0),
    "by number": lambda a, _: a * len(a),
}
PROGRAM = st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 2), st.integers(0, 2)), max_size=12)


@settings(deadline=None, max_examples=100)
@given(program=PROGRAM, kept=st.integers(0, 12))
def test_any_program_of_sums_rectifiers_and_shared_memory_is_played_as_it_was(
    program: list[tuple[str, int, int]], kept: int
) -> None:
    """What a step writes in place shows in all that shares its memory, in the recording as in the run."""

    def run(x: Tensor) -> Tensor:
        made = [x]
        for step, a, b in program:  # numbers count back from the newest
            made.append(STEPS[step](made[-1 - a % len(made)], made[-1 - b % len(made)]))
        return torch.cat([made[-1], made[kept % len(made)]], 1)

    graph = batch_graph(run, (2, 4, 3), torch.float64)
    assert graph is not None
    inputs = pictures(5, (2, 4, 3))
    torch.testing.assert_close(graph(inputs), run(inputs.clone()), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(inputs, pictures(5, (2, 4, 3)), rtol=0, atol=0)  # played on a copy


@pytest.mark.parametrize("name", ["add", "add twice", "add a column", "rectify", "relu"])
def test_what_is_written_in_place_is_memory_that_nothing_else_reads(name: str) -> None:
    """Each operand is made for this step alone, or is a view of what is read again."""

    def run(x: Tensor) -> Tensor:
        filtered, other = torch.conv2d(x, KERNEL, padding=1), torch.conv2d(x.cos(), KERNEL, padding=1)
        views = STEPS[name](filtered.view_as(filtered), other.view_as(other))
        alone = STEPS[name](filtered + 1, x), STEPS[name](x, other + 2), STEPS[name](filtered + 1, other + 2)
        return torch.cat([views, filtered, other, *alone], 1)

    graph = batch_graph(run, (2, 4, 3), torch.float64)
    assert graph is not None
    inputs = pictures(5, (2, 4, 3))
    torch.testing.assert_close(graph(inputs), run(inputs), rtol=1e-12, atol=1e-12)


def reads_a_value(x: Tensor) -> Tensor:
    return x if x.sum() > 0 else -x


def counts_one_more(x: Tensor) -> Tensor:
    return x * (len(x) + 1)


def counts_two_more(x: Tensor) -> Tensor:
    return x * (len(x) + 2)


def does_more_for_three(x: Tensor) -> Tensor:
    return x.sin() if len(x) == SIZES[1] else x


def writes_into_what_is_held(x: Tensor) -> Tensor:
    return x * KERNEL.clone().sum().add_(1) + HELD.add_(x.sum())


def leaves_torch(x: Tensor) -> Tensor:
    return x + torch.from_numpy(x.detach().numpy())


def makes_nothing_of_the_batch(x: Tensor) -> Tensor:
    return HELD


HELD = torch.zeros((), dtype=torch.float64)


@pytest.mark.parametrize(
    "f",
    [
        reads_a_value,
        counts_one_more,
        counts_two_more,
        does_more_for_three,
        writes_into_what_is_held,
        leaves_torch,
        makes_nothing_of_the_batch,
    ],
)
def test_what_cannot_be_recorded_is_refused(f: Callable[[Tensor], Tensor]) -> None:
    assert batch_graph(f, (2, 3), torch.float64) is None
    assert batch_graph(f, (2, 3, 3), torch.float64, torch.channels_last) is None


def test_a_network_whose_examples_meet_is_refused() -> None:
    mixing = build("resnet20", (1, 8, 8), 3, {"width": 2, "batch_statistics": True})
    assert batch_graph(by_input(mixing), (1, 8, 8), torch.float32) is None


@pytest.mark.parametrize("channels", [1, 3])
def test_a_layout_is_told_by_strides_even_of_one_channel(channels: int) -> None:
    x = torch.rand(2, channels, 4, 5)
    last = laid_out(x, torch.channels_last)
    torch.testing.assert_close(last, x, rtol=0, atol=0)
    assert last.stride() == (20 * channels, 1, 5 * channels, channels)
    assert laid_out(last, torch.contiguous_format).stride() == (20 * channels, 20, 5, 1)
