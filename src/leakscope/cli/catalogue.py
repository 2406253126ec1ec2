"""`leakscope list` and `leakscope schema`: what there is to use, and the files that users write."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from leakscope.cli.app import app
from leakscope.core.errors import InputError


@app.command("list")
def list_pieces() -> None:
    """List every data set, model, attack, defence and metric, a line each."""
    from rich.console import Console
    from rich.table import Table

    from leakscope.scenario.catalogue import catalogue

    table = Table("kind", "name", "what it is")
    last = ""
    for kind, name, line in catalogue():
        table.add_row(kind if kind != last else "", name, line)
        last = kind
    Console().print(table)


@app.command()
def schema(
    kind: Annotated[str, typer.Option(help="Whose schema: scenario, train or audit.")] = "scenario",
    out: Annotated[
        Path | None, typer.Option(help="File to write; the terminal if not given.", show_default=False)
    ] = None,
) -> None:
    """Print the JSON schema of a scenario, training or audit file, so that editors complete it."""
    from leakscope.cli.schemas import schema_of

    text = json.dumps(schema_of(kind), indent=2) + "\n"
    if out is None:
        sys.stdout.write(text)
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {out} ({error.strerror})") from None
