"""The frontier compares runs that differ in the defence alone, and says which are beaten by another."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
import torch

from leakscope.clients.private import PrivateClient
from leakscope.core.errors import InputError
from leakscope.metrics.interval import Estimate
from leakscope.report.frontier_page import page_of_frontier
from leakscope.report.page import render
from leakscope.studies import frontier as room
from leakscope.studies.frontier import (
    DP,
    UNDEFENDED,
    Frontier,
    FrontierSettings,
    Point,
    dominated,
    measure_frontier,
)

SMALL = FrontierSettings(clients=12, rounds=2, attacked=2, iterations=1, multipliers=(0.1, 10.0))


@pytest.fixture(scope="module")
def made() -> Iterator[Frontier]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "_defences", lambda length, size: _all(length, size)[4:8:2])
        yield measure_frontier(SMALL, lambda client, samples, rounds: samples * rounds / client.multiplier)
    torch.set_num_threads(threads)


_all = room._defences


@pytest.mark.slow
def test_every_run_has_the_same_clients_and_its_own_promise(made: Frontier) -> None:
    assert [point.family for point in made.points] == [UNDEFENDED, DP, DP, "sparsify", "sparsify"]
    assert [point.epsilon for point in made.points] == [None, pytest.approx(20.0), pytest.approx(0.2), None, None]
    assert all(point.run.summary.samples == 2 for point in made.points)
    assert all(0 <= point.accuracy.value <= 1 and point.accuracy.n == 360 for point in made.points)
    assert made.points[2].run.summary.means["psnr"].value < made.points[0].run.summary.means["psnr"].value


@pytest.mark.slow
def test_its_page_shows_epsilon_accuracy_and_leakage(made: Frontier) -> None:
    page = page_of_frontier(made, command="leakscope frontier")
    titles = [(panel.title, panel.axis) for panel in page.sections[0].panels]
    assert ("Content recovered", "test accuracy") in titles
    assert ("Test accuracy", "epsilon") in titles
    text = render(page)
    assert "epsilon 20" in text
    assert "on the frontier" in text


@pytest.mark.slow
def test_a_point_is_beaten_by_one_that_is_better_in_both(made: Frontier) -> None:
    def at(point: Point, accuracy: float) -> Point:
        return dataclasses.replace(point, accuracy=Estimate(accuracy, 0, 1, 9, 9))

    open_, noisy = made.points[0], made.points[2]  # noisy leaks less
    assert dominated([at(open_, 0.9), at(noisy, 0.5)]) == [False, False]
    assert dominated([at(open_, 0.5), at(noisy, 0.9)]) == [True, False]
    assert dominated([at(open_, 0.5), at(open_, 0.5)]) == [False, False]


@pytest.mark.parametrize(
    "changed", [{"attacked": 0}, {"attacked": 300}, {"rounds": 0}, {"multipliers": ()}, {"bound": 0.0}]
)
def test_settings_that_cannot_work_are_refused(changed: dict[str, object]) -> None:
    with pytest.raises(InputError):
        dataclasses.replace(FrontierSettings(), **changed)  # type: ignore[arg-type]


def test_the_attacker_of_a_private_client_is_told_what_it_may_know() -> None:
    from leakscope.core.types import Knowledge, LocalTraining

    one = PrivateClient(bound=2.0, multiplier=0.5).inform(Knowledge((1, 8, 8), 10, 1), 3)
    assert one.sigma is not None
    assert one.bound is not None
    assert one.sigma.tolist() == [1.0] * 3
    assert one.bound.tolist() == [2.0] * 3
    many = PrivateClient(bound=2.0, multiplier=0.5, local=LocalTraining(epochs=4, rate=0.1)).inform(
        Knowledge((1, 8, 8), 10, 8), 1
    )
    assert many.bound is None
    assert many.sigma is not None
    assert many.sigma.tolist() == [pytest.approx(2.0 * 0.5 / 8 * 0.1 * 2)]
