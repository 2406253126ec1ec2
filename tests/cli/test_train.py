"""`leakscope train` as people meet it: a process with a terminal's exit codes, killed and gone on with."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from leakscope.cli import app
from leakscope.cli.progress import TrainingProgress
from leakscope.core.errors import InputError
from leakscope.models.checkpoint import Checkpoint
from leakscope.training import Point

FILE = """\
name: small
data: {name: digits, examples: 150}
partition: {name: iid, clients: 8}
model: {name: mlp, hidden: [8]}
client: {local: {epochs: 1, batch_size: 5, rate: 0.3}}
selection: {name: share, share: 0.5}
rounds: 3
checkpoints: [2]
"""
HEADS = FILE.replace("rate: 0.3}}", "rate: 0.3}, on_model: {bits: 8}}")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def command(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "leakscope", *map(str, words)]


def run(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*words), cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False
    )


def test_it_trains_writes_a_page_and_goes_on(tmp_path: Path) -> None:
    runner = CliRunner()
    (tmp_path / "small.yaml").write_text(FILE)
    first = runner.invoke(app, ["train", str(tmp_path / "small.yaml"), "--out", str(tmp_path / "out")])
    assert first.exit_code == 0, first.output
    assert "3 rounds: accuracy" in first.stdout
    assert "n = 360" in first.stdout
    page = (tmp_path / "out" / "index.html").read_text()
    assert "after 3 rounds" in page
    (tmp_path / "small.yaml").write_text(FILE.replace("rounds: 3", "rounds: 4"))
    more = runner.invoke(app, ["train", str(tmp_path / "small.yaml"), "--out", str(tmp_path / "out"), "--quiet"])
    assert more.exit_code == 0
    assert more.output == ""
    assert "after 4 rounds" in (tmp_path / "out" / "index.html").read_text()


def test_without_out_it_goes_to_runs_by_the_name_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(FILE.replace("rounds: 3", "rounds: 2"))
    assert CliRunner().invoke(app, ["train", "mine.yaml", "-q"]).exit_code == 0
    assert (tmp_path / "runs" / "mine" / "index.html").is_file()


def test_private_heads_are_written_only_when_asked_for(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(HEADS)
    words = ["train", str(tmp_path / "t.yaml"), "--out"]
    plain = CliRunner().invoke(app, [*words, str(tmp_path / "plain")])
    assert plain.exit_code == 0, plain.output
    assert plain.stderr.count("private heads") == 1
    assert "3 rounds: accuracy" in plain.stdout
    assert not (tmp_path / "plain" / "private").exists()
    kept = CliRunner().invoke(app, [*words, str(tmp_path / "kept"), "--keep-private"])
    assert "private heads" not in kept.output
    assert (tmp_path / "kept" / "private" / "round-00003.safetensors").is_file()
    (tmp_path / "t.yaml").write_text(HEADS.replace("rounds: 3", "rounds: 4"))
    assert CliRunner().invoke(app, [*words, str(tmp_path / "kept"), "--keep-private", "-q"]).exit_code == 0
    assert "--keep-private" in (tmp_path / "kept" / "index.html").read_text()
    with pytest.raises(InputError, match="private heads"):
        CliRunner().invoke(app, [*words, str(tmp_path / "plain")], catch_exceptions=False)


@pytest.mark.parametrize("keep", [False, True])
def test_a_stopped_training_says_how_to_go_on_only_where_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: bool
) -> None:
    def interrupt(self: object, point: Point) -> None:
        del self
        if point.round == 1:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(TrainingProgress, "round_ended", interrupt)
    (tmp_path / "t.yaml").write_text(HEADS)
    words = ["train", str(tmp_path / "t.yaml"), "--out", str(tmp_path / "o"), *(["--keep-private"] if keep else [])]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 130
    assert "after round 1," in done.stderr
    assert (": leakscope " + " ".join(words) in done.stderr) is keep
    assert ("--keep-private)" in done.stderr) is not keep


@pytest.mark.slow
def test_mistakes_end_with_a_line_each_and_code_2(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(FILE.replace("rounds", "round").replace("epochs", "epoch"))
    done = run("train", "bad.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("leakscope: bad.yaml") for line in lines)
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()
    other = run("train", "bad.yaml", "--device", "abacus", cwd=tmp_path)
    assert other.returncode == 2
    assert re.fullmatch(r"leakscope: --device .*'abacus'\n", other.stderr)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a file and its finished training."""
    where = tmp_path_factory.mktemp("finished")
    (where / "t.yaml").write_text(FILE)
    assert CliRunner().invoke(app, ["train", str(where / "t.yaml"), "--out", str(where / "out"), "-q"]).exit_code == 0
    return where


def go_on(finished: Path, directory: Path) -> Any:
    return CliRunner().invoke(app, ["train", str(finished / "t.yaml"), "--out", str(directory), "-q"])


@pytest.mark.parametrize("name", ["state.safetensors", "curve.csv", "index.html", "run.lock", "checkpoints"])
@pytest.mark.parametrize("way", ["fifo", "link"])
def test_a_training_neither_waits_for_a_pipe_nor_follows_a_link(
    finished: Path, tmp_path: Path, name: str, way: str
) -> None:
    out = Path(shutil.copytree(finished / "out", tmp_path / "out"))
    taken = Path(shutil.move(out / name, tmp_path / name))
    before = taken.read_bytes() if taken.is_file() else sorted(taken.iterdir())
    os.mkfifo(out / name) if way == "fifo" else (out / name).symlink_to(taken)
    ended = go_on(finished, out)
    assert isinstance(ended.exception, InputError)
    assert (taken.read_bytes() if taken.is_file() else sorted(taken.iterdir())) == before


CRAFTED: dict[str, Callable[[dict[str, Any]], object]] = {
    "a count in words": lambda about: about["curve"][1].update(n="x"),
    "a negative count": lambda about: about["curve"][1].update(examples=-1),
    "more right than there are": lambda about: about["curve"][1].update(correct=361),
    "a number in words": lambda about: about["curve"][1].update(decay="x"),
    "another field": lambda about: about["curve"][1].update(more=1),
    "a round less": lambda about: about["curve"].pop(),
    "no curve": lambda about: about.update(curve=3),
    "an unknown form": lambda about: about.update(form="magic"),
    "rounds in words": lambda about: about.update(rounds="x"),
}


@pytest.mark.parametrize("edit", CRAFTED)
def test_a_crafted_state_is_refused(finished: Path, tmp_path: Path, edit: str) -> None:
    out = Path(shutil.copytree(finished / "out", tmp_path / "out"))
    state = out / "state.safetensors"
    with safe_open(state, "pt") as file:
        about = json.loads(file.metadata()["leakscope"])
    CRAFTED[edit](about)
    save_file(load_file(state), state, metadata={"leakscope": json.dumps(about)})
    ended = go_on(finished, out)
    assert isinstance(ended.exception, InputError), ended.output


def test_foreign_files_beside_checkpoints_are_passed_over(finished: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(finished / "out", tmp_path / "out"))
    (out / "checkpoints" / "round-best.safetensors").write_bytes(b"")
    assert go_on(finished, out).exit_code == 0
    assert Checkpoint(str(out), 2).file().name == "round-00002.safetensors"


@pytest.mark.slow
def test_killed_at_any_moment_it_goes_on_to_the_bits_of_an_undisturbed_training(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(FILE.replace("rounds: 3", "rounds: 60"))
    assert run("train", "t.yaml", "--out", "whole", "-q", cwd=tmp_path).returncode == 0
    for wait in (0.0, 0.3, 0.9):
        process = subprocess.Popen(command("train", "t.yaml", "--out", "cut", "-q"), cwd=tmp_path, env=ENVIRONMENT)
        state = tmp_path / "cut" / "checkpoints"
        began = time.monotonic()
        while not state.exists() and process.poll() is None and time.monotonic() - began < 60:
            time.sleep(0.02)
        time.sleep(wait)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert run("train", "t.yaml", "--out", "cut", "-q", cwd=tmp_path).returncode == 0
    for name in ("curve.csv", "checkpoints/round-00002.safetensors", "checkpoints/round-00060.safetensors"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


@pytest.mark.slow
def test_ctrl_c_ends_after_the_round_in_hand_and_says_how_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(FILE.replace("rounds: 3", "rounds: 4000"))
    again = ("train", "t.yaml", "--out", "cut")
    process = subprocess.Popen(command(*again), cwd=tmp_path, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    began = time.monotonic()
    while not (tmp_path / "cut" / "checkpoints" / "round-00002.safetensors").exists() and time.monotonic() - began < 60:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f": leakscope {' '.join(again)}" in said
    assert "Traceback" not in said
    assert (tmp_path / "cut" / "state.safetensors").is_file()


@pytest.mark.slow
def test_two_at_once_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(FILE.replace("rounds: 3", "rounds: 4000"))
    first = subprocess.Popen(command("train", "t.yaml", "--out", "o", "-q"), cwd=tmp_path, env=ENVIRONMENT)
    try:
        began = time.monotonic()
        while not (tmp_path / "o" / "training.yaml").exists() and time.monotonic() - began < 60:
            time.sleep(0.02)
        second = run("train", "t.yaml", "--out", "o", "-q", cwd=tmp_path)
    finally:
        first.kill()
        first.wait()
    assert second.returncode == 2
    assert f"process {first.pid}" in second.stderr


def test_a_training_that_ends_in_nan_says_so_and_ends_with_code_1(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(FILE.replace("rate: 0.3", "rate: 1.0e+30"), encoding="utf-8")
    done = CliRunner().invoke(app, ["train", str(tmp_path / "t.yaml"), "--out", str(tmp_path / "out")])
    assert done.exit_code == 1
    assert "NaN or infinite" in done.stdout
    assert (tmp_path / "out" / "index.html").is_file()
