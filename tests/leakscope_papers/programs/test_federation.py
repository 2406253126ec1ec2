"""The accuracy of trained federations: the paths that are varied, and trainings that diverge, which have none."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from leakscope.core.errors import InputError
from leakscope_papers.cpl import federation
from leakscope_papers.measures import value_of
from leakscope_papers.programs.rows import keeping

SMALL: dict[str, Any] = {
    "data": {"name": "digits", "examples": 120},
    "partition": {"name": "iid", "clients": 4},
    "model": {"name": "mlp", "hidden": [8]},
    "client": {"local": {"epochs": 1, "batch_size": 16, "rate": 0.3}},
    "selection": {"name": "share", "share": 0.5},
    "rounds": 3,
    "evaluate": 3,
    "seeds": [0, 1],
    "said": {"shared": "weights"},
}


@pytest.mark.parametrize("evaluate", [1, 3])
def test_a_training_that_diverges_has_no_accuracy_rather_than_that_of_an_earlier_network(
    tmp_path: Path, evaluate: int
) -> None:
    settings = {**SMALL, "evaluate": evaluate, "vary": {"client.local.rate": [0.3, 1e30]}}
    with keeping(tmp_path, settings, {}) as rows:
        federation.accuracy(settings, rows, lambda _: None, "cpu")
    healthy, blown = (rows.values(f"client.local.rate={rate}")["accuracy"] for rate in (0.3, 1e30))
    assert all(value is not None and 0 <= value <= 1 for value in healthy)
    assert len(healthy) == 2
    assert blown == (None, None)
    assert math.isnan(value_of("accuracy", blown).estimate.value)
    assert rows.rows["client.local.rate=1e+30"].where == {"shared": "weights", "client.local.rate": 1e30}


def test_a_path_that_is_not_there_is_refused() -> None:
    with pytest.raises(InputError, match=r"vary: there is no defences to set 0\.sigma of"):
        federation.at(SMALL, {"defences.0.sigma": 1.0})
