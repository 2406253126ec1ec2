"""The similarity loss is 1 - cos: an attack that compares otherwise has none."""

from __future__ import annotations

import pytest

from leakscope.experiments.papers.items import find_part, read_item
from leakscope.experiments.papers.measures import NONE, Value
from leakscope.experiments.papers.naming import name_cell
from leakscope.experiments.papers.scales import scenario_at
from leakscope.experiments.papers.similarity import ABOUT, without_other_distances

VALUES = {name: Value(NONE) for name in ("psnr", *ABOUT)}


@pytest.mark.parametrize(("part", "there"), [("cifar100-50", True), ("femnist-50-dlfa", False)])
def test_only_who_matches_by_the_cosine_has_a_similarity_loss(part: str, there: bool) -> None:
    item = read_item("sme-table-2")
    for cell in scenario_at(item, find_part(item, part), "full").cells():
        if not cell.baseline:
            found = without_other_distances(VALUES, cell.settings)
            assert set(found) == ({"psnr", *ABOUT} if there else {"psnr"})


def test_local_steps_are_epochs_times_the_batches_of_one() -> None:
    item = read_item("sme-table-2")
    for name, batches in (("cifar100-10", 1), ("cifar100-50", 5)):
        part = find_part(item, name)
        for cell in scenario_at(item, part, "full").cells():
            where = name_cell(item, part, item.readings[0], cell.settings)
            assert where is not None
            assert where["local_steps"] == batches * int(str(where["epochs"]))
