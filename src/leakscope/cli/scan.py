"""`leakscope scan`: is the model that a client was sent a trap? A gate for CI and for clients."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leakscope.cli.app import app
from leakscope.cli.audit import find_target
from leakscope.cli.options import AsJson, Classes, Imports, InputShape, ModelName, import_components
from leakscope.core.errors import InputError

if TYPE_CHECKING:
    from leakscope.auditing import Target
    from leakscope.core.tree import Tree

EXAMPLES = 64
SUFFIX = ".safetensors"


@app.command()
def scan(
    what: ModelName,
    data: Annotated[
        str | None,
        typer.Option(
            help="Your own sample: the name of a data set, or a .safetensors of inputs and labels.", show_default=False
        ),
    ] = None,
    previous: Annotated[
        str | None,
        typer.Option(help="Model of the last round: as MODEL, or a .safetensors of weights.", show_default=False),
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(help="A .safetensors with the received weights.", show_default=False)
    ] = None,
    hashes: Annotated[
        list[str] | None,
        typer.Option(
            "--hash", help="Hash that another client of the round computed; may be repeated.", show_default=False
        ),
    ] = None,
    input_shape: InputShape = None,
    classes: Classes = 10,
    imports: Imports = None,
    as_json: AsJson = False,
) -> None:
    """Test a model that a server sent for manipulations; exit with 1 if a trap is suspected or no test could run."""
    from leakscope.scanning.scan import scan as scan_target

    import_components(imports)
    if input_shape is not None and not what.isidentifier():
        raise InputError(f"--input-shape is for a model by name: {what} builds its own; give a sample with --data")
    target = find_target(what, input_shape, classes, "scan")
    if weights is not None:
        load_weights(target, weights)
    if data is not None:
        target = with_sample(target, data)
    last = None if previous is None else previous_weights(previous, input_shape, classes)
    result = scan_target(target, previous=last, hashes=hashes or ())
    typer.echo(json.dumps(result.to_dict(), indent=1) if as_json else str(result))
    if not result.passed:
        raise typer.Exit(1)


def load_weights(target: Target, path: Path) -> None:
    """Load the weights of a file into a target's model."""
    from leakscope.models.checkpoint import read_checkpoint
    from leakscope.scanning.rounds import check_same

    received = read_checkpoint(path)[0]
    check_same(target.model.state_dict(), received, f"--weights {path}")
    target.model.load_state_dict(received)


def with_sample(target: Target, name: str) -> Target:
    """Return the target with a sample: the first training examples of a data set, or the tensors of a file."""
    from leakscope.data import load
    from leakscope.models.checkpoint import read_checkpoint

    if not name.endswith(SUFFIX):
        dataset = load(name)
        places = range(min(EXAMPLES, dataset.size("train")))
        return replace(target, inputs=dataset.pictures("train", places), labels=dataset.labels("train", places))
    if not Path(name).is_file():
        raise InputError(f"--data: there is no file {name}")
    tensors, _ = read_checkpoint(Path(name))
    if "inputs" not in tensors:
        raise InputError(f"--data {name} must hold the tensors inputs and labels, got {', '.join(tensors) or 'none'}")
    return replace(target, inputs=tensors["inputs"], labels=tensors.get("labels"))


def previous_weights(name: str, input_shape: str | None, classes: int) -> Tree:
    """Return the weights of the last round, from a file or from a model."""
    from leakscope.models.checkpoint import read_checkpoint

    if name.endswith(SUFFIX):
        return read_checkpoint(Path(name))[0]
    return find_target(name, input_shape, classes, "scan --previous").model.state_dict()
