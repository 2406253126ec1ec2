"""Simulators: at the truth they give what the client sent, and their derivatives pass finite differences."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from leakscope.attacks.attack import Matching
from leakscope.attacks.distances import squared_l2
from leakscope.attacks.priors import GUESS
from leakscope.attacks.recipes import ig
from leakscope.attacks.simulate import (
    ALPHA,
    LABEL,
    SHIFT,
    LocalSteps,
    OneGradient,
    OnTheLine,
    targets_of,
)
from leakscope.attacks.starts import Uniform as UniformStart
from leakscope.attacks.translate import Moved, ThroughMap, on_black
from leakscope.attacks.view import Clock, Simulated, Simulator
from leakscope.clients import Client, attacker_knowledge
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.scaling import Scaling
from leakscope.core.tree import Tree, lift, subtract, take, to
from leakscope.core.types import Batch, Knowledge, LocalTraining, Observation, Round, direction, make_batch
from leakscope.learning.local import draw_order
from leakscope.learning.warps import shift
from leakscope.models import Uniform, build, draw_parameters
from small_parts import CLASSES, network

torch.set_num_threads(1)
SAMPLES = 4
SEEDS = [11, 12, 13]
SCALING = Scaling((0.4,), (0.3,))
KEYS = random.key([1, 2, 3])
LOCAL = LocalTraining(epochs=2, batch_size=2, rate=0.3)


def draw(seed: int, *shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def play(model: Model, client: Client, seeds: Sequence[int] = SEEDS) -> tuple[Observation, Knowledge, Batch]:
    x = draw(0, len(seeds), SAMPLES, *model.input_shape)
    y = torch.randint(CLASSES, x.shape[:2], generator=torch.Generator().manual_seed(0))
    batch = make_batch(x, y, classes=CLASSES)
    weights = to(draw_parameters(model, Uniform(), random.key(list(seeds))), dtype=torch.float64)
    client = replace(client, scaling=SCALING)
    return client.observe(model, weights, batch, seeds), attacker_knowledge(model, client, batch, labels=True), batch


def truth(model: Model, batch: Batch) -> Tensor:
    return SCALING.scale(batch.inputs, len(model.input_shape))


def simulated(
    simulate: Simulator, model: Model, unknowns: Tree, seen: Round, knowledge: Knowledge, keys: Tensor = KEYS
) -> Simulated:
    """Return every trial's simulated update."""
    clock = Clock(torch.zeros_like(keys), keys)
    return lift(lambda s, u, r, k, c: s(model, u, r, k, c))(simulate, unknowns, seen, knowledge, clock)


# -- one gradient


@pytest.mark.parametrize("name", ["lenet_dlg", "mlp", "resnet20"])
@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
def test_one_gradient_at_the_truth_is_what_the_client_sent(name: str, loss: str) -> None:
    model = network(name)
    seen, knowledge, batch = play(model, Client(loss=loss))
    made = simulated(OneGradient(), model, {GUESS: truth(model, batch)}, seen.rounds[0], knowledge)
    mismatch = lift(squared_l2)(made.update, seen.rounds[0].sent)
    assert mismatch.max() < 1e-20
    assert made.output.shape == made.targets.shape == (3, SAMPLES, CLASSES)
    wrong = simulated(OneGradient(), model, {GUESS: truth(model, batch) + 0.1}, seen.rounds[0], knowledge)
    assert lift(squared_l2)(wrong.update, seen.rounds[0].sent).min() > 1e-10


def test_one_gradient_of_one_sgd_step_is_its_weight_change_over_the_rate() -> None:
    model = network()
    seen, knowledge, batch = play(model, Client(LocalTraining(rate=0.3)))
    made = simulated(OneGradient(), model, {GUESS: truth(model, batch)}, seen.rounds[0], knowledge)
    change = direction(seen.rounds[0], seen.shares)
    assert_close({n: 0.3 * u for n, u in made.update.items()}, change, rtol=1e-8, atol=1e-10)


def test_the_output_and_targets_are_those_of_the_guess() -> None:
    model = network("mlp")
    seen, knowledge, batch = play(model, Client())
    made = simulated(OneGradient(), model, {GUESS: truth(model, batch)}, seen.rounds[0], knowledge)
    alone = model.apply(take(seen.rounds[0].before, 1), {}, truth(model, batch)[1], KEYS[1])[0]
    assert_close(made.output[1], alone, rtol=1e-12, atol=1e-12)
    assert torch.equal(made.targets, torch.nn.functional.one_hot(batch.labels, CLASSES).double())


def test_label_logits_among_the_unknowns_take_the_place_of_known_labels() -> None:
    model = network("mlp")
    seen, knowledge, batch = play(model, Client())
    logits = 60.0 * torch.nn.functional.one_hot(batch.labels, CLASSES).double()
    blind = replace(knowledge, labels=None)
    made = simulated(OneGradient(), model, {GUESS: truth(model, batch), LABEL: logits}, seen.rounds[0], blind)
    assert lift(squared_l2)(made.update, seen.rounds[0].sent).max() < 1e-20
    assert_close(made.targets.sum(-1), torch.ones(3, SAMPLES).double())


def test_dropout_is_drawn_anew_for_every_iteration_and_every_trial_but_never_by_chance() -> None:
    model = to(build("lenet_dlg", (1, 8, 8), CLASSES, {"width": 2, "dropout": 0.5}), dtype=torch.float64)
    seen, knowledge, batch = take(play(model, Client()), 0)

    def at(iteration: int, key: int) -> Tensor:
        clock = Clock(torch.tensor(iteration), random.key(key))
        return OneGradient()(model, {GUESS: truth(model, batch)}, seen.rounds[0], knowledge, clock).update[
            "head.weight"
        ]

    assert torch.equal(at(3, 1), at(3, 1))
    assert not torch.equal(at(3, 1), at(4, 1))
    assert not torch.equal(at(3, 1), at(3, 2))


def test_without_labels_of_any_kind_there_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(InputError, match=r"Knowledge\.labels.*label rule"):
        targets_of({GUESS: draw(0, 1, 4)}, Knowledge((4,), 3, 1), 3)


def test_the_derivative_in_the_guess_passes_finite_differences() -> None:
    model = network("mlp")
    seen, knowledge, batch = take(play(model, Client()), 0)
    clock = Clock(torch.tensor(0), KEYS[0])

    def mismatch(guess: Tensor, logits: Tensor) -> Tensor:
        made = OneGradient()(model, {GUESS: guess, LABEL: logits}, seen.rounds[0], knowledge, clock)
        return squared_l2(made.update, seen.rounds[0].sent)

    assert torch.autograd.gradcheck(
        mismatch, (draw(5, SAMPLES, 4).requires_grad_(), draw(6, SAMPLES, 3).requires_grad_())
    )
    assert torch.func.grad(mismatch)(truth(model, batch), 1e3 * made_logits(batch.labels)).abs().max() < 1e-10


def made_logits(labels: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(labels, CLASSES).double()


# -- the line between the weights


def test_the_line_begins_at_one_gradient_and_ends_at_the_gradient_of_the_sent_weights() -> None:
    model = network()
    seen, knowledge, batch = play(model, Client(LOCAL))
    unknowns = {GUESS: truth(model, batch)}
    end = replace(seen.rounds[0], before=seen.rounds[0].sent)
    for alpha, there in ((0.0, seen.rounds[0]), (1.0, end)):
        with_alpha = {**unknowns, ALPHA: torch.full((3,), alpha, dtype=torch.float64)}
        ours = simulated(OnTheLine(OneGradient()), model, with_alpha, seen.rounds[0], knowledge)
        expected = simulated(OneGradient(), model, unknowns, there, knowledge)
        assert_close(ours.update, expected.update, rtol=1e-12, atol=1e-14)


def test_every_trial_stands_at_its_own_place_on_the_line() -> None:
    model = network("mlp")
    seen, knowledge, batch = play(model, Client(LOCAL))
    alpha, first = torch.tensor([0.2, 0.5, 0.9], dtype=torch.float64), seen.rounds[0]
    unknowns = {GUESS: truth(model, batch), ALPHA: alpha}
    ours = simulated(OnTheLine(OneGradient()), model, unknowns, first, knowledge)
    between = {
        n: torch.stack([(1 - a) * w + a * v for a, w, v in zip(alpha, first.before[n], first.sent[n], strict=True)])
        for n in first.before
    }
    expected = simulated(OneGradient(), model, unknowns, replace(first, before=between), knowledge)
    assert_close(ours.update, expected.update, rtol=1e-10, atol=1e-12)


def test_the_derivative_in_the_place_is_the_one_of_sme() -> None:
    """dL/da is the sum over parameters of dL/dw times (wT - w0)."""
    model = network("mlp")
    seen, knowledge, _ = take(play(model, Client(LOCAL)), 0)
    first, clock, guess = seen.rounds[0], Clock(torch.tensor(0), KEYS[0]), draw(3, SAMPLES, 4)
    target = direction(first, seen.shares)

    def at(alpha: Tensor) -> Tensor:
        made = OnTheLine(OneGradient())(model, {GUESS: guess, ALPHA: alpha}, first, knowledge, clock)
        return squared_l2(made.update, target)

    def at_weights(weights: Tree) -> Tensor:
        made = OneGradient()(model, {GUESS: guess}, replace(first, before=weights), knowledge, clock)
        return squared_l2(made.update, target)

    alpha = torch.tensor(0.4, dtype=torch.float64)
    assert torch.autograd.gradcheck(at, alpha.clone().requires_grad_())
    between = {n: 0.6 * first.before[n] + 0.4 * first.sent[n] for n in first.before}
    slope, way = torch.func.grad(at_weights)(between), subtract(first.sent, first.before)
    assert_close(torch.func.grad(at)(alpha), sum((slope[n] * way[n]).sum() for n in way), rtol=1e-9, atol=1e-12)


def test_the_line_needs_weights_at_its_other_end() -> None:
    model = network("mlp")
    seen, knowledge, _ = play(model, Client())
    attack = Matching(
        "sme", OnTheLine(OneGradient()), start=UniformStart(), extras={ALPHA: lambda k, w: torch.tensor(0.5)}
    )
    with pytest.raises(InputError, match="weights"):
        attack.prepare(model, seen, knowledge, SEEDS)


# -- moved pictures


def rolled(picture: Tensor, right: int, down: int) -> Tensor:
    """Return a C x H x W picture moved by whole pixels, zeros coming in."""
    made = torch.zeros_like(picture)
    _, height, width = picture.shape
    for row in range(height):
        for col in range(width):
            if 0 <= row - down < height and 0 <= col - right < width:
                made[:, row, col] = picture[:, row - down, col - right]
    return made


@pytest.mark.parametrize("shape", [(1, 6, 6), (3, 5, 8)])
def test_no_shift_is_the_identity(shape: tuple[int, ...]) -> None:
    x = draw(0, 3, *shape)
    assert_close(shift(x, torch.zeros(3, 2, dtype=torch.float64)), x, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(1, 6, 6), (3, 5, 8)])
def test_a_shift_by_whole_pixels_is_a_roll_with_zeros_coming_in(shape: tuple[int, ...]) -> None:
    x = draw(0, 5, *shape)
    pixels = [(1, 0), (0, 2), (-2, 1), (3, -3), (-9, 0)]
    offset = torch.tensor([[2 * r / shape[2], 2 * d / shape[1]] for r, d in pixels], dtype=torch.float64)
    expected = torch.stack([rolled(one, r, d) for one, (r, d) in zip(x, pixels, strict=True)])
    assert_close(shift(x, offset), expected, rtol=1e-10, atol=1e-10)


def test_half_a_pixel_is_the_mean_of_two() -> None:
    x = draw(0, 1, 1, 4, 4)
    moved = shift(x, torch.tensor([[1 / 4, 0.0]], dtype=torch.float64))
    assert_close(moved[..., 1:], (x[..., 1:] + x[..., :-1]) / 2, rtol=1e-10, atol=1e-10)


def test_the_derivative_of_a_shift_passes_finite_differences_in_picture_and_offset() -> None:
    x, offset = draw(0, 2, 2, 4, 5), torch.tensor([[0.13, -0.21], [0.37, 0.08]], dtype=torch.float64)
    assert torch.autograd.gradcheck(shift, (x.requires_grad_(), offset.requires_grad_()))


def test_a_shift_is_lifted_without_the_slow_fallback_of_vmap() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lift(shift)(draw(0, 3, 2, 1, 4, 4), draw(1, 3, 2, 2))
    assert not [str(w.message) for w in caught if "batching rule" in str(w.message)]


def test_the_shifted_simulator_without_a_shift_is_the_inner_one() -> None:
    model = network()
    seen, knowledge, batch = play(model, Client())
    unknowns = {GUESS: truth(model, batch), SHIFT: torch.zeros(3, SAMPLES, 2, dtype=torch.float64)}
    ours = simulated(ThroughMap(), model, unknowns, seen.rounds[0], knowledge)
    assert lift(squared_l2)(ours.update, seen.rounds[0].sent).max() < 1e-20


def test_the_shifted_simulator_finds_the_truth_at_the_shift_that_undoes_it() -> None:
    model = network()
    seen, knowledge, batch = play(model, Client())
    x = truth(model, batch)
    x[..., -1] = knowledge.scaling.scale(torch.zeros_like(x), 3)[..., -1]  # black: the move can be undone
    exact = simulated(OneGradient(), model, {GUESS: x}, seen.rounds[0], knowledge)
    right = torch.tensor([2 / 8, 0.0], dtype=torch.float64).expand(3, SAMPLES, 2)
    moved = lift(lambda x, by: on_black(knowledge, Moved(), x, by))(x, right)
    ours = simulated(ThroughMap(), model, {GUESS: moved, SHIFT: -right}, seen.rounds[0], knowledge)
    assert_close(ours.update, exact.update, rtol=1e-9, atol=1e-11)


def test_the_derivative_of_the_mismatch_in_the_shift_passes_finite_differences_and_lifts() -> None:
    model = network()
    seen, knowledge, batch = play(model, Client())
    x, offset = truth(model, batch), 0.3 * draw(7, 3, SAMPLES, 2) + 0.05

    def mismatch(offset: Tensor, x: Tensor, seen: Round, knowledge: Knowledge, key: Tensor) -> Tensor:
        clock = Clock(torch.tensor(0), key)
        made = ThroughMap()(model, {GUESS: x, SHIFT: offset}, seen, knowledge, clock)
        return squared_l2(made.update, seen.sent)

    many = lift(torch.func.grad(mismatch))(offset, x, seen.rounds[0], knowledge, KEYS)
    facts = take((x, seen.rounds[0], knowledge, KEYS), 1)
    assert torch.autograd.gradcheck(lambda o: mismatch(o, *facts), offset[1].clone().requires_grad_(), atol=1e-6)
    assert_close(many[1], torch.func.grad(mismatch)(offset[1], *facts), rtol=1e-9, atol=1e-12)


# -- local steps


def with_order(knowledge: Knowledge) -> Knowledge:
    """Return the knowledge of an attacker who was told the order the clients drew."""
    return replace(knowledge, order=draw_order(LOCAL, SAMPLES, random.fold(random.key(SEEDS), "client")))


@pytest.mark.parametrize("name", ["lenet_dlg", "mlp"])
@pytest.mark.parametrize("segment", [None, 2])
def test_local_steps_at_the_truth_in_the_true_order_are_the_clients_own(name: str, segment: int | None) -> None:
    model = network(name)
    seen, knowledge, batch = play(model, Client(LOCAL))
    unknowns = {GUESS: truth(model, batch)}
    made = simulated(LocalSteps(segment), model, unknowns, seen.rounds[0], with_order(knowledge))
    change = direction(seen.rounds[0], seen.shares)
    assert lift(squared_l2)(made.update, change).max() < 1e-20
    guessed = simulated(LocalSteps(segment), model, unknowns, seen.rounds[0], knowledge)
    assert lift(squared_l2)(guessed.update, change).max() > 1e-12


def test_one_full_batch_step_is_the_rate_times_one_gradient() -> None:
    model = network("mlp")
    seen, knowledge, batch = play(model, Client(LocalTraining(rate=0.3)))
    unknowns = {GUESS: truth(model, batch) + 0.1}
    steps, gradient = (
        simulated(s, model, unknowns, seen.rounds[0], knowledge).update for s in (LocalSteps(), OneGradient())
    )
    assert_close(steps, {n: 0.3 * g for n, g in gradient.items()}, rtol=1e-9, atol=1e-12)


def test_the_attackers_own_order_comes_from_the_trials_key_and_stays_through_the_iterations() -> None:
    model = network("mlp")
    seen, knowledge, batch = play(model, Client(LOCAL))
    one = take((seen.rounds[0], knowledge), 0)
    unknowns = {GUESS: truth(model, batch)[0]}
    made = [
        LocalSteps()(model, unknowns, *one, Clock(torch.tensor(iteration), random.key(key))).update["head.bias"]
        for iteration, key in ((0, 1), (7, 1), (0, 2))
    ]
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])


def test_the_derivative_through_local_steps_passes_finite_differences() -> None:
    model = network("mlp")
    seen, knowledge, _ = play(model, Client(LOCAL))
    seen, knowledge = take((seen, with_order(knowledge)), 0)
    target = direction(seen.rounds[0], seen.shares)

    def mismatch(guess: Tensor, segment: int | None) -> Tensor:
        clock = Clock(torch.tensor(0), KEYS[0])
        made = LocalSteps(segment)(model, {GUESS: guess}, seen.rounds[0], knowledge, clock)
        return squared_l2(made.update, target)

    guess = draw(4, SAMPLES, 4)
    assert torch.autograd.gradcheck(lambda g: mismatch(g, None), guess.clone().requires_grad_())
    slopes = [torch.func.grad(mismatch)(guess, segment) for segment in (None, 1, 3)]
    for slope in slopes[1:]:
        assert_close(slope, slopes[0], rtol=1e-10, atol=1e-13)


def test_local_steps_need_to_know_the_local_training() -> None:
    model = network("mlp")
    seen, knowledge, batch = play(model, Client(LOCAL))
    with pytest.raises(InputError, match=r"Knowledge\.local"):
        simulated(LocalSteps(), model, {GUESS: truth(model, batch)}, seen.rounds[0], replace(knowledge, local=None))


# -- what the attacker does not hold


def test_private_weights_are_not_in_the_update_and_their_absence_is_said_in_one_line() -> None:
    model = replace(network("mlp"), private=frozenset({"head.weight", "head.bias"}))
    seen, knowledge, batch = play(model, Client())
    held = replace(seen.rounds[0], before={**seen.rounds[0].before, **expanded(model)})
    made = simulated(OneGradient(), model, {GUESS: truth(model, batch)}, held, knowledge)
    assert set(made.update) == {"dense1.weight", "dense1.bias"}
    with pytest.raises(InputError, match=r"head\.(weight|bias)"):
        ig(iterations=1).run(model, seen, knowledge, SEEDS)


def expanded(model: Model) -> Tree:
    return {n: model.parameters[n].expand(3, *model.parameters[n].shape) for n in model.private}
