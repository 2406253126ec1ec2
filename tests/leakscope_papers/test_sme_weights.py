"""SME's items: LeCun's first weights are those of DLFA's own two networks; every other network begins as PyTorch's do."""

from __future__ import annotations

import pytest

from leakscope_papers.items import read_item

OF_DLFA = ("cnn_mnist", "cnn_cifar")


@pytest.mark.parametrize("name", ["sme-table-2", "sme-table-7", "sme-figure-6"])
def test_weights_are_those_of_the_authors_of_the_attack(name: str) -> None:
    parts = [part for part in read_item(name).parts if part.scenario]
    assert parts
    for part in parts:
        simulated = any(attack["name"] == "dlfa" for attack in part.scenario["attacks"])
        own = simulated and part.scenario["model"]["name"] in OF_DLFA
        assert part.scenario["weights"] == ("lecun" if own else "pytorch"), part.name
        assert ("LeCun" in part.note) == own, part.name
