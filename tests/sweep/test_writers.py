"""Clients that are writers: each holds the first examples of one, of those who have as many."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from leakscope.core.errors import InputError
from leakscope.data import Dataset, load, using, write_leaf
from leakscope.scenario.problems import ScenarioError
from leakscope.scenario.scenario import scenario_from_text
from leakscope.scenario.settings import DataChoice
from leakscope.sweep.driver import unfold
from leakscope.sweep.objects import items_of

EACH = [5, 2, 7, 4]


@pytest.fixture
def femnist(tmp_path: Path) -> Iterator[Dataset]:
    number = sum(EACH)
    x, groups = np.zeros((number, 1, 28, 28), np.uint8), np.repeat(np.arange(len(EACH)), EACH)
    parts = {"x_train": x, "x_test": x, "groups_train": groups, "groups_test": groups}
    y = np.arange(number)
    names = tuple(map(str, range(62)))
    write_leaf(Dataset(name="toy", kind="image", y_train=y, y_test=y, class_names=names, **parts), tmp_path)
    with using({"femnist": tmp_path}):
        yield load("femnist")


def test_each_client_holds_the_first_examples_of_one_writer(femnist: Dataset) -> None:
    choice = DataChoice(name="femnist", part="train", samples=4, order="writers")
    starts = np.concatenate([[0], np.cumsum(EACH)])
    clients = [items_of(choice, number) for number in range(3)]
    assert sorted(clients) == [tuple(range(starts[w], starts[w] + 4)) for w in (0, 2, 3)]  # writer 1 has two examples
    later = DataChoice(name="femnist", part="train", samples=4, order="writers", first=1)
    assert items_of(later, 0) == clients[1]


def scenario(trials: int, name: str = "femnist") -> str:
    return (
        f"data: {{name: {name}, part: train, samples: 4, order: writers}}\nmodel: {{name: mlp, hidden: [4]}}\n"
        f"attack: {{name: ig, iterations: 1}}\ntrials: {trials}\nbaselines: []\n"
    )


def test_more_clients_than_writers_and_data_without_writers_are_refused(femnist: Dataset) -> None:
    unfold(scenario_from_text(scenario(3)))
    for text, field in ((scenario(4), ("trials",)), (scenario(1, "digits"), ("data", "order"))):
        with pytest.raises(ScenarioError) as raised:
            unfold(scenario_from_text(text))
        assert [problem.path for problem in raised.value.problems] == [field]
    with pytest.raises(InputError):
        DataChoice(name="digits", order="writers", mix="equal")
