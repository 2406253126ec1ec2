"""The files around the code: issue forms that a platform can read, a changelog in the usual form, distributions that are checked."""

from __future__ import annotations

import importlib.util
import re
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
KINDS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_an_issue_form_can_be_read(path: Path) -> None:
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= set(form) <= {"name", "description", "body", "labels"}
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert {field["type"] for field in fields} <= {"input", "textarea", "dropdown", "checkboxes"}
    assert all(field["attributes"]["label"] for field in fields)
    identifiers = [field["id"] for field in fields]
    assert len(set(identifiers)) == len(identifiers)
    assert any(field.get("validations", {}).get("required") for field in fields)


def test_there_are_forms_for_bugs_wrong_numbers_and_features() -> None:
    assert {path.stem for path in FORMS} == {"bug", "wrong_number", "feature"}


def test_the_changelog_has_the_usual_form() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert versions[0] == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d{2}-\d{2}", version) for version in versions[1:])
    for section in re.split(r"^## .+$", text, flags=re.MULTILINE)[1:]:
        kinds = re.findall(r"^### (.+)$", section, re.MULTILINE)
        assert kinds == [kind for kind in KINDS if kind in kinds]


@pytest.fixture(scope="module")
def checker() -> ModuleType:
    if not (ROOT / ".git").exists():
        pytest.skip("compares with what git tracks")
    spec = importlib.util.spec_from_file_location("check_dist", ROOT / "tools" / "check_dist.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_wheel(path: Path, checker: ModuleType, *, without: str = "", extra: str = "") -> Path:
    names = {name.removeprefix("src/") for name in checker.tracked() if name.startswith("src/")}
    names |= {
        f"leakscope-0.dist-info/licenses/{n}" for n in checker.tracked() if n.endswith(("LICENSE", "LICENSE.txt"))
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name in sorted((names - {without}) | ({extra} - {""})):
            archive.writestr(name, b"")
    return path


def test_a_wheel_must_hold_what_is_tracked_and_nothing_else(checker: ModuleType, tmp_path: Path) -> None:
    checker.check_wheel(write_wheel(tmp_path / "whole.whl", checker))
    for wrong in (
        {"without": "leakscope/report/templates/page.html"},
        {"without": "leakscope_papers/pages/templates/paper.html"},
        {"without": "leakscope/data/bundled/digits.npz"},
        {"without": "leakscope-0.dist-info/licenses/LICENSE"},
        {"extra": "leakscope/data/bundled/patients.npz"},
        {"extra": "tests/test_it.py"},
    ):
        with pytest.raises(SystemExit):
            checker.check_wheel(write_wheel(tmp_path / "wrong.whl", checker, **wrong))


def test_an_sdist_must_hold_no_file_that_git_does_not_track(checker: ModuleType, tmp_path: Path) -> None:
    def write(name: str, extra: set[str]) -> Path:
        with tarfile.open(tmp_path / name, "w:gz") as archive:
            for each in checker.tracked() | {"PKG-INFO"} | extra:
                archive.addfile(tarfile.TarInfo(f"leakscope-0/{each}"))
        return tmp_path / name

    checker.check_sdist(write("whole.tar.gz", set()))
    with pytest.raises(SystemExit):
        checker.check_sdist(write("wrong.tar.gz", {"examples/captures/round-00001-client-1.json"}))
