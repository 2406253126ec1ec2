"""The command line, extended by other packages through the entry point group `leakscope.commands`."""

from __future__ import annotations

import io
import signal
import sys
import threading
from importlib.metadata import entry_points
from typing import Annotated

import typer

from leakscope.cli.data import app as data_app
from leakscope.cli.progress import heeded_signals
from leakscope.cli.text import printable
from leakscope.core.errors import InputError, is_out_of_memory
from leakscope.core.version import __version__

GROUP = "leakscope.commands"

app = typer.Typer(  # commands import heavy modules themselves, so that `--help` is fast
    help="Measure how much of a client's private training data leaks through the update it shares.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(data_app, name="data")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"leakscope {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    del version


def main() -> None:
    """Run the command line."""
    run_command(app)


def run_command(command: typer.Typer) -> None:
    """Run a command line; input errors end with a clear line each and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if threading.current_thread() is threading.main_thread():
        for number in heeded_signals():
            signal.signal(number, signal.default_int_handler)
    try:
        command()
    except InputError as error:
        for line in str(error).splitlines():
            sys.stderr.write(f"leakscope: {printable(line)}\n")
        sys.exit(2)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        sys.stderr.write("leakscope: out of memory: attack fewer or smaller images at a time\n")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.stderr.write("leakscope: stopped\n")
        sys.exit(130)


def join_commands(app: typer.Typer) -> None:
    """Add every installed package's commands; one that cannot be loaded or whose name is taken is reported and left out."""
    taken = {group.name for group in app.registered_groups} | {command_name(c) for c in app.registered_commands}
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        try:
            commands = point.load()
        except Exception as error:  # another package's import may fail in any way; the other commands must still work
            sys.stderr.write(f"leakscope: command {point.name!r} of {point.value} cannot be loaded ({error})\n")
            continue
        if not callable(commands) or point.name in taken:  # a typer.Typer is callable too
            problem = (
                "is taken" if point.name in taken else f"must be a function or a typer.Typer, {point.value} is not"
            )
            sys.stderr.write(f"leakscope: command {point.name!r} {problem}; it is left out\n")
            continue
        taken.add(point.name)
        if isinstance(commands, typer.Typer):
            app.add_typer(commands, name=point.name)
        else:
            app.command(point.name)(commands)


def command_name(command: typer.models.CommandInfo) -> str | None:
    """Return the name of a command."""
    if command.name or command.callback is None:
        return command.name
    return command.callback.__name__.replace("_", "-")
