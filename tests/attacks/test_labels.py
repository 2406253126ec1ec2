"""Labels read off the last layer: right where a rule is a theorem, near where it is an estimate, else refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from leakscope.attacks.attack import Matching
from leakscope.attacks.label_rules.apportion import apportion
from leakscope.attacks.label_rules.choice import by_residual
from leakscope.attacks.label_rules.counts import _length, calibrated, counts
from leakscope.attacks.label_rules.head import LabelRule
from leakscope.attacks.label_rules.ilrg import ilrg
from leakscope.attacks.label_rules.negative_classes import analytic, bias_corrected
from leakscope.attacks.label_rules.one_example import cpl, idlg
from leakscope.attacks.labels import JOINT, LABEL_RULES, known
from leakscope.attacks.priors import GUESS
from leakscope.attacks.recipes import dlg, ig
from leakscope.attacks.simulate import LABEL
from leakscope.clients import Client, attacker_knowledge, knowledge_of_defences
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.scaling import Scaling
from leakscope.core.tree import lift, norm, take
from leakscope.core.types import Batch, Knowledge, LocalTraining, Observation, Round, Shares, direction, make_batch
from leakscope.defences import Clip
from leakscope.models import Init, Torch, Uniform, build, draw_parameters, from_module

torch.set_num_threads(1)
CLASSES = 5
TRIALS = 60
SEEDS = list(range(TRIALS))
KEYS = random.key(SEEDS)
BATCH_RULES = [counts, calibrated, ilrg, analytic, bias_corrected, by_residual]


class NoBias(nn.Sequential):
    """Dense, activation, dense without a bias."""

    def __init__(self, activation: nn.Module, classes: int) -> None:
        super().__init__(nn.Flatten(), nn.Linear(12, 16), activation, nn.Linear(16, classes, bias=False))


def no_bias(activation: nn.Module, classes: int = CLASSES) -> Model:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return from_module(NoBias(activation, classes), input_shape=(1, 3, 4))


NETWORKS = {
    "lenet_cpl": lambda: build("lenet_cpl", (1, 8, 8), CLASSES, {"width": 3}),
    "sigmoid mlp": lambda: build("mlp", (1, 3, 4), CLASSES, {"hidden": (8,), "activation": "sigmoid"}),
    "tanh mlp": lambda: build("mlp", (1, 3, 4), CLASSES, {"hidden": (8,), "activation": "tanh"}),
    "linear": lambda: build("linear", (7,), CLASSES),
    "two classes": lambda: build("mlp", (7,), 2, {"hidden": (8,)}),
    "no bias, sigmoid": lambda: no_bias(nn.Sigmoid()),
    "no bias, relu": lambda: no_bias(nn.ReLU()),
}


def play(
    model: Model,
    samples: int,
    *,
    client: Client = Client(),  # noqa: B008  frozen
    init: Init = Torch(),  # noqa: B008  frozen
    seeds: Sequence[int] = SEEDS,
    scaling: Scaling | None = None,
) -> tuple[Observation, Knowledge, Batch]:
    generator = torch.Generator().manual_seed(samples)
    shape = (len(seeds), samples)
    x = torch.rand((*shape, *model.input_shape), generator=generator)
    batch = make_batch(x, torch.randint(model.classes, shape, generator=generator), classes=model.classes)
    weights = draw_parameters(model, init, random.key(list(seeds)))
    client = replace(client, scaling=scaling or Scaling())
    return client.observe(model, weights, batch, seeds), attacker_knowledge(model, client, batch), batch


# -- one example


@pytest.mark.parametrize("init", [Torch(), Uniform()])
@pytest.mark.parametrize("rule", [idlg, cpl])
@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_the_label_of_one_example_is_always_right(name: str, rule: object, init: Init) -> None:
    model = NETWORKS[name]()
    seen, knowledge, batch = play(model, 1, init=init)
    read = rule(model, seen, knowledge, KEYS)
    assert read.dtype == torch.int64
    assert torch.equal(read, batch.labels)


@pytest.mark.parametrize("rule", [idlg, cpl])
@pytest.mark.parametrize("name", ["lenet_cpl", "no bias, sigmoid"])
def test_the_label_of_one_example_survives_a_weight_update(name: str, rule: object) -> None:
    """`before - after` points along the gradient; CPL's Algorithm 1 prints it the other way round."""
    model = NETWORKS[name]()
    client = Client(LocalTraining(epochs=3, rate=0.1))
    seen, knowledge, batch = play(model, 1, client=client, scaling=Scaling((0.5,), (0.3,)))
    assert torch.equal(rule(model, seen, knowledge, KEYS), batch.labels)


@pytest.mark.parametrize("activation", [nn.Tanh(), nn.LeakyReLU()])
@pytest.mark.parametrize("classes", [3, 10])
def test_the_product_rule_needs_no_sign_of_the_features(activation: nn.Module, classes: int) -> None:
    model = no_bias(activation, classes)
    seen, knowledge, batch = play(model, 1)
    assert torch.equal(idlg(model, seen, knowledge, KEYS), batch.labels)


def test_the_product_rule_picks_the_row_against_the_others_even_where_some_rows_vanish() -> None:
    model = no_bias(nn.Tanh(), 4)
    feature = torch.randn(16, generator=torch.Generator().manual_seed(0))
    share = torch.tensor([[0.0, 0.3, -0.6, 0.3], [0.0, 0.0, 1e-7, -1e-7], [-1.0, 1.0, 0.0, 0.0]])
    sent = {"3.weight": share[..., None] * feature}
    seen = Observation((Round({}, {}, sent),), Shares.GRADIENT, torch.ones(3))
    read = idlg(model, seen, Knowledge((1, 3, 4), 4, 1), KEYS[:3])
    assert read[0].item() == 2
    assert read[1].item() in (2, 3)  # two rows alone are exact opposites: nobody can tell
    assert read[2].item() in (0, 1)


@pytest.mark.parametrize("rule", [cpl, *BATCH_RULES])
@pytest.mark.parametrize("activation", [nn.Tanh(), nn.LeakyReLU()])
def test_row_sums_of_features_that_may_be_negative_are_refused(rule: object, activation: nn.Module) -> None:
    model = no_bias(activation)
    seen, knowledge, _ = play(model, 1)
    with pytest.raises(InputError, match=r"no bias.*use 'idlg'"):
        rule(model, seen, knowledge, KEYS)


@pytest.mark.parametrize("rule", [idlg, cpl])
def test_rules_for_one_example_refuse_two(rule: object) -> None:
    model = NETWORKS["lenet_cpl"]()
    seen, knowledge, _ = play(model, 2)
    with pytest.raises(InputError, match=r"one example.*use 'counts'"):
        rule(model, seen, knowledge, KEYS)


def test_each_trial_is_read_as_it_is_alone() -> None:
    model = NETWORKS["no bias, sigmoid"]()
    for rule, samples in ((idlg, 1), (cpl, 1), *((rule, 4) for rule in BATCH_RULES)):
        seen, knowledge, _ = play(model, samples)
        many = rule(model, seen, knowledge, KEYS)
        for i in (0, 17):
            one = slice(i, i + 1)
            assert torch.equal(rule(model, take(seen, one), knowledge, KEYS[one]), many[one])


@pytest.mark.parametrize("rule", [idlg, cpl, *BATCH_RULES])
def test_a_network_that_does_not_end_in_a_dense_layer_is_refused(rule: object) -> None:
    model = from_module(nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.Softmax(-1)), input_shape=(1, 3, 4))
    seen, knowledge, _ = play(model, 1)
    with pytest.raises(InputError, match=r"dense layer.*use 'joint'"):
        rule(model, seen, knowledge, KEYS)


@pytest.mark.parametrize("rule", [idlg, cpl, *BATCH_RULES])
def test_a_head_that_stays_at_home_is_refused_in_one_line(rule: object) -> None:
    model = NETWORKS["sigmoid mlp"]()
    model = replace(model, private=frozenset({"head.weight", "head.bias"}))
    seen, knowledge, _ = play(model, 1)
    with pytest.raises(InputError, match=r"head.*joint"):
        rule(model, seen, knowledge, KEYS)


# -- known


def test_known_labels_are_those_told() -> None:
    model = NETWORKS["linear"]()
    seen, knowledge, batch = play(model, 3)
    assert torch.equal(known(model, seen, replace(knowledge, labels=batch.labels), KEYS), batch.labels)


def test_labels_that_were_not_told_are_an_error_that_names_the_other_rules() -> None:
    model = NETWORKS["linear"]()
    seen, knowledge, _ = play(model, 3)
    with pytest.raises(InputError, match=r"Knowledge\.labels.*'counts'"):
        known(model, seen, knowledge, KEYS)


# -- counts


def overlap(read: Tensor, labels: Tensor, classes: int) -> float:
    """Return the mean share of a batch's labels that the reading has too."""
    found, true = (torch.stack([torch.bincount(row, minlength=classes) for row in t]) for t in (read, labels))
    return float(torch.minimum(found, true).sum(1).float().mean() / labels.shape[1])


@pytest.mark.parametrize("samples", [4, 8])
@pytest.mark.parametrize(
    ("name", "init", "bound"),
    [
        ("lenet_cpl", Torch(), 0.99),
        ("lenet_cpl", Uniform(), 0.97),
        ("tanh mlp", Torch(), 0.99),
        ("linear", Torch(), 0.99),
        ("linear", Uniform(), 0.95),
        ("no bias, sigmoid", Torch(), 0.95),
        ("no bias, relu", Torch(), 0.8),
    ],
)
def test_counts_are_nearly_exact_at_first_weights(name: str, init: Init, bound: float, samples: int) -> None:
    model = NETWORKS[name]()
    seen, knowledge, batch = play(model, samples, init=init)
    read = counts(model, seen, knowledge, KEYS)
    assert overlap(read, batch.labels, CLASSES) >= bound


@pytest.mark.parametrize("rule", BATCH_RULES)
@pytest.mark.parametrize("samples", [1, 3, 8])
@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_a_rule_gives_as_many_labels_as_the_batch_has_in_class_order(name: str, samples: int, rule: LabelRule) -> None:
    model = NETWORKS[name]()
    seen, knowledge, _ = play(model, samples, init=Uniform())
    read = rule(model, seen, knowledge, KEYS)
    assert read.shape == (TRIALS, samples)
    assert read.dtype == torch.int64
    assert torch.equal(read, read.sort(dim=1).values)
    assert read.min() >= 0
    assert read.max() < model.classes


@pytest.mark.parametrize("name", ["lenet_cpl", "no bias, sigmoid"])
def test_counts_from_one_sgd_step_are_those_of_its_gradient(name: str) -> None:
    """The gradient of one step belongs to the weights before it: those after must not enter."""
    model = NETWORKS[name]()
    as_gradient = counts(model, *play(model, 8, init=Uniform())[:2], KEYS)
    as_weights = counts(model, *play(model, 8, init=Uniform(), client=Client(LocalTraining(rate=0.5)))[:2], KEYS)
    assert overlap(as_weights, as_gradient, CLASSES) > 0.997  # one label of all may fall to rounding


def test_counts_from_several_small_steps_stay_nearly_exact() -> None:
    model = NETWORKS["lenet_cpl"]()
    client = Client(LocalTraining(epochs=2, batch_size=2, rate=0.02))
    seen, knowledge, batch = play(model, 8, client=client)
    assert overlap(counts(model, seen, knowledge, KEYS), batch.labels, CLASSES) > 0.97


@pytest.mark.parametrize("epochs", [1, 3])
def test_an_attack_that_turns_weights_into_a_gradient_still_counts_right(epochs: int) -> None:
    """Several steps make a sum of gradients, not a mean; the counts must know."""
    model = NETWORKS["lenet_cpl"]()
    client = Client(LocalTraining(epochs=epochs, batch_size=2, rate=0.02))
    seen, knowledge, batch = play(model, 8, client=client)
    problem, _ = ig(labels="counts", iterations=8).prepare(model, seen, knowledge, SEEDS)
    read = problem.facts.knowledge.labels
    assert overlap(read, batch.labels, CLASSES) > 0.95


@pytest.mark.slow
@pytest.mark.parametrize(
    ("local", "bound"),
    [
        (LocalTraining(epochs=5, batch_size=2, rate=0.004), 0.97),
        (LocalTraining(epochs=20, rate=0.004), 0.97),
        (LocalTraining(epochs=5, batch_size=2, rate=0.004, momentum=0.9), 0.95),
    ],
    ids=["batches", "whole", "momentum"],
)
@pytest.mark.parametrize("told_local", [True, False])
def test_counts_from_an_update_are_nearly_exact_whether_or_not_its_length_is_told(
    local: LocalTraining, bound: float, told_local: bool
) -> None:
    """Twenty classes and six samples: at least fourteen classes are missing, which tells the length of the update."""
    model = build("cnn_mnist", (1, 8, 8), 20)
    seen, knowledge, batch = play(model, 6, client=Client(local))
    read = counts(model, seen, knowledge if told_local else replace(knowledge, local=None), KEYS)
    assert overlap(read, batch.labels, 20) >= bound


@pytest.mark.slow
@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize(
    "local", [None, LocalTraining(epochs=5, batch_size=2, rate=0.004)], ids=["gradient", "weights"]
)
@pytest.mark.parametrize("share", [0.05, 20.0])
def test_counts_survive_a_clip_that_the_attacker_is_told_of(
    share: float, local: LocalTraining | None, each: bool
) -> None:
    """A clip that bites hides the length; one that does not leaves it as it was."""
    model = build("cnn_mnist", (1, 8, 8), 20)
    plain, knowledge, batch = play(model, 6, client=Client(local))
    sent = direction(plain.rounds[0], plain.shares)
    length = float(lift(norm)({model.head.bias: sent[model.head.bias]} if each and model.head else sent).median())
    client = Client(local, defences=(Clip(share * length, each=each),))
    seen, _, _ = play(model, 6, client=client)
    read = counts(model, seen, knowledge_of_defences(knowledge, client, seen), KEYS)
    assert overlap(read, batch.labels, 20) >= 0.95


@pytest.mark.slow
def test_after_adam_the_classes_that_occur_are_found() -> None:
    model = build("cnn_mnist", (1, 8, 8), 20)
    seen, knowledge, batch = play(model, 4, client=Client(LocalTraining(epochs=5, rate=1e-4, optimiser="adam")))
    for told_ in (knowledge, replace(knowledge, local=None)):
        read = counts(model, seen, told_, KEYS)
        there = [bool(set(r.tolist()) <= set(t.tolist())) for r, t in zip(read, batch.labels, strict=True)]
        assert sum(there) >= 0.95 * TRIALS


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 999), samples=st.integers(2, 8), length=st.floats(1e-4, 1e3))
def test_the_length_of_an_update_is_found_where_classes_are_missing(seed: int, samples: int, length: float) -> None:
    """`pull = s (p - n / N)` exactly: s comes back, whatever it is, as soon as one class is missing."""
    generator = torch.Generator().manual_seed(seed)
    prediction = torch.softmax(0.3 * torch.randn(1, 12, generator=generator, dtype=torch.float64), 1)
    number = torch.bincount(torch.randint(11, (samples,), generator=generator), minlength=12)[None]
    pull = length * (prediction - number / samples)
    found = _length(pull, prediction, Knowledge((1,), 12, samples))
    assert float(found) == pytest.approx(length, rel=1e-6)


@pytest.mark.parametrize("rule", [idlg, cpl, *BATCH_RULES])
def test_a_loss_whose_gradient_says_nothing_about_the_label_is_refused(rule: object) -> None:
    """With MSE the last gradient is 2 (o - y) / C, which need not be least for the true class."""
    model = NETWORKS["linear"]()
    seen, knowledge, batch = play(model, 1, client=Client(loss="mse"), init=Uniform(5.0))
    try:
        read = rule(model, seen, knowledge, KEYS)
    except InputError:
        return
    assert torch.equal(read, batch.labels)


@settings(deadline=None, max_examples=60)
@given(
    shares=st.lists(st.lists(st.floats(0, 1), min_size=4, max_size=4), min_size=1, max_size=3),
    total=st.integers(1, 12),
)
def test_apportioning_is_largest_remainder(shares: list[list[float]], total: int) -> None:
    share = torch.tensor(shares, dtype=torch.float64) + 1e-3
    share = share / share.sum(1, keepdim=True)
    read = apportion(share, torch.ones(len(share), total, dtype=torch.bool))
    assert read.shape == (len(shares), total)
    for row, labels in zip(share, read, strict=True):
        number = torch.bincount(labels, minlength=4)
        assert number.sum() == total
        assert ((number - row * total).abs() < 1).all()  # never more than one away from its due


def test_shares_that_are_whole_are_given_exactly() -> None:
    assert apportion(torch.tensor([[0.5, 0.0, 0.25, 0.25]]), torch.ones(1, 4, dtype=torch.bool)).tolist() == [
        [0, 0, 2, 3]
    ]
    assert apportion(torch.tensor([[0.0, 1.0, 0.0]]), torch.ones(1, 3, dtype=torch.bool)).tolist() == [[1, 1, 1]]


# -- joint, and the choice of a rule


def test_joint_labels_are_an_unknown_of_their_own_and_forget_what_was_told() -> None:
    model = NETWORKS["lenet_cpl"]()
    seen, knowledge, batch = play(model, 2)
    problem, _ = dlg().prepare(model, seen, replace(knowledge, labels=batch.labels), SEEDS)
    assert problem.facts.knowledge.labels is None
    logits = problem.unknowns[LABEL]
    assert logits.shape == (TRIALS, 2, CLASSES)
    assert abs(logits.mean()) < 5 / logits.numel() ** 0.5
    assert abs(logits.std() - 1) < 5 / (2 * logits.numel()) ** 0.5
    assert set(problem.unknowns) == {GUESS, LABEL}


@pytest.mark.parametrize("samples", [1, 4])
def test_auto_uses_what_was_told_and_else_reads_it_off(samples: int) -> None:
    model = NETWORKS["lenet_cpl"]()
    seen, knowledge, batch = play(model, samples)
    attack = Matching("any", labels="auto")
    read = attack.prepare(model, seen, knowledge, SEEDS)[0].facts.knowledge.labels
    rule = cpl if samples == 1 else by_residual
    assert torch.equal(read, rule(model, seen, knowledge, KEYS))
    wrong = (batch.labels + 1) % CLASSES
    given = attack.prepare(model, seen, replace(knowledge, labels=wrong), SEEDS)[0].facts.knowledge.labels
    assert torch.equal(given, wrong)


def test_an_unknown_rule_is_refused_with_the_near_names() -> None:
    with pytest.raises(InputError, match=r"'idgl'.*'idlg'"):
        Matching("any", labels="idgl")
    assert JOINT not in LABEL_RULES


def test_smaller_clients_get_their_own_number_of_labels() -> None:
    share = torch.tensor([[0.0, 0.5, 0.5], [0.0, 0.5, 0.5]])
    present = torch.tensor([[True, True, True, True], [False, True, False, True]])
    read = apportion(share, present)
    assert read[0].tolist() == [1, 1, 2, 2]
    assert read[1][present[1]].tolist() == [1, 2]
