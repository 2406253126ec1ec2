"""SME's programs: their numbers are those of the analysis and of the attacks run by hand; they go on where they stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.surrogate import sme
from leakscope.clients import Client, attacker_knowledge
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.types import LocalTraining
from leakscope.data import Dataset, using, write_leaf
from leakscope.data.sources import FEMNIST_STATISTICS
from leakscope.metrics import score
from leakscope.models import Torch, build, draw_parameters
from leakscope_papers.items import read_item
from leakscope_papers.measure_names import title_of
from leakscope_papers.planned import settings_hash
from leakscope_papers.programs import find_program
from leakscope_papers.programs.pictures import read_pictures
from leakscope_papers.programs.rows import KeptRows, keeping
from leakscope_papers.programs.settings import read_settings
from leakscope_papers.results import result_of
from leakscope_papers.scales import run_directory, settings_at
from leakscope_papers.sme.analyses import (
    COSINES,
    PLACES,
    SHARES,
    curves_of,
    reversed_u,
    statistics,
    steps_of,
)
from leakscope_papers.sme.networks import clients_of, in_ink, train_rounds
from leakscope_papers.sme.settings import Networks
from leakscope_papers.theory.line import Lines, describe, sample_lines


def smoke(name: str, **change: Any) -> dict[str, Any]:
    item = read_item(name)
    return settings_at(item, item.parts[0], "smoke") | change


def play(name: str, settings: dict[str, Any], directory: Path) -> KeptRows:
    """Return the rows of an item's program, run in a directory."""
    with keeping(directory, settings, {}) as keep:
        find_program(read_item(name).parts[0].program)(settings, keep, lambda _: None, "cpu")
    return keep


def test_lines_are_those_of_the_analysis(tmp_path: Path) -> None:
    settings = smoke("sme-table-4", inks=["light"])
    rows = play("sme-table-4", settings, tmp_path).rows
    model = build("mlp", (1, 8, 8), 10, {"hidden": (16,)})
    ink, keys = in_ink("digits", "light"), random.key([0, 1])
    batch = clients_of(ink, 6, 2)
    for one in settings["columns"]:
        local = LocalTraining(epochs=one["epochs"], batch_size=one["batch"], rate=0.1)
        weights = draw_parameters(model, Torch(), keys)
        found = sample_lines(model, local, weights, ink.scaling.scale(batch.inputs, 3), batch.labels, keys, points=5)
        row = rows[f"light E={one['epochs']} B={one['batch']} R=1"]
        assert row.where["local_steps"] == steps_of(6, one["epochs"], one["batch"])
        for name, spread in describe(found).items():
            if name in row.values:
                values = [value for value in row.values[name] if value is not None]
                assert sum(values) / len(values) == pytest.approx(spread.mean, abs=1e-6)
        assert row.values["objective_error"] == pytest.approx((1 - found.at_before).tolist(), abs=1e-6)
        assert row.values["cosine_greatest_deviation"] == pytest.approx(
            (describe(found)["cosine_greatest"].deviation,), abs=1e-6
        )
        cosine, share = row.curves[COSINES], row.curves[SHARES]
        assert cosine.x == pytest.approx([0, 0.25, 0.5, 0.75, 1])
        torch.testing.assert_close(torch.tensor(cosine.y), found.cosines.float(), atol=1e-5, rtol=0)
        assert share.x == tuple(range(1, row.where["local_steps"] + 1))
        torch.testing.assert_close(torch.tensor(share.y), found.shares.float(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["sme-table-1", "sme-table-4", "sme-table-5"])
def test_the_objective_error_of_ig_is_on_the_page_of_the_lines(name: str) -> None:
    measures = read_item(name).measures
    assert measures[-1] == "objective_error"
    assert set(measures) <= set(statistics(Lines(torch.linspace(0, 1, 3), torch.rand(2, 4), torch.rand(2, 3))))
    assert title_of("objective_error").endswith("cosine at w0")


@given(st.integers(1, 700))
def test_shares_are_kept_at_some_of_many_steps_the_first_and_the_last_among_them(steps: int) -> None:
    shares = torch.arange(1.0, steps + 1).expand(2, steps) / steps
    kept = curves_of(Lines(torch.linspace(0, 1, 3), shares, torch.zeros(2, 3)))[SHARES]
    assert kept["x"] == sorted(set(kept["x"]))
    assert (kept["x"][0], kept["x"][-1]) == (1, steps)
    assert len(kept["x"]) == min(steps, PLACES)
    assert kept["y"] == [pytest.approx([x / steps for x in kept["x"]])] * 2


def test_dark_ink_is_the_picture_turned_over_and_scaled_as_femnist() -> None:
    dark, light = in_ink("digits", "dark"), in_ink("digits", "light")
    assert dark.scaling == FEMNIST_STATISTICS
    torch.testing.assert_close(dark.data.pictures("train", range(3)), 1 - light.data.pictures("train", range(3)))
    with pytest.raises(InputError, match=r"ink .*got 'red'"):
        in_ink("digits", "red")
    with pytest.raises(InputError, match=r"8,100 .*1,437"):
        clients_of(light, 900, 9)


@given(st.lists(st.floats(0, 1), min_size=3, max_size=9), st.integers(1, 7))
def test_a_curve_that_rises_and_then_falls_is_a_reversed_u(values: list[float], at: int) -> None:
    ordered, top = sorted(values), min(at, len(values) - 2)
    curve = [*ordered[:top], 2.0, *ordered[top:][::-1]][: len(values) + 1]
    assert reversed_u(torch.tensor([curve])).item() == 1
    assert reversed_u(torch.tensor([[3.0, *curve]])).item() == 0  # the top is at the end
    assert reversed_u(torch.tensor([[*curve, 1.9]])).item() == float(curve[-1] >= 1.8)  # a second rise


def test_a_network_after_some_rounds_is_the_same_whichever_rounds_are_kept() -> None:
    settings = read_settings(Networks, smoke("sme-table-5"))
    ink = in_ink("digits", "light")
    one, both = (train_rounds(settings, ink, rounds, lambda _: None, "cpu") for rounds in ((2,), (1, 2)))
    assert set(both) == {1, 2}
    assert one[2].correct == both[2].correct
    assert all(torch.equal(value, both[2].weights[name]) for name, value in one[2].weights.items())
    assert any(not torch.equal(value, both[1].weights[name]) for name, value in one[2].weights.items())


def test_quality_is_that_of_the_attack_run_by_hand(tmp_path: Path) -> None:
    settings = smoke("sme-table-6", rounds=[1], attacks=[{"name": "sme", "iterations": 2, "form": "native"}])
    (row,) = play("sme-table-6", settings, tmp_path).rows.values()
    ink = in_ink("digits", "light")
    batch, model = clients_of(ink, 2, 2), build("mlp", (1, 8, 8), 10, {"hidden": (16,)})
    client = Client(LocalTraining(epochs=2, batch_size=2, rate=0.1), scaling=ink.scaling)
    seen = client.observe(model, draw_parameters(model, Torch(), random.key([0, 1])), batch, [0, 1])
    knowledge = attacker_knowledge(model, client, batch, labels=True, local=False)
    made = sme(iterations=2).run(model, seen, knowledge, [0, 1], Execution(form="native"))
    scores = score(batch.inputs, batch.labels, made.inputs, made.labels)
    assert row.values["psnr"] == pytest.approx(scores.psnr.mean(1).tolist(), abs=1e-4)
    assert row.values["similarity_loss"] == pytest.approx(made.mismatch.tolist(), abs=1e-6)
    assert row.values["final_alpha"] == pytest.approx(made.learned["alpha"].tolist(), abs=1e-6)
    assert row.values["final_alpha_deviation"] == pytest.approx([float(made.learned["alpha"].std())], abs=1e-6)
    assert row.values["alpha_inside"] == (1.0, 1.0)
    assert row.values["psnr_error"] == pytest.approx([float(scores.psnr.mean(1).std()) / 2**0.5], abs=1e-4)
    shown = read_pictures(tmp_path, row.key)
    assert shown is not None
    assert shown.psnr.tolist() == pytest.approx(scores.psnr[0].tolist(), abs=1e-4)
    guess = made.inputs[0][scores.pairing[0]].clamp(0, 1)
    for kept, known in ((shown.truth, batch.inputs[0]), (shown.guess, guess)):
        assert (kept / 255 - known).abs().amax() <= 0.51 / 255


@pytest.mark.slow
def test_trained_networks_go_on_with_the_same_numbers(tmp_path: Path) -> None:
    settings = smoke("sme-table-6")
    short = [attack for attack in settings["attacks"] if attack["name"] != "dlfa"]
    whole = play("sme-table-6", settings | {"attacks": short}, tmp_path / "whole")
    kept = dict(list(whole.rows.items())[:3])
    with keeping(tmp_path / "cut", settings | {"attacks": short}, {}) as keep:
        for key, row in kept.items():
            keep.done(key)
            keep.add(
                key, row.where, {name: [v for v in numbers if v is not None] for name, numbers in row.values.items()}
            )
    again = play("sme-table-6", settings | {"attacks": short}, tmp_path / "cut")
    assert again.added == len(whole.rows) - 3
    assert again.rows == whole.rows


def test_costs_have_a_ratio_and_the_paper_s_misprint(tmp_path: Path) -> None:
    settings = smoke("sme-table-3")
    settings["networks"][0]["printed_steps"] = {"2": 9}
    rows = play("sme-table-3", settings, tmp_path).rows
    assert {(row.where["epochs"], row.where["local_steps"], row.where["printed_steps"]) for row in rows.values()} == {
        (1, 2, 2),
        (2, 4, 9),
    }
    sme_memory, ig, dlfa = (rows[f"mlp E=2 {name}"].values for name in ("sme", "ig_update", "dlfa"))
    assert sme_memory["memory"][0] == rows["mlp E=1 sme"].values["memory"][0]  # whatever the local steps are
    assert dlfa["memory"][0] > rows["mlp E=1 dlfa"].values["memory"][0]  # type: ignore[operator]
    assert dlfa["memory_ratio"][0] == pytest.approx(dlfa["memory"][0] / sme_memory["memory"][0])  # type: ignore[operator]
    assert "time_ratio" not in ig
    assert len(dlfa["time_ratio"]) == settings["repeats"]


def test_costs_are_of_the_settings_that_the_authors_use_for_the_data(tmp_path: Path) -> None:
    item = read_item("sme-table-3")
    (cifar,) = [network for network in item.parts[0].scenario["networks"] if network["data"] == "cifar100"]
    (quality,) = [part for part in read_item("sme-table-2").parts if part.name == "cifar100-10-dlfa"]
    assert [{"name": "dlfa", **cifar["settings"]["dlfa"]}] == quality.scenario["attacks"]
    settings = smoke("sme-table-3", columns=[{"epochs": 2}], repeats=1)
    plain = play("sme-table-3", settings, tmp_path / "plain").rows
    settings["networks"][0] |= {"settings": {"dlfa": {"statistic": "features"}}}
    own = play("sme-table-3", settings, tmp_path / "own").rows
    assert own["mlp E=2 dlfa"].values["memory"][0] > plain["mlp E=2 dlfa"].values["memory"][0]  # type: ignore[operator]
    assert own["mlp E=2 sme"].values["memory"] == plain["mlp E=2 sme"].values["memory"]


def test_rows_of_table_6_are_cells_beside_the_printed_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    item = read_item("sme-table-6")
    settings = smoke("sme-table-6", rounds=[2])
    present = {settings_hash(settings): settings}
    monkeypatch.setattr("leakscope_papers.results.present_hashes", lambda *_: present)
    directory = run_directory(tmp_path, item, item.parts[0], "smoke")
    play("sme-table-6", settings, directory)
    result = result_of(item, "smoke", tmp_path)
    assert result is not None
    places = {(cell.where["attack"], cell.where["round"], cell.where.get("samples")) for cell in result.cells}
    assert places == {("sme", 2, 2), ("ig", 2, 2), ("dlfa", 2, 2), ("none", 2, None)}
    values = {cell.where["attack"]: cell.values for cell in result.cells}
    assert {"similarity_loss", "similarity_loss_error"} <= set(values["dlfa"])
    assert 0 < values["dlfa"]["similarity_loss"].estimate.value < 2
    psnr = {attack: values[attack]["psnr"].estimate.value for attack in ("sme", "ig", "dlfa")}
    gain = values["sme"]["psnr_above_baselines"]
    assert gain.estimate.value == pytest.approx(psnr["sme"] - max(psnr["ig"], psnr["dlfa"]))
    assert gain.over == ("over ig" if psnr["ig"] >= psnr["dlfa"] else "over dlfa")


def test_clients_of_a_users_femnist_are_writers_in_its_own_ink(tmp_path: Path) -> None:
    x = np.full((6, 1, 28, 28), 200, np.uint8)
    x[:, 0, 0, 0] = np.arange(6)
    groups, y = np.array([0, 0, 0, 1, 1, 1]), np.arange(6)
    names = tuple(map(str, range(62)))
    toy = Dataset(
        name="toy", kind="image", x_train=x, y_train=y, x_test=x, y_test=y, class_names=names, groups_train=groups,
        groups_test=groups,
    )  # fmt: skip
    write_leaf(toy, tmp_path)
    with using({"femnist": tmp_path}):
        ink = in_ink("femnist", "dark")
        batch = clients_of(ink, 2, 2)
    assert ink.scaling == FEMNIST_STATISTICS
    assert float(batch.inputs.max()) == pytest.approx(200 / 255)  # not turned over
    assert sorted(batch.labels.tolist()) == [[0, 1], [3, 4]]
