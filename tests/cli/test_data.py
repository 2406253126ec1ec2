from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from leakscope.cli.data import app
from leakscope.core.errors import InputError
from leakscope.data.fetch import Progress
from leakscope.data.sources import SOURCES

RUN = CliRunner(env={"COLUMNS": "200", "LEAKSCOPE_DATA": "", "NO_COLOR": "1", "TERM": "dumb"})


def test_list_names_every_set_its_state_and_its_terms(tmp_path: Path) -> None:
    x, y = np.zeros((1234, 28, 28), np.uint8), np.zeros(1234, np.uint8)
    np.savez_compressed(tmp_path / "mnist.npz", x_train=x, y_train=y, x_test=x[:5], y_test=y[:5])
    result = RUN.invoke(app, ["list"], env={"LEAKSCOPE_CACHE": str(tmp_path)})
    assert result.exit_code == 0, result.output
    rows = {name: next(line for line in result.output.splitlines() if f" {name} " in line) for name in SOURCES}
    assert "bundled" in rows["fashion_mnist"]
    assert "3,000 + 1,000 of 1x28x28" in rows["fashion_mnist"]
    assert "MIT" in rows["fashion_mnist"]
    assert "on disk" in rows["mnist"]
    assert "1,234 + 5 of 1x28x28" in rows["mnist"]
    assert "missing (fetch)" in rows["cifar10"]
    assert "non-commercial" in rows["svhn"]
    assert "(fetch)" not in rows["svhn"]
    elsewhere = RUN.invoke(app, ["list", "--directory", str(tmp_path)])
    assert "bundled" not in elsewhere.output


def test_fetch_shows_where_the_files_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def pretend(name: str, progress: Progress, directory: Path | None = None) -> Path:
        for done in (0, 5, 10):
            progress(done, 10, "some.gz")
        progress(3, None, "other.gz")
        assert directory is not None
        return directory / name

    monkeypatch.setattr(sys.modules["leakscope.data.fetch"], "fetch", pretend)
    result = RUN.invoke(app, ["fetch", "mnist", "--directory", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert f"mnist is in {tmp_path / 'mnist'}" in result.output


def test_errors_are_left_to_the_caller() -> None:
    for arguments in (["fetch", "mnits"], ["fetch", "svhn"], ["list", "--directory", "no/such/place"]):
        result = RUN.invoke(app, arguments)
        assert isinstance(result.exception, InputError)


def test_mounting_the_commands_imports_neither_torch_nor_pillow() -> None:
    code = (
        "import sys, leakscope.cli.data as c; from typer.main import get_command; get_command(c.app);"
        "sys.exit(bool({'torch', 'PIL', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], env=_environment(), check=False).returncode == 0


def test_the_room_needs_torch_and_numpy_alone() -> None:
    code = (
        "import sys; from leakscope.data import *; d = load('digits'); d.pictures('train', 0);"
        "sys.exit(bool({'PIL', 'rich', 'typer', 'sklearn', 'scipy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], env=_environment(), check=False).returncode == 0


def test_unknown_attributes_of_the_room_are_attribute_errors() -> None:
    import leakscope.data as room

    assert all(hasattr(room, name) for name in room.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        _ = room.nothing  # type: ignore[attr-defined]


def _environment() -> dict[str, str]:
    """Return an environment in which a child finds the package the way this process does."""
    return {"PYTHONPATH": ":".join(path for path in sys.path if path), "HOME": "/nonexistent"}
