"""`leakscope frontier`: epsilon, accuracy and measured leakage of the same runs on one page."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from leakscope.cli.app import app
from leakscope.core.errors import InputError


@app.command()
def frontier(
    out: Annotated[Path, typer.Option(help="Directory for the page.")] = Path("leakscope-frontier"),
    clients: Annotated[int, typer.Option(help="Clients with one digit each.")] = 256,
    rounds: Annotated[int, typer.Option(help="Rounds of training.")] = 40,
    iterations: Annotated[int, typer.Option(help="Iterations of the attack.")] = 40,
    delta: Annotated[float, typer.Option(help="The delta of epsilon.")] = 1e-5,
    accountant: Annotated[str, typer.Option(help="rdp or prv.")] = "prv",
    seed: Annotated[int, typer.Option(help="Seed of weights and noise.")] = 0,
) -> None:
    """Train with DP-SGD and with other defences, attack the same clients, and write a page (extra 'dp')."""
    from leakscope.experiments.frontier import FrontierSettings, measure_frontier
    from leakscope.integrations.opacus import promise_of
    from leakscope.report.frontier_page import page_of_frontier
    from leakscope.report.page import write

    settings = FrontierSettings(clients=clients, rounds=rounds, iterations=iterations, seed=seed)

    promise = promise_of(delta=delta, accountant=accountant)
    made = measure_frontier(settings, promise, tell=partial(typer.echo, err=True))
    try:
        path = write(page_of_frontier(made, command="leakscope frontier"), out / "index.html")
    except OSError as error:
        raise InputError(f"--out {out} cannot be written ({error.strerror})") from None
    typer.echo(f"page: {path}")
