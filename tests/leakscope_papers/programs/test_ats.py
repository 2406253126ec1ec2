"""ATS's programs: sets of policies, ranks, shares and correlations against slow versions, rows that resume, one attack for real."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from leakscope.core.errors import InputError
from leakscope.data import load, resize
from leakscope.defences.on_data import OPERATIONS, Transform, parse_policies
from leakscope.models import build
from leakscope.search.utility import Recipe, Schedule
from leakscope_papers.ats import attacks as ats
from leakscope_papers.ats import networks as ats_networks
from leakscope_papers.ats import scores as ats_scores
from leakscope_papers.ats.settings import Attacked, Scoring, Training
from leakscope_papers.claims import FAILS, HOLDS, UNDECIDED, examine
from leakscope_papers.comparing import Column, Measured
from leakscope_papers.items import item_files, read_item
from leakscope_papers.measures import value_of
from leakscope_papers.programs.rows import KeptRows, PlannedRows, keeping
from leakscope_papers.programs.settings import SizedData, read_settings
from leakscope_papers.published import printed_files
from leakscope_papers.scales import settings_at

TINY: dict[str, Any] = {
    "data": {"name": "digits"},
    "model": {"name": "lenet_dlg"},
    "policies": ["none", "3-1-7"],
    "attacks": ["ig", "ig_shift"],
    "bounds": {"3-1-7": [1.1, 0.2]},
    "form": "native",
    "iterations": 2,
    "images": 3,
    "at_once": 2,
    "epochs": 1,
    "share": 0.02,
    "seed": 0,
}


SCORED = {**TINY, "scoring": {"epochs": 1, "examples": 60}, "batches": 1, "batch_size": 2}


def test_a_size_resizes_what_is_trained_on_and_attacked_and_is_part_of_the_networks_name(tmp_path: Path) -> None:
    plain, larger = SizedData(name="digits"), SizedData(name="digits", size=12)
    data = ats_networks.data_of(larger)
    assert data.input_shape == (1, 12, 12)
    assert data.x_train.dtype == np.uint8
    ours, theirs = data.pictures("test", range(5)), resize(load("digits").pictures("test", range(5)), 12)
    assert (ours - theirs.clamp(0, 1)).abs().max() <= 0.5001 / 255
    recipe = Recipe("lenet_dlg", (), Transform(), Schedule(1), 0, 0.02)
    assert len({ats_networks.directory_of(recipe, each, tmp_path) for each in (plain, larger)}) == 2


def training(**changes: Any) -> Training:
    return read_settings(Training, {**TINY, **changes})


def say(line: str) -> None:
    assert line


def kept(directory: Path, settings: Mapping[str, Any], program: Any) -> KeptRows:
    with keeping(directory, settings, {}) as rows:
        program(settings, rows, say, "cpu")
        return rows


def scores_of(policies: Sequence[str]) -> list[float]:
    """Return made-up scores: those of the published order, every other operation worse."""
    order = [str(index) for index in ats_scores.TOP_TEN]
    return [
        float(np.mean([0.25 + 0.01 * order.index(i) if i in order else 0.4 + int(i) / 1000 for i in policy.split("-")]))
        if policy != "none"
        else 0.32
        for policy in policies
    ]


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Score without networks."""
    monkeypatch.setattr(ats_scores, "scoring_network", lambda *_: SimpleNamespace(model=None))
    monkeypatch.setattr(
        ats_scores, "score_privacy", lambda s, m, policies, d, n: [[v - 0.01, v + 0.01] for v in scores_of(policies)]
    )
    monkeypatch.setattr(ats_scores, "score_accuracy", lambda s, policies, d: [-100 * v for v in scores_of(policies)])


def test_ranks_follow_the_scores_and_the_published_order_agrees_with_itself(tmp_path: Path, pretend: None) -> None:
    rows = kept(tmp_path, {**SCORED, "operations": list(range(50)), "images": 2}, ats_scores.operations)
    assert len(rows.rows) == 51
    for place, index in enumerate(ats_scores.TOP_TEN):
        assert rows.values(str(index))["privacy_rank"] == (place + 1,)
    assert rows.values("all")["rank_correlation"] == (pytest.approx(1.0),)
    equalize = {index for index, op in enumerate(OPERATIONS) if op.words.startswith("equalize")}
    assert {i for i in equalize if rows.rows[str(i)].where["operation"] != "equalize"} == set()


def test_operations_that_are_equal_share_the_least_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ats_scores, "scoring_network", lambda *_: SimpleNamespace(model=None))
    monkeypatch.setattr(
        ats_scores, "score_privacy", lambda s, m, policies, d, n: [[0.2 if p == "3" else 0.4] for p in policies]
    )
    rows = kept(tmp_path, {**SCORED, "operations": [3, 9, 16], "images": 1}, ats_scores.operations)
    assert [rows.values(name)["privacy_rank"] for name in ("3", "9", "16")] == [(1.0,), (2.0,), (2.0,)]


def test_random_policies_are_compared_with_none_and_with_each_other(tmp_path: Path, pretend: None) -> None:
    settings = {**SCORED, "policies": 30, "images": 2, "seed": 4}
    rows = kept(tmp_path, settings, ats_scores.random_policies)
    privacy = {name: rows.values(name)["privacy_score"] for name in rows.rows}
    assert {name: len(own) for name, own in privacy.items()} == {
        "none": 1,
        "random": 30,
        "two_of_top_ten": 30,
        "three_of_top_five": 30,
    }
    worse = [p > privacy["none"][0] and -100 * p < -100 * privacy["none"][0] for p in privacy["random"]]
    assert list(rows.values("random")["worse_on_both"]) == [float(w) for w in worse]
    slow = [np.mean([other > own for other in privacy["random"]]) for own in privacy["three_of_top_five"]]
    assert rows.values("three_of_top_five")["share_beaten"] == pytest.approx(slow)
    again = kept(tmp_path, settings, ats_scores.random_policies)
    assert again.added == 0


def test_sets_of_policies_are_what_they_are_named_after() -> None:
    ten, five = set(ats_scores.TOP_TEN), set(ats_scores.TOP_TEN[:5])
    for text in ats_scores.policies_of("two_of_top_ten", 25, 0):
        assert sum(index in ten for index in parse_policies(text)[0].indices) >= 2
    three = ats_scores.policies_of("three_of_top_five", 1000, 0)
    assert len(set(three)) == 60
    assert all(set(parse_policies(text)[0].indices) <= five for text in three)


def test_the_correlation_and_its_interval_are_those_of_numpy_and_fisher() -> None:
    rng = np.random.default_rng(0)
    score, seen, private = rng.normal(size=(3, 12))
    rows = [
        {"privacy_score": [a - 1, a + 1], "psnr": [b], "psnr_private": [c, None]}
        for a, b, c in zip(score, seen, private, strict=True)
    ]
    made = ats.correlate(rows)
    r = np.corrcoef(score, seen)[0, 1]
    assert made["correlation"] == [pytest.approx(r)]
    assert made["correlation_private"] == [pytest.approx(np.corrcoef(score, private)[0, 1])]
    low, high = made["correlation_low"][0], made["correlation_high"][0]
    assert (np.arctanh(low) + np.arctanh(high)) / 2 == pytest.approx(np.arctanh(r))
    assert np.arctanh(high) - np.arctanh(low) == pytest.approx(2 * 1.96 / 3)


def test_black_level_is_the_brightness_of_black_areas() -> None:
    target, guess = torch.rand(3, 8, 8).clamp_min(0.1), torch.full((3, 8, 8), 0.3)
    assert math.isnan(ats.black_level(target, guess))
    target[:, :, :4] = 0
    guess[:, :, :4] = 0.7
    assert ats.black_level(target, guess) == pytest.approx(0.7)


@pytest.mark.slow
def test_policies_are_attacked_at_networks_trained_with_them_and_rows_resume(tmp_path: Path) -> None:
    planned = PlannedRows()
    ats.attacks(TINY, planned, say, "cpu")
    rows = kept(tmp_path, TINY, ats.attacks)
    assert list(rows.rows) == list(planned.places)
    assert {key: row.where for key, row in rows.rows.items()} == planned.places
    assert len(rows.rows) == 5
    for key in ("none ig", "3-1-7 ig", "3-1-7 ig_shift"):
        values = rows.values(key)
        assert len(values["psnr"]) == len(values["psnr_private"]) == 3
        assert values["psnr_deviation"] == (pytest.approx(float(np.std(values["psnr"], ddof=1))),)
    assert rows.values("none ig")["psnr"] == rows.values("none ig")["psnr_private"]
    assert rows.values("3-1-7 ig")["psnr"] != rows.values("3-1-7 ig")["psnr_private"]
    default, enhanced = rows.values("3-1-7 ig"), rows.values("3-1-7 ig_shift")
    for name in ("psnr", "psnr_private"):
        assert f"{name}_gain" not in default
        assert enhanced[f"{name}_gain"] == tuple(b - a for a, b in zip(default[name], enhanced[name], strict=True))
    right = rows.values("none accuracy")["accuracy"]
    assert len(right) == load("digits").size("test")
    assert set(right) == {0.0, 1.0}
    ats_networks._trained.cache_clear()
    assert kept(tmp_path, TINY, ats.attacks).added == 0


def test_accuracy_is_that_of_the_training_with_one_number_for_each_test_picture(tmp_path: Path) -> None:
    with keeping(tmp_path, TINY, {}) as rows:
        trained = ats_networks.network_of(training(), "3-1-7", rows, say, "cpu")
    right = ats_networks.named_rightly(SizedData(name="digits"), trained.model, "cpu")
    assert np.mean(right) == pytest.approx(trained.history[-1].test_accuracy)
    assert value_of("accuracy", right).estimate.n == load("digits").size("test")


def test_a_trained_network_is_kept_beside_the_rows_and_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with keeping(tmp_path, TINY, {}) as rows:
        first = ats_networks.network_of(training(), "none", rows, say, "cpu")
        ats_networks._trained.cache_clear()
        monkeypatch.setattr(ats_networks, "train_network", lambda *_, **__: pytest.fail("trained again"))
        again = ats_networks.network_of(training(), "none", rows, say, "cpu")
        assert again.history == first.history
        for name, value in first.model.parameters.items():
            assert torch.equal(value, again.model.parameters[name])
        for other in (
            lambda: ats_networks.network_of(training(seed=1), "none", rows, say, "cpu"),
            lambda: ats_networks.network_of(training(share=0.03), "none", rows, say, "cpu"),
            lambda: ats_networks.network_of(training(), "3-1-7", rows, say, "cpu"),
            lambda: ats_networks.network_of(training(), "none", rows, say, "cpu", augment=False),
            lambda: ats_networks.scoring_network(read_settings(Scoring, SCORED), rows, say, "cpu"),
        ):
            with pytest.raises(pytest.fail.Exception, match="trained again"):
                other()
    assert [file.name for file in (tmp_path / "networks").glob("*/*.safetensors")] != []


def test_a_cut_training_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, real = training(epochs=2), ats_networks.train_network
    with keeping(tmp_path, TINY, {}) as rows:
        monkeypatch.setattr(ats_networks, "train_network", lambda *a, **k: real(*a, **k, epochs=1))
        assert len(ats_networks.network_of(settings, "none", rows, say, "cpu").history) == 1
        ats_networks._trained.cache_clear()
        monkeypatch.setattr(ats_networks, "train_network", real)
        whole = ats_networks.network_of(settings, "none", rows, say, "cpu")
    planned = PlannedRows()
    assert planned.directory is None
    alone = ats_networks.network_of(settings, "none", planned, say, "cpu")
    for name, value in alone.model.parameters.items():
        assert torch.equal(value, whole.model.parameters[name])


@pytest.mark.parametrize("size", [10_000, 50_000])
def test_the_rate_of_the_scoring_network_never_falls_and_it_sees_5000_images_of_any_copy(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    asked: list[Recipe] = []
    monkeypatch.setattr(ats_networks, "data_of", lambda _: SimpleNamespace(size=lambda _: size))
    monkeypatch.setattr(ats_networks, "_trained", lambda recipe, *_: asked.append(recipe))
    for name in ("ats-figure-2", "ats-figure-5", "ats-figure-6"):
        item = read_item(name)
        for scale in ("small", "full"):
            settings = read_settings(Scoring, settings_at(item, item.parts[0], scale))
            ats_networks.scoring_network(settings, PlannedRows(), say, "cpu")
    assert {recipe.schedule.rate_at(epoch) for recipe in asked for epoch in range(recipe.schedule.epochs)} == {0.1}
    assert {(recipe.schedule.epochs, size * recipe.share) for recipe in asked} == {(50, 5_000)}
    assert {(recipe.transform.crop, recipe.transform.flip) for recipe in asked} == {(4, True)}
    assert len({repr(recipe) for recipe in asked}) == 2, "one network at each width serves all three figures"


CORRELATED: dict[str, Any] = {
    **TINY,
    "networks": ["without augmentation", "with crop and flip"],
    "policies": 4,
    "images": 2,
    "at_once": 4,
    "scored": 1,
    "first": 0,
    "scoring": {"epochs": 1, "examples": 90},
}


@pytest.mark.slow
def test_policies_attacked_together_give_the_numbers_of_policies_attacked_alone(tmp_path: Path) -> None:
    together = kept(tmp_path / "together", CORRELATED, ats.correlation)
    single = {**CORRELATED, "at_once": 2, "networks": CORRELATED["networks"][:1]}
    alone = kept(tmp_path / "alone", single, ats.correlation)
    assert list(together.rows)[:5] == list(alone.rows)
    assert len(together.rows) == 10
    for key, row in alone.rows.items():
        assert row.where == together.rows[key].where
        for name, values in row.values.items():
            numbers = [np.array(each, dtype=float) for each in (together.values(key)[name], values)]
            assert np.allclose(*numbers, rtol=1e-4, equal_nan=True), (key, name)
    networks = list((tmp_path / "together" / ats_networks.NETWORKS).iterdir())
    assert len(networks) == 3, "one to take scores at, two to attack"
    for policy in (row.where["policy"] for row in together.rows.values() if row.where["policy"] != "all"):
        scores = [together.values(f"{network}: {policy}")["privacy_score"] for network in CORRELATED["networks"]]
        assert scores[0] == scores[1], "both are scored at the same network"


@pytest.mark.slow
def test_a_cut_correlation_goes_on_with_the_policies_that_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**CORRELATED, "networks": ["without augmentation"]}
    whole, real, groups = kept(tmp_path / "whole", settings, ats.correlation), ats.attack_pictures, []

    def cut(settings: Any, model: Any, policies: Sequence[str], name: str, device: str) -> Any:
        groups.append(list(policies))
        if len(groups) == 2:
            raise KeyboardInterrupt
        return real(settings, model, policies, name, device)

    monkeypatch.setattr(ats, "attack_pictures", cut)
    with pytest.raises(KeyboardInterrupt):
        kept(tmp_path / "cut", settings, ats.correlation)
    rows = kept(tmp_path / "cut", settings, ats.correlation)
    assert groups[1] == groups[2]
    assert rows.added == len(groups[2]) + 1
    assert set(rows.rows) == set(whole.rows)
    assert rows.values("without augmentation: all") == whole.values("without augmentation: all")


def test_an_attack_that_depends_on_the_policy_takes_one_alone() -> None:
    with pytest.raises(InputError, match=r"one policy .*got 2"):
        ats.attack_pictures(
            read_settings(Attacked, TINY), build("lenet_dlg", (1, 8, 8), 10), ["3", "9"], "ig_shift", "cpu"
        )


def found_for(low: float, high: float) -> str:
    """Return what becomes of figure 2's claim for an interval of the correlation."""
    values = {"correlation": (low + high) / 2, "correlation_low": low, "correlation_high": high}
    where = {"network": "without augmentation", "policy": "all"}
    cell = Measured(where, Column("", ""), 1, {name: value_of(name, [value]) for name, value in values.items()})
    return examine(read_item("ats-figure-2").claims[0], [cell], Column("", "")).word


def test_no_correlation_takes_an_interval_that_is_narrow_and_few_policies_prove_nothing() -> None:
    assert found_for(-0.2, 0.25) == HOLDS
    assert found_for(-0.36, 0.36) == found_for(-0.9, 0.1) == found_for(0.1, 0.5) == UNDECIDED
    assert found_for(0.31, 0.8) == found_for(-0.8, -0.31) == FAILS


def test_scores_of_one_picture_at_a_time_average_to_the_score(tmp_path: Path) -> None:
    model = build("lenet_dlg", (1, 8, 8), 10)
    settings = read_settings(Scoring, {**SCORED, "first": 0, "stride": 2})
    made = ats_networks.score_privacy(settings, model, ["none", "3-1-7", "9"], "cpu", 3)
    assert (len(made), {len(own) for own in made}) == (3, {3})
    alone = ats_networks.score_privacy(settings, model, ["9"], "cpu", 3)
    assert alone[0] == pytest.approx(made[2], rel=1e-5)


def test_an_unknown_attack_is_refused() -> None:
    with pytest.raises(InputError, match="ig_shift or ig_policy"):
        ats._attack("dlg", 2, (1, 1))


def test_every_published_table_and_figure_of_ats_is_an_experiment() -> None:
    printed = {name for name in printed_files() if name.startswith("ats-")}
    assert len(printed) == 14
    assert printed <= set(item_files())
