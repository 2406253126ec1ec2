"""Recorded rows as a Markdown table in the documents."""

from __future__ import annotations

import pytest

from leakscope.core.errors import InputError
from leakscope_papers.pages.rows import rows_table
from leakscope_papers.status import recorded_results


def test_a_table_has_a_line_for_each_row_and_a_column_for_what_varies() -> None:
    head, _, *lines = rows_table("cpl-ig-readings", "lfw_face", ["asr_content", "mse_all"]).splitlines()
    assert head == "| tv | signed | iterations | weights | n | content | MSE |"
    (result,) = recorded_results("cpl-ig-readings").values()
    assert len(lines) == len(result.cells) >= 8
    estimate = result.cells[3].values["asr_content"].estimate
    assert lines[3].startswith("| 0.01 | yes | 4800 | uniform | 50 | ")
    assert f"{100 * estimate.value:.0f} % ({100 * estimate.low:.1f} to " in lines[3]


def test_a_part_without_rows_is_an_error() -> None:
    with pytest.raises(InputError, match="no row of cpl-ig-readings, part other"):
        rows_table("cpl-ig-readings", "other", ["asr_content"])
