"""`leakscope demo`, `leakscope frontier` and `leakscope bench`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leakscope.cli.app import app
from leakscope.cli.options import AsJson, Device, Options, choose_device, shell_command, writing
from leakscope.cli.progress import AttackBars, print_lines
from leakscope.cli.text import terminal
from leakscope.core.errors import InputError
from leakscope.core.progress import status_line

if TYPE_CHECKING:
    from rich.console import Console

    from leakscope.core.types import Batch
    from leakscope.play import AttackResult, Demonstration

EXPLANATION = (
    "Each client below trained on one private picture and shared only its gradient, as federated learning "
    "asks. Nobody sent a picture. The attacker sits at the server, sees the gradient and the model, and searches for the "
    "input that would have caused that gradient."
)
KNOWLEDGE = (
    "The network (a LeNet of four convolutions with fresh uniform(-0.5, 0.5) weights), the loss, the size of a "
    "picture and that there was one. The labels are not known: CPL read them off the gradient, DLG optimised them."
)
LIMITS = (
    "These are small grey pictures, one a client, on freshly drawn weights with smooth activations: the easiest case "
    "for the attacker. Larger batches, many local steps, trained weights and defences change the numbers; steps are capped "
    "here so that the demo ends in a minute."
)
USER_IMAGE = (
    " Your own picture was given the label of class 0, so that there is an update; no rate of labels counts it."
)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Directory for the page.")] = Path("leakscope-demo"),
    image: Annotated[Path | None, typer.Option(help="An image of your own to attack too.", show_default=False)] = None,
    images: Annotated[int, typer.Option(help="How many bundled images to attack.")] = 32,
    seed: Annotated[int, typer.Option(help="Seed of weights and starts.")] = 0,
) -> None:
    """Attack bundled images in about a minute and write a page that shows the leakage."""
    console = terminal()
    console.print("leakscope demo: recovering private pictures from the updates that clients share")
    from leakscope.report.attack_page import page_of
    from leakscope.report.page import write
    from leakscope.studies.demo import ORDER, DemoSettings, run_demo
    from leakscope.sweep.engines import processes, serial, usable_cores

    settings = DemoSettings(images=images, seed=seed, image=image)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {out} cannot be made a directory ({error.strerror})") from None
    with AttackBars() as bars:
        cores = min(usable_cores(), len(ORDER))
        shown = run_demo(
            settings,
            engine=processes(cores) if cores > 1 else serial,
            report=bars.update,
            shown=lambda run, batch: show_exact(console, run, batch),
        )
    _show_table(console, shown)
    page = page_of(
        shown,
        title="leakscope demo",
        explanation=EXPLANATION,
        knowledge=KNOWLEDGE,
        limits=LIMITS + (USER_IMAGE if image is not None else ""),
        command="leakscope demo",
    )
    console.print(f"page: {write(page, out / 'index.html')}", soft_wrap=True)


@app.command()
def frontier(
    out: Annotated[Path, typer.Option(help="Directory for the page.")] = Path("leakscope-frontier"),
    clients: Annotated[int, typer.Option(help="Number of clients, with one digit each.")] = 256,
    rounds: Annotated[int, typer.Option(help="Rounds of training.")] = 40,
    iterations: Annotated[int, typer.Option(help="Iterations of the attack.")] = 40,
    delta: Annotated[float, typer.Option(help="Delta of differential privacy.")] = 1e-5,
    accountant: Annotated[str, typer.Option(help="rdp or prv.")] = "prv",
    seed: Annotated[int, typer.Option(help="Seed of weights and noise.")] = 0,
    device: Device = "auto",
) -> None:
    """Train with DP-SGD and other defences, attack the same clients, and write a page (extra 'dp')."""
    from leakscope.integrations.opacus import promise_of
    from leakscope.report.frontier_page import page_of_frontier
    from leakscope.report.page import write
    from leakscope.studies.frontier import ATTACKED, FrontierSettings, measure_frontier

    attacked = min(clients, ATTACKED)
    settings = FrontierSettings(clients=clients, rounds=rounds, attacked=attacked, iterations=iterations, seed=seed)
    options: Options = {
        "--out": (out, None),
        "--clients": (clients, None),
        "--rounds": (rounds, None),
        "--iterations": (iterations, None),
        "--delta": (delta, None),
        "--accountant": (accountant, None),
        "--seed": (seed, None),
        "--device": (device, "auto"),
    }
    device = choose_device(device)
    promise = promise_of(delta=delta, accountant=accountant)
    measured = measure_frontier(settings, promise, device=device, progress=status_line())
    with writing(f"--out {out}"):
        path = write(page_of_frontier(measured, command=shell_command(["frontier"], options)), out / "index.html")
    typer.echo(f"page: {path}")


@app.command()
def bench(
    cases: Annotated[
        list[str] | None,
        typer.Argument(
            help="lenet, resnet20, cnn_cifar (the default), or few trials: lenet-1x4, resnet20-8x16, ..., "
            "or on CUDA: resnet18-224-1x8, vit_b16-224-1x1, ..."
        ),
    ] = None,
    device: Device = "auto",
    pairs: Annotated[int, typer.Option(help="Interleaved measurements of loop and engine.")] = 20,
    form: Annotated[
        str | None, typer.Option(help="Form of evaluation instead of the fastest measured one.", show_default=False)
    ] = None,
    tf32: Annotated[bool, typer.Option(help="Allow TF32 on CUDA.")] = False,
    iterations: Annotated[
        int | None, typer.Option(help="Iterations of whole attacks.", show_default="the case's", min=1)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare the speed of the engine with that of the usual autograd loop."""
    from leakscope.studies import bench as benchmark
    from leakscope.studies.bench_cases import MAIN

    device = choose_device(device).partition(":")[0]
    timings = benchmark.run(
        cases or list(MAIN), device, pairs=pairs, tf32=tf32, form=form, iterations=iterations, say=print_lines()
    )
    shares = benchmark.optimiser_share(device) if cases is None else None
    typer.echo((benchmark.as_json if as_json else benchmark.as_text)(timings, shares))


def show_exact(console: Console, run: AttackResult, batch: Batch) -> None:
    """Print the largest error of the exact recovery; in a terminal, the first image in grey blocks above it."""
    from rich.text import Text

    if console.color_system is not None:
        truth, guess = batch.inputs[0, 0, 0], run.reconstruction.inputs[0, 0, 0].clamp(0, 1)
        console.print("\n  private picture               recovered from the update, exactly")
        for y in range(0, truth.shape[0] - 1, 2):
            line = Text("  ")
            for picture in (truth, guess):
                for x in range(picture.shape[1]):
                    top, bottom = (round(float(picture[y + d, x]) * 255) for d in (0, 1))
                    line.append("\u2580", style=f"rgb({top},{top},{top}) on rgb({bottom},{bottom},{bottom})")
                line.append("    ")
            console.print(line)
    worst = float((run.reconstruction.inputs - batch.inputs).abs().max())
    console.print(f"a dense first layer gives its input away: largest error of {batch.trials} pictures {worst:.1e}")


def _show_table(console: Console, shown: Demonstration) -> None:
    from rich.table import Table

    from leakscope.report.numbers import number, percent, percent_interval

    table = Table("attack", "n", "content", "95 %", "conv.", "label", "MSE", "SSIM", "steps")
    for run in shown.attacks:
        s = run.summary
        table.add_row(
            run.name,
            str(s.samples),
            percent(s.content.value),
            percent_interval(s.content),
            percent(s.convergence.value),
            percent(s.label.value) if s.label else "",
            number(s.means["mse"].value),
            number(s.means["ssim"].value),
            number(s.iterations.mean.value),
        )
    console.print(table)
    console.print("content, conv., label: attack success rates; means over all trials; steps are capped", style="dim")
    if shown.unlabelled:
        console.print("label: without your own picture, whose class nobody knows", style="dim")
    if shown.speed:
        console.print(shown.speed.line())
