"""The three baselines of a private batch: exact against slow versions, scoreable like an attack, in the order one expects."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.recipes import prior_only
from leakscope.core.errors import InputError, UnknownNameError
from leakscope.core.scaling import Scaling
from leakscope.core.tree import take, tensors
from leakscope.core.types import Batch, Reconstruction, make_batch
from leakscope.data import load
from leakscope.kernels.memory import peak_bytes
from leakscope.metrics import Summary, score, summarise
from leakscope.play import baselines as module
from leakscope.play.baselines import BASELINES, baselines, nearest_public, public_part

torch.set_num_threads(1)
CLASSES = 4
QUICK = prior_only(iterations=3)
SHAPES = {"grey": (1, 12, 12), "colour": (3, 11, 13), "table": (5,)}
each_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def draw(seed: int, *shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def private(trials: int, samples: int, shape: tuple[int, ...], mask: Tensor | None = None) -> Batch:
    labels = torch.randint(CLASSES, (trials, samples), generator=torch.Generator().manual_seed(2))
    return make_batch(draw(1, trials, samples, *shape), labels, classes=CLASSES, mask=mask)


def public(number: int, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    return draw(3, number, *shape), torch.arange(number) % CLASSES


def summed_up(truth: Batch, made: Reconstruction) -> Summary:
    scores = score(truth.inputs, truth.labels, made.inputs, made.labels, mask=truth.mask)
    return summarise(scores, outcomes=made.outcome, iterations=made.iterations)


# -- nearest public


def slow_nearest(truth: Batch, pictures: Tensor) -> tuple[list[list[int]], list[int]]:
    """Return index and copies by comparing every sample with every public picture."""
    index, copies = [], []
    for trial in range(truth.trials):
        own = [truth.inputs[trial, n] for n in range(truth.samples) if truth.mask[trial, n]]
        copied = [any(torch.equal(p, x) for x in own) for p in pictures]
        copies.append(sum(copied))
        allowed = [j for j in range(len(pictures)) if not copied[j]]
        index.append(
            [
                min(allowed, key=lambda j, x=x: float((pictures[j] - x).square().sum()), default=-1)
                for x in truth.inputs[trial]
            ]
        )
    return index, copies


@st.composite
def coarse(draw_from: st.DrawFn) -> tuple[Batch, Tensor]:
    """Values in quarters: distances are exact in float64, and ties and copies are frequent."""
    shape = draw_from(st.sampled_from([(1,), (2,), (1, 2, 2), (3, 1, 1)]))
    trials, samples, number = (draw_from(st.integers(1, most)) for most in (3, 3, 9))
    generator = torch.Generator().manual_seed(draw_from(st.integers(0, 10_000)))
    inputs = torch.randint(5, (trials, samples, *shape), generator=generator) / 4
    pictures = torch.randint(5, (number, *shape), generator=generator) / 4
    mask = torch.rand(trials, samples, generator=generator) < 0.7
    mask[:, 0] = True
    return make_batch(inputs, torch.zeros(trials, samples, dtype=torch.int64), classes=1, mask=mask), pictures


@settings(max_examples=150, deadline=None)
@given(world=coarse(), rows=st.integers(1, 5), block=st.integers(1, 20))
def test_the_nearest_is_the_first_of_the_least_mse_and_no_copy(
    world: tuple[Batch, Tensor], rows: int, block: int
) -> None:
    truth, pictures = world
    index, copies = slow_nearest(truth, pictures)
    labels = torch.arange(len(pictures))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ROWS", rows)
        patch.setattr(module, "BLOCK", block)
        if any(-1 in row for row in index):
            with pytest.raises(InputError, match=f"all {len(pictures)} public pictures"):
                nearest_public(truth, pictures, labels, classes=len(pictures))
            return
        made = nearest_public(truth, pictures, labels, classes=len(pictures))
    assert made.index.tolist() == index
    assert made.copies.tolist() == copies
    assert made.reconstruction.labels.tolist() == index
    assert torch.equal(made.reconstruction.inputs, pictures[made.index])
    assert_close(made.mse, (pictures[made.index] - truth.inputs).double().square().flatten(2).mean(-1))


def test_the_nearest_of_many_real_pictures_is_exact() -> None:
    data = load("fashion_mnist")
    pictures, labels = public_part(data, "test")
    truth = make_batch(data.pictures("test", range(12))[:, None], data.labels("test", range(12))[:, None], classes=10)
    made = nearest_public(truth, pictures, labels, classes=10)
    apart = torch.stack([(pictures.double() - x.double()).square().flatten(1).mean(1) for x in truth.inputs[:, 0]])
    assert made.index[:, 0].tolist() == apart.argmin(1).tolist()
    assert_close(made.mse[:, 0], apart.amin(1), rtol=0, atol=1e-13)
    assert made.reconstruction.labels.equal(labels[made.index])


def test_a_copy_that_went_through_another_dtype_is_still_a_copy_and_a_near_one_is_not() -> None:
    truth = private(2, 1, (1, 12, 12))
    pictures, labels = public(6, (1, 12, 12))
    byte = torch.zeros(1, 12, 12)
    byte[0, 3, 3] = 1 / 255
    near = torch.where(truth.inputs[1, 0] > 0.5, truth.inputs[1, 0] - byte, truth.inputs[1, 0] + byte)
    pictures = pictures.double()
    pictures[4], pictures[5] = truth.inputs[0, 0].double(), near.double()
    made = nearest_public(truth, pictures, labels, classes=CLASSES)
    assert made.copies.tolist() == [1, 0]
    assert made.index[0, 0] != 4
    assert made.index[1, 0] == 5


def test_the_memory_of_the_search_does_not_grow_with_the_public_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", 50 * 144)
    monkeypatch.setattr(module, "ROWS", 8)
    truth, peaks = private(40, 1, (1, 12, 12)), []
    for number in (200, 2000):
        pictures, labels = public(number, (1, 12, 12))

        def search(p: Tensor = pictures, y: Tensor = labels) -> object:
            return nearest_public(truth, p, y, classes=CLASSES)

        peaks.append(peak_bytes(search) - pictures.nbytes)  # views of the public set are counted as it
    assert peaks[1] < 1.05 * peaks[0]


# -- all of them


@each_shape
def test_every_baseline_can_be_scored_like_an_attack(shape: tuple[int, ...]) -> None:
    mask = torch.ones(3, 2, dtype=torch.bool)
    mask[1, 1] = False
    truth = private(3, 2, shape, mask)
    made = baselines(truth, *public(20, shape), classes=CLASSES, seeds=[1, 2, 3], prior=QUICK)
    assert tuple(made) == BASELINES
    for name, result in made.items():
        assert result.inputs.shape == result.start.shape == truth.inputs.shape
        assert result.inputs.dtype == truth.inputs.dtype
        assert all(value.shape[0] == 3 for value in tensors(result))
        summary = summed_up(truth, result)
        assert summary.samples == 5
        assert summary.outcomes["exhausted"] == 3
        assert summary.not_finite == 0
        assert summary.iterations.greatest == (3 if name == "prior_only" else 0)
        assert result.snapshots[result.snapshots_at >= 0].isfinite().all()
    assert made["class_mean"].labels.equal(truth.labels), "labels are told"
    assert made["prior_only"].labels.equal(truth.labels)


def test_a_trial_has_the_same_baselines_alone_and_among_others() -> None:
    truth, seeds = private(4, 2, (1, 12, 12)), [4, 5, 6, 7]
    pictures, labels = public(20, (1, 12, 12))
    pictures[0] = truth.inputs[0, 0]  # a copy of one client's sample stays available for the others
    with pytest.warns(UserWarning, match="1 times .*copy"):
        many = baselines(truth, pictures, labels, classes=CLASSES, seeds=seeds, prior=QUICK)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        few = baselines(take(truth, slice(2, 4)), pictures, labels, classes=CLASSES, seeds=seeds[2:], prior=QUICK)
    for name in BASELINES:
        for one, other in zip(tensors(few[name]), tensors(take(many[name], slice(2, 4))), strict=True):
            assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def test_scaling_prior_and_dtype_reach_the_baselines() -> None:
    truth = private(2, 1, (1, 12, 12))
    given = {"classes": CLASSES, "seeds": [1, 2]}
    pictures, labels = public(9, (1, 12, 12))
    plain = baselines(truth, pictures, labels, **given, prior=QUICK)
    scaled = baselines(truth, pictures, labels, **given, prior=QUICK, scaling=Scaling((0.5,), (0.1,)))
    longer = baselines(truth, pictures, labels, **given, prior=prior_only(iterations=4))
    double = baselines(truth, pictures, labels, **given, prior=QUICK, execution=Execution(dtype="float64"))
    for other in (scaled, longer):
        assert not torch.equal(other["prior_only"].inputs, plain["prior_only"].inputs)
        assert torch.equal(other["class_mean"].inputs, plain["class_mean"].inputs)
    assert double["prior_only"].inputs.dtype == double["class_mean"].inputs.dtype == torch.float64


def test_what_cannot_work_is_refused_in_one_line() -> None:
    truth, (pictures, labels) = private(2, 1, (1, 12, 12)), public(9, (1, 12, 12))
    with pytest.raises(InputError, match=r"private shape \(1, 12, 12\), got \(1, 12, 11\)"):
        baselines(truth, pictures[..., :11], labels, classes=CLASSES, seeds=[1, 2])
    with pytest.raises(InputError, match="2 trials, 1 seeds"):
        baselines(truth, pictures, labels, classes=CLASSES, seeds=[1])
    with pytest.raises(InputError, match=r"public labels .*0\.\.1"):
        baselines(truth, pictures, labels, classes=2, seeds=[1, 2])
    with pytest.raises(InputError, match=r"box \[0, 1\]"):
        nearest_public(truth, pictures * 255, labels, classes=CLASSES)


def test_the_public_part_is_the_one_the_private_examples_are_not_from() -> None:
    data = load("digits")
    for private_part, other in (("test", "train"), ("train", "test")):
        pictures, labels = public_part(data, private_part)
        assert torch.equal(pictures, data.pictures(other, slice(None)))
        assert torch.equal(labels, data.labels(other, slice(None)))
    with pytest.raises(UnknownNameError, match=r"'trian'.*'train'"):
        public_part(data, "trian")  # type: ignore[arg-type]


def test_on_real_pictures_nearest_beats_class_mean_beats_prior_only() -> None:
    data = load("fashion_mnist")
    truth = make_batch(data.pictures("test", range(64))[:, None], data.labels("test", range(64))[:, None], classes=10)
    made = baselines(truth, *public_part(data, "test"), classes=10, seeds=range(64))
    nearest, mean, prior = (summed_up(truth, made[n]) for n in ("nearest_public", "class_mean", "prior_only"))
    for better, worse in ((nearest, mean), (mean, prior)):
        assert better.means["mse"].high < worse.means["mse"].low, "apart by more than their 95 % intervals"
        assert better.means["ssim"].low > worse.means["ssim"].high
    assert prior.content.value == mean.content.value == 0.0
    assert nearest.content.value < 0.15, "a look-alike from 3,000 public pictures seldom passes for the picture"


def test_on_a_table_a_baseline_alone_passes_the_content_rule() -> None:
    data = load("breast_cancer")
    truth = make_batch(data.pictures("test", range(64))[:, None], data.labels("test", range(64))[:, None], classes=2)
    made = baselines(truth, *public_part(data, "test"), classes=2, seeds=range(64))
    rates = {name: summed_up(truth, result).content.value for name, result in made.items()}
    assert rates["prior_only"] < 0.1 < 0.4 < rates["class_mean"] < rates["nearest_public"]
