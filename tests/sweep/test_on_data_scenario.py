"""A scenario whose clients transform their pictures: said in a file, played, both truths kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from leakscope.cli import app
from leakscope.clients import Client
from leakscope.core.errors import InputError
from leakscope.core.types import make_batch
from leakscope.data import load
from leakscope.defences.on_data import Transform
from leakscope.metrics import arrange, match, psnr
from leakscope.search.policies import both_psnr
from leakscope.store import Run
from sweeper import small, sweep

IG = {"name": "ig", "iterations": 2}
SHIFT = {"name": "ig_shift", "iterations": 2}
KNOWN = {"name": "ig_policy", "iterations": 2}
HERE: dict[str, Any] = {"attacks": [IG, SHIFT, KNOWN], "baselines": [], "seeds": [0], "defences": [], "grid": {}}


def test_a_policy_is_an_axis_and_the_pictures_that_the_networks_saw_are_kept(tmp_path: Path) -> None:
    scenario = small(
        **{**HERE, "attacks": [IG, SHIFT]},
        client={"on_data": {"policy": "3-1-7", "crop": 1}},
    )
    sweep(tmp_path / "r", scenario)
    run = Run.open(tmp_path / "r")
    by_number: dict[int, torch.Tensor] = {}
    for record in run.records():
        kept = run.tensors(record.trial)
        assert kept["transformed"].shape == kept["truth"].shape == kept["seen"].shape
        assert not torch.equal(kept["transformed"], kept["truth"])
        known = by_number.setdefault(record.number, kept["transformed"])
        assert torch.equal(known, kept["transformed"]), "all attacks of a trial face the same draw"
    assert len(by_number) == 3


def test_an_axis_of_policies_has_a_cell_for_each(tmp_path: Path) -> None:
    scenario = small(
        **{**HERE, "attacks": [IG], "grid": {"client.on_data.policy": ["none", "3", "3-1-7+43-18-18"]}},
        client={"on_data": {}},
    )
    assert sweep(tmp_path / "r", scenario).landed == 9
    assert len({str(cell.axes) for cell in Run.open(tmp_path / "r").cells()}) == 3


def test_an_attacker_told_the_defence_looks_through_the_policy(tmp_path: Path) -> None:
    scenario = small(**HERE, client={"on_data": {"policy": "3-1"}}, knowledge={"defence": True})
    assert sweep(tmp_path / "r", scenario).left == 0


def test_nothing_more_is_kept_without_a_transformation(tmp_path: Path) -> None:
    sweep(tmp_path / "r", small(**{**HERE, "attacks": [IG]}))
    run = Run.open(tmp_path / "r")
    assert all("transformed" not in run.tensors(record.trial) for record in run.records())


@pytest.mark.parametrize(
    ("on_data", "words"),
    [
        ({"policy": "3-1-"}, "client.on_data.policy"),
        ({"policy": "3-77"}, "0..49"),
        ({"polizy": "3"}, "polizy"),
        ({"crop": -1}, "Transform.crop"),
    ],
)
def test_mistakes_name_the_field(on_data: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words.replace(".", r"\.")):
        small(**HERE, client={"on_data": on_data})


def test_both_psnrs_are_those_of_the_kept_pictures(tmp_path: Path) -> None:
    attacks = [{**IG, "label": "plain"}, {**SHIFT, "label": "enhanced"}]
    sweep(tmp_path / "r", small(**{**HERE, "attacks": attacks}, client={"on_data": {"policy": "21"}}))
    run, rows = Run.open(tmp_path / "r"), both_psnr(tmp_path / "r")
    assert [row.axes["attack"] for row in rows] == ["plain", "enhanced"]
    for cell, row in zip(run.cells(), rows, strict=True):
        for truth, guess, made in (("truth", "inputs", row.private), ("transformed", "seen", row.seen)):
            kept = [run.tensors(record.trial) for record in run.records(cell=cell.id)]
            slow = [-10 * torch.log10((k[truth] - k[guess].clamp(0, 1)).square().mean()) for k in kept]
            assert made.value == pytest.approx(float(torch.stack(slow).mean()), rel=1e-5)
            assert made.n == 3
    told = CliRunner().invoke(app, ["policy", "psnr", str(tmp_path / "r")], env={"COLUMNS": "160"})
    assert told.exit_code == 0
    assert "enhanced" in told.stdout
    sweep(tmp_path / "plain", small(**{**HERE, "attacks": [IG]}))
    with pytest.raises(InputError, match="client transformed"):
        both_psnr(tmp_path / "plain")


def test_the_pictures_of_a_batch_are_paired_with_what_they_are_compared_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep(tmp_path / "r", small(**{**HERE, "attacks": [IG]}, client={"on_data": {"policy": "3-1-7"}}))
    data, noise, trials = load("fashion_mnist"), torch.Generator().manual_seed(0), range(3)
    batch = make_batch(
        data.pictures("test", range(12)).unflatten(0, (3, 4)),
        data.labels("test", range(12)).reshape(3, 4),
        classes=10,
    )
    moved = Client(on_data=Transform("3-1-7")).transformed(batch, list(trials)).inputs
    guess = (moved + 0.05 * torch.randn(moved.shape, generator=noise)).clamp(0, 1)
    order = torch.stack([torch.randperm(4, generator=noise) for _ in trials])
    shown = arrange(guess, order)
    pairing = match(batch.inputs, shown, batch.mask)
    assert float(psnr(moved, arrange(shown, pairing)).mean()) < 25, "paired by x it is far from what was seen"
    kept = [
        {"truth": a, "transformed": b, "inputs": c, "seen": c, "pairing": d}
        for a, b, c, d in zip(batch.inputs, moved, shown, pairing, strict=True)
    ]
    numbers = {record.trial: number for number, record in enumerate(Run.open(tmp_path / "r").records())}
    monkeypatch.setattr(Run, "tensors", lambda _, trial: kept[numbers[trial]])
    (row,) = both_psnr(tmp_path / "r")
    assert row.seen.value == pytest.approx(float(psnr(moved, guess).mean()), rel=1e-6)
    assert row.private.value == pytest.approx(float(psnr(batch.inputs, arrange(shown, pairing)).mean()), rel=1e-6)
    assert row.seen.n == row.private.n == 12
