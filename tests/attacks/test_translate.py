"""The enhanced attack: a learned translation or affine map in its bounds, right gradients, black fill."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from leakscope.attacks.attack import Matching
from leakscope.attacks.engine.forms import Evaluator
from leakscope.attacks.engine.loop import Engine
from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.optimisers import Rule
from leakscope.attacks.recipes import ATTACKS, ig
from leakscope.attacks.starts import Insider
from leakscope.attacks.translate import BOUNDS, Within, identity, ig_affine, ig_shift
from leakscope.clients import Client, attacker_knowledge
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.scaling import Scaling
from leakscope.core.tree import rows
from leakscope.core.types import Batch, Knowledge, Observation, make_batch
from leakscope.data import load
from leakscope.defences.on_data import Transform
from leakscope.learning.warps import bend, shift
from leakscope.models import Uniform, build, draw_parameters

DOUBLE = Execution(dtype="float64", form="native")
SEEDS = [1, 2]
MODEL = build("lenet_dlg", (1, 28, 28), 10, {"width": 3})
SCALING = Scaling((0.3,), (0.35,))


def world(on_data: Transform | None) -> tuple[Batch, Batch, Observation, Knowledge]:
    data = load("fashion_mnist")
    batch = make_batch(data.pictures("test", range(2))[:, None], data.labels("test", range(2))[:, None], classes=10)
    client = Client(scaling=SCALING, on_data=on_data)
    seen = client.observe(MODEL, draw_parameters(MODEL, Uniform(0.4), random.key(SEEDS)), batch, SEEDS)
    return batch, client.transformed(batch, SEEDS), seen, attacker_knowledge(MODEL, client, batch, labels=True)


def mismatch_at(attack: Matching, extras: dict[str, Tensor], on_data: Transform) -> Tensor:
    """Return the mismatch of the true pictures with the map given."""
    batch, _, seen, knowledge = world(on_data)
    how = replace(attack, start=Insider(batch.inputs), priors=())
    problem, _ = how.prepare(MODEL, seen, knowledge, SEEDS, DOUBLE)
    unknowns = {**problem.unknowns, **{name: value.double() for name, value in extras.items()}}
    return Evaluator(MODEL, unknowns, problem.facts, "native")(unknowns, torch.zeros(2).long()).mismatch


def offset(inputs: Tensor, moved: Tensor) -> Tensor:
    """Return the shift in half sides that makes `moved` of `inputs`, by trying the two there are."""
    found = []
    for one, other in zip(inputs[:, 0], moved[:, 0], strict=True):
        gaps = [(shift(one[None], torch.tensor([[s, 0.0]])) - other).abs().max() for s in (-0.5, 0.5)]
        found.append([[-0.5 if gaps[0] < gaps[1] else 0.5, 0.0]])
        assert min(gaps) < 1e-5
    return torch.tensor(found)


def test_at_the_truth_and_its_shift_the_update_is_explained_black_included() -> None:
    on_data = Transform("21")  # seven of 28 pixels: half of half the side
    batch, moved, _, _ = world(on_data)
    by = offset(batch.inputs, moved.inputs)
    assert (mismatch_at(ig_shift(), {"shift": by}, on_data) < 1e-9).all()
    assert (mismatch_at(ig_shift(), {"shift": 0 * by}, on_data) > 1e-4).all()
    matrix = identity(random.key(0), Knowledge((1, 28, 28), 10, 1)).expand(2, 1, 2, 3).clone()
    matrix[..., 2] -= by
    assert (mismatch_at(ig_affine(), {"affine": matrix}, on_data) < 1e-9).all()


def test_an_affine_map_agrees_with_torchs_grid_and_contains_the_shift() -> None:
    x = torch.rand(2, 3, 9, 11, generator=torch.Generator().manual_seed(0))
    matrix = torch.eye(2, 3).expand(2, 2, 3) + 0.2 * torch.rand(2, 2, 3, generator=torch.Generator().manual_seed(1))
    grid = torch.nn.functional.affine_grid(matrix, list(x.shape), align_corners=False)
    torch.testing.assert_close(bend(x, matrix), torch.nn.functional.grid_sample(x, grid, align_corners=False))
    by = torch.tensor([[0.3, -0.2], [0.0, 0.7]])
    still = torch.eye(2, 3).expand(2, 2, 3).clone()
    still[..., 2] = -by
    torch.testing.assert_close(bend(x, still), shift(x, by))


@pytest.mark.parametrize(("recipe", "name"), [(ig_shift, "shift"), (ig_affine, "affine")])
def test_gradients_agree_with_finite_differences(recipe: object, name: str) -> None:
    batch, _, seen, knowledge = world(Transform("3-1-7"))
    how = replace(recipe(), start=Insider(batch.inputs))  # type: ignore[operator]
    problem, _ = how.prepare(MODEL, seen, knowledge, SEEDS, DOUBLE)
    evaluate = Evaluator(MODEL, problem.unknowns, problem.facts, "native")
    zero, step = torch.zeros(2).long(), 1e-7
    generator = torch.Generator().manual_seed(3)
    here = {n: v + 0.013 * torch.rand(v.shape, generator=generator) for n, v in problem.unknowns.items()}
    at = evaluate(here, zero)
    for each in (name, "guess"):
        along = torch.randn(here[each].shape, generator=generator, dtype=torch.float64)
        up, down = (evaluate({**here, each: here[each] + s * step * along}, zero).total for s in (1, -1))
        claimed = rows(at.gradient[each] * along).sum(1)
        torch.testing.assert_close((up - down) / (2 * step), claimed, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("recipe", [ig_shift, ig_affine])
def test_the_map_stays_in_its_bounds_and_the_attack_hands_both_pictures_back(recipe: object) -> None:
    batch, _, seen, knowledge = world(Transform("3-1-7"))
    how = recipe(bound_x=0.05, bound_y=0.02, iterations=6)  # type: ignore[operator]
    problem, _ = how.prepare(MODEL, seen, knowledge, SEEDS)
    ended = Engine(MODEL, problem, how.stop, "native").run().unknowns
    by = ended["shift"] if "shift" in ended else ended["affine"][..., 2]
    assert (by.abs() <= torch.tensor([0.05, 0.02]) + 1e-7).all()
    assert by.abs().max() > 0.01
    made = how.run(MODEL, seen, knowledge, SEEDS, Execution(form="native"))
    assert made.seen is not None
    assert made.seen.shape == made.inputs.shape == batch.inputs.shape
    if "shift" in ended:
        torch.testing.assert_close(made.seen[:, 0], shift(made.inputs[:, 0], by[:, 0]), atol=1e-5, rtol=1e-5)


def test_the_default_attack_hands_back_one_picture() -> None:
    _, _, seen, knowledge = world(None)
    assert ig(iterations=2).run(MODEL, seen, knowledge, SEEDS, Execution(form="native")).seen is None


def test_settings_are_those_of_the_authors_runs() -> None:
    assert BOUNDS == {"3-1-7": (1.1, 0.2), "43-18-18": (0.4, 0.4), "3-1-7+43-18-18": (1.1, 0.4)}
    for name in ("ig", "ig_shift"):
        how = ATTACKS[name]()
        assert isinstance(how, Matching)
        assert how.stop.iterations == 4800
        guess = how.rules["guess"]
        assert guess.sign
        assert guess.schedule is not None
        factors = guess.schedule(torch.tensor([1798, 1799, 2998, 2999, 4202, 4203])).tolist()
        assert factors == pytest.approx([1, 0.1, 0.1, 0.01, 0.01, 0.001])
        assert (how.optimiser.rate, how.restarts) == (0.1, 1)  # type: ignore[attr-defined]
    enhanced = ig_shift().rules["shift"]
    assert not enhanced.sign
    assert isinstance(enhanced, Rule)
    assert enhanced.rate == 1.0


@pytest.mark.parametrize(("x", "y"), [(0, 1), (1, 0), (-0.1, 1), (1, float("nan"))])
def test_bounds_that_are_not_positive_are_refused(x: float, y: float) -> None:
    with pytest.raises(InputError, match=r"bounds .*positive"):
        Within(x, y)
    with pytest.raises(InputError, match=r"bounds .*positive"):
        ig_shift(bound_x=x, bound_y=y)


def test_every_trial_may_have_its_own_bounds() -> None:
    bounds = torch.tensor([0.05, 0.01]), torch.tensor([0.03, 0.02])
    _, _, seen, knowledge = world(Transform("3-1-7"))
    how = ig_shift(bound_x=bounds[0], bound_y=bounds[1], iterations=6)
    problem, _ = how.prepare(MODEL, seen, knowledge, SEEDS)
    by = Engine(MODEL, problem, how.stop, "native").run().unknowns["shift"][:, 0]
    assert (by.abs() <= torch.stack(bounds, dim=1) + 1e-7).all()
    value = torch.tensor([[[9.0, -9.0]], [[9.0, -9.0]]])
    torch.testing.assert_close(Within(*bounds)(value, knowledge), torch.tensor([[[0.05, -0.03]], [[0.01, -0.02]]]))
