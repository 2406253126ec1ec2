"""Imports point down only; attacks see core and learning and nothing else of ours."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import leakscope

ROOT = Path(leakscope.__file__).parent
ROOMS = {
    "core": set(),
    "data": {"core"},
    "models": {"core"},
    "learning": {"core"},
    "metrics": {"core"},
    "store": {"core"},
    "defences": {"core", "learning"},
    "attacks": {"core", "learning"},
    "clients": {"core", "learning", "defences"},
    "analysis": {"core", "models", "learning", "metrics"},
    "federated": {"core", "data", "models", "learning", "metrics", "defences", "clients"},
    "inference": {"core", "models", "learning", "metrics"},
    "search": {"core", "models", "learning", "metrics", "defences", "attacks", "clients"},
    "experiments": {
        "core",
        "data",
        "models",
        "learning",
        "metrics",
        "defences",
        "attacks",
        "clients",
        "store",
        "analysis",
        "federated",
        "inference",
        "search",
    },
    "report": {"core", "metrics", "store", "attacks", "analysis", "experiments"},
    "integrations": {"core", "defences", "clients", "store", "experiments"},
    "cli": {"core", "data", "metrics", "store", "attacks", "experiments", "report", "integrations"},
}
TOP = {"__init__", "peeking", "__main__"}


def imported_rooms(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative imports hide the room"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("leakscope.") and "." in name}
    return found


def files() -> list[Path]:
    return sorted(p for p in ROOT.rglob("*.py") if p.parent != ROOT)


def test_every_room_has_a_rule() -> None:
    rooms = {p.name for p in ROOT.iterdir() if p.is_dir() and (p / "__init__.py").exists()}
    assert rooms == set(ROOMS)
    assert {p.stem for p in ROOT.glob("*.py")} <= TOP


@pytest.mark.parametrize("path", files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_down(path: Path) -> None:
    room = path.relative_to(ROOT).parts[0]
    allowed = ROOMS[room] | {room, "__version__"}
    assert imported_rooms(path) <= allowed, f"{room} may import {sorted(allowed)}"


def test_attacks_cannot_reach_the_truth() -> None:
    assert ROOMS["attacks"].isdisjoint({"data", "clients", "defences", "metrics"})
    for path in (ROOT / "attacks").rglob("*.py"):
        assert "Batch" not in {
            alias.name
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }, f"{path.name} imports the private data's type"


def test_engine_models_and_benchmark_import_with_torch_numpy_and_safetensors_alone() -> None:
    code = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in {'scipy', 'pydantic', 'typer', 'rich', 'yaml', 'PIL', 'jinja2', 'sklearn', 'skimage'}:
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
import leakscope.attacks.recipes, leakscope.models, leakscope.clients, leakscope.experiments.bench
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
