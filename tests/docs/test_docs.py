"""The documents keep their word: their Python runs, their links lead somewhere, their commands exist."""

from __future__ import annotations

import ast
import functools
import importlib.util
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import typer

import leakscope
from leakscope.cli import app
from own_pieces import no_plugins

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NOT_RUN = re.compile(r"<!-- not run: \S.* -->\n\Z")
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
SPOKEN = re.compile(r"`([^`\n]+)`")
PUBLIC = {
    "leakscope",
    *(f"leakscope.{room}" for room in ("attacks", "data", "defences", "metrics", "models", "servers")),
}
OURS = {"leakscope", "leakscope_papers"}
BESIDE = {  # each framework needs its extra; the papers are a package of their own
    "leakscope.integrations.flower",
    "leakscope.integrations.flower_guard",
    "leakscope.integrations.flower_scan",
    "leakscope.integrations.nvflare",
    "leakscope.integrations.opacus",
    "leakscope.report",
    "leakscope_papers.characteristics",
    "leakscope_papers.items",
    "leakscope_papers.results",
    "leakscope_papers.scales",
    "leakscope_papers.theory",
}
LONG = ("python", "baselines", "weight-updates", "aware", "own-attack", "own-defence", "polarisation")  # long
each_document = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


@pytest.fixture
def own_tables() -> Iterator[None]:
    """Let a document register pieces and set variables of the environment; all of it is undone afterwards."""
    before = dict(os.environ)
    with no_plugins():
        yield
    os.environ.clear()
    os.environ.update(before)


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block: its language, its text, the line it begins at, and whether it says that it is not run."""

    language: str
    text: str
    line: int
    skipped: bool


def blocks(document: str) -> Iterator[Block]:
    """Yield the fenced blocks of a document."""
    for found in FENCE.finditer(document):
        before = document[: found.start()]
        yield Block(found[1], found[2], before.count("\n") + 2, NOT_RUN.search(before) is not None)


def prose(document: str) -> str:
    """Return a document without its fenced blocks."""
    return FENCE.sub("", document)


def anchors(document: str) -> set[str]:
    """Return the names that the headings of a document can be linked by."""
    titles = re.findall(r"^#+ +(.+)$", prose(document), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def leading_words(line: str, program: str) -> list[str]:
    """Return the plain words after a program's name at the beginning of a line: its command and sub-command."""
    words = line.removeprefix("$ ").split("#")[0].split()
    if not words or words[0].split("/")[-1] != program:
        return []
    plain = []
    for word in words[1:]:
        if not re.fullmatch(r"[a-z][a-z_]*", word):
            break
        plain.append(word)
    return plain


def spoken_lines(document: str) -> Iterator[str]:
    """Yield everything a reader could type: the lines of shell blocks and the code in sentences."""
    for block in blocks(document):
        if block.language in ("", "sh", "bash", "console"):
            yield from block.text.splitlines()
    yield from SPOKEN.findall(prose(document))


@pytest.mark.parametrize(
    "path",
    [pytest.param(p, marks=pytest.mark.slow if p.stem in LONG else ()) for p in DOCUMENTS],
    ids=[str(p.relative_to(ROOT)) for p in DOCUMENTS],
)
def test_the_python_of_a_document_runs(
    path: Path, tmp_path: Path, own_tables: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": path.stem}
    with torch.random.fork_rng(devices=[]):
        for block in blocks(path.read_text(encoding="utf-8")):
            if block.language == "python" and not block.skipped:
                code = compile("\n" * (block.line - 1) + block.text, str(path), "exec", dont_inherit=True)
                exec(code, names)
    capsys.readouterr()


def shown_code() -> Iterator[tuple[Path, str]]:
    """Yield every Python text a reader is shown: blocks of documents, example programs, cells of notebooks."""
    for path in (*DOCUMENTS, *(ROOT / "examples").rglob("*.md")):
        for block in blocks(path.read_text(encoding="utf-8")):
            if block.language == "python":
                yield path, block.text
    for path in (ROOT / "examples").rglob("*.py"):
        yield path, path.read_text(encoding="utf-8")
    for path in (ROOT / "examples").rglob("*.ipynb"):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "code":
                yield path, "".join(cell["source"])


@functools.cache
def exported(module: str) -> set[str]:
    """Return the names that a package or a module offers: those of `__all__`, else `import a as a` and what it defines."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    listed = getattr(importlib.import_module(module), "__all__", None)
    if listed is not None:
        return set(listed)
    body = ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body
    imported = {a.name for node in body if isinstance(node, ast.ImportFrom) for a in node.names if a.asname == a.name}
    tables = {
        str(node.target.id) for node in body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    defined = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    return {name for name in imported | tables | defined if not name.startswith("_")}


def inner_names(text: str) -> Iterator[str]:
    """Yield what a shown text takes from the inside of leakscope: modules that are not public, names that are not exported."""
    nodes = list(ast.walk(ast.parse(text)))
    rooms = {"leakscope": "leakscope"}
    for node in nodes:
        if isinstance(node, ast.Import):
            ours = {alias.name for alias in node.names if alias.name.split(".")[0] in OURS}
            yield from ours - PUBLIC - BESIDE
        elif isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] in OURS:
            module = str(node.module)
            if module not in PUBLIC | BESIDE:
                yield module
                continue
            for alias in node.names:
                whole = (
                    module == "leakscope" and (Path(leakscope.__file__).parent / alias.name / "__init__.py").exists()
                )
                if whole and alias.name not in exported(module):
                    rooms[alias.asname or alias.name] = f"leakscope.{alias.name}"
                elif alias.name not in exported(module):
                    yield f"{module}.{alias.name}"
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in rooms:
            room = rooms[node.value.id]
            if node.attr not in exported(room) and f"{room}.{node.attr}" not in PUBLIC:
                yield f"{room}.{node.attr}"


def test_a_reader_imports_from_the_public_packages_only() -> None:
    for path, text in shown_code():
        assert not list(inner_names(text)), path.relative_to(ROOT)


@pytest.mark.parametrize(
    ("text", "inner"),
    [
        ("from leakscope.attacks.engine import loop", "leakscope.attacks.engine"),
        ("from leakscope.attacks import engine", "leakscope.attacks.engine"),
        ("import leakscope.sweep.plan", "leakscope.sweep.plan"),
        ("import leakscope\nleakscope.sweep", "leakscope.sweep"),
        ("from leakscope import analysis\nanalysis.linear_system.report", "leakscope.analysis.linear_system"),
        ("from leakscope_papers.claims import examine", "leakscope_papers.claims"),
        ("from leakscope.attacks import cpl\nfrom leakscope import analysis\nanalysis.infer", None),
    ],
)
def test_every_way_to_the_inside_is_seen(text: str, inner: str | None) -> None:
    assert list(inner_names(text)) == ([] if inner is None else [inner])


def test_shown_python_is_marked_as_python() -> None:
    languages = {block.language for path in DOCUMENTS for block in blocks(path.read_text(encoding="utf-8"))}
    assert languages <= {"python", "yaml", "sh", "text", "html", "toml"}


def test_the_documents_have_python_that_runs() -> None:
    for name in ("README.md", "docs/start/python.md", "docs/how-to/own-attack.md"):
        document = (ROOT / name).read_text(encoding="utf-8")
        assert any(block.language == "python" and not block.skipped for block in blocks(document)), name


@pytest.mark.parametrize("page", ["own-attack", "own-data", "own-defence"])
def test_what_people_add_has_a_worked_example(page: str) -> None:
    shown = [
        block
        for block in blocks((ROOT / f"docs/how-to/{page}.md").read_text(encoding="utf-8"))
        if block.language == "python"
    ]
    assert any("assert" in block.text for block in shown)
    assert not any(block.skipped for block in shown)


@each_document
def test_links_and_pictures_lead_somewhere(path: Path) -> None:
    document = path.read_text(encoding="utf-8")
    for target in LINK.findall(prose(document)):
        if target.startswith(("https://", "http://")):
            continue
        file, _, anchor = target.partition("#")
        there = path.parent / file if file else path
        assert there.exists(), f"{path.name} links to {target}"
        if anchor:
            assert anchor in anchors(there.read_text(encoding="utf-8")), f"{path.name} links to {target}"


@each_document
def test_files_named_in_a_document_exist(path: Path) -> None:
    rooms = ("src", "tests", "docs", "benchmarks", "tools")
    for said in SPOKEN.findall(prose(path.read_text(encoding="utf-8"))):
        for word in said.split():
            if word.split("/")[0] in rooms and re.fullmatch(r"[\w/.\-]+\.(py|md|png)", word):
                assert (ROOT / word).exists(), f"{path.name} names {word}"


@each_document
def test_every_leakscope_command_exists(path: Path) -> None:
    root = typer.main.get_command(app)
    for line in spoken_lines(path.read_text(encoding="utf-8")):
        command = root
        for word in leading_words(line, "leakscope"):
            known = getattr(command, "commands", None)
            if known is None:
                break  # the rest are arguments
            assert word in known, f"{path.name} names `{line.strip()}`; known: {', '.join(known)}"
            command = known[word]


@each_document
def test_every_make_target_exists(path: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    for line in spoken_lines(path.read_text(encoding="utf-8")):
        for word in leading_words(line, "make"):
            assert word in targets, f"{path.name} names `{line.strip()}`"


def test_the_readme_names_its_two_commands() -> None:
    said = set(spoken_lines((ROOT / "README.md").read_text(encoding="utf-8")))
    assert {"make demo", "make test"} <= said


def test_pictures_are_small() -> None:
    assert all(path.stat().st_size < 200_000 for path in (ROOT / "docs/images").iterdir())


def test_the_readme_is_one_screen() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 55


def test_the_readers_above_see_what_they_should() -> None:
    text = "`make x`\n\n```python\na\n```\n\n<!-- not run: a reason -->\n```python\nb\n```\n"
    first, second = blocks(text)
    assert (first.text, first.line, first.skipped, second.skipped) == ("a\n", 4, False, True)
    assert "python" not in prose(text)
    assert list(spoken_lines(text)) == ["make x"]
    assert leading_words("$ .venv/bin/leakscope data fetch mnist --out x", "leakscope") == ["data", "fetch", "mnist"]
    assert leading_words("leakscope.peek(model)", "leakscope") == []
    assert anchors("## What it does, now\n") == {"what-it-does-now"}
