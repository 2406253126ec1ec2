"""Imports point down only; attacks see core and learning and nothing else of ours."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import leakscope

ROOT = Path(leakscope.__file__).parent
SOURCE = ROOT.parent
LOWER = {"core", "data", "models", "learning", "metrics", "store", "kernels", "defences", "attacks", "clients"}
LOWER |= {"analysis", "inference", "federated"}
# from the ground up: a room may import only rooms above it in this table
ROOMS = {
    "core": set(),
    "data": {"core"},
    "models": {"core"},
    "learning": {"core"},
    "metrics": {"core"},
    "store": {"core"},
    "kernels": {"core"},
    "defences": {"core", "learning"},
    "attacks": {"core", "learning", "kernels"},
    "servers": {"core", "learning", "kernels", "models", "attacks"},
    "clients": {"core", "learning", "defences"},
    "analysis": {"core", "learning"},
    "inference": {"core", "metrics"},
    "federated": {"core", "data", "kernels", "learning", "metrics", "defences", "clients"},
    "play": {"core", "data", "metrics", "defences", "attacks", "servers", "clients"},
    "scenario": {
        "core",
        "data",
        "models",
        "learning",
        "metrics",
        "defences",
        "attacks",
        "servers",
        "clients",
        "federated",
    },
    "sweep": LOWER | {"play", "scenario", "servers"},
    "training": LOWER | {"scenario", "sweep"},
    "search": LOWER | {"scenario", "sweep"},
    "auditing": LOWER | {"play", "scenario", "servers", "sweep"},
    "guarding": {"core", "metrics", "defences", "attacks", "clients", "play", "auditing"},
    "scanning": {"core", "models", "learning", "attacks", "clients", "play", "sweep", "auditing"},
    "studies": LOWER | {"play", "scenario", "sweep", "training"},
    "report": {"core", "metrics", "store", "play", "scenario", "search", "training", "auditing", "studies"},
    "integrations": {"core", "defences", "clients", "store", "sweep", "auditing", "guarding", "scanning"},
    "cli": {
        *("core", "data", "metrics", "store", "attacks", "play", "scenario", "sweep", "training", "search", "auditing"),
        *("clients", "models", "scanning", "studies", "report", "integrations"),
    },
}
LINES = 6000  # a room with more is two rooms
WITHIN = (
    "attacks/engine",
    "attacks/exact",
    "attacks/tokens",
    "auditing/static",
    "auditing/tokens",
)  # rooms of their own inside another
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
        assert "leakscope_papers" not in {name.split(".")[0] for name in names}, f"{path} imports the papers"
        assert "leakscope" not in names, f"{path} imports the top-level package"
        found |= {name.split(".")[1] for name in names if name.startswith("leakscope.")}
    return found


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def imported_modules(path: Path, modules: set[str]) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in modules else node.module for name in names}
    return found & modules


def files() -> list[Path]:
    return sorted(p for p in ROOT.rglob("*.py") if p.parent != ROOT)


def test_every_room_has_a_rule() -> None:
    rooms = {p.name for p in ROOT.iterdir() if p.is_dir() and (p / "__init__.py").exists()}
    assert rooms == set(ROOMS)
    assert {p.stem for p in ROOT.glob("*.py")} <= TOP


def test_the_table_goes_from_the_ground_up() -> None:
    floors = list(ROOMS)
    for room, below in ROOMS.items():
        assert below <= set(floors[: floors.index(room)]), room


@pytest.mark.parametrize("room", [*ROOMS, *WITHIN])
def test_a_room_has_one_subject(room: str) -> None:
    inner = [ROOT / each for each in WITHIN if each != room]
    paths = [path for path in (ROOT / room).rglob("*.py") if not any(each in path.parents for each in inner)]
    lines = sum(len(path.read_text("utf-8").splitlines()) for path in paths)
    assert lines <= LINES, f"{room} has {lines} lines"


@pytest.mark.parametrize("path", files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_down(path: Path) -> None:
    room = path.relative_to(ROOT).parts[0]
    allowed = ROOMS[room] | {room}
    assert imported_rooms(path) <= allowed, f"{room} may import {sorted(allowed)}"


def test_no_module_imports_itself_through_others() -> None:
    paths = {module_name(p): p for name in ("leakscope", "leakscope_papers") for p in (SOURCE / name).rglob("*.py")}
    imports = {name: imported_modules(path, set(paths)) - {name} for name, path in paths.items()}
    done: set[str] = set()

    def visit(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, " -> ".join((*way[way.index(name) :], name))
        if name not in done:
            for other in imports[name]:
                visit(other, (*way, name))
            done.add(name)

    for name in imports:
        visit(name, ())


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
import leakscope.attacks.recipes, leakscope.models, leakscope.clients, leakscope.studies.bench
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
