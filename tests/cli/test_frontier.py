"""`leakscope frontier`: the page names the command that makes it again, and options are complained of by their names."""

from __future__ import annotations

import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from leakscope.cli import app
from leakscope.core.errors import InputError
from leakscope.integrations import opacus
from leakscope.report import frontier_page, page
from leakscope.studies import frontier


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Return what is measured and which command the page gets; nothing is measured."""
    seen = SimpleNamespace(settings=None, command="")
    monkeypatch.setattr(opacus, "promise_of", lambda **_: None)
    monkeypatch.setattr(frontier, "measure_frontier", lambda settings, *_, **__: setattr(seen, "settings", settings))
    monkeypatch.setattr(frontier_page, "page_of_frontier", lambda _, *, command: setattr(seen, "command", command))
    monkeypatch.setattr(page, "write", lambda _, path: path)
    return seen


def run(*words: str) -> None:
    done = CliRunner().invoke(app, ["frontier", *words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output


def test_the_page_names_the_command_that_made_it(seen: SimpleNamespace, tmp_path: Path) -> None:
    words = ["--out", str(tmp_path / "a b"), "--clients", "20", "--rounds", "3", "--iterations", "2"]
    words += ["--delta", "0.001", "--accountant", "rdp", "--seed", "7"]
    run(*words)
    first, settings = seen.command, seen.settings
    assert all(word in first for word in ("--rounds 3", "--delta 0.001", "--accountant rdp", "--seed 7", "a b'"))
    run(*shlex.split(first)[2:])
    assert (seen.command, seen.settings) == (first, settings)


@pytest.mark.parametrize(("clients", "attacked"), [(1, 1), (5, 5), (300, frontier.ATTACKED)])
def test_few_clients_are_all_attacked(seen: SimpleNamespace, clients: int, attacked: int) -> None:
    run("--clients", str(clients))
    assert (seen.settings.clients, seen.settings.attacked) == (clients, attacked)


def test_no_clients_are_refused_by_the_name_of_the_option(seen: SimpleNamespace) -> None:
    with pytest.raises(InputError, match=r"clients .* 1, got 0") as refused:
        run("--clients", "0")
    assert "attacked" not in str(refused.value)
