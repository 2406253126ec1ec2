"""`leakscope frontier`: epsilon, accuracy and measured leakage of the same runs on one page."""

from __future__ import annotations

import shlex
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
    from leakscope.integrations.opacus import promise_of
    from leakscope.report.frontier_page import page_of_frontier
    from leakscope.report.page import write
    from leakscope.studies.frontier import ATTACKED, FrontierSettings, measure_frontier

    attacked = min(clients, ATTACKED)
    settings = FrontierSettings(clients=clients, rounds=rounds, attacked=attacked, iterations=iterations, seed=seed)
    command = command_of(out, clients, rounds, iterations, delta, accountant, seed)
    promise = promise_of(delta=delta, accountant=accountant)
    made = measure_frontier(settings, promise, tell=partial(typer.echo, err=True))
    try:
        path = write(page_of_frontier(made, command=command), out / "index.html")
    except OSError as error:
        raise InputError(f"--out {out} cannot be written ({error.strerror})") from None
    typer.echo(f"page: {path}")


def command_of(out: Path, clients: int, rounds: int, iterations: int, delta: float, accountant: str, seed: int) -> str:
    """Return the command that measures this very frontier again, ready for a shell.

    >>> command_of(Path("my page"), 256, 40, 40, 1e-05, "rdp", 0)
    "leakscope frontier --out 'my page' --clients 256 --rounds 40 --iterations 40 --delta 1e-05 --accountant rdp --seed 0"
    """
    options = {
        "--out": out,
        "--clients": clients,
        "--rounds": rounds,
        "--iterations": iterations,
        "--delta": delta,
        "--accountant": accountant,
        "--seed": seed,
    }
    return shlex.join(["leakscope", "frontier", *(word for pair in options.items() for word in map(str, pair))])
