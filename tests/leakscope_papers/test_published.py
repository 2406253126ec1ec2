"""What is stored of the papers: every file reads, and holds what its README counts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import leakscope_papers
from leakscope.core.errors import InputError, UnknownNameError
from leakscope_papers.files import natural, read_file
from leakscope_papers.published import Printed, printed_files, read_printed

COUNTED = re.compile(r"^\| ([a-z]+-(?:table|figure)-\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", re.MULTILINE)


def test_the_readme_counts_every_file_and_counts_right() -> None:
    readme = (Path(leakscope_papers.__file__).parent / "README.md").read_text("utf-8")
    told = {name: tuple(map(int, numbers)) for name, *numbers in COUNTED.findall(readme)}
    assert set(told) <= set(printed_files())
    for name, (values, lost, doubts, claims) in told.items():
        printed = read_printed(name)
        known = [row for row in printed.rows if row.value is not None]
        assert (len(known), len(printed.rows) - len(known)) == (values, lost), name
        assert (len(printed.doubts), len(printed.claims)) == (doubts, claims), name


def test_shares_are_shares_and_failed_cells_print_the_cap() -> None:
    for name in printed_files():
        for row in read_printed(name).rows:
            if row.unit == "share" and row.value is not None:
                assert 0 <= row.value <= 1, (name, row)
            if "300 is the cap" in row.note:
                assert row.value == 300


def test_a_wrong_file_is_named_with_its_field(tmp_path: Path) -> None:
    path = tmp_path / "x-table-1.yaml"
    path.write_text(
        "paper: x\nitem: table 1\ntitle: t\nsource: s\nsetting: s\nrows: [{where: {}, measure: mse, value: many}]\n"
    )
    with pytest.raises(InputError, match=r"x-table-1\.yaml:6: rows\.0\.value"):
        read_file(path).read(Printed)
    path.write_text("- 1\n")
    with pytest.raises(InputError, match="be a mapping"):
        read_file(path)


def test_an_unknown_name_lists_the_near_ones() -> None:
    with pytest.raises(UnknownNameError, match="cpl-table-2"):
        read_printed("cpl-tabel-2")


def test_names_sort_as_people_count() -> None:
    assert sorted(["a-10", "a-9", "a-1"], key=natural) == ["a-1", "a-9", "a-10"]
