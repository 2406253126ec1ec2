"""Registered pieces that a test takes away again, and the example plug-in as an installed package would look."""

from __future__ import annotations

import shutil
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from leakscope.core import plugins

EXAMPLE = Path(__file__).parents[2] / "examples" / "plugin"
PACKAGE = "leakscope_stripes"
SHORT = {  # the scenario of the example with as little work as possible, in two chunks
    "attacks": [{"name": "ig_patterned", "iterations": 2}],
    "trials": 2,
    "baselines": [],
    "knowledge": {"defence": False},
    "precision": {"form": "native", "chunk": 1},
}


@contextmanager
def no_plugins() -> Iterator[None]:
    """Run the body as a process that has loaded no plug-in, and forget those that it loads."""
    state = plugins._state
    before = {each.name: getattr(state, each.name) for each in fields(state) if each.name != "caches"}
    modules, path = set(sys.modules), [*sys.path]
    for each in fields(plugins._State()):
        if each.name != "caches":
            setattr(state, each.name, getattr(plugins._State(), each.name))
    try:
        yield
    finally:
        owners = {module.partition(".")[0] for module in state.imports}
        for place in [*state.pieces]:
            plugins.unregister(*place)
        for name, value in before.items():
            setattr(state, name, value)
        for name in {name for name in set(sys.modules) - modules if name.partition(".")[0] in owners}:
            del sys.modules[name]
        sys.path[:] = path


def install(directory: Path, entry_points: dict[str, str], package: str = "own-pieces") -> Path:
    """Return a directory that looks like site-packages with one installed package that has these plug-ins."""
    info = directory / f"{package.replace('-', '_')}-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.1.0\n")
    lines = [f"{name} = {value}" for name, value in entry_points.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{plugins.GROUP}]", *lines, ""]))
    return directory


def install_example(directory: Path) -> Path:
    """Return a directory that looks like site-packages with the example installed, by its pyproject.toml."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())
    site = install(directory, project["project"]["entry-points"][plugins.GROUP], project["project"]["name"])
    for name in project["tool"]["setuptools"]["packages"]:
        shutil.copytree(EXAMPLE / name, site / name, ignore=shutil.ignore_patterns("__pycache__"))
    return site


def short_scenario(**changed: Any) -> dict[str, Any]:
    """Return the scenario of the example, shortened."""
    return {**yaml.safe_load((EXAMPLE / "stripes.yaml").read_text()), **SHORT, **changed}
