"""Commands of other packages: a `typer.Typer` under the entry point group `leakscope.commands` joins the command line."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points

import typer

GROUP = "leakscope.commands"


def join_commands(app: typer.Typer) -> None:
    """Add every installed package's commands under the name of its entry point.

    A package that cannot be loaded, or that takes a name of ours, is named on stderr and left out: the other commands still work.
    """
    taken = {group.name for group in app.registered_groups} | {command_name(c) for c in app.registered_commands}
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        try:
            commands = point.load()
        except Exception as error:  # another package's import may fail in any way
            sys.stderr.write(f"leakscope: command {point.name!r} of {point.value} cannot be loaded ({error})\n")
            continue
        if not isinstance(commands, typer.Typer) or point.name in taken:
            problem = "is taken" if point.name in taken else f"must be a typer.Typer, {point.value} is not"
            sys.stderr.write(f"leakscope: command {point.name!r} {problem}; it is left out\n")
            continue
        taken.add(point.name)
        app.add_typer(commands, name=point.name)


def command_name(command: typer.models.CommandInfo) -> str | None:
    """Return the name a command answers to."""
    if command.name or command.callback is None:
        return command.name
    return command.callback.__name__.replace("_", "-")
