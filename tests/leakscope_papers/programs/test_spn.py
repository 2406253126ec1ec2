"""SPN's programs: strengths inside the batch give what each gives alone, CAP is that of `characteristics`, training is torch's Adam."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.engine.state import Stop
from leakscope.clients import Client, knowledge_of_defences
from leakscope.clients import attacker_knowledge as knows
from leakscope.core import random
from leakscope.core.record import Plain
from leakscope.core.tree import take
from leakscope.defences import Sparsify
from leakscope.defences.on_model import Polarisation
from leakscope.inference.tracing import trace
from leakscope.metrics import match
from leakscope.sweep.objects import load_data
from leakscope_papers.characteristics.characteristic import Characteristic, measured
from leakscope_papers.claims import examine
from leakscope_papers.comparing import Measured
from leakscope_papers.items import Item, Part, find_part, item_files, read_item
from leakscope_papers.naming import belongs
from leakscope_papers.programs import find_program, planned_rows
from leakscope_papers.programs.rows import Row, Rows, keeping, read_rows
from leakscope_papers.programs.settings import read_settings
from leakscope_papers.runs import row_cells
from leakscope_papers.scales import settings_at
from leakscope_papers.spn import curves as spn
from leakscope_papers.spn import federations as spn_federations
from leakscope_papers.spn import training as spn_training
from leakscope_papers.spn.attackers import RANGE, Attacked, attack_of, attacked_of, client_of, printed_accuracies
from leakscope_papers.spn.caps import caps_of, printed_pictures
from leakscope_papers.spn.settings import Curve, CurveSettings, Pictures, Trained
from leakscope_papers.spn.training import Training, train_curve

DP = Curve(defence="dp", strengths=(0.01, 0.1))
SPN = Curve(defence="spn", bits=4, strengths=(0.1, 0.5))
PLAIN_DP: dict[str, Any] = {"defence": "dp", "strengths": [0.01, 0.1]}
PLAIN_SPN: dict[str, Any] = {"defence": "spn", "bits": 4, "strengths": [0.1, 0.5]}
SETTINGS: dict[str, Any] = {
    "data": {"name": "digits"},
    "model": {"name": "dlnet", "width": 2},
    "images": 4,
    "queries": 20,
    "owners": 2,
    "batches": [1],
    "iterations": 1,
    "threshold": 0,
    "form": "native",
    "attackers": ["unaware"],
    "accuracies": ["trained"],
    "curves": [PLAIN_DP],
    "training": {
        "clients": 3,
        "rounds": 1,
        "batch": 8,
        "rate": 0.01,
        "examples": 48,
        "tests": 20,
        "sharing": "gradient",
        "in_turn": False,
        "seed": 0,
    },
}


class Kept:
    """Rows in memory."""

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = directory
        self.rows: dict[str, tuple[Mapping[str, Plain], Mapping[str, Sequence[float]]]] = {}

    def done(self, key: str, where: Mapping[str, Plain] | None = None) -> bool:
        del where
        return key in self.rows

    def add(
        self, key: str, where: Mapping[str, Plain], values: Mapping[str, Sequence[float]], *, curves: Any = None
    ) -> None:
        assert key not in self.rows
        self.rows[key] = (where, values)


def told(**changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(SETTINGS), **changes}


def attacked_clients(samples: int) -> Attacked:
    return attacked_of(read_settings(Pictures, SETTINGS), load_data("digits"), samples)


def trained(**changes: Any) -> Trained:
    """Return the settings of a training, changed in these."""
    return read_settings(Trained, told(training={**SETTINGS["training"], **changes}))


def run(name: str, settings: Mapping[str, Any], keep: Kept | None = None) -> Kept:
    keep = keep or Kept()
    find_program(name)(settings, keep, lambda _: None, "cpu")
    return keep


# -- curves and CAP


def test_cap_is_the_mean_over_the_grid_of_accuracy_times_distance() -> None:
    settings = told()
    rows = run("spn_curves", settings).rows
    points, accuracies = [], []
    for strength in DP.strengths:
        where, values = rows[f"dp B=1 unaware {strength:g}"]
        assert where["sigma"] == where["strength"] == strength
        accuracies.append(sum(values["accuracy"]) / len(values["accuracy"]))
        ratio, distance = torch.tensor(values["ratio"]), torch.tensor(values["rmse"])
        points.append(measured(strength, ratio, accuracies[-1], distance))
    _, made = rows["dp B=1 unaware CAP of reconstruction, trained"]
    assert len(made["cap"]) == 4
    assert_close(sum(made["cap"]) / 4, Characteristic("dp", "unaware", "rMSE", tuple(points)).cap.value)
    where, known = rows["dp B=1 unaware CAP of tracing of reconstructed queries, trained"]
    assert (where["attack"], where["queries"]) == ("tracing", "reconstructed")
    shares = [rows[f"dp B=1 unaware {s:g}"][1]["tracing_reconstructed"] for s in DP.strengths]
    mean = sum(a * sum(each) / 4 for a, each in zip(accuracies, shares, strict=True)) / 2
    assert_close(sum(known["cap"]) / 4, mean)
    assert_close(known["cap_chance"], [sum(accuracies) / 2 * 0.5])
    assert set(planned_rows("spn_curves", settings)) == set(rows)
    _, noisy = rows["dp B=1 unaware 0.1"]
    _, clean = rows["dp B=1 unaware 0.01"]
    assert_close(torch.tensor(clean["ratio"]), 10 * torch.tensor(noisy["ratio"]), rtol=1e-4, atol=0)


@pytest.mark.parametrize(
    "attacker", ["aware", *(pytest.param(name, marks=pytest.mark.slow) for name in ("unaware", "dummy", "head"))]
)
def test_strengths_in_one_batch_are_what_each_is_alone(attacker: str) -> None:
    settings, attacked = read_settings(CurveSettings, SETTINGS), attacked_clients(2)
    together = spn.attack_curve(settings, attacked, SPN, attacker, "cpu")
    for number, strength in enumerate(SPN.strengths):
        alone = spn.attack_curve(settings, attacked, replace(SPN, strengths=(strength,)), attacker, "cpu")[0].numbers
        assert alone.keys() == together[number].numbers.keys()
        for name, values in alone.items():
            assert_close(torch.tensor(together[number].numbers[name]), torch.tensor(values), rtol=1e-3, atol=1e-3)
    assert together[0].numbers["ratio"][0] > together[1].numbers["ratio"][0]


@pytest.mark.slow
def test_a_program_that_was_stopped_makes_the_missing_rows_only(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = told(curves=[PLAIN_DP, {**PLAIN_DP, "defence": "laplace"}], training=None, accuracies=[])
    keep = run("spn_curves", settings)
    gone = "laplace B=1 unaware 0.1"
    again = Kept()
    again.rows = {key: row for key, row in keep.rows.items() if key != gone}
    seen: list[str] = []
    genuine = spn.attack_curve
    monkeypatch.setattr(spn, "attack_curve", lambda *given: seen.append(given[2].defence) or genuine(*given))
    run("spn_curves", settings, again)
    assert seen == ["laplace"]
    assert again.rows[gone] == keep.rows[gone]
    monkeypatch.setattr(spn, "load_data", lambda *_: pytest.fail("read although nothing is missing"))
    run("spn_curves", settings, again)


def test_a_command_puts_accuracies_of_fedavg_into_caps_and_characteristics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are read apart from those of clients in turn. Here nobody trains or attacks: the training told is FedAvg's."""
    names = ("ratio", "rmse", "rmse_raw", "membership", "membership_unpaired", "tracing", "tracing_reconstructed")
    asked: list[Trained] = []
    monkeypatch.setattr(spn, "kept_curve", lambda trained, *_: asked.append(trained) or torch.tensor([[1, 1, 0]]))
    monkeypatch.setattr(spn, "attack_curve", lambda *_: [spn.Measured({name: [0.2, 0.4] for name in names}, {})])
    item, figure = read_item("spn-table-8"), read_item("spn-figure-5")
    part = find_part(item, "cifar10_fedavg")
    for scale in item.scales:
        training = settings_at(item, part, scale)["training"]
        assert (training["sharing"], training["in_turn"]) == ("weights", False), scale
    settings = {**settings_at(item, part, "smoke"), "curves": [{"defence": "dp", "strengths": [0.1]}], "owners_too": []}
    with keeping(tmp_path, settings, {}) as keep:
        find_program("spn_curves")(settings, keep, lambda _: None, "cpu")
    assert [each.training.sharing for each in asked] == ["weights"]
    fedavg = "accuracies of our FedAvg"
    caps = row_cells(item, part, read_rows(tmp_path))
    assert len({cell.column.reading for cell in caps}) == 2
    assert {cell.column.reading.partition(", ")[0] for cell in caps} == {fedavg}
    assert len(caps) == 4
    for cell in caps:
        assert cell.values["cap"].estimate.value == pytest.approx(2 / 3 * 0.3)
    (point,) = row_cells(figure, find_part(figure, "cifar10_fedavg"), read_rows(tmp_path))
    assert point.column.reading == fedavg
    assert {"accuracy", "ratio", "accuracy_x_rmse"} <= point.values.keys()


def test_tracing_by_reconstruction_adds_up_to_that_of_all_queries() -> None:
    attacked = attacked_clients(2)
    guess = attacked.batch.inputs.flip(1) * 0.9  # right pictures, in another order inside each batch
    pairing = match(attacked.batch.inputs, guess, attacked.batch.mask)
    for owners, found in spn.traced(attacked, guess, pairing, [2, 4]).items():
        whole = trace(attacked.queries, attacked.batch.inputs.flatten(0, 1) * 0.9, attacked.source, participants=owners)
        assert_close(sum(found["tracing"]) / 4, whole.all.value)
        assert_close(sum(found["tracing_reconstructed"]) / 4, whole.reconstructed.value)
        assert found["tracing_reconstructed"] == [0.0] * 4
        assert found["tracing_chance"] == [1 - 1 / owners]


def test_tracing_stands_against_the_number_of_participants() -> None:
    settings = told(owners_too=[4], training=None, accuracies=[])
    rows = run("spn_curves", settings).rows
    where, values = rows["dp B=1 unaware 0.1 among 4"]
    assert (where["attack"], where["owners"], where["sigma"]) == (spn.PARTS, 4, 0.1)
    assert values["tracing_chance"] == [0.75]
    assert rows["dp B=1 unaware 0.1"][1]["tracing_chance"] == [0.5]
    assert len(values["tracing"]) == 4
    assert set(planned_rows("spn_curves", settings)) == set(rows)


# -- who attacks, and what


@pytest.mark.parametrize(("curve", "kinds"), [(DP, ["unaware", "aware"]), (SPN, ["aware", "dummy", "head"])])
def test_no_attacker_stops_at_a_threshold_of_its_own(curve: Curve, kinds: list[str]) -> None:
    attacked = attacked_clients(1)
    strengths = torch.full((4,), 0.1)
    client = client_of(curve, strengths)
    seen = client.observe(attacked.model, attacked.weights, attacked.batch, attacked.seeds)
    knowledge = knowledge_of_defences(knows(attacked.model, client, attacked.batch), client, seen)
    for kind in kinds:
        assert attack_of(kind, client, knowledge, strengths, 7).stop == Stop(iterations=7, threshold=0.0), kind


def test_every_curve_of_the_items_runs_to_the_end_at_every_scale() -> None:
    """Rows of runs that stopped at a threshold had other settings, so they are refused and not mixed with these."""
    found = 0
    for name in (name for name in item_files() if name.startswith("spn-")):
        item = read_item(name)
        for part in item.parts:
            if part.program == "spn_curves":
                found += 1
                assert all(settings_at(item, part, scale)["threshold"] == 0 for scale in item.scales), name
    assert found == 15


def test_a_threshold_of_zero_lets_every_trial_run_to_the_end() -> None:
    """Also where the attacker was told of the noise, and would stop where that explains the rest."""
    attacked = attacked_clients(1)
    loud = Curve(defence="dp", strengths=(0.5,))
    for threshold, iterations in ((0, 2.0), (1e9, 0.0)):
        settings = read_settings(CurveSettings, told(iterations=2, threshold=threshold))
        found = spn.attack_curve(settings, attacked, loud, "aware", "cpu")[0].numbers
        assert found["iterations"] == [iterations] * 4


def test_ppdl_chooses_by_the_gradient_and_adds_noise_to_what_it_sends() -> None:
    attacked = attacked_clients(1)
    strengths = torch.tensor([0.001, 0.1, 1.0, 10.0])

    def sent(client: Client) -> dict[str, Tensor]:
        seen = client.observe(attacked.model, attacked.weights, attacked.batch, attacked.seeds)
        return dict(seen.rounds[0].sent)

    clean, noisy = sent(Client()), sent(client_of(Curve(defence="dp", strengths=()), strengths))
    kept = sent(Client(defences=(Sparsify(share=0.3),)))
    client = client_of(Curve(defence="ppdl", share=0.3, strengths=()), strengths)
    for name, value in sent(client).items():
        chosen = kept[name] != 0
        assert_close(value, torch.where(chosen, noisy[name], 0.0))
        assert (value[chosen] != clean[name][chosen]).all()
    seen = client.observe(attacked.model, attacked.weights, attacked.batch, attacked.seeds)
    facts = knowledge_of_defences(knows(attacked.model, client, attacked.batch), client, seen)
    assert facts.mask is not None
    assert facts.sigma is not None
    assert_close(facts.sigma, strengths)
    assert torch.equal(facts.mask["conv2.weight"], (kept["conv2.weight"] != 0).float())


NONE = {
    "dp": Curve(defence="dp", strengths=(0,)),
    "ppdl": Curve(defence="ppdl", share=0.3, strengths=(0,)),
    "spn": Curve(defence="spn", bits=4, strengths=(0,)),
}


def test_strength_0_changes_nothing_and_of_ppdl_leaves_the_choice() -> None:
    attacked = attacked_clients(1)

    def sent(client: Client) -> dict[str, Tensor]:
        seen = client.observe(attacked.model, attacked.weights, attacked.batch, attacked.seeds)
        return dict(seen.rounds[0].sent)

    nothing = torch.zeros(4)
    for name in ("dp", "spn"):
        assert_close(sent(client_of(NONE[name], nothing)), sent(Client()))
    assert not client_of(NONE["dp"], nothing).defences  # nothing is drawn in vain
    assert client_of(NONE["dp"], torch.tensor([0.0, 0.1])).defences
    chosen = client_of(NONE["ppdl"], nothing)
    assert chosen.defences == (Sparsify(share=0.3),)
    seen = chosen.observe(attacked.model, attacked.weights, attacked.batch, attacked.seeds)
    assert knowledge_of_defences(
        knows(attacked.model, chosen, attacked.batch), chosen, seen
    ).largest  # nothing else was done


def test_no_defence_is_a_row_without_a_ratio_and_in_no_cap() -> None:
    rows = run("spn_curves", told(curves=[{"defence": "dp", "strengths": [0]}], accuracies=[])).rows
    assert list(rows) == ["dp B=1 unaware 0"]
    where, values = rows["dp B=1 unaware 0"]
    assert where["sigma"] == where["strength"] == 0
    assert set(values["ratio"]) == {float("inf")}
    assert len(values["rmse"]) == len(values["accuracy_x_rmse"]) == 4
    right = [train_curve(trained(), NONE[name], load_data("digits"), lambda _: None, "cpu") for name in ("dp", "spn")]
    assert torch.equal(right[0], right[1])
    assert values["accuracy"] == right[0][0].double().tolist()


def test_no_cap_of_the_items_is_over_strength_0() -> None:
    for name in (name for name in item_files() if name.startswith("spn-")):
        item = read_item(name)
        for part in item.parts:
            for scale in item.scales if part.program == "spn_curves" else ():
                settings = settings_at(item, part, scale)
                none = any(0 in curve["strengths"] for curve in settings["curves"])
                assert not (none and settings["accuracies"]), (name, part.name, scale)


def test_the_reader_is_algorithm_5_but_for_where_labels_come_from() -> None:
    attacked = attacked_clients(1)
    strengths = torch.full((4,), 0.5)
    client = client_of(SPN, strengths)
    seen = client.observe(attacked.model, attacked.weights, attacked.batch, attacked.seeds)
    blind = knows(attacked.model, client, attacked.batch)
    unaware, reader = (attack_of(kind, client, blind, strengths, 1) for kind in ("unaware", "reader"))
    assert (unaware.labels, reader.labels) == ("joint", "auto")
    assert replace(reader, labels=unaware.labels) == unaware
    made = reader.run(attacked.model, seen, blind, attacked.seeds, Execution(form="native"))
    assert torch.equal(made.labels, attacked.batch.labels)  # the private loss never reaches the public head
    informed = knowledge_of_defences(blind, client, seen)
    aware = attack_of("aware", client, informed, strengths, 1)
    assert aware.labels == reader.labels
    assert aware.simulate != reader.simulate


def test_every_curve_has_a_reader_and_a_row_says_who_attacked() -> None:
    settings = told(attackers=["reader", "dummy"], curves=[PLAIN_DP, PLAIN_SPN], training=None, accuracies=[])
    places = planned_rows("spn_curves", settings)
    found = {(str(where["defence"]), where["attacker"]) for where in places.values()}
    assert found == {("dp", "reader"), ("spn", "reader"), ("spn", "dummy")}


# -- the spread of a CAP


def test_the_numbers_of_a_cap_carry_the_error_of_the_accuracies() -> None:
    generator = torch.Generator().manual_seed(0)
    right = torch.rand(3, 4000, generator=generator) < torch.tensor([[0.9], [0.6], [0.3]])
    still = torch.tensor([[0.9], [0.5], [0.2]]).expand(3, 200)
    made = torch.tensor(caps_of(right, still.tolist()), dtype=torch.float64)
    each = (right.double() * still[:, :1]).mean(0)
    assert_close(made.mean(), each.mean())
    assert made.var() / 200 == pytest.approx(float(each.var() / 4000), rel=0.25)
    apart = torch.rand(3, 200, generator=generator, dtype=torch.float64)
    both = torch.tensor(caps_of(right, apart.tolist()), dtype=torch.float64)
    products = right.double().mean(1, keepdim=True) * apart
    assert_close(both.mean(), products.mean())
    assert both.var() > products.mean(0).var()
    assert_close(caps_of(torch.ones(3, 10), apart.tolist()), apart.mean(0).tolist())


def test_a_trial_without_a_distance_is_left_out_of_a_cap() -> None:
    right = torch.tensor([[1.0, 0.0, 1.0, 1.0], [1.0, 1.0, 0.0, 0.0]])
    with_black = [[0.5, float("nan"), 1.0], [0.2, float("nan"), 0.4]]
    assert caps_of(right, with_black) == caps_of(right, [[0.5, 1.0], [0.2, 0.4]])


def test_printed_accuracies_count_as_shares_of_the_test_set() -> None:
    made = printed_pictures([0.7025, 0.4205], 10_000)
    assert_close(made.double().mean(1), torch.tensor([0.7025, 0.4205], dtype=torch.float64))
    together = (made[0] & made[1]).double().mean()
    assert float(together) == pytest.approx(0.7025 * 0.4205, abs=0.02)  # drawn apart


def test_printed_accuracies_are_those_of_table_11_or_none() -> None:
    weak = Curve(defence="dp", strengths=(0.0001, 0.5))
    assert printed_accuracies("cifar10", weak) == [0.7025, 0.4205]
    assert printed_accuracies("svhn", replace(weak, defence="ppdl", share=0.05)) == [0.8740, 0.5151]
    assert printed_accuracies("mnist", replace(weak, defence="spn")) == [0.9944, 0.9936]
    assert printed_accuracies("mnist", replace(weak, defence="spn", bits=32)) is None
    assert printed_accuracies("mnist", replace(weak, defence="laplace")) is None
    assert printed_accuracies("digits", weak) is None
    assert replace(weak, defence="spn", bits=32).place(0.1) == {"defence": "spn", "bits": 32, "alpha2": 0.1}


# -- cosines


def test_the_two_gradients_are_the_parts_of_the_one_that_is_shared() -> None:
    attacked = attacked_clients(1)
    ce, polarised = spn.both_gradients(attacked, 4)
    guard = Polarisation(0.3, bits=4, spread=RANGE)
    sent = Client(on_model=guard).observe(attacked.model, attacked.weights, attacked.batch, attacked.seeds)
    assert "head.weight" not in ce
    for name, value in ce.items():
        assert_close(sent.rounds[0].sent[name], value + 0.3 * polarised[name], rtol=1e-4, atol=1e-6)
    assert_close(spn.cosine_of((ce, ce), "all biases"), torch.ones(4))
    one = F.cosine_similarity(ce["conv2.weight"].flatten(1), polarised["conv2.weight"].flatten(1))
    assert_close(spn.cosine_of((ce, polarised), "conv2.weight"), one, rtol=1e-4, atol=1e-5)
    keep = run("spn_cosines", told(batch=1, bits=4, groups=["conv2.weight"]))
    assert_close(torch.tensor(keep.rows["conv2.weight"][1]["gradient_cosine"]), one, rtol=1e-4, atol=1e-5)


def test_figure_4_keeps_the_distribution_of_both_gradients() -> None:
    parts = spn.both_gradients(attacked_clients(1), 4)
    curves = spn.distributions(parts, "conv2.weight")
    assert list(curves) == ["gradient of the CE loss", "gradient of the polarization loss"]
    for part, curve in zip(parts, curves.values(), strict=True):
        ordered = part["conv2.weight"].flatten(1).double().sort(1).values.mean(0)
        (y,) = torch.tensor(curve["y"], dtype=torch.float64)
        assert_close(y[[0, -1]], ordered[[0, -1]])
        assert bool((y.diff() >= 0).all())


# -- accuracies


def play_turn(training: Training, number: int, who: Sequence[int]) -> None:
    keys, places = training.draw(range(number, number + 1))
    training.play(keys[0], places[0], who)


def slow_adam(training: Training, steps: int) -> dict[str, Tensor]:
    """Return the weights after torch's Adam on the batches that the clients drew, without a defence."""
    module = copy.deepcopy(training.public.apply.module)  # type: ignore[attr-defined]
    module.load_state_dict(take(training.state.weights, 0))
    optimiser = torch.optim.Adam(module.parameters(), lr=training.settings.rate)
    for number in range(steps):
        play_turn(training, number, range(training.clients))
        optimiser.zero_grad()
        places = training.draw(range(number, number + 1))[1][0]
        x, y = training.x[places], training.y[places]
        torch.stack([F.cross_entropy(module(a), b) for a, b in zip(x, y, strict=True)]).mean().backward()
        optimiser.step()
    return {name: value.detach() for name, value in module.named_parameters()}


def test_shared_gradients_without_noise_are_adam_on_the_mean() -> None:
    curve = Curve(defence="dp", strengths=(0.0, 0.0))
    training = Training(trained(), curve, load_data("digits"), "cpu")
    expected = slow_adam(training, 3)
    for name, value in expected.items():
        for strength in range(2):
            assert_close(training.state.weights[name][strength], value, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("sharing", ["gradient", "weights"])
def test_a_strength_trains_the_same_alone_and_private_heads_stay_apart(sharing: str) -> None:
    settings = trained(sharing=sharing, in_turn=True, seed=2)  # no gradient near 0, which Adam divides by
    data = load_data("digits")
    both = Training(settings, SPN, data, "cpu")
    alone = Training(settings, replace(SPN, strengths=(0.5,)), data, "cpu")
    before = {name: value.clone() for name, value in both.state.private.items()}
    for training in (both, alone):
        play_turn(training, 0, [1])
    for name, value in alone.state.weights.items():
        assert_close(both.state.weights[name][1], value[0], rtol=1e-4, atol=1e-5)
    moved = {name: (both.state.private[name] != value).flatten(2).any(2) for name, value in before.items()}
    for name, which in moved.items():
        assert which.tolist() == [[False, "codes" not in name, False]] * 2, name


def test_another_seed_draws_other_batches_and_other_noise() -> None:
    drawn: list[Tensor] = []
    for seed in (0, 0, 1):
        drawn.append(Training(trained(seed=seed), DP, load_data("digits"), "cpu").draw(range(1))[0])
    assert torch.equal(drawn[0], drawn[1])
    assert not (drawn[0] == drawn[2]).any()


def test_a_turn_draws_the_same_alone_and_among_others() -> None:
    training = Training(trained(), DP, load_data("digits"), "cpu")
    keys, places = training.draw(range(2, 6))
    for number in range(2, 6):
        alone = training.draw(range(number, number + 1))
        assert torch.equal(alone[0][0], keys[number - 2])
        assert torch.equal(alone[1][0], places[number - 2])
    own = random.fold(random.fold(random.key(training.settings.seed), "round"), 3)
    for client in range(training.clients):
        key = random.fold(own, client)
        assert keys[1, client] == key
        held = training.places[client]
        expected = (random.uniform(random.fold(key, "batch"), (training.settings.batch,)) * len(held)).long()
        assert torch.equal(places[1, client], held[expected])
    assert len({tuple(row) for row in places.flatten(0, 1).tolist()}) == places[..., 0].numel()


def test_accuracies_of_table_11_are_counted_picture_by_picture() -> None:
    keep = run("spn_strengths", told())
    right = train_curve(trained(), DP, load_data("digits"), lambda _: None, "cpu")
    for number, strength in enumerate(DP.strengths):
        where, values = keep.rows[f"dp {strength:g}"]
        assert where == {"data": "digits", "model": "dlnet", "defence": "dp", "sigma": strength}
        assert values["accuracy"] == right[number].double().tolist()
        assert len(values["accuracy"]) == 20


def test_table_11_has_round_robin_and_all_clients_at_once_on_cifar10() -> None:
    item = read_item("spn-table-11")
    grids: dict[str, list[dict[str, Any]]] = {}
    for reading in item.readings:
        for part in item.parts:
            settings = {"settings": settings_at(item, part, "small")}
            if belongs(settings, reading) and part.where["data"] == "cifar10" and "no_defence" not in part.name:
                grids[reading.label] = settings["settings"]["curves"]
    assert len(grids) == 4
    for curves in grids.values():
        assert {float(s) for c in curves for s in c["strengths"] if c["defence"] == "dp"} >= {
            1e-4,
            1e-3,
            0.01,
            0.1,
            0.5,
        }


@pytest.mark.parametrize("sharing", ["gradient", "weights"])
def test_all_clients_play_at_once_or_one_after_the_other(sharing: str) -> None:
    turns: list[list[int]] = []

    class Watched(Training):
        def play(self, keys: Tensor, places: Tensor, who: Sequence[int]) -> None:
            turns.append(list(who))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spn_training, "Training", Watched)
        for in_turn in (False, True):
            settings = trained(sharing=sharing, examples=24, in_turn=in_turn)
            train_curve(settings, DP, load_data("digits"), lambda _: None, "cpu")
    assert turns == [[0, 1, 2], [0], [1], [2]]


def test_a_long_training_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(Training, "play", lambda *_: None)
    train_curve(trained(rounds=11), DP, load_data("digits"), lines.append, "cpu")
    assert [line.split(":")[1].strip() for line in lines[:-1]] == ["5 of 11 rounds trained", "10 of 11 rounds trained"]
    assert "after 11 rounds" in lines[-1]


def test_a_program_that_goes_on_does_not_train_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run("spn_strengths", told(), Kept(tmp_path))
    defences: list[str] = []
    genuine = train_curve
    monkeypatch.setattr(
        spn_training, "train_curve", lambda *given: defences.append(given[1].defence) or genuine(*given)
    )
    assert run("spn_strengths", told(), Kept(tmp_path)).rows == first.rows
    assert defences == []
    other = told()
    other["training"]["seed"] = 1
    assert run("spn_strengths", other, Kept(tmp_path)).rows.keys() == first.rows.keys()
    assert defences == ["dp"]


FEDERATION: dict[str, Any] = {
    "data": {"name": "digits"},
    "model": {"name": "mlp", "hidden": [16]},
    "clients": [1],
    "mechanisms": [
        {"kind": "standalone"},
        {"kind": "fedavg"},
        {"kind": "spn", "alpha2": 0.1},
        {"kind": "dp", "sigma": 9.0},
    ],
    "partition": {"name": "iid", "stratified": True},
    "standalone": 2,
    "examples": 200,
    "batch": 16,
    "rate": 0.1,
    "momentum": 0.9,
    "halved_at": [4],
    "rounds": 5,
    "init": "kaiming",
    "together": 8,
    "seed": 0,
}


@pytest.mark.slow
def test_one_client_alone_is_a_federation_of_one_and_loud_noise_ruins_it() -> None:
    keep = run("spn_federations", FEDERATION)
    mean = {key: sum(values["accuracy"]) / len(values["accuracy"]) for key, (_, values) in keep.rows.items()}
    assert mean["standalone N=1"] == pytest.approx(mean["fedavg N=1"])
    assert mean["fedavg N=1"] > 0.4
    assert mean["spn 0.1 N=1"] > 0.3
    assert mean["dp 9 N=1"] < 0.3
    assert keep.rows["spn 0.1 N=1"][0]["alpha2"] == 0.1
    assert len(keep.rows["standalone N=1"][1]["accuracy"]) == 1


def test_clients_alone_hold_parts_of_the_same_deal(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[int]] = []
    monkeypatch.setattr(
        spn_federations, "_trained", lambda _s, _d, held, *_: seen.append(held.counts.tolist()) or (1, 2)
    )
    settings = {**FEDERATION, "clients": [4], "mechanisms": [{"kind": "standalone"}, {"kind": "fedavg"}]}
    keep = run("spn_federations", settings)
    assert seen == [[50], [50], [50, 50, 50, 50]]
    assert keep.rows["standalone N=4"][1]["accuracy"] == [0.5, 0.5]


@pytest.mark.parametrize("name", ["spn-figure-28", "spn-figure-29", "spn-figure-7"])
def test_rows_of_federations_name_the_strengths_and_claims_still_pair_them(name: str) -> None:
    item = read_item(name)
    cells = [cell for part in item.parts if part.name != "ratio" for cell in _planned_cells(item, part)]
    told = {(cell.where["defence"], cell.where.get("alpha2"), cell.where.get("sigma")) for cell in cells}
    assert ("spn", 0.1, None) in told
    assert ("dp", None, 0.1) in told or name == "spn-figure-7"
    for claim in item.claims:
        for check in (check for check in claim.checks if check.measure == "accuracy"):
            assert examine(replace(claim, checks=(check,)), cells, cells[0].column).cases, claim.says


def _planned_cells(item: Item, part: Part) -> list[Measured]:
    """Return the rows of a federation as cells, each with the accuracy one half."""
    planned = planned_rows("spn_federations", settings_at(item, part, "full"))
    rows = tuple(Row(key, where, {"accuracy": (0.4, 0.6)}) for key, where in planned.items())
    return row_cells(item, part, Rows({}, rows))


def test_a_curve_of_an_unknown_defence_is_told() -> None:
    with pytest.raises(Exception, match=r"unknown .*'dpp'"):
        client_of(Curve(defence="dpp", strengths=(0.1,)), 0.1)


def test_numbers_around_a_median_have_its_mean_and_its_error() -> None:
    """Over 200 draws of 101 normal values the mean interval is that of the median's known deviation, sqrt(pi / 2T)."""
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(101, generator=generator, dtype=torch.float64) for _ in range(200)]
    made = [spn.around_median(values) for values in drawn]
    assert_close(torch.stack([one.mean() for one in made]), torch.stack([values.median() for values in drawn]))
    errors = torch.stack([one.std() / math.sqrt(101) for one in made])
    assert errors.mean() == pytest.approx(math.sqrt(math.pi / 202), rel=0.1)
    heavy = torch.tensor([1.0, 3.0, 2.0, math.inf, 9.0])
    assert spn.around_median(heavy).mean() == pytest.approx(3.0)
    assert spn.around_median(heavy).isfinite().all()
    assert spn.around_median(torch.full((3,), math.inf)).tolist() == [math.inf] * 3
    assert_close(spn.around_median(7 * drawn[0]), 7 * made[0])
