"""The two scores against slow obvious versions, one picture and one point at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.scaling import Scaling
from leakscope.core.tree import to
from leakscope.data import load
from leakscope.defences.on_data import Transform
from leakscope.models import build
from leakscope.search.accuracy_score import (
    THRESHOLD,
    accuracy_scores,
    correlation,
    first_of_each_label,
    jacobian,
    score_of,
)
from leakscope.search.privacy_score import Line, _part_sizes, area, fans, privacy_scores
from leakscope.search.utility import first_model

SCALING = Scaling((0.3,), (0.35,))
POLICIES = [Transform("none"), Transform("3-1-7"), Transform("9"), Transform("3-1-7+43-18-18")]


def jacobians(model: Model, inputs: Tensor) -> Tensor:
    """Return the gradient of the summed logits by every input."""
    return jacobian(model, inputs)(inputs)


def network() -> Model:
    model = build("resnet20", (1, 28, 28), 10, {"width": 2})
    return to(model, dtype=torch.float64)


def pictures(number: int) -> tuple[Tensor, Tensor]:
    data = load("fashion_mnist")
    return data.pictures("test", range(number)).double(), data.labels("test", range(number))


def gradient(model: Model, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Return the gradient of one picture by plain autograd."""
    weights = {n: w.clone().requires_grad_(True) for n, w in model.parameters.items()}
    output, _ = model.apply(weights, model.buffers, x[None], torch.tensor(0))
    torch.nn.functional.cross_entropy(output, y[None]).backward()
    return {n: w.grad for n, w in weights.items() if w.grad is not None}


def cosine(a: Tensor, b: Tensor) -> float:
    return float((a * b).sum() / (a.norm() * b.norm()).clamp_min(1e-12))


def slow_similarity(model: Model, target: Tensor, start: Tensor, label: Tensor, line: Line) -> list[float]:
    true = gradient(model, target, label)
    found = []
    for j in range(line.points):
        i = j / (line.points - 1)
        here = gradient(model, (1 - i) * start + i * target, label)
        if line.per_tensor:
            found.append(sum(cosine(here[n], true[n]) for n in true) / len(true))
        else:
            flat, other = (torch.cat([g.flatten() for g in each.values()]) for each in (here, true))
            found.append(cosine(flat, other))
    return found


@pytest.mark.parametrize("per_tensor", [True, False])
def test_similarities_agree_with_one_point_at_a_time(per_tensor: bool) -> None:
    model, (x, y) = network(), pictures(3)
    start = SCALING.scale(torch.rand(x.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64), 3)
    line = Line(points=5, per_tensor=per_tensor, at_once=2)
    made = fans(model, SCALING.scale(x, 3)[:, None], start, y, line)[:, 0]
    slow = [slow_similarity(model, SCALING.scale(x, 3)[i], start[i], y[i], line) for i in range(3)]
    torch.testing.assert_close(made, torch.tensor(slow, dtype=torch.float64), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(made[:, -1], torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize("at_once", [1, 2, 3, 8])
def test_lines_that_share_a_start_are_lines_of_their_own(at_once: int) -> None:
    model, (x, y) = network(), pictures(3)
    x = SCALING.scale(x, 3)
    start = torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    targets = torch.stack([x, x.flip(-1), x * 0.5], 1)
    made = fans(model, targets, start, y, Line(points=4, at_once=at_once))
    for i in range(3):
        alone = fans(model, targets[:, i : i + 1], start, y, Line(points=4))[:, 0]
        torch.testing.assert_close(made[:, i], alone, rtol=1e-9, atol=1e-9)


def test_scores_do_not_feel_how_many_threads_there_are() -> None:
    model, (x, y) = network(), pictures(4)
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            privacy = privacy_scores(model, x, y, POLICIES, scaling=SCALING, line=Line(points=3, at_once=2))
            accuracy = accuracy_scores(model, [(x, y)], POLICIES, scaling=SCALING)
            found.append((privacy, accuracy))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    for one, three in zip(*found, strict=True):
        torch.testing.assert_close(one, three, rtol=1e-9, atol=1e-12)


@given(number=st.integers(1, 300), most=st.integers(1, 40), times=st.integers(1, 5))
def test_part_sizes_are_whole_small_and_even(number: int, most: int, times: int) -> None:
    made = _part_sizes(number, most, times)
    assert sum(made) == number
    assert max(made) <= most
    assert max(made) - min(made) <= 1
    assert len(made) % times == 0 or len(made) == number


def test_the_area_is_a_trapezoid_or_the_left_sum() -> None:
    curve = torch.rand(4, 21, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(area(curve), torch.trapezoid(curve, dx=1 / 20))
    torch.testing.assert_close(area(curve, trapezoid=False), curve[:, :20].mean(1))


def test_privacy_scores_are_the_mean_over_pictures_and_do_not_feel_other_policies() -> None:
    model, (x, y) = network(), pictures(3)
    line = Line(points=4, at_once=2)
    made = privacy_scores(model, x, y, POLICIES, scaling=SCALING, seed=5, line=line)
    for number, how in enumerate(POLICIES):
        alone = privacy_scores(model, x, y, [how], scaling=SCALING, seed=5, line=line)
        torch.testing.assert_close(made[number], alone[0], rtol=1e-12, atol=1e-12)
    keys = random.fold(random.fold(random.key(5), "privacy score").expand(3), torch.arange(3))
    noise = SCALING.scale(random.uniform(random.fold(keys, "noise"), (1, 28, 28)).double(), 3)
    target = SCALING.scale(POLICIES[1].change(x, POLICIES[1].draw(keys)), 3)
    slow = [np.trapezoid(slow_similarity(model, target[i], noise[i], y[i], line), dx=1 / 3) for i in range(3)]
    assert float(made[1]) == pytest.approx(float(np.mean(slow)), abs=1e-9)
    assert len(set(made.tolist())) == len(POLICIES)


def test_jacobians_agree_with_autograd() -> None:
    model, (x, _) = network(), pictures(4)
    slow = []
    for one in x:
        one = one.clone().requires_grad_(True)
        model.apply(model.parameters, model.buffers, one[None], torch.tensor(0))[0].sum().backward()
        assert one.grad is not None
        slow.append(one.grad.flatten())
    torch.testing.assert_close(jacobians(model, x), torch.stack(slow), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("name", "in_place"), [("head.weight", True), ("conv.weight", True), ("norm.weight", False)])
def test_jacobians_follow_weights_that_change_in_place_or_are_exchanged(name: str, in_place: bool) -> None:
    model, (x, _) = network(), pictures(3)
    before = jacobians(model, x)
    torch.testing.assert_close(jacobians(model, x), before, rtol=0, atol=0)
    if in_place:
        model.parameters[name].mul_(-0.5)
    else:
        model.parameters[name] = -0.5 * model.parameters[name]
    same = model.with_parameters({key: value.clone() for key, value in model.parameters.items()})
    made = jacobians(model, x)
    assert not torch.equal(made, before)
    torch.testing.assert_close(made, jacobians(same, x), rtol=1e-12, atol=1e-15)


def test_jacobians_of_a_network_whose_pictures_would_meet_are_taken_one_by_one() -> None:
    model = to(build("resnet20", (1, 28, 28), 10, {"width": 2, "batch_statistics": True}), dtype=torch.float64)
    x, _ = pictures(3)
    alone = torch.cat([jacobians(model, one[None]) for one in x])
    torch.testing.assert_close(jacobians(model, x), alone, rtol=1e-9, atol=1e-12)


def test_correlation_is_numpys() -> None:
    rows = torch.randn(6, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(correlation(rows), torch.from_numpy(np.corrcoef(rows.numpy())))
    rows[2] = 1.0
    assert correlation(rows).isfinite().all()


def test_accuracy_scores_agree_with_the_authors_form_one_batch_at_a_time() -> None:
    model, (x, y) = network(), pictures(24)
    batches = [(x[:12], y[:12]), (x[12:], y[12:])]
    for authors in (True, False):
        made = accuracy_scores(model, batches, POLICIES, scaling=SCALING, seed=2, authors=authors)
        for number, how in enumerate(POLICIES):
            slow = []
            for which, (inputs, labels) in enumerate(batches):
                kept: list[int] = []
                for i, label in enumerate(labels.tolist()):
                    if label not in [int(labels[k]) for k in kept]:
                        kept.append(i)
                own = random.fold(random.fold(random.key(2), "accuracy score"), which)
                keys = random.fold(own.expand(len(kept)), torch.arange(len(kept)))
                moved = SCALING.scale(how.change(inputs[kept], how.draw(keys)), 3)
                v = np.linalg.eigvalsh(np.corrcoef(jacobians(model, moved).numpy()))
                each = np.log(v + 1e-5) + 1.0 / (v + 1e-5)
                slow.append(-each.sum() if authors else each.mean())
            assert float(made[number]) == pytest.approx(np.mean(slow), rel=1e-7)


def test_accuracy_scores_do_not_feel_other_policies_and_what_they_draw() -> None:
    model, batch = network(), pictures(8)
    hows = [*POLICIES, Transform("none", crop=2), Transform("3-1-7", crop=2, flip=True), Transform("3-1-7", crop=1)]
    made = accuracy_scores(model, [batch], hows, scaling=SCALING, seed=3)
    for number, how in enumerate(hows):
        alone = accuracy_scores(model, [batch], [how], scaling=SCALING, seed=3)
        torch.testing.assert_close(made[number], alone[0], rtol=1e-9, atol=1e-9)
    assert len(set(made.tolist())) == len(hows)


def test_the_two_forms_are_one_up_to_sign_and_count() -> None:
    values = torch.rand(3, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(score_of(values), -8 * score_of(values, authors=False))


def test_the_first_of_each_label_is_kept() -> None:
    labels = torch.randint(0, 5, (50,), generator=torch.Generator().manual_seed(0))
    kept = first_of_each_label(labels).tolist()
    assert kept == [labels.tolist().index(label) for label in dict.fromkeys(labels.tolist())]


def test_bad_settings_are_refused() -> None:
    model, (x, y) = network(), pictures(2)
    with pytest.raises(InputError, match=r"points .*least 2"):
        Line(points=1)
    with pytest.raises(InputError, match=r"at_once .*least 1"):
        Line(at_once=0)
    with pytest.raises(InputError, match="one label"):
        privacy_scores(model, x, y[:1], POLICIES, scaling=SCALING)
    with pytest.raises(InputError, match="one batch"):
        accuracy_scores(model, [], POLICIES, scaling=SCALING)


@pytest.mark.slow
def test_accuracy_scores_of_the_papers_policies_are_near_the_published_ones(data_directory: Path) -> None:
    """Published, for ResNet20-4 and ten batches: -81.9 for 3-1-7, -68.9 for 43-18-18; here width 16 and one batch."""
    data = load("cifar100", data_directory)
    model = first_model("resnet20", (3, 32, 32), 100, {"width": 16}, seed=1)
    batch = data.pictures("test", range(100)), data.labels("test", range(100))
    hows = [Transform("3-1-7"), Transform("43-18-18"), Transform("none")]
    first, second, none = accuracy_scores(model, [batch], hows, scaling=data.statistics).tolist()
    assert first == pytest.approx(-81.9, abs=8)
    assert second == pytest.approx(-68.9, abs=8)
    assert first < second - 4, "the larger translation costs more"
    assert none == pytest.approx(second, abs=5)
    assert first > THRESHOLD, "both pass the published threshold"
