"""`leakscope ppc` as people meet it: a run, a training, a page; and what it says of mistakes."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from leakscope.cli import app
from leakscope.cli.progress import TrainingProgress
from leakscope.core.errors import InputError
from leakscope.training import Point

RUN = """\
name: noise
data: digits
model: {name: mlp, hidden: [8]}
weights: {name: uniform, a: 0.3}
defences: [{name: gaussian_noise, sigma: 0}]
attack: {name: cpl, iterations: 1}
knowledge: {defence: false}
trials: 4
baselines: []
precision: {form: native}
grid: {defences.0.sigma: [0.01, 1.0]}
"""
TRAINING = """\
name: small
data: {name: digits, examples: 150}
partition: {name: iid, clients: 4}
model: {name: mlp, hidden: [8]}
selection: {name: share, share: 1.0}
server: {name: fedsgd, rate: 0.5}
rounds: 3
"""


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("ppc")
    (directory / "noise.yaml").write_text(RUN)
    words = ["run", str(directory / "noise.yaml"), "--out", str(directory / "noise"), "--engine", "serial", "-q"]
    assert CliRunner().invoke(app, words).exit_code == 0
    return directory / "noise"


def ask(*words: object) -> object:
    return CliRunner().invoke(app, ["ppc", *map(str, words)], catch_exceptions=False)


@pytest.mark.slow
def test_it_trains_every_strength_once_and_writes_page_and_data(noise: Path, tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(TRAINING)
    words = [noise, "--training", tmp_path / "t.yaml", "--participants", "2", "--out", tmp_path / "out"]
    first = ask(*words)
    assert first.exit_code == 0, first.output
    assert first.stderr.count("3 rounds") == 2
    assert "gaussian_noise" in first.stdout
    assert f"page: {tmp_path / 'out' / 'index.html'}" in first.stdout
    trained = sorted((tmp_path / "out" / "trainings").iterdir())
    assert len(trained) == 2
    data = json.loads((tmp_path / "out" / "characteristics.json").read_text())
    curves = {curve["distance"]: curve for curve in data["curves"]}
    assert set(curves) == {"rMSE", "membership", "tracing"}
    assert [point["parameter"] for point in curves["rMSE"]["points"]] == [0.01, 1.0]
    page = (tmp_path / "out" / "index.html").read_text()
    assert "CAP of reconstruction" in page
    assert 'id="examples"' in page
    assert data["command"] in page.replace("&#39;", "'")

    (tmp_path / "own.yaml").write_text(TRAINING + "defences: [{name: gaussian_noise, sigma: 1.0}]\n")
    alone = CliRunner().invoke(app, ["train", str(tmp_path / "own.yaml"), "--out", str(tmp_path / "own")])
    assert f"accuracy {curves['rMSE']['points'][1]['accuracy']:.1%}" in alone.stdout
    assert curves["rMSE"]["points"][1]["tests"] == 360

    before = [(path / "state.safetensors").stat().st_mtime_ns for path in trained]
    again = ask(*words, "-q")
    assert again.output == ""
    assert [(path / "state.safetensors").stat().st_mtime_ns for path in trained] == before
    assert json.loads((tmp_path / "out" / "characteristics.json").read_text()) == data


def test_accuracies_from_a_file_need_no_training(noise: Path, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("strength,accuracy,tests\n0.01,0.8,500\n1,0.4,500\n")
    done = ask(noise, noise, "--accuracies", tmp_path / "a.csv", "--accuracies", tmp_path / "a.csv", "--out", tmp_path)
    assert done.exit_code == 0, done.output
    assert re.search(r"tracing .*0\.01, 1, .* 10 ", done.stderr)
    data = json.loads((tmp_path / "characteristics.json").read_text())
    assert [point["accuracy"] for point in data["curves"][0]["points"]] == [0.8, 0.4]
    assert not (tmp_path / "trainings").exists()


def test_by_default_it_goes_into_the_run(noise: Path, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("strength,accuracy\n0.01,0.8\n1,0.4\n")
    assert ask(noise, "--accuracies", tmp_path / "a.csv", "-q").output == ""
    assert (noise / "ppc" / "index.html").is_file()


def test_mistakes_are_said_before_anything_is_trained(noise: Path, tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(TRAINING)
    csv = tmp_path / "a.csv"
    csv.write_text("strength,accuracy\n0.01,0.8\n")
    out = tmp_path / "out"
    for words, said in (
        ([noise], "accuracies: --training"),
        ([noise, "--training", file, "--accuracies", csv], "accuracies: --training"),
        ([noise, noise, "--accuracies", csv], "2 runs, got 1"),
        ([noise, "--accuracies", csv], "accuracy .*strength 1"),
        (
            [noise, "--training", file, *(["--along", "defences.0.sigma"] * 2)],
            "1 run, got 2",
        ),
        ([noise, "--training", file, "--participants", "1"], "--participants .*got 1"),
        ([noise, "--training", file, "--along", "defences.0.share"], "--along 'defences.0.share'"),
        ([noise, "--training", tmp_path / "none.yaml"], "cannot read"),
        ([tmp_path, "--training", file], "not a run"),
        ([noise, "--training", file, "--device", "tpu"], "device"),
    ):
        with pytest.raises(InputError, match=said):
            ask(*words, "--out", out)
    file.write_text(TRAINING.replace("name: mlp, hidden: [8]", "name: lenet_dlg, width: 2"))
    with pytest.raises(InputError, match="lenet_dlg"):
        ask(noise, "--training", file, "--out", out)
    assert not out.exists()


def test_a_strength_that_means_two_things_is_pointed_out(noise: Path, tmp_path: Path) -> None:
    local = TRAINING.replace("server: {name: fedsgd, rate: 0.5}", "client: {local: {rate: 0.1}}")
    (tmp_path / "t.yaml").write_text(local)
    done = ask(noise, "--training", tmp_path / "t.yaml", "--out", tmp_path / "out")
    (note,) = json.loads((tmp_path / "out" / "characteristics.json").read_text())["notes"][-1:]
    assert ["gradients" in note, "weights" in note] == [True, True]
    assert note in done.stderr


def test_a_training_that_blows_up_counts_as_guessing_and_says_so(noise: Path, tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(TRAINING.replace("rate: 0.5", "rate: 1.0e+30").replace("rounds: 3", "rounds: 9"))
    done = ask(noise, "--training", tmp_path / "t.yaml", "--out", tmp_path / "out", "-q")
    assert done.output == ""
    data = json.loads((tmp_path / "out" / "characteristics.json").read_text())
    assert {point["accuracy"] for point in data["curves"][0]["points"]} == {0.1}
    assert any("guessing" in note for note in data["notes"])


@pytest.mark.slow
@pytest.mark.parametrize("keep", [False, True])
def test_a_cut_training_of_private_heads_goes_on_only_where_they_were_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: bool
) -> None:
    heads = RUN.replace("defences: [{name: gaussian_noise, sigma: 0}]", "client: {on_model: {bits: 8}}")
    (tmp_path / "spn.yaml").write_text(heads.replace("defences.0.sigma", "client.on_model.alpha2"))
    words = ["run", str(tmp_path / "spn.yaml"), "--out", str(tmp_path / "spn"), "--engine", "serial", "-q"]
    assert CliRunner().invoke(app, words).exit_code == 0
    local = TRAINING.replace("server: {name: fedsgd, rate: 0.5}", "client: {local: {rate: 0.1}}")
    (tmp_path / "t.yaml").write_text(local)
    asked = [tmp_path / "spn", "--training", tmp_path / "t.yaml", *(["--keep-private"] if keep else [])]

    def cut(self: object, point: Point) -> None:
        del self
        if point.round == 1:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as during:
        during.setattr(TrainingProgress, "round_ended", cut)
        stopped = ask(*asked)
    assert stopped.exit_code == 130
    assert (": leakscope ppc" in stopped.stderr) == keep
    assert ("were not kept" in stopped.stderr) != keep
    assert bool(list((tmp_path / "spn" / "ppc").rglob("private/*"))) == keep
    if keep:
        assert ask(*asked).exit_code == 0
