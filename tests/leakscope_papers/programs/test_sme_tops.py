"""Where on the line the cosine is greatest: inside, or at an end, where every line has a greatest too."""

from __future__ import annotations

import pytest
import torch

from leakscope_papers.measures import with_top_inside
from leakscope_papers.sme.analyses import statistics
from leakscope_papers.theory.line import Lines


@pytest.mark.parametrize(("top", "inside"), [(0, 0.0), (1, 1.0), (2, 1.0), (3, 1.0), (4, 0.0)])
def test_a_top_is_inside_unless_it_is_at_an_end_and_old_rows_say_the_same(top: int, inside: float) -> None:
    cosines = torch.full((2, 5), 0.5)
    cosines[:, top] = 0.9
    found = statistics(Lines(torch.linspace(0, 1, 5), torch.full((2, 4), 0.9), cosines))
    assert found["top_inside"] == [inside] * 2
    assert found["cosine_greatest"][0] >= found["cosine_before"][0]  # wherever the top is: says nothing
    old = {name: values for name, values in found.items() if name != "top_inside"}
    assert with_top_inside(old)["top_inside"] == found["top_inside"]
