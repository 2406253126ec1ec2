"""The worked example of docs/reference/paper-items.md: another package adds a paper and a command, and a broken one harms nobody."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "paper-items.md"
FILES = re.compile(r"^`([\w./-]+)`:\n\n```\w+\n(.*?)```$", re.MULTILINE | re.DOTALL)


def example() -> dict[str, str]:
    """Return path -> text of every file of the worked example."""
    section = DOCS.read_text("utf-8").partition("## Papers and commands of another package")[2]
    return dict(FILES.findall(section))


def lay_package(folder: Path, name: str, entry_points: str) -> None:
    """Lay what an installer would: the metadata with the entry points."""
    info = folder / f"{name}-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(entry_points)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    files = example()
    declared = files.pop("pyproject.toml")
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, "utf-8")
    points = re.findall(r'entry-points\."(.*?)"\]\n(.*?)(?:\n\n|\Z)', declared, re.DOTALL)
    lay_package(tmp_path, "toy_papers", "\n".join(f"[{group}]\n{body.replace(chr(34), '')}" for group, body in points))
    return tmp_path


def leakscope(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    source = str(Path(__file__).parents[2] / "src")
    path = os.pathsep.join([str(folder), source, os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, "-m", "leakscope", *words],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_the_example_is_listed_and_its_command_runs(installed: Path) -> None:
    listed = leakscope(installed, "paper", "list")
    assert listed.returncode == 0, listed.stderr
    assert re.search(r"toy-table-1\s+A toy table", listed.stdout)
    assert "cpl-table-2" in listed.stdout
    assert leakscope(installed, "hello").stdout.startswith("hello")
    run = leakscope(installed, "paper", "run", "toy-table-1", "--engine", "serial", "--dry-run")
    assert run.returncode == 0, run.stderr


@pytest.mark.slow
def test_a_broken_package_is_named_and_the_rest_works(installed: Path) -> None:
    lay_package(
        installed,
        "broken_papers",
        "[leakscope.papers]\nbroken = no_such_package\n[leakscope.commands]\ncrash = no_such_package.commands:crash\n"
        "words = toy_papers:__doc__\n",
    )
    listed = leakscope(installed, "paper", "list")
    assert listed.returncode == 0, listed.stderr
    assert "toy-table-1" in listed.stdout
    assert "no_such_package" in listed.stderr
    assert re.findall(r"command '(\w+)'", listed.stderr) == ["crash", "words"]
    assert leakscope(installed, "hello").stdout.startswith("hello")
