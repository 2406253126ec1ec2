"""Code in the working directory: only the module that a command names is imported from there, and never from among captures."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from leakscope.auditing.target_file import load_build
from leakscope.cli.audit import find_request
from leakscope.core.errors import InputError

BUILD = "import torch\ndef build(): return torch.nn.Linear(4, 2)\n"


def planted(directory: Path, *names: str) -> Path:
    """Return the file that appears when any of the modules written into a directory is imported."""
    directory.mkdir(exist_ok=True)
    mark = directory / "imported"
    for name in names:
        (directory / f"{name}.py").write_text(f"open({str(mark)!r}, 'a').write({name!r})\n" + BUILD)
    return mark


@pytest.mark.slow
@pytest.mark.parametrize("model", ["model", "installed_model"])
def test_modules_beside_captures_are_not_imported(tmp_path: Path, model: str) -> None:
    captures, installed = tmp_path / "captures", tmp_path / "installed"
    names = ["mpmath", "sympy", "yaml", "typer", "pydantic", "numpy", "torch", "safetensors", "dataclasses", "json"]
    mark = planted(captures, *names, "model")
    installed.mkdir()
    (installed / "installed_model.py").write_text(BUILD.replace("return", "import mpmath; return"))
    (captures / "round-00001-client-0.json").write_text("{}")
    words = [sys.executable, "-m", "leakscope", "audit", ".", "--model", f"{model}:build"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(installed), *filter(None, sys.path)])}
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=240, cwd=captures, env=env)
    assert (done.returncode, done.stdout, mark.exists()) == (2, "", False), done.stderr


def test_only_the_named_module_is_looked_up_and_that_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = planted(tmp_path, "colorsys", "beside_the_audited")
    (tmp_path / "audited_with_help.py").write_text("import beside_the_audited\n" + BUILD)
    (tmp_path / "audited_alone.py").write_text(BUILD)
    monkeypatch.chdir(tmp_path)
    before = [*sys.path], [*sys.meta_path]
    assert load_build("audited_alone:build").model is not None
    for name in ("audited_with_help", "colorsys"):  # a module of Python itself comes first
        with pytest.raises(InputError):
            load_build(f"{name}:build")
    assert not mark.exists()
    assert ([*sys.path], [*sys.meta_path]) == before


@pytest.mark.parametrize(
    ("here", "module"),
    [("captures", "model"), ("captures/inner", "model"), (".", "captures.model"), (".", "linked.model")],
)
def test_a_module_among_captures_is_never_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: str, module: str
) -> None:
    captures = tmp_path / "captures"
    marks = [planted(captures, "model"), planted(captures / "inner", "model")]
    (tmp_path / "linked").symlink_to(captures)
    monkeypatch.chdir(tmp_path / here)
    with pytest.raises(InputError):
        find_request(str(captures), f"{module}:build")
    assert not any(mark.exists() for mark in marks)


def test_a_directory_that_holds_captures_is_known_by_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = planted(tmp_path, "model_beside_rounds")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "round-00001-client-0.json").touch()
    with pytest.raises(InputError):
        load_build("model_beside_rounds:build")
    assert not mark.exists()
    (tmp_path / "round-00001-client-0.json").unlink()
    assert load_build("model_beside_rounds:build").model is not None
