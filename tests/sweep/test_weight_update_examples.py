"""The examples on weight updates are valid scenarios and say what their comments say."""

from __future__ import annotations

from pathlib import Path

import pytest

from leakscope.scenario import read_scenario

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(("name", "cells"), [("sme", 8), ("dlfa", 6), ("sme_optimisers", 6)])
def test_the_examples_read(name: str, cells: int) -> None:
    scenario = read_scenario(EXAMPLES / f"{name}.yaml")
    found = list(scenario.cells())
    assert len(found) == cells
    for cell in found:
        local = cell.settings["client"]["local"]
        assert local is not None
        told = cell.settings["knowledge"]["local"]
        assert told is (name == "dlfa")  # SME and IG are told nothing of the local training
