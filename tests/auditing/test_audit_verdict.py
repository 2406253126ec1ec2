"""What counts as recovered beside a null baseline, and when labels were read better than by guessing."""

from __future__ import annotations

import itertools
import re
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from leakscope.attacks.null import guessed
from leakscope.attacks.recipes import prior_only
from leakscope.auditing import attack_runs, suite
from leakscope.auditing.attack_runs import LabelReading, expected_overlap, expose_clients, read_labels
from leakscope.auditing.audit_text import labels_words
from leakscope.auditing.target import Target, find_scaling, make_subject
from leakscope.auditing.target_audit import audit_target
from leakscope.auditing.verdict import excess, grade
from leakscope.core.types import make_batch
from leakscope.data import load
from leakscope.defences import GaussianNoise
from leakscope.metrics import label_overlap
from leakscope.metrics.interval import wilson
from leakscope.play import judge


def standardised_table() -> tuple[Tensor, Tensor]:
    """Return the table as tutorials make it ready: every column less its mean, over its deviation."""
    data = load("breast_cancer")
    x = data.pictures("train", range(120))
    return (x - x.mean(0)) / x.std(0), torch.as_tensor(data.labels("train", range(120)))


def test_an_exact_leak_of_a_standardised_table_fails_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "PUBLISHED", dict.fromkeys(suite.PUBLISHED, 1) | {"cpl": 1, "ig": 1})
    monkeypatch.setattr(attack_runs, "prior_only", partial(prior_only, iterations=4))
    x, y = standardised_table()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 32), nn.ReLU(), nn.Linear(32, 2))
    made = audit_target(Target(model=model, inputs=x, labels=y), minutes=0.002, remedies=False)
    assert made.worst is not None
    assert made.worst.name == "analytic"
    assert (made.grade, made.recovered) == ("F", 8)
    assert made.failures({"asr": 0.05})


def test_every_column_of_a_table_has_its_own_range() -> None:
    table = torch.rand(50, 4, generator=torch.Generator().manual_seed(0))
    table[:, 1] *= 1e5
    table[:, 2] = 1e-3 * table[:, 2] - 7
    table[:, 3] = 4.0
    notes: list[str] = []
    scaling, pictures = find_scaling(table, None, None, notes)
    torch.testing.assert_close(pictures[:, :3].amin(0), torch.zeros(3), rtol=0, atol=1e-3)
    torch.testing.assert_close(pictures[:, :3].amax(0), torch.ones(3), rtol=0, atol=1e-3)
    assert bool((pictures[:, 3] == 0).all())  # without a range it is only moved
    torch.testing.assert_close(scaling.scale(pictures, 1), table, rtol=1e-5, atol=1e-5)
    assert "column" in notes[0]


@pytest.mark.parametrize(
    ("attack", "null", "counts"),
    [
        (0.0, 0.05, True),  # exact, where the null is under the threshold too
        (0.01, 0.05, True),
        (0.05, 0.05, False),
        (0.045, 0.05, False),  # less than 3 dB closer
        (0.03, 0.05, True),  # more than 3 dB closer
        (0.0, 0.0, False),
        (0.3, 0.5, False),  # not recovered at all
    ],
)
def test_an_example_counts_unless_a_null_is_about_as_close(attack: float, null: float, counts: bool) -> None:
    truth = make_batch(torch.full((1, 1, 6), 0.4), torch.zeros(1, 1, dtype=torch.int64), classes=2)
    runs = [judge(truth, guessed(truth.inputs + off, truth.labels), name="x") for off in (attack, null)]
    assert bool(excess(runs[0], [runs[1]])) == counts
    assert bool(excess(runs[0], [])) == (attack < 0.1)


# -- labels


@pytest.mark.parametrize(("truth", "classes"), [([0], 2), ([2], 3), ([0, 0], 2), ([0, 1, 1], 3), ([1, 1, 1, 1], 2)])
def test_guessing_is_worth_the_mean_over_all_guesses(truth: list[int], classes: int) -> None:
    labels = torch.tensor([truth])
    every = torch.tensor(list(itertools.product(range(classes), repeat=len(truth))))
    slow = label_overlap(labels.expand_as(every), every).double().mean()
    assert expected_overlap(labels, torch.ones_like(labels, dtype=torch.bool), classes) == pytest.approx(float(slow))


def test_padding_is_not_guessed() -> None:
    labels, mask = torch.tensor([[0, 1, 0], [1, 0, 0]]), torch.tensor([[True, True, False], [True, False, False]])
    parts = [expected_overlap(labels[t : t + 1, :n], mask[t : t + 1, :n], 2) for t, n in ((0, 2), (1, 1))]
    assert expected_overlap(labels, mask, 2) == pytest.approx(sum(parts) / 2)


def test_labels_have_the_interval_of_clustered_shares_everywhere() -> None:
    torch.manual_seed(0)
    x, y = torch.rand(64, 16), torch.arange(64) % 2
    model = nn.Sequential(nn.Linear(16, 4), nn.ReLU(), nn.Linear(4, 2))
    read = read_labels(expose_clients(make_subject(Target(model=model, inputs=x, labels=y, examples=8)), 8, 0))
    assert isinstance(read, LabelReading)
    assert (read.share, read.n) == (1.0, 64)
    assert read.rule == "by_residual"
    assert (read.low, read.high) == pytest.approx(
        wilson(1.0, 8)
    )  # 8 clients, not 64 labels: those of one share an update


def test_labels_are_told_with_their_interval_and_n() -> None:
    words = labels_words(LabelReading("counts", 0.75, 0.1, 16, *wilson(0.75, 16)))
    assert re.findall(r"\d+", words) == ["75", "95", "51", "90", "16", "10"]
    assert re.findall(r"\d+", labels_words(LabelReading("cpl", 1.0, 0.5, 8))) == ["100", "8", "50"]
    assert re.findall(r"\d+", labels_words(LabelReading("by_residual", 1.0, 0.5, 8, sure=0.25)))[-1] == "25"


def test_labels_of_a_fresh_network_are_sure_and_those_of_a_learned_one_are_not() -> None:
    x, y = (
        torch.eye(8).repeat(32, 1),
        torch.arange(8).repeat(32)[torch.randperm(256, generator=torch.Generator().manual_seed(0))],
    )
    fresh, learned = nn.Sequential(nn.Linear(8, 8)), nn.Sequential(nn.Linear(8, 8))
    with torch.no_grad():
        fresh[0].weight.mul_(0.01)
        learned[0].weight.copy_(3 * torch.eye(8))
    sure = []
    for model in (fresh, learned):
        read = read_labels(expose_clients(make_subject(Target(model=model, inputs=x, labels=y, examples=32)), 8, 0))
        assert isinstance(read, LabelReading)
        sure.append(read.sure)
    assert sure[0] == 1.0
    assert sure[1] is not None
    assert sure[1] < 0.5


def test_noise_that_hides_everything_is_seldom_graded_b() -> None:
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    x, y = torch.rand(80, 16, generator=generator), torch.randint(2, (80,), generator=generator)
    model = nn.Sequential(nn.Linear(16, 4), nn.ReLU(), nn.Linear(4, 2))
    subject = make_subject(Target(model=model, inputs=x, labels=y, defences=[GaussianNoise(1000.0)]))
    readings = [read_labels(expose_clients(subject, 8, seed)) for seed in range(60)]
    run = judge(truth := expose_clients(subject, 8, 0).batch, guessed(1 - truth.inputs, truth.labels), name="x")
    grades = [grade([run], [run], each) for each in readings if isinstance(each, LabelReading)]
    assert len(grades) == 60
    assert grades.count("B") <= 7  # 7 of 8 by chance is 1 in 28; a fixed margin of 0.1 gave a B in 1 of 3
    plain = read_labels(expose_clients(make_subject(Target(model=model, inputs=x, labels=y)), 8, 0))
    assert isinstance(plain, LabelReading)
    assert grade([run], [run], plain) == "B"
