"""SIGTERM and SIGHUP end a command as Ctrl-C does."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest
import typer

from leakscope.cli.app import run_command
from leakscope.cli.progress import heeded_signals, stop_on_interrupt

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def same_handlers() -> Iterator[None]:
    """Set the handlers of a fresh interpreter, and put the others back."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        signal.signal(number, signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_asks_and_the_second_stops_at_once(number: signal.Signals) -> None:
    lines: list[str] = []
    with stop_on_interrupt("this round", lines.append) as stop:
        assert not stop()
        os.kill(os.getpid(), number)
        assert stop()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert len(lines) == 1
    assert signal.getsignal(number) is (signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_command_ends_with_130(number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    app = typer.Typer(pretty_exceptions_enable=False)

    @app.command()
    def wait() -> None:
        os.kill(os.getpid(), number)
        time.sleep(10)

    monkeypatch.setattr("sys.argv", ["wait"])
    with pytest.raises(SystemExit) as ended:
        run_command(app)
    assert ended.value.code == 130


def test_a_hang_up_that_nohup_ignores_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert heeded_signals() == [signal.SIGTERM]
    with stop_on_interrupt("this round", print) as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        assert not stop()
