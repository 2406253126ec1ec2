"""`leakscope policy list`, `leakscope policy show` and `leakscope policy psnr`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from leakscope.cli.app import app

policies = typer.Typer(help="Transformation policies (ATS): what they do to a picture.", no_args_is_help=True)
app.add_typer(policies, name="policy")


@policies.command("list")
def list_operations() -> None:
    """List the 50 operations that a policy is made of."""
    from rich.console import Console
    from rich.table import Table

    from leakscope.search.policies import operation_rows

    table = Table("index", "operation", "each picture draws")
    for row in operation_rows():
        table.add_row(*row)
    Console().print(table)


@policies.command()
def show(
    policy: Annotated[str, typer.Argument(help="Such as 3-1-7, or a hybrid 3-1-7+43-18-18.", show_default=False)],
    data: Annotated[str, typer.Option(help="Data set whose pictures to use.")] = "fashion_mnist",
    images: Annotated[int, typer.Option(help="How many pictures.")] = 6,
    seed: Annotated[int, typer.Option(help="Seed of the signs.")] = 0,
    out: Annotated[Path | None, typer.Option(help="PNG to write; policy-<POLICY>.png if not given.")] = None,
) -> None:
    """Draw every step of a policy on real pictures into a PNG."""
    from leakscope.search.policies import draw_policy

    path = out or Path(f"policy-{policy}.png")
    for line in draw_policy(policy, data, images, seed, path):
        typer.echo(line)
    typer.echo(f"picture: {path}")


@policies.command("psnr")
def show_psnr(
    run: Annotated[Path, typer.Argument(help="A run directory of `leakscope run`.", show_default=False)],
) -> None:
    """Show both PSNRs of a run whose clients transform: against their pictures, and against what their networks saw."""
    from rich.console import Console
    from rich.table import Table

    from leakscope.cli.progress import printable
    from leakscope.search.policies import both_psnr

    rows = both_psnr(run)
    names = list(dict.fromkeys(name for row in rows for name in row.axes))
    table = Table(*names, "n", "against x, dB (95 %)", "against T(x), dB (95 %)")
    for row in rows:
        said = [printable(str(row.axes.get(name, ""))) for name in names]
        values = [f"{e.value:.2f} [{e.low:.2f}, {e.high:.2f}]" for e in (row.private, row.seen)]
        table.add_row(*said, str(row.private.n), *values)
    Console().print(table)
