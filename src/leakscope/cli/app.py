"""The command line. Heavy imports happen inside the command that needs them: `--help` answers at once."""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer

from leakscope.core.errors import InputError
from leakscope.core.version import __version__
from leakscope.data.commands import app as data_app

app = typer.Typer(
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
    """Run a command line; a mistake in the input ends with a clear line for each and exit code 2."""
    from leakscope.cli.progress import printable

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        command()
    except InputError as error:
        for line in str(error).splitlines():
            sys.stderr.write(f"leakscope: {printable(line)}\n")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.stderr.write("leakscope: stopped\n")
        sys.exit(130)
