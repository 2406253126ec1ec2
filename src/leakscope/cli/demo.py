"""`leakscope demo`: a leak in a minute."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leakscope.cli.app import app
from leakscope.core.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from leakscope.attacks.engine.state import Progress
    from leakscope.core.types import Batch
    from leakscope.play import AttackResult, Demonstration


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Directory for the page.")] = Path("leakscope-demo"),
    image: Annotated[Path | None, typer.Option(help="A picture of your own to attack too.", show_default=False)] = None,
    images: Annotated[int, typer.Option(help="How many bundled pictures to attack.")] = 32,
    seed: Annotated[int, typer.Option(help="Seed of weights and starts.")] = 0,
) -> None:
    """Attack bundled pictures in a minute and write a page that shows the leak."""
    from rich.console import Console

    console = Console()
    console.print("leakscope demo: recovering private pictures from the updates that clients share")
    from leakscope.studies.demo import ORDER, DemoSettings, run_demo
    from leakscope.sweep.engines import processes, serial, usable_cores

    settings = DemoSettings(images=images, seed=seed, image=image)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {out} cannot be made a directory ({error.strerror})") from None
    with _Bars() as bars:
        cores = min(usable_cores(), len(ORDER))
        shown = run_demo(
            settings,
            engine=processes(cores) if cores > 1 else serial,
            report=bars.tell,
            shown=lambda run, batch: _show_exact(console, run, batch),
        )
    _show_table(console, shown)
    path = _write_demo(shown, out, settings.image is not None)
    console.print(f"page: {path}", soft_wrap=True, markup=False, highlight=False)


class _Bars:
    """Live progress bars, one an attack; plain lines where there is no terminal."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self.console = Console(stderr=True)
        self.bars = Progress(
            TextColumn("{task.description:<22}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=self.console,
        )
        self.tasks: dict[str, int] = {}
        self.quiet = not self.console.is_terminal

    def __enter__(self) -> _Bars:
        if not self.quiet:
            self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self.quiet:
            self.bars.stop()

    def tell(self, name: str, progress: Progress) -> None:
        """Show where an attack stands."""
        if self.quiet:
            if progress.done == progress.total and name not in self.tasks:
                self.tasks[name] = 0
                self.console.print(f"{name}: {progress.done} done, {progress.converged} converged", highlight=False)
            return
        if name not in self.tasks:
            self.tasks[name] = self.bars.add_task(name, total=progress.total, note="")
        note = progress.note or f"step {progress.iteration}, {progress.converged} converged"
        self.bars.update(self.tasks[name], completed=progress.done, note=note)  # type: ignore[arg-type]


def _show_exact(console: Console, run: AttackResult, batch: Batch) -> None:
    """Print the first exact recovery beside its truth, as blocks of grey."""
    from rich.text import Text

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
    console.print(
        f"  a dense first layer gives its input away: largest error of {batch.trials} pictures {worst:.1e}\n",
        highlight=False,
    )


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
        console.print(shown.speed.line(), highlight=False)


def _write_demo(shown: Demonstration, out: Path, own: bool) -> Path:
    from leakscope.report.attack_page import page_of
    from leakscope.report.page import write

    page = page_of(
        shown,
        title="leakscope demo",
        explanation="Each client below trained on one private picture and shared only its gradient, as federated learning "
        "asks. Nobody sent a picture. The attacker sits at the server, sees the gradient and the model, and searches for the "
        "input that would have caused that gradient.",
        knowledge="The network (a LeNet of four convolutions with fresh uniform(-0.5, 0.5) weights), the loss, the size of a "
        "picture and that there was one. Labels were not told: CPL read them off the gradient, DLG optimised them.",
        limits="These are small grey pictures, one a client, on freshly drawn weights with smooth activations: the easiest case "
        "for the attacker. Larger batches, many local steps, trained weights and defences change the numbers; steps are capped "
        "here so that the demo ends in a minute."
        + (
            " Your own picture was given the label of class 0, so that there is an update; no rate of labels counts it."
            if own
            else ""
        ),
        command="leakscope demo",
    )
    return write(page, out / "index.html")
