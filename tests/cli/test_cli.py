"""The command line as a user meets it: in a process of its own, where that matters."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest
import torch
from rich.console import Console

from command_line import leakscope as in_process
from leakscope.cli import main
from leakscope.cli.app import run_command
from leakscope.cli.studies import show_exact
from leakscope.core.types import make_batch
from leakscope.data import SOURCES
from leakscope.scenario.catalogue import catalogue
from leakscope.studies.demo import exact_recovery


def leakscope(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run(
        [sys.executable, "-m", "leakscope", *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
        cwd=cwd,
        env=env,
    )


def test_help_names_every_command_without_importing_torch() -> None:
    told = leakscope("--help")
    assert told.returncode == 0
    for command in ("demo", "list", "bench", "data"):
        assert command in told.stdout
    code = "import sys; import leakscope.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_version() -> None:
    assert leakscope("--version").stdout.startswith("leakscope 0.")


def test_list_names_a_piece_of_every_kind() -> None:
    told = leakscope("list", COLUMNS="200")
    assert told.returncode == 0
    for name in (
        "fashion_mnist",
        "lenet_cpl",
        "resnet20",
        "cpl",
        "analytic",
        "patterned",
        "idlg",
        "cosine",
        "ssim",
        "lbfgs",
        "client.on_model",
        "client.on_data",
        "3-1-7+43-18-18",
    ):
        assert name in told.stdout
    assert "gaussian_noise" in told.stdout


@pytest.mark.parametrize("columns", ["40", "80", None])
@pytest.mark.parametrize("words", [("list",), ("data", "list"), ("list", "defence")], ids=" ".join)
def test_names_are_listed_whole_however_narrow_the_terminal(
    words: tuple[str, ...], columns: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    told = in_process(*words)
    assert told.code == 0
    known = [
        name for kind, name, _ in catalogue() if kind == {"data": "data", "defence": "defence"}.get(words[-1], kind)
    ]
    listed = {line.split()[0] for line in told.out.splitlines() if line.startswith(" ") and line[1:2].strip()}
    assert set(SOURCES if words == ("data", "list") else known) <= listed
    assert columns is None or max(len(line) for line in told.out.splitlines()) <= int(columns)


def test_an_unknown_kind_is_refused_with_the_nearest() -> None:
    told = in_process("list", "atack")
    assert (told.code, told.out) == (2, "")
    assert "'attacks'" in told.err


@pytest.mark.parametrize("colours", [None, "truecolor"])
def test_the_demo_draws_blocks_in_a_terminal_alone(colours: Literal["truecolor"] | None) -> None:
    batch = make_batch(torch.rand(2, 1, 1, 28, 28), torch.zeros(2, 1, dtype=torch.long), classes=10)
    console = Console(file=io.StringIO(), color_system=colours, force_terminal=colours is not None, width=160)
    show_exact(console, exact_recovery(batch, [0, 1]), batch)
    lines = str(console.file.getvalue()).splitlines()  # type: ignore[attr-defined]
    assert sum("\u2580" in line for line in lines) == (14 if colours else 0)
    assert all(line.strip() for line in lines) or colours


@pytest.mark.slow
def test_demo_writes_a_page(tmp_path: Path) -> None:
    told = leakscope("demo", "--images", "2", "--out", str(tmp_path / "out"))
    assert told.returncode == 0, told.stderr
    assert "\u2580" not in told.stdout  # blocks are for a terminal
    page = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert re.search(r"<h1[^>]*>[^<]*\b\d of 2 ", page)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["demo", "--image", "missing.jpg"], "missing.jpg"),
        (["demo", "--images", "0"], "one image"),
        (["bench", "lenett"], "'lenet'"),
        (["bench", "--device", "tpu"], "--device must be"),
        (["bench", "resnet18-64-1x8", "--device", "cpu"], "needs --device cuda"),
        (["bench", "--pairs", "1"], "--pairs .*least 2"),
        (["data", "fetch", "mnistt"], "'mnist'"),
    ],
)
def test_mistakes_get_one_clear_line_and_exit_code_2(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["leakscope", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert re.search(words, told.strip().splitlines()[-1])
    assert "Traceback" not in told


@pytest.mark.slow
def test_a_broken_picture_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "me.jpg").write_bytes(b"not a picture")
    told = leakscope("demo", "--image", str(tmp_path / "me.jpg"), cwd=tmp_path)
    assert (told.returncode, "Traceback" in told.stderr) == (2, False)
    assert "me.jpg" in told.stderr


def test_an_out_that_is_a_file_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("x")
    told = leakscope("demo", "--images", "1", "--out", str(tmp_path / "out"), cwd=tmp_path)
    assert told.returncode == 2
    assert "--out" in told.stderr.strip().splitlines()[-1]


def test_running_out_of_memory_is_one_clear_line(capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")

    with pytest.raises(SystemExit) as ended:
        run_command(command)  # type: ignore[arg-type]
    assert ended.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
