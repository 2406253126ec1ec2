"""Property inference: the classifier against scikit-learn's, the area under the curve too, and a leak that is there."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from leakscope.clients import Client
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.tree import Tree
from leakscope.core.types import make_batch
from leakscope.inference.property import area_under_curve, features, fit_property, infer_property
from leakscope.models import Uniform, build, draw_parameters


def updates(number: int, seed: int, gap: float = 0.7) -> tuple[Tree, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    has = torch.rand(number, generator=generator) < 0.5
    has[:2] = torch.tensor([True, False])
    made = {
        "w": torch.randn(number, 6, 5, generator=generator) * torch.linspace(0.1, 9, 30).reshape(6, 5),
        "b": torch.randn(number, 7, generator=generator),
        "still": torch.full((number, 3), 2.0),
    }
    made["b"][:, 0] += gap * has
    return made, has


@pytest.mark.parametrize("number", [20, 200])
@pytest.mark.parametrize("strength", [0.01, 1.0])
def test_the_classifier_is_scikit_learns(number: int, strength: float) -> None:
    linear = pytest.importorskip("sklearn.linear_model")
    scaling = pytest.importorskip("sklearn.preprocessing")
    update, has = updates(number, 0)
    z = scaling.StandardScaler().fit_transform(features(update).numpy())
    theirs = linear.LogisticRegression(C=strength, tol=1e-10, max_iter=10_000).fit(z, has.numpy())
    made = fit_property(update, has, strength=strength)
    assert_close(made.weight, torch.tensor(theirs.coef_[0]), rtol=1e-3, atol=1e-5)
    assert made.bias == pytest.approx(theirs.intercept_[0], rel=1e-3, abs=1e-5)
    fresh, _ = updates(30, 1)
    wanted = theirs.decision_function(scaling.StandardScaler().fit(features(update).numpy()).transform(features(fresh)))
    assert_close(made.scores(fresh), torch.tensor(wanted), rtol=1e-3, atol=1e-4)


def test_the_area_is_scikit_learns_ties_and_all() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    generator = torch.Generator().manual_seed(2)
    scores, has = torch.randint(6, (80,), generator=generator).double(), torch.rand(80, generator=generator) < 0.4
    assert area_under_curve(scores, has) == pytest.approx(metrics.roc_auc_score(has.numpy(), scores.numpy()))


def test_what_is_there_is_found_and_what_is_not_is_not() -> None:
    seen, fresh = updates(300, 3, gap=2.0), updates(300, 4, gap=2.0)
    made = infer_property(fit_property(*seen, strength=0.01), *fresh)
    assert made.auc > 0.85
    assert made.accuracy.low > 0.7
    nothing = infer_property(fit_property(*updates(300, 5, gap=0.0), strength=0.01), *updates(300, 6, gap=0.0))
    assert abs(nothing.auc - 0.5) < 0.12
    assert (nothing.n, made.n) == (300, 300)


def test_an_update_of_a_network_tells_whether_a_batch_holds_a_class() -> None:
    """The property: the batch holds class 0. The attacker fits on batches of its own at the same weights."""
    model = build("lenet_dlg", (1, 8, 8), 4, {"width": 2})
    weights = draw_parameters(model, Uniform(0.5), random.key([7]))
    weights = {name: value.expand(120, *value.shape[1:]) for name, value in weights.items()}
    generator = torch.Generator().manual_seed(8)
    labels = torch.randint(4, (120, 4), generator=generator)
    batch = make_batch(torch.rand(120, 4, 1, 8, 8, generator=generator), labels, classes=4)
    sent = Client().observe(model, weights, batch, list(range(120))).rounds[0].sent
    has = (labels == 0).any(1)
    own, theirs = ({name: value[part] for name, value in sent.items()} for part in (slice(0, 80), slice(80, 120)))
    made = infer_property(fit_property(own, has[:80], strength=0.1), theirs, has[80:])
    assert made.auc > 0.95


@pytest.mark.parametrize("kind", [torch.int64, torch.uint8, torch.float32])
def test_zeros_and_ones_are_booleans(kind: torch.dtype) -> None:
    update, has = updates(20, 0)
    made, plain = (infer_property(fit_property(update, flags), update, flags) for flags in (has.to(kind), has))
    assert made == plain
    scores = torch.arange(20.0)
    assert area_under_curve(scores, has.to(kind)) == area_under_curve(scores, has)


def test_what_makes_no_sense_is_refused() -> None:
    update, has = updates(20, 0)
    with pytest.raises(InputError, match="with and without"):
        fit_property(update, torch.ones(20, dtype=torch.bool))
    with pytest.raises(InputError, match=r"20 updates, got \(3,\)"):
        fit_property(update, has[:3])
    for other in (2, -1):
        with pytest.raises(InputError, match=f"has .*got {other}"):
            fit_property(update, torch.where(has, other, 0))
    with pytest.raises(InputError, match=r"has .*got \[True"):
        fit_property(update, has.tolist())
    with pytest.raises(InputError, match=r"strength must\b"):
        fit_property(update, has, strength=0.0)
    with pytest.raises(InputError, match="without parameters"):
        features({})
    with pytest.raises(InputError, match="updates hold NaN"):
        features({"w": torch.full((2, 2), torch.nan)})
    with pytest.raises(InputError, match="40 numbers, got 7"):
        fit_property(update, has).scores({"b": update["b"]})
