"""`leakscope list` and `leakscope bench`."""

from __future__ import annotations

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
def bench(
    cases: Annotated[list[str] | None, typer.Argument(help="lenet, resnet20, cnn_cifar; all if none is named.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    pairs: Annotated[int, typer.Option(help="Interleaved pairs of loop and engine.")] = 20,
    form: Annotated[str | None, typer.Option(help="Force a form instead of measuring.", show_default=False)] = None,
    tf32: Annotated[bool, typer.Option(help="Allow TF32 on CUDA.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure the engine against the loop that peers use, side by side."""
    from leakscope.studies import bench as benchmark
    from leakscope.studies.bench_cases import CASES

    if device not in ("cpu", "cuda"):
        raise InputError(f"--device must be cpu or cuda, got {device!r}")
    timings = benchmark.run(
        cases or list(CASES),
        device,
        pairs=pairs,
        tf32=tf32,
        form=form,
        say=lambda line: typer.echo(line, err=True),
    )
    shares = benchmark.optimiser_share(device)
    typer.echo((benchmark.as_json if as_json else benchmark.as_text)(timings, shares))
