"""Characteristics of one's own runs: every number against one computed by hand from the store, and what is refused."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from leakscope.clients import Client
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.record import Record
from leakscope.core.types import LocalTraining, make_batch
from leakscope.data import load
from leakscope.defences import GaussianNoise
from leakscope.models import Uniform, build, draw_parameters
from leakscope.scenario import scenario_of
from leakscope.scenario.cell import CellSettings, read_settings
from leakscope.store import Run
from leakscope.training import training_of
from leakscope_papers.characteristics import (
    accuracies_from,
    folder_of,
    lines_of,
    measure_curves,
    name_lines,
    shares_alike,
    training_under,
)
from leakscope_papers.characteristics.characteristic import Region
from leakscope_papers.characteristics.lines import read_accuracies
from sweeper import sweep

SIGMA = "defences.0.sigma"
PLAIN: dict[str, Any] = {
    "data": "digits",
    "model": {"name": "mlp", "hidden": [16]},
    "weights": {"name": "uniform", "a": 0.3},
    "defences": [{"name": "gaussian_noise", "sigma": 0}],
    "attack": {"name": "cpl", "iterations": 2},
    "knowledge": {"defence": False},
    "trials": 6,
    "baselines": ["class_mean"],
    "precision": {"form": "native", "chunk": 6},
    "grid": {SIGMA: [0, 0.01, 1.0]},
}
TRAINING: dict[str, Any] = {
    "data": "digits",
    "partition": {"name": "iid", "clients": 4},
    "model": {"name": "mlp", "hidden": [16]},
    "server": {"name": "fedsgd", "rate": 0.5},
    "selection": {"name": "share", "share": 1.0},
    "rounds": 2,
}
ACCURACY = {0.0: 0.9, 0.01: 0.8, 1.0: 0.4}


def run_of(directory: Path, **changed: Any) -> Run:
    plain = {name: value for name, value in PLAIN.items() if name != "attack" or "attacks" not in changed}
    assert sweep(directory, scenario_of({**plain, **changed})).left == 0
    return Run.open(directory)


def known(settings: CellSettings, strength: float) -> tuple[float, int | None]:
    del settings
    return ACCURACY[strength], 500


def by_strength(run: Run) -> dict[float, list[Any]]:
    """Return the records of every strength with their tensors."""
    return {
        float(str(cell.axes[SIGMA])): [(record, run.tensors(record.trial)) for record in run.records(cell=cell.id)]
        for cell in run.cells()
        if not cell.baseline
    }


@pytest.mark.slow
def test_every_point_is_what_one_computes_by_hand(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run")
    found = measure_curves(lines_of(run), [known], participants=2)
    curves = {curve.distance: curve for curve in found.curves}
    assert list(curves) == ["rMSE", "membership", "tracing"]
    assert {tuple(curve.attack.split(", ")) for curve in found.curves} == {("cpl", "does not know")}
    assert {curve.defence for curve in found.curves} == {"gaussian_noise"}
    assert (curves["membership"].chance, curves["tracing"].chance) == (0.9, 0.5)

    data, model, seeds = load("digits"), build("mlp", (1, 8, 8), 10, {"hidden": (16,)}), list(range(6))
    labels = torch.as_tensor(data.labels("test", range(6)))
    batch = make_batch(data.pictures("test", range(6))[:, None], labels[:, None], classes=10)
    weights = draw_parameters(model, Uniform(0.3), random.key(seeds))
    clean = Client().observe(model, weights, batch, seeds).rounds[0].sent
    for place, (sigma, rows) in enumerate(list(by_strength(run).items())[1:]):
        sent = Client(defences=(GaussianNoise(sigma),)).observe(model, weights, batch, seeds).rounds[0].sent
        names = [name for name in clean if name.endswith("bias")]
        size = torch.cat([clean[name] for name in names], 1).norm(dim=1)
        apart = torch.cat([sent[name] - clean[name] for name in names], 1).norm(dim=1)
        rmse = [float((t["inputs"].clamp(0, 1) - t["truth"]).norm() / t["truth"].norm()) for _, t in rows]
        wrong = [record.samples[0].label != record.samples[0].guess for record, _ in rows]
        guesses = torch.stack([t["inputs"][0].clamp(0, 1) for _, t in rows]).flatten(1)
        nearest = torch.cdist(torch.stack([t["truth"][0] for _, t in rows]).flatten(1), guesses).argmin(1)
        traced = [int(owner) // 3 != query // 3 for query, owner in enumerate(nearest)]
        for name, expected in (("rMSE", rmse), ("membership", wrong), ("tracing", traced)):
            point = curves[name].points[place]
            assert point.parameter == sigma
            assert point.distance.value == pytest.approx(sum(expected) / 6, rel=1e-5), name
            assert point.ratio == pytest.approx(float((size / apart).median()), rel=1e-5)
            assert (point.accuracy, point.tests) == (ACCURACY[sigma], 500)
    products = [point.product for point in curves["rMSE"].points]
    assert curves["rMSE"].grid == (0.01, 1.0)
    assert curves["rMSE"].cap.value == pytest.approx(sum(products) / 2)


@pytest.mark.slow
def test_strength_0_is_said_and_in_no_cap(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run")
    [note] = measure_curves(lines_of(run), [known], participants=2).notes
    assert re.match("gaussian_noise, .*90.0%, rMSE", note)
    only = run_of(tmp_path / "only", grid={SIGMA: [0]})
    with pytest.raises(InputError, match="strength above 0"):
        measure_curves(lines_of(only), [known], participants=2)


def test_examples_lie_in_the_region_of_their_setting(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run")
    examples = measure_curves(lines_of(run), [known], participants=2).examples
    assert [(one.defence, one.region) for one in examples] == [
        ("gaussian_noise 0.01", Region.RED),
        ("gaussian_noise 1", Region.GREEN),
    ]
    for one in examples:
        [(_, tensors)] = [
            (record, tensors)
            for record, tensors in by_strength(run)[float(one.defence.split()[1])]
            if torch.equal(tensors["truth"][0], one.truth)
        ]
        assert torch.equal(tensors["inputs"][0], one.guess)
        shown = one.guess.clamp(0, 1)
        assert one.distance == pytest.approx(float((shown - one.truth).norm() / one.truth.norm()), rel=1e-5)


@pytest.mark.slow
def test_both_attackers_are_lines_of_one_defence(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", knowledge={}, trials=2)
    lines = lines_of(run)
    assert [(defence, *attacker.split(", ")) for defence, attacker in name_lines(lines)] == [
        ("gaussian_noise", "cpl", "does not know"),
        ("gaussian_noise", "cpl", "knows the defence"),
    ]
    assert [[strength for strength, _ in line.cells] for line in lines] == [[0, 0.01, 1.0]] * 2
    named = measure_curves(lines, [known] * 2, participants=2)
    assert len({(curve.attack, curve.distance) for curve in named.curves}) == len(named.curves) == 6


@pytest.mark.slow
def test_defences_of_one_name_are_told_apart_and_other_axes_are_said(tmp_path: Path) -> None:
    runs = [
        run_of(
            tmp_path / f"{share}",
            defences=[{"name": "chosen_noise", "sigma": 0.1, "share": share}],
            trials=1,
            grid={SIGMA: [0.1], "data.samples": [1, 2]},
        )
        for share in (0.05, 0.3)
    ]
    named = name_lines([line for run in runs for line in lines_of(run)])
    assert len(set(named)) == 4
    assert {defence for defence, _ in named} == {"chosen_noise share=0.05", "chosen_noise share=0.3"}
    (tmp_path / "a.csv").write_text("strength,accuracy\n0.1,0.5\n")
    both = [line for run in runs for line in lines_of(run)]
    with pytest.raises(InputError, match=r"chosen_noise share=0.05; .*share=0.3"):
        accuracies_from(tmp_path / "a.csv", both)
    assert {attacker.split(", ")[-1] for _, attacker in named} == {"data.samples 1", "data.samples 2"}


def test_private_heads_go_along_their_weight(tmp_path: Path) -> None:
    run = run_of(
        tmp_path / "run",
        defences=[],
        client={"on_model": {"bits": 8}},
        attacks=[{"name": name, "iterations": 1} for name in ("spn_unaware", "spn_aware")],
        trials=2,
        grid={"client.on_model.alpha2": [0.001, 5.0]},
    )
    lines = lines_of(run)
    assert [(defence, attacker.split(" ")[:2]) for defence, attacker in name_lines(lines)] == [
        ("spn", ["spn_unaware,", "does"]),
        ("spn", ["spn_aware,", "knows"]),
    ]
    made = measure_curves(lines, [lambda *_: (0.5, None)] * 2, participants=2)
    assert [point.region for point in made.curves[0].points] == [Region.RED, Region.GREEN]


def test_a_client_that_shares_weights_is_placed_by_their_change(tmp_path: Path) -> None:
    local = {"epochs": 2, "batch_size": 1, "rate": 0.1}
    run = run_of(tmp_path / "run", client={"local": local}, trials=2, grid={SIGMA: [0.001]})
    [curve] = [
        c
        for c in measure_curves(lines_of(run), [lambda *_: (0.5, None)], participants=2).curves
        if c.distance == "rMSE"
    ]
    data, model, seeds = load("digits"), build("mlp", (1, 8, 8), 10, {"hidden": (16,)}), [0, 1]
    labels = torch.as_tensor(data.labels("test", range(2)))
    batch = make_batch(data.pictures("test", range(2))[:, None], labels[:, None], classes=10)
    weights = draw_parameters(model, Uniform(0.3), random.key(seeds))
    how = LocalTraining(epochs=2, batch_size=1, rate=0.1)
    clean, sent = (
        Client(how, defences=kind).observe(model, weights, batch, seeds).rounds[0]
        for kind in ((), (GaussianNoise(0.001),))
    )
    names = [name for name in weights if name.endswith("bias")]
    size = torch.cat([clean.before[name] - clean.sent[name] for name in names], 1).norm(dim=1)
    apart = torch.cat([sent.sent[name] - clean.sent[name] for name in names], 1).norm(dim=1)
    assert curve.points[0].ratio == pytest.approx(float((size / apart).median()), rel=1e-4)


def test_what_cannot_be_measured_is_left_out_and_said(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", knowledge={"defence": False, "labels": True}, grid={SIGMA: [0.01]})
    made = measure_curves(lines_of(run), [known], participants=7)
    assert [curve.distance for curve in made.curves] == ["rMSE"]
    membership, tracing = (note.partition(": ")[2] for note in made.notes)
    assert re.match("no membership .*labels", membership)
    assert re.match("no tracing .*7 participants", tracing)


def test_the_strength_must_be_one_and_a_number(tmp_path: Path) -> None:
    two = run_of(
        tmp_path / "two",
        defences=[{"name": "clip", "bound": 1.0}, {"name": "gaussian_noise", "sigma": 0.1}],
        trials=1,
        grid={"defences.0.bound": [1.0, 2.0], "defences.1.sigma": [0.1, 0.2]},
    )
    with pytest.raises(InputError, match=r": defences.0.bound, defences.1.sigma"):
        lines_of(two)
    assert len(lines_of(two, "defences.1.sigma")) == 2
    none = run_of(tmp_path / "none", trials=1, grid={"attack.iterations": [1, 2], "defences.0.each": [True, False]})
    for along in ("attack.iterations", "defences.0.each", "defences.0.share"):
        with pytest.raises(InputError, match=f"--along '{along}' .*: none"):
            lines_of(none, along)
    zipped = run_of(tmp_path / "zip", trials=1, grid={}, zip={SIGMA: [0.1, 0.2], "attack.iterations": [1, 2]})
    with pytest.raises(InputError, match="a zip"):
        lines_of(zipped)


def test_a_training_gets_the_defence_of_the_cell(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", trials=1)
    training = training_of(TRAINING)
    cells = [read_settings(cell.settings) for _, cell in lines_of(run)[0].cells]
    under = [training_under(training, cell) for cell in cells]
    assert [one.plain["defences"][0]["sigma"] for one in under] == [0, 0.01, 1.0]
    assert all(one.rounds == 2 for one in under)
    assert len({folder_of(one) for one in under}) == 3
    longer = training_under(training_of({**TRAINING, "rounds": 5, "name": "longer"}), cells[0])
    faster = training_under(training_of({**TRAINING, "server": {"name": "fedsgd", "rate": 1.0}}), cells[0])
    assert folder_of(longer) == folder_of(under[0]) != folder_of(faster)
    assert shares_alike(training, cells[0])
    local = {**TRAINING, "server": "fedavg", "client": {"local": {"rate": 0.1}}}
    assert not shares_alike(training_of(local), cells[0])
    other = training_of({**TRAINING, "model": {"name": "lenet_dlg", "width": 2}})
    with pytest.raises(InputError, match=r"\(name lenet_dlg.*\(name mlp"):
        training_under(other, cells[0])
    for changed, said in (
        ({"model": {"name": "mlp", "hidden": [17]}}, r"hidden \[17\].*hidden \[16\]"),
        ({"data": {"name": "digits", "size": 6}}, "size 6.*size None"),
        ({"data": {"name": "digits", "scaling": "statistics"}}, "scaling statistics.*scaling none"),
        ({"data": "fashion_mnist"}, "fashion_mnist.*digits"),
        ({"defences": [{"name": "clip", "bound": 1.0}]}, "defence of its"),
    ):
        with pytest.raises(InputError, match=said):
            training_under(training_of({**TRAINING, **changed}), cells[0])


def test_a_training_gets_heads_and_policies_too(tmp_path: Path) -> None:
    for field, axis, values in (("on_model", "alpha2", [0.1, 0.5]), ("on_data", "crop", [1, 2])):
        run = run_of(
            tmp_path / field,
            defences=[],
            client={field: {"bits": 8} if field == "on_model" else {"policy": "3-1-7"}},
            attack={"name": "ig", "iterations": 1},
            trials=1,
            grid={f"client.{field}.{axis}": values},
        )
        local = {**TRAINING, "server": "fedavg", "client": {"local": {"rate": 0.1}}}
        [line] = lines_of(run)
        under = [training_under(training_of(local), read_settings(cell.settings)) for _, cell in line.cells]
        assert [getattr(getattr(one.client, field), axis) for one in under] == values
        assert all(folder_of(one).startswith(field) for one in under)


def test_the_ratio_is_of_the_first_round_and_counts_what_a_policy_changes(tmp_path: Path) -> None:
    def first(**changed: Any) -> float:
        run = run_of(tmp_path / str(len(list(tmp_path.iterdir()))), trials=3, **changed)
        return measure_curves(lines_of(run), [lambda *_: (0.5, None)], participants=2).curves[0].points[0].ratio

    noisy = {"grid": {SIGMA: [0.01]}}
    assert first(**noisy) == first(**noisy, client={"rounds": 3, "server_rate": 0.5})
    policy = {"defences": [], "client": {"on_data": {"policy": "3-1-7"}}, "grid": {"client.on_data.crop": [1]}}
    assert 0 < first(**policy) < math.inf


@pytest.mark.slow
def test_a_picture_attacked_with_several_seeds_is_one_query(tmp_path: Path) -> None:
    run = run_of(
        tmp_path / "run", trials=5, seeds=[0, 1], grid={SIGMA: [1e-6]}, attack={"name": "ig", "iterations": 150}
    )
    curves = {c.distance: c for c in measure_curves(lines_of(run), [lambda *_: (1.0, None)], participants=5).curves}
    assert curves["rMSE"].points[0].distance.n == 10
    assert curves["tracing"].points[0].distance.value == 0  # good pictures: every owner is found


def test_what_has_not_landed_is_said_and_one_trial_makes_no_interval(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", trials=1, grid={SIGMA: [0.01]})
    made = measure_curves(lines_of(run), [known], participants=2)
    [curve] = [c for c in made.curves if c.distance == "rMSE"]
    assert math.isnan(curve.points[0].distance.low)
    assert json.loads(json.dumps(curve.plain(), allow_nan=False))["points"][0]["distance"]["low"] is None

    class Fewer(Run):
        def records(self, *, cell: str | None = None, current: bool = True) -> Iterator[Record]:
            landed = list(Run.records(self, cell=cell, current=current))
            return iter(landed[:2] if "0.01" in str(dict(settings[cell])) else [])

    whole = run_of(tmp_path / "whole", grid={SIGMA: [0.01, 1.0]})
    settings = {cell.id: cell.settings for cell in whole.cells()}
    partly = measure_curves(lines_of(Fewer(whole.directory)), [known], participants=2)
    numbers = [re.findall(r"[\d.]+", note.partition(": ")[2]) for note in partly.notes]
    assert numbers == [["2", "6", "0.01"], ["0", "6", "1"]]  # landed, wanted, strength


@pytest.mark.slow
def test_other_data_have_another_chance_and_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    both = [
        run_of(
            tmp_path / name,
            data="breast_cancer",
            trials=2,
            grid={SIGMA: [0.01]},
            attack={"name": "cpl", "iterations": n},
        )
        for name, n in (("one", 1), ("two", 2))
    ]
    lines = [line for run in both for line in lines_of(run)]
    assert [attacker.split(", ")[-1] for _, attacker in name_lines(lines)] == ["one", "two"]
    chances = {c.distance: c.chance for c in measure_curves(lines, [known] * 2, participants=2).curves}
    assert chances == {"rMSE": None, "membership": 0.5, "tracing": 0.5}


def test_accuracies_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("\ufeffstrength, accuracy, tests\n0.01, 0.8, 500\n1,0.4,\n")  # as spreadsheets and people write it
    assert read_accuracies(path) == {0.01: (0.8, 500), 1.0: (0.4, None)}
    asked = accuracies_from(path, [])
    assert asked({}, 0.01 * (1 + 1e-12)) == (0.8, 500)
    with pytest.raises(InputError, match=r"strength 0.5; .*0.01, 1.0"):
        asked({}, 0.5)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sigma,accuracy\n1,0.5\n", "strength and accuracy"),
        ("", "strength and accuracy"),
        ("strength,accuracy\n1,much\n", "line 2"),
        ("strength,accuracy\n1,0.5\n2\n", "line 3"),
        ("strength,accuracy\n1,50\n", r"share .*\[0, 1\]"),
        ("strength,accuracy\n1,nan\n", r"share .*\[0, 1\]"),
        ("strength,accuracy,tests\n1,0.5,0\n", "one test"),
        ("strength,accuracy\n1,0.5\n1.0,0.6\n", "line 3: strength 1"),
    ],
)
def test_bad_accuracies_are_refused_by_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        read_accuracies(path)
    with pytest.raises(InputError, match="cannot read"):
        read_accuracies(tmp_path / "none.csv")


def test_intervals_are_over_trials_where_clients_hold_several_pictures(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", data={"name": "digits", "samples": 2}, trials=3, grid={SIGMA: [0.01]})
    made = measure_curves(lines_of(run), [known], participants=2)
    [rmse] = [curve for curve in made.curves if curve.distance == "rMSE"]
    assert (rmse.points[0].distance.n, rmse.points[0].distance.trials) == (6, 3)
    assert math.isfinite(rmse.cap.value)
