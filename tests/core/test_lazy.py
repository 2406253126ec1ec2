"""Packages that load their names on first use."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

INIT = """
from typing import TYPE_CHECKING
from leakscope.core.lazy import load_lazily

if TYPE_CHECKING:
    from NAME.tool import VALUE as VALUE, tool as tool
    from NAME.deep import other as other
else:
    load_lazily(__name__)
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    name = f"lazy_{abs(hash(request.node.name))}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text(INIT.replace("NAME", name))
    (tmp_path / name / "tool.py").write_text("VALUE = 7\ndef tool(): return VALUE\n")
    (tmp_path / name / "deep").mkdir()
    (tmp_path / name / "deep" / "__init__.py").write_text("")
    (tmp_path / name / "deep" / "other.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_nothing_is_loaded_before_it_is_used(package: str) -> None:
    lazy = import_module(package)
    assert lazy.__all__ == ["VALUE", "other", "tool"]
    assert set(lazy.__all__) <= set(dir(lazy))
    assert f"{package}.tool" not in sys.modules
    assert lazy.VALUE == 7
    assert f"{package}.tool" in sys.modules


def test_a_name_wins_over_a_submodule_of_the_same_name(package: str) -> None:
    module = import_module(f"{package}.tool")
    assert import_module(package).tool is module.tool


def test_a_module_can_be_a_name(package: str) -> None:
    assert import_module(package).other is import_module(f"{package}.deep.other")


def test_an_unknown_name_is_an_attribute_error(package: str) -> None:
    with pytest.raises(AttributeError, match="nothing"):
        import_module(package).nothing  # noqa: B018


def test_other_attributes_can_be_set(package: str) -> None:
    lazy = import_module(package)
    lazy.mine = 3
    assert lazy.mine == 3


def test_a_package_without_source_is_an_import_error(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from leakscope.core.lazy import origins

    lazy = import_module(package)
    monkeypatch.setattr(lazy.__spec__.loader, "get_source", lambda name: None, raising=False)
    with pytest.raises(ImportError, match=package):
        origins(package)
