"""The letters of the SoK: the first that grants what an attacker is told."""

from __future__ import annotations

import pytest

from leakscope.core.record import Cell
from leakscope.core.threat_models import ThreatModel, threat_model_of
from leakscope.report.threat import threat_of


@pytest.mark.parametrize(
    ("local", "public", "statistics", "letter"),
    [
        (False, False, False, "B"),
        (True, False, False, "C"),
        (False, True, False, "D"),
        (True, True, False, "D"),
        (True, False, True, "E"),
    ],
)
def test_the_first_letter_that_grants_all(local: bool, public: bool, statistics: bool, letter: str) -> None:
    assert threat_model_of(local=local, public=public, statistics=statistics) is ThreatModel[letter]


def test_a_sweep_names_the_letters_of_its_cells() -> None:
    trained = {"client": {"local": {"epochs": 1}}, "knowledge": {"local": True}}
    cells = [Cell(id="a", settings={"client": {"local": None}}), Cell(id="b", settings=trained)]
    words = threat_of(cells).words
    assert [model for model in ThreatModel if str(model) in words] == [ThreatModel.B, ThreatModel.C]
    assert threat_of([]).words == ""
