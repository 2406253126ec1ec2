"""`leakscope ppc`: privacy-preserving characteristics of one's own runs, with the accuracies of a training under the same defences."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leakscope.cli.app import app
from leakscope.cli.sweep import check_device
from leakscope.cli.train import Watching, interrupt
from leakscope.cli.watching import count, printable
from leakscope.core.errors import InputError

if TYPE_CHECKING:
    from leakscope.experiments.characteristics import AccuracyOf, Curves, Line
    from leakscope.experiments.training import Training
    from leakscope.report.characteristic_page import CharacteristicPage

PAGE, DATA = "index.html", "characteristics.json"


@app.command()
def ppc(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Run directories, each a sweep along one strength of a defence.", metavar="RUN..."),
    ],
    training: Annotated[
        Path | None,
        typer.Option(help="A training file: it is trained under every defence of the runs for the accuracies."),
    ] = None,
    accuracies: Annotated[
        list[Path] | None,
        typer.Option(help="Instead: a CSV with strength, accuracy and tests; one for each run, in their order."),
    ] = None,
    along: Annotated[
        str | None, typer.Option(help="The strength, such as defences.0.sigma; the only one if not given.")
    ] = None,
    participants: Annotated[
        int, typer.Option(help="Tracing: how many parts the attacked pictures are split into.")
    ] = 10,
    out: Annotated[
        Path | None, typer.Option(help="Directory for page, data and trainings; RUN/ppc if not given.")
    ] = None,
    device: Annotated[str, typer.Option(help="Where to train: cpu or cuda.")] = "cpu",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")] = False,
) -> None:
    """Put runs on privacy-preserving characteristics: accuracy, distance and CAP by strength, and a page with curves and pictures."""
    if (training is None) == (not accuracies):
        raise InputError(
            "a characteristic needs accuracies: --training FILE to train them, or --accuracies FILE (strength, accuracy, tests)"
        )
    if accuracies and len(accuracies) != len(runs):
        raise InputError(
            f"--accuracies is given once for each run, in their order: {count(len(runs), 'run')}, got {len(accuracies)}"
        )
    if participants < 2:
        raise InputError(f"--participants must be at least 2, got {participants}")
    check_device(device)
    from leakscope.experiments.characteristics import accuracies_from, lines_of, measure_curves
    from leakscope.experiments.training import read_training
    from leakscope.store import Run

    directory = out or runs[0] / "ppc"
    command = _command(runs, training, accuracies, along, participants, out, device)
    say = _quiet if quiet else _say
    by_run = [lines_of(Run.open(run), along) for run in runs]
    lines = [line for own in by_run for line in own]
    if training is not None:
        trained = read_training(training)
        known: AccuracyOf = _Trained(trained, lines, directory, command, device, quiet=quiet)
        sources = [known for _ in lines]
    else:
        files = [accuracies_from(path) for path in accuracies or ()]
        sources = [source for source, own in zip(files, by_run, strict=True) for _ in own]
    found = measure_curves(lines, sources, participants=participants, tell=say)
    for note in found.notes:
        say(note)
    path = _write(found, _page(found, lines, training, accuracies, command, participants), directory)
    if not quiet:
        _show(found)
        typer.echo(printable(f"page: {path}"))


class _Trained:
    """Accuracies of a training, each trained once into a directory of its own and found there again."""

    def __init__(
        self, training: Training, lines: Sequence[Line], directory: Path, command: str, device: str, *, quiet: bool
    ) -> None:
        from leakscope.experiments.characteristics import folder_of, shares_alike, training_under
        from leakscope.experiments.training import check_training

        self.training, self.directory, self.command = training, directory / "trainings", command
        self.device, self.quiet = device, quiet
        self.known: dict[str, tuple[float, int | None]] = {}
        under = [training_under(training, cell.settings) for line in lines for _, cell in line.cells]
        for one in {folder_of(one): one for one in under}.values():  # what is wrong is said before anything is trained
            check_training(one, device)
        if not quiet and not all(shares_alike(training, line.settings) for line in lines):
            _say(
                "one of run and training shares gradients, the other weights after local training: a strength does not mean "
                "the same in both"
            )

    def __call__(self, settings: Mapping[str, Any], strength: float) -> tuple[float, int | None]:
        from leakscope.experiments.characteristics import folder_of, training_under
        from leakscope.experiments.sweep.facts import gather_facts
        from leakscope.experiments.training import run_training

        under = training_under(self.training, settings)
        folder = folder_of(under)
        if folder in self.known:
            return self.known[folder]
        title = f"{under.name or 'training'}, {folder}, strength {strength:g}"
        with Watching(title, under.rounds, quiet=self.quiet) as watching, interrupt() as asked:
            result = run_training(
                under,
                self.directory / folder,
                device=self.device,
                facts=gather_facts(self.command, self.device),
                tell=watching.tell,
                say=watching.say,
                inside=watching.inside,
                stop=lambda: bool(asked),
            )
        if result.stopped:
            sys.stderr.write(f"leakscope: stopped; what was trained is saved, go on with: {self.command}\n")
            raise typer.Exit(130)
        accuracy = [point.accuracy for point in result.curve if point.accuracy is not None][-1]
        if result.diverged:
            _say(
                f"{title}: the weights became NaN or infinite; {accuracy.value:.1%}, the last accuracy measured, counts"
            )
        self.known[folder] = (accuracy.value, accuracy.n)
        return self.known[folder]


def _page(
    found: Curves,
    lines: Sequence[Line],
    training: Path | None,
    accuracies: Sequence[Path] | None,
    command: str,
    participants: int,
) -> CharacteristicPage:
    from leakscope import __version__
    from leakscope.report.characteristic_page import CharacteristicPage

    runs = ", ".join(dict.fromkeys(str(line.run.directory) for line in lines))
    facts = [
        ("Runs", runs),
        ("Along", ", ".join(dict.fromkeys(line.along for line in lines))),
        ("Accuracies", str(training) if training is not None else ", ".join(map(str, accuracies or ()))),
        ("Participants", f"{participants}, of the attacked pictures in equal parts"),
        ("leakscope", __version__),
    ]
    return CharacteristicPage(
        title="Characteristics",
        headline=_headline(found),
        explanation="What each setting of a defence costs in accuracy and buys in distance. "
        + " ".join(f"{note}." for note in found.notes),
        curves=found.curves,
        examples=found.examples,
        command=command,
        facts=tuple(facts),
    )


def _headline(found: Curves) -> str:
    """Return the CAPs of reconstruction, best first."""
    own = [curve for curve in found.curves if curve.distance == found.curves[0].distance]
    best = sorted(own, key=lambda curve: -curve.cap.value)
    said = "; ".join(f"{curve.defence} ({curve.attack}) {curve.cap.value:.2f}" for curve in best[:4])
    return f"CAP of reconstruction: {said}" + ("; ..." if len(best) > 4 else "")


def _write(found: Curves, page: CharacteristicPage, directory: Path) -> Path:
    from leakscope.report.characteristic_page import write

    try:
        path = write(page, directory / PAGE)
        plain = {"command": page.command, "curves": [curve.plain() for curve in found.curves], "notes": found.notes}
        (directory / DATA).write_text(json.dumps(plain, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"--out {directory} cannot be written ({error.strerror})") from None
    return path


def _show(found: Curves) -> None:
    from rich.box import SIMPLE
    from rich.table import Table

    from leakscope.cli.results import terminal

    table = Table(box=SIMPLE, padding=(0, 1, 0, 0))
    for head in ("defence", "attacker", "distance"):
        table.add_column(head, overflow="fold")
    for head in ("CAP", "95 %", "regions"):
        table.add_column(head, no_wrap=True)
    for curve in found.curves:
        cap = curve.cap
        regions = "".join(point.region.value[0] for point in curve.points)
        names = [printable(word) for word in (curve.defence, curve.attack, curve.distance)]
        table.add_row(*names, f"{cap.value:.3f}", f"{cap.low:.3f}-{cap.high:.3f}", regions)
    console = terminal()
    console.print(table)
    console.print(
        "CAP: mean of accuracy times distance over the settings; their regions in order: green, white, red", style="dim"
    )


def _command(
    runs: Sequence[Path],
    training: Path | None,
    accuracies: Sequence[Path] | None,
    along: str | None,
    participants: int,
    out: Path | None,
    device: str,
) -> str:
    """Return the command that makes this very page again, ready for a shell.

    >>> _command([Path("runs/noise"), Path("my run")], Path("t.yaml"), None, None, 10, None, "cpu")
    "leakscope ppc runs/noise 'my run' --training t.yaml"
    """
    words = ["leakscope", "ppc", *map(str, runs)]
    words += ["--training", str(training)] if training is not None else []
    words += [word for path in accuracies or () for word in ("--accuracies", str(path))]
    words += ["--along", along] if along is not None else []
    words += ["--participants", str(participants)] if participants != 10 else []
    words += ["--out", str(out)] if out is not None else []
    words += ["--device", device] if device != "cpu" else []
    return shlex.join(words)


def _say(line: str) -> None:
    sys.stderr.write(printable(line) + "\n")


def _quiet(line: str) -> None:
    del line
