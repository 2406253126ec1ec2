"""The adapter: the module's own numbers, purely, and one clear line when it cannot."""

from __future__ import annotations

import copy
import pickle
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakscope.clients import Client
from leakscope.core.errors import InputError
from leakscope.core.random import key, uniform
from leakscope.core.tree import to
from leakscope.core.types import LocalTraining, make_batch
from leakscope.models import MODELS, Torch, Uniform, draw_parameters, from_module
from leakscope.models.initialise import Kaiming, Lecun

KEY = key(3)


def conv_with_norm() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Sigmoid(), nn.Flatten(), nn.Linear(8, 3))


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_output_is_the_modules_own_in_eval_mode(name: str, dtype: torch.dtype) -> None:
    module = MODELS[name](input_shape=(1, 16, 16), classes=4).eval()
    model = from_module(module, input_shape=(1, 16, 16))
    x = uniform(KEY, (3, 1, 16, 16), dtype)
    output, buffers = model.apply(to(model.parameters, dtype=dtype), to(model.buffers, dtype=dtype), x, KEY)
    assert output.dtype == dtype
    assert torch.equal(output, module.to(dtype)(x))
    assert all(torch.equal(value, dict(module.named_buffers())[buffer]) for buffer, value in buffers.items())
    assert model.classes == 4


def test_the_module_stays_as_it_is() -> None:
    module = nn.Sequential(conv_with_norm(), nn.Dropout(0.5), nn.Linear(3, 2))
    values, text = copy.deepcopy(module.state_dict()), str(module)
    model = from_module(module, input_shape=(1, 4, 4))
    model.apply(model.parameters, model.buffers, torch.rand(2, 1, 4, 4), KEY)
    model.parameters["2.bias"].fill_(7)
    assert str(module) == text
    assert all(torch.equal(module.state_dict()[name], value) for name, value in values.items())
    assert all(layer.training for layer in module.modules())
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in module.modules())
    assert all(p.requires_grad and p.grad is None for p in module.parameters())


def test_later_training_of_the_module_does_not_reach_the_model() -> None:
    module = nn.Linear(4, 3)
    model = from_module(module, input_shape=(4,))
    before = model.parameters["weight"].clone()
    with torch.no_grad():
        module.weight.zero_()
    assert torch.equal(model.parameters["weight"], before)
    assert not model.parameters["weight"].requires_grad


def test_train_mode_batch_norm_returns_new_buffers_and_keeps_the_old() -> None:
    module = conv_with_norm()
    model = from_module(module, input_shape=(1, 4, 4))
    old = {name: value.clone() for name, value in model.buffers.items()}
    x = torch.rand(5, 1, 4, 4)
    output, new = model.apply(model.parameters, model.buffers, x, KEY)
    expected = module(x)
    assert torch.equal(output, expected)
    assert all(torch.equal(new[name], value) for name, value in module.named_buffers())
    assert all(torch.equal(model.buffers[name], value) for name, value in old.items())
    assert not torch.equal(new["1.running_mean"], old["1.running_mean"])
    assert new["1.num_batches_tracked"].item() == 1


class Counting(nn.Module):
    """Assigns its buffer instead of writing into it."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(2, 2)
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.seen = self.seen + len(x)
        return self.dense(x)


def test_assigned_buffers_come_back_too() -> None:
    model = from_module(Counting(), input_shape=(2,))
    _, buffers = model.apply(model.parameters, model.buffers, torch.rand(3, 2), KEY)
    assert buffers["seen"].item() == 3
    assert model.buffers["seen"].item() == 0


def test_train_mode_batch_norm_under_vmap_says_what_to_do() -> None:
    model = from_module(conv_with_norm(), input_shape=(1, 4, 4))

    def logits(x: Tensor) -> Tensor:
        return model.apply(model.parameters, model.buffers, x, KEY)[0]

    with pytest.raises(InputError, match=r"eval\(\) .*torch.func.replace_all_batch_norm_modules_"):
        torch.func.vmap(logits)(torch.rand(2, 2, 1, 4, 4))


def test_tied_weights_stay_tied() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    module[2].weight = module[0].weight
    model = from_module(module, input_shape=(3,))
    x = torch.rand(2, 3)
    assert "2.weight" not in model.parameters
    assert torch.equal(model.apply(model.parameters, {}, x, KEY)[0], module(x))
    zero = {name: torch.zeros_like(value) for name, value in model.parameters.items()}
    assert model.apply(zero, {}, x, KEY)[0].abs().max() == 0


def test_calls_from_two_threads_do_not_mix() -> None:
    model = from_module(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)), input_shape=(8,))
    x = torch.rand(4, 8)
    wrong: list[int] = []

    def work(scale: int) -> None:
        mine = {name: value * scale for name, value in model.parameters.items()}
        hidden = torch.tanh(F.linear(x, mine["0.weight"], mine["0.bias"]))
        expected = F.linear(hidden, mine["2.weight"], mine["2.bias"])
        wrong.extend(scale for _ in range(100) if not torch.equal(model.apply(mine, {}, x, KEY)[0], expected))

    threads = [threading.Thread(target=work, args=(scale,)) for scale in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_model_can_be_pickled() -> None:
    model = from_module(conv_with_norm().eval(), input_shape=(1, 4, 4))
    again = pickle.loads(pickle.dumps(model))  # noqa: S301  our own bytes
    x = torch.rand(2, 1, 4, 4)
    outputs = [m.apply(m.parameters, m.buffers, x, KEY)[0] for m in (model, again)]
    assert torch.equal(*outputs)


def test_token_models_run_on_the_given_example() -> None:
    module = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(12, 3))
    model = from_module(module, input_shape=(3,), example=torch.tensor([[1, 2, 3]]))
    assert (model.classes, model.entry) == (3, None)


def test_name_and_private_parameters() -> None:
    model = from_module(nn.Linear(4, 3), input_shape=(4,), name="mine", private=("bias",))
    assert model.name == "mine"
    assert model.private == {"bias"}
    assert from_module(nn.Linear(4, 3), input_shape=(4,)).name == "Linear"


# -- frozen layers


def half_frozen(frozen: int) -> nn.Module:
    """Return a dense network of which layer 0 or 2 is not trained."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    module[frozen].requires_grad_(False)
    return module


@pytest.mark.parametrize("frozen", [0, 2])
def test_a_frozen_layer_is_a_constant_and_its_values_still_count(frozen: int) -> None:
    module = half_frozen(frozen)
    model = from_module(module, input_shape=(4,))
    names = {f"{frozen}.weight", f"{frozen}.bias"}
    assert set(model.buffers) == names
    assert set(model.parameters) == {"0.weight", "0.bias", "2.weight", "2.bias"} - names
    x = torch.rand(3, 4)
    output, buffers = model.apply(model.parameters, model.buffers, x, KEY)
    assert torch.equal(output, module(x))
    assert all(torch.equal(buffers[name], model.buffers[name]) for name in names)
    assert (model.entry is None) == (frozen == 0)
    assert (model.head is None) == (frozen == 2)


@pytest.mark.parametrize("layer", ["weight", "bias"])
def test_a_layer_that_is_frozen_in_part_is_no_dense_layer(layer: str) -> None:
    module = nn.Linear(4, 3)
    getattr(module, layer).requires_grad_(False)
    model = from_module(module, input_shape=(4,))
    assert (model.head, model.entry) == (None, None)


def test_a_client_sends_what_an_optimiser_of_torch_would_move() -> None:
    module = half_frozen(0)
    model = from_module(module, input_shape=(4,))
    x, y = torch.rand(1, 2, 4), torch.tensor([[0, 2]])
    batch = make_batch(x, y, classes=3)
    weights = {name: value[None] for name, value in model.parameters.items()}
    sent = Client(LocalTraining(rate=0.1, epochs=2)).observe(model, weights, batch, [0]).rounds[0].sent
    optimiser = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.1)
    for _ in range(2):
        optimiser.zero_grad()
        F.cross_entropy(module(x[0]), y[0]).backward()
        optimiser.step()
    assert set(sent) == {"2.weight", "2.bias"}
    for name, value in sent.items():
        torch.testing.assert_close(value[0], module.state_dict()[name])


@pytest.mark.parametrize("scheme", [Uniform(), Torch(), Kaiming(), Lecun()])
def test_first_weights_leave_frozen_layers_alone(scheme: Uniform | Torch | Kaiming | Lecun) -> None:
    model = from_module(half_frozen(0), input_shape=(4,))
    assert set(draw_parameters(model, scheme, key([0, 1]))) == {"2.weight", "2.bias"}


def test_frozen_values_are_checked_and_may_be_called_private() -> None:
    module = half_frozen(0)
    assert from_module(module, input_shape=(4,), private=("0.bias", "2.bias")).private == {"2.bias"}
    module[0].bias[0] = float("inf")
    with pytest.raises(InputError, match=r"'0\.bias' holds NaN"):
        from_module(module, input_shape=(4,))


class Pair(nn.Linear):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return super().forward(x), x


class Noisy(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.dropout(x, 0.5, self.training))


def poisoned() -> nn.Module:
    module = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    with torch.no_grad():
        module[1].bias[0] = float("nan")
    return module


@pytest.mark.parametrize(
    ("module", "shape", "message"),
    [
        (nn.Sequential(nn.Flatten(), nn.ReLU()), (4,), "Sequential .*no parameters"),
        (nn.Linear(4, 3), (5,), r"Linear .*\(2, 5\): mat1"),
        (nn.Conv2d(3, 4, 3), (1, 8, 8), r"Conv2d .*\(2, 1, 8, 8\): "),
        (nn.Conv2d(1, 4, 3), (1, 8, 8), r"Conv2d .*got \(2, 4, 6, 6\)"),
        (Pair(4, 3), (4,), "Pair .*got tuple"),
        (poisoned(), (4,), "'1.bias' holds NaN"),
        (nn.LazyLinear(3), (4,), "LazyLinear has lazy"),
        (nn.Linear(4, 3).requires_grad_(False), (4,), "Linear are frozen"),
        (Noisy(4, 3), (4,), r"Noisy .*eval\(\)"),
        (nn.Linear(4, 3), (), "input_shape .*ONE input"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(module: nn.Module, shape: tuple[int, ...], message: str) -> None:
    before = torch.get_rng_state()
    with pytest.raises(InputError, match=message) as caught:
        from_module(module, input_shape=shape)
    assert "\n" not in str(caught.value)
    assert torch.equal(before, torch.get_rng_state())


def test_nan_in_a_buffer_is_refused_but_infinity_is_not() -> None:
    module = conv_with_norm().eval()
    module[1].running_mean[0] = float("nan")
    with pytest.raises(InputError, match=r"'1.running_mean' holds NaN"):
        from_module(module, input_shape=(1, 4, 4))
    counting = Counting()
    counting.seen = torch.tensor(float("inf"))
    from_module(counting, input_shape=(2,))


def test_example_and_private_names_are_checked() -> None:
    with pytest.raises(InputError, match=r"example must.* got \(2, 5\)"):
        from_module(nn.Linear(4, 3), input_shape=(4,), example=torch.rand(2, 5))
    with pytest.raises(InputError, match=r"private .*'biass'.*'bias'"):
        from_module(nn.Linear(4, 3), input_shape=(4,), private=["biass"])


def test_global_noise_is_allowed_in_eval_mode() -> None:
    assert from_module(Noisy(4, 3).eval(), input_shape=(4,)).classes == 3


def test_a_whole_model_changes_dtype() -> None:
    module = conv_with_norm().eval()
    model = to(from_module(module, input_shape=(1, 4, 4)), dtype=torch.float64)
    x = uniform(KEY, (2, 1, 4, 4), torch.float64)
    assert torch.equal(model.apply(model.parameters, model.buffers, x, KEY)[0], module.double()(x))
