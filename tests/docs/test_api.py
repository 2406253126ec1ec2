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
NAMES = sorted(set(leakscope.__all__) - {"__version__"})


@pytest.mark.parametrize("name", NAMES)
def test_a_stable_name_resolves_and_says_what_it_is(name: str) -> None:
    value = getattr(leakscope, name)
    assert value is getattr(importlib.import_module(leakscope.WHERE[name]), name)
    assert value.__doc__
    assert not value.__doc__.startswith(f"{name}("), "a signature that dataclasses write is no docstring"


def test_names_are_declared_the_same_way_everywhere() -> None:
    """At run time, for type checkers and in `__all__`."""
    tree = ast.parse(Path(leakscope.__file__).read_text(encoding="utf-8"))
    checked = next(node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    typed = {
        alias.name: node.module for node in checked.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert typed == leakscope.WHERE
    assert sorted(leakscope.__all__) == sorted([*leakscope.WHERE, "__version__"])
    assert set(leakscope.__all__) <= set(dir(leakscope))


def test_the_documentation_lists_every_stable_name() -> None:
    spoken = set(re.findall(r"`(\w+)`", (ROOT / "docs" / "api.md").read_text(encoding="utf-8")))
    assert spoken - {"leakscope"} == set(leakscope.__all__)


def test_the_package_is_typed() -> None:
    assert (Path(leakscope.__file__).parent / "py.typed").exists()


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'leakscope' has no attribute 'peak'"):
        leakscope.peak  # type: ignore[attr-defined]  # noqa: B018


def test_importing_and_listing_the_package_loads_nothing_heavy() -> None:
    code = (
        "import sys, leakscope; dir(leakscope); leakscope.InputError; "
        "print([name for name in ('torch', 'numpy', 'pydantic', 'scipy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]"
