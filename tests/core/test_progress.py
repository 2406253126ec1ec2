"""Progress reaches a caller's function as small values; by default it is shown only where somebody looks."""

from __future__ import annotations

import dataclasses
import io
import sys
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn

import leakscope
from leakscope.attacks.recipes import prior_only
from leakscope.auditing import attack_runs, suite
from leakscope.core.errors import InputError
from leakscope.core.progress import ProgressEvent, Reporter, StatusLine, reporting, status_line
from leakscope.studies import frontier
from leakscope.studies.frontier import FrontierSettings, measure_frontier

TINY = {
    "data": {"name": "digits", "part": "test", "samples": 1},
    "model": {"name": "lenet_cpl", "width": 4},
    "attacks": [{"name": "cpl", "iterations": 1}],
    "trials": 1,
    "baselines": [],
}


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def events(screen: io.StringIO | None, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return what the default progress prints to a stderr."""
    monkeypatch.setattr(sys, "stderr", screen or io.StringIO())
    with reporting(None) as report:
        report("cpl", "begins")
        report("cpl", done=3, total=60)
    return cast(io.StringIO, sys.stderr).getvalue()


def test_the_default_is_silent_unless_somebody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    assert events(None, monkeypatch) == ""
    shown = events(Screen(), monkeypatch)
    assert shown.startswith("cpl: begins\n\rcpl: 3 of 60")
    assert shown.endswith(" \r")  # the state is removed at the end
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    assert events(None, monkeypatch) == shown


def test_false_is_silent_and_nonsense_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Screen())
    with reporting(False) as report:
        report("cpl", "begins")
    assert cast(io.StringIO, sys.stderr).getvalue() == ""
    with pytest.raises(InputError), reporting(cast(Any, 3)):
        pass
    assert status_line(quiet=True) is False


def test_a_message_cannot_control_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Screen())
    Reporter(StatusLine(live=True))("\x1b[2J", "\x1b[31m")
    assert "\x1b" not in cast(io.StringIO, sys.stderr).getvalue()


def test_an_event_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        ProgressEvent("cpl", 1, 2, 0.0).done = 3  # type: ignore[misc]


def check(heard: list[ProgressEvent], *phases: str) -> None:
    assert all(isinstance(event, ProgressEvent) and 0 <= event.done <= max(event.total, event.done) for event in heard)
    assert set(phases) <= {event.phase for event in heard}
    assert [event.seconds for event in heard] == sorted(event.seconds for event in heard)


def test_every_long_call_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "PUBLISHED", dict.fromkeys(suite.PUBLISHED, 1) | {"cpl": 1, "ig": 2, "sme": 2})
    monkeypatch.setattr(attack_runs, "prior_only", partial(prior_only, iterations=2))
    monkeypatch.setattr(frontier, "_defences", lambda length, size: [])
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    x, y = torch.rand(3, 1, 2, 2), torch.tensor([0, 1, 0])
    heard: list[ProgressEvent] = []
    leakscope.peek(network, x[:1], y[:1], iterations=1, noise=False, progress=heard.append)
    check(heard, "cpl")
    assert heard[-1].done == heard[-1].total == 1
    heard.clear()
    leakscope.audit(network, "cross_entropy", x, y, clients=1, minutes=0.5, remedies=False, progress=heard.append)
    check(heard, "Sequential", "analytic", "cpl")
    heard.clear()
    leakscope.run_scenario(
        leakscope.scenario_of(TINY), tmp_path / "run", workers=1, measure=False, progress=heard.append
    )
    check(heard, "trials")
    assert heard[-1].done == heard[-1].total > 0
    heard.clear()
    settings = FrontierSettings(clients=2, rounds=1, attacked=1, iterations=1, multipliers=(1.0,))
    measure_frontier(settings, progress=heard.append)
    check(heard, "frontier")
    assert [(event.done, event.total) for event in heard] == [(0, 2), (1, 2)]
