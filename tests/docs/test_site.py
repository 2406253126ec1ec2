"""The site: every page is in its navigation, and links to files beside docs/ lead to their copies in the site."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_hook", ROOT / "tools" / "site_hook.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_every_page_is_in_the_navigation_once() -> None:
    _, _, navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")
    listed = re.findall(r"[\w./-]+\.md", navigation)
    assert sorted(listed) == sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))


@pytest.mark.parametrize(
    ("source", "link", "target"),
    [
        ("docs/how-to/papers.md", "../../CHANGELOG.md", "repository/CHANGELOG.md"),
        ("docs/how-to/flower.md", "../../examples/flower", "repository/examples/flower/README.md"),
        ("docs/how-to/flower.md", "../../examples", None),  # a folder without a README
        ("docs/how-to/flower.md", "../../../elsewhere", None),
        ("CHANGELOG.md", "docs/index.md", "index.md"),
    ],
)
def test_a_link_leads_to_its_target_in_the_site(hook: ModuleType, source: str, link: str, target: str | None) -> None:
    assert hook.target_of(source, link) == target


def test_nothing_is_loaded_from_the_network() -> None:
    settings, _, _ = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")
    assert "font: false" in settings
    assert "assets/iframe-worker.js" in settings  # the search from disk; the plugin would load it from elsewhere
    for file in (DOCS / "assets").iterdir():
        assert "://" not in file.read_text(encoding="utf-8")
