"""`leakscope list` and `leakscope schema`: the available components, and the schemas of the files that users write."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from leakscope.cli.app import app
from leakscope.cli.options import Imports, import_components
from leakscope.cli.text import print_named
from leakscope.core.errors import InputError
from leakscope.core.plugins import load_plugins
from leakscope.core.registry import lookup


@app.command("list")
def list_catalogue(
    kind: Annotated[
        str | None, typer.Argument(metavar="[KIND]", help="Only this kind, such as attacks.", show_default=False)
    ] = None,
    imports: Imports = None,
) -> None:
    """List all data sets, models, attacks, defences and metrics, one per line."""
    from leakscope.scenario.catalogue import catalogue

    import_components(imports)
    kinds: dict[str, list[tuple[str, str]]] = {}
    for name_of_kind, name, line in catalogue():
        kinds.setdefault(name_of_kind, []).append((name, line))
    if kind is not None:
        wanted = kind if kind in kinds else lookup({plural(each): each for each in kinds}, kind, "kind")
        kinds = {wanted: kinds[wanted]}
    for name_of_kind, rows in kinds.items():
        print_named((name_of_kind, "what it is"), rows)


def plural(kind: str) -> str:
    """Return the plural of a kind of component.

    >>> plural("attack"), plural("loss"), plural("data"), plural("defence on the data")
    ('attacks', 'losses', 'data', 'defences on the data')
    >>> plural("policy on the data")
    'policies on the data'
    """
    head, on, rest = kind.partition(" on ")  # a defence on the data
    if kind == "data":
        return kind
    return f"{head.removesuffix('y')}{'ies' if head.endswith('y') else 'es' if head.endswith('s') else 's'}{on}{rest}"


@app.command()
def schema(
    kind: Annotated[str, typer.Option(help="Kind of file: scenario, train or audit.")] = "scenario",
    out: Annotated[Path | None, typer.Option(help="File to write; printed if not given.", show_default=False)] = None,
    imports: Imports = None,
) -> None:
    """Print the JSON schema of a scenario, training or audit file, for completion in editors."""
    from leakscope.store.disk import writing_to

    import_components(imports)
    text = json.dumps(schema_of(kind), indent=2) + "\n"
    if out is None:
        sys.stdout.write(text)
        return
    try:
        with writing_to(out) as file:
            file.write(text.encode())
    except OSError as error:
        raise InputError(f"cannot write {out} ({error.strerror})") from None


DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema_of(kind: str) -> dict[str, object]:
    """Return the JSON schema of a kind of file: 'scenario', 'train' or 'audit'."""
    load_plugins()
    schema: dict[str, object] = lookup(SCHEMAS, kind, "kind of file")()
    return schema


def _scenario() -> dict[str, object]:
    from leakscope.scenario import json_schema

    return json_schema()


def _train() -> dict[str, object]:
    from leakscope.training.file import file_model

    return {"$schema": DIALECT, **file_model().model_json_schema(), "title": "leakscope training"}


def _audit() -> dict[str, object]:
    from leakscope.auditing.target_file import file_model

    return {"$schema": DIALECT, **file_model().model_json_schema(), "title": "leakscope audit"}


SCHEMAS = {"scenario": _scenario, "train": _train, "audit": _audit}
