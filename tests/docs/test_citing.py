"""The citation file is complete, and every attack of the catalogue has a paper to cite."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from leakscope import __version__
from leakscope.attacks.recipes import ATTACKS

ROOT = Path(__file__).parents[2]
CITING = (ROOT / "docs" / "reference" / "citing.md").read_text("utf-8")
ENTRIES = dict(re.findall(r"^@\w+\{(\w+),\n(.*?)^\}$", CITING, re.MULTILINE | re.DOTALL))


@pytest.fixture(scope="module")
def citation() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    return found


def squeezed(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def test_the_citation_file_has_what_its_format_requires(citation: dict[str, Any]) -> None:
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors", "license"} <= set(citation)
    assert citation["version"] == __version__
    assert len(citation["references"]) == 5
    for reference in citation["references"]:
        assert {"type", "title", "authors", "year", "url"} <= set(reference)
        assert all({"family-names", "given-names"} <= set(author) for author in reference["authors"])


def test_the_five_papers_are_the_same_in_both_places(citation: dict[str, Any]) -> None:
    titles = {squeezed(body.split("title = ")[1].split(",\n")[0]): body for body in ENTRIES.values()}
    for reference in citation["references"]:
        body = titles[squeezed(reference["title"])]
        names = [name.split(",")[0] for name in body.split("author = {")[1].split("}")[0].split(" and ")]
        assert names == [author["family-names"] for author in reference["authors"]]
        assert f"year = {{{reference['year']}}}" in body
        for identifier in reference.get("identifiers", ()):
            assert f"eprint = {{{identifier['value'].removeprefix('arXiv:')}}}" in body


def test_every_attack_has_an_entry_to_cite_and_every_entry_is_whole() -> None:
    rows = re.findall(r"^\| (`.*`) \| (.*) \|$", CITING, re.MULTILINE)
    named = {name for attacks, _ in rows for name in re.findall(r"`(\w+)`", attacks)}
    assert named == set(ATTACKS)
    keys = {key for attacks, cited in rows for key in re.findall(r"`(\w+)`", cited)} - set(ATTACKS)
    assert keys <= set(ENTRIES)
    for body in ENTRIES.values():
        assert all(f"{field} = {{" in body for field in ("title", "author", "year"))
        assert body.count("{") == body.count("}")


def test_arxiv_numbers_are_those_of_the_catalogue() -> None:
    catalogue = (ROOT / "docs" / "reference" / "catalogue.md").read_text("utf-8")
    numbers = re.findall(r"eprint = \{([\d.]+)\}", CITING)
    assert len(numbers) == len(set(numbers)) == 10
    assert all(f"arXiv:{number}" in catalogue for number in numbers)
