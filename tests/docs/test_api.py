"""The stable names: all there, all explained, all listed in the documentation, and none loaded before it is used."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import leakscope

ROOT = Path(__file__).parents[2]
ROOMS = ("attacks", "defences", "servers", "metrics", "data", "models")
NAMES = sorted(leakscope.__all__)


@pytest.mark.parametrize("name", NAMES)
def test_a_stable_name_resolves_and_says_what_it_is(name: str) -> None:
    value = getattr(leakscope, name)
    origin = importlib.import_module(leakscope.__origins__[name])
    assert value is getattr(origin, name)
    assert value.__doc__
    assert not value.__doc__.startswith(f"{name}("), "a signature that dataclasses write is no docstring"


def test_a_name_wins_over_a_room_that_is_called_the_same() -> None:
    code = "import leakscope.auditing; from leakscope import Target, audit; assert audit.__module__ == 'leakscope.auditing.target_audit'"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("name", ["leakscope", *(f"leakscope.{room}" for room in ROOMS)])
def test_a_type_checker_sees_the_exported_names(name: str) -> None:
    """Only `import a as a` is an export to one; a star import gives the same names."""
    package = importlib.import_module(name)
    tree = ast.parse(Path(str(package.__file__)).read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    exported = {alias.name for node in imports for alias in node.names if alias.asname == alias.name}
    assert exported <= set(dir(package))
    assert all(getattr(package, each) is not None for each in exported)
    assert set(getattr(package, "__origins__", exported)) == exported - {"__version__"}


def test_the_documentation_lists_every_stable_name() -> None:
    stable, _, rooms = (ROOT / "docs/reference/api.md").read_text(encoding="utf-8").partition("## Components\n")
    assert set(re.findall(r"^### (\w+)$", stable, re.MULTILINE)) == set(leakscope.__all__)
    assert re.findall(r"^### leakscope\.(\w+)$", rooms, re.MULTILINE) == list(ROOMS)


def test_the_package_is_typed() -> None:
    assert (Path(leakscope.__file__).parent / "py.typed").exists()


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"'leakscope' .*'peak'"):
        leakscope.peak  # type: ignore[attr-defined]  # noqa: B018


def test_importing_and_listing_the_package_loads_nothing_heavy() -> None:
    code = (
        "import sys, leakscope; dir(leakscope); leakscope.InputError; "
        "print([name for name in ('torch', 'numpy', 'pydantic', 'scipy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]"
