"""`leakscope ppc`: privacy-preserving characteristics of one's own runs, with the accuracies of a training under the same defences."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leakscope.cli.app import app
from leakscope.cli.progress import count, printable
from leakscope.cli.sweep import check_device
from leakscope.cli.train import Watching, interrupt
from leakscope.core.errors import InputError

if TYPE_CHECKING:
    from leakscope.report.characteristic_page import CharacteristicPage
    from leakscope.studies.characteristics import AccuracyOf, Curves, Line
    from leakscope.training import Result, Training

PAGE, DATA = "index.html", "characteristics.json"


@app.command()
def ppc(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Run directories, each a sweep along one strength of a defence.", metavar="RUN"),
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
        list[str] | None,
        typer.Option(
            help="The strength, such as defences.0.sigma; once, or once for each run. The only one there is if not given."
        ),
    ] = None,
    participants: Annotated[
        int, typer.Option(help="Tracing: how many parts the attacked pictures are split into.")
    ] = 10,
    out: Annotated[
        Path | None, typer.Option(help="Directory for page, data and trainings; RUN/ppc if not given.")
    ] = None,
    device: Annotated[str, typer.Option(help="Where to train: cpu or cuda.")] = "cpu",
    keep_private: Annotated[
        bool,
        typer.Option(
            "--keep-private",
            help="Write the clients' private heads beside their training, so that one that is cut can go on.",
        ),
    ] = False,
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
    if along and len(along) not in (1, len(runs)):
        raise InputError(
            f"--along is given once, or once for each run in their order: {count(len(runs), 'run')}, got {len(along)}"
        )
    if participants < 2:
        raise InputError(f"--participants must be at least 2, got {participants}")
    check_device(device)
    from leakscope.store import Run
    from leakscope.studies.characteristics import accuracies_from, lines_of, measure_curves
    from leakscope.training import read_training

    directory = out or runs[0] / "ppc"
    command = _command(runs, training, accuracies, along, participants, out, device, keep_private=keep_private)
    say = _quiet if quiet else _say
    strengths = along if along and len(along) > 1 else [along[0] if along else None] * len(runs)
    by_run = [lines_of(Run.open(run), strength) for run, strength in zip(runs, strengths, strict=True)]
    lines = [line for own in by_run for line in own]
    told: list[str] = []  # what is to be known of the accuracies
    if training is not None:
        how = _How(
            directory=directory / "trainings", command=command, device=device, keep_private=keep_private, quiet=quiet
        )
        known: AccuracyOf = _Trained(read_training(training), lines, how, told)
        sources = [known for _ in lines]
    else:
        files = [accuracies_from(path, own) for path, own in zip(accuracies or (), by_run, strict=True)]
        sources = [source for source, own in zip(files, by_run, strict=True) for _ in own]
    found = measure_curves(lines, sources, participants=participants, tell=say)
    found = replace(found, notes=(*found.notes, *told))
    for note in found.notes:
        say(note)
    path = _write(found, _page(found, lines, training, accuracies, command, participants), directory)
    if not quiet:
        _show(found)
        typer.echo(printable(f"page: {path}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _How:
    """Where and how accuracies are trained."""

    directory: Path
    command: str
    device: str
    keep_private: bool
    quiet: bool


class _Trained:
    """Accuracies of a training, each trained once into a directory of its own and found there again.

    What is wrong with any of them is said before the first is trained; what is to be known of them goes to `told`.
    """

    def __init__(self, training: Training, lines: Sequence[Line], how: _How, told: list[str]) -> None:
        from leakscope.studies.characteristics import folder_of, shares_alike, training_under
        from leakscope.training import check_training

        self.training, self.how, self.told = training, how, told
        self.known: dict[str, tuple[float, int | None]] = {}
        under = [training_under(training, cell.settings) for line in lines for _, cell in line.cells]
        for one in {folder_of(one): one for one in under}.values():
            try:
                check_training(one, how.device)
            except InputError as error:
                raise InputError(f"{training.source} with the defence of the run: {error}") from None
        if not all(shares_alike(training, line.settings) for line in lines):
            told.append(
                "one of run and training shares gradients, the other weights after local training: a strength does not mean "
                "the same in both"
            )

    def __call__(self, settings: Mapping[str, Any], strength: float) -> tuple[float, int | None]:
        from leakscope.core.provenance import gather_facts
        from leakscope.studies.characteristics import folder_of, guessing, training_under
        from leakscope.training import run_training

        how, under = self.how, training_under(self.training, settings)
        folder = folder_of(under)
        if folder in self.known:
            return self.known[folder]
        title = f"{under.name or 'training'}, {folder}, strength {strength:g}"
        with Watching(title, under.rounds, quiet=how.quiet) as watching, interrupt() as asked:
            result = run_training(
                under,
                how.directory / folder,
                device=how.device,
                keep_private=how.keep_private,
                facts=gather_facts(how.command, how.device),
                tell=watching.tell,
                say=watching.say,
                inside=watching.inside,
                stop=lambda: bool(asked),
            )
        if result.stopped:
            sys.stderr.write(f"leakscope: stopped after round {result.rounds} of {title}; {_way_on(result, how)}\n")
            raise typer.Exit(130)
        accuracy = [point.accuracy for point in result.curve if point.accuracy is not None][-1]
        self.known[folder] = (accuracy.value, accuracy.n)
        if result.diverged:
            self.known[folder] = (guessing(settings), None)
            self.told.append(f"{title}: the weights became NaN or infinite, which counts as guessing")
        return self.known[folder]


def _way_on(result: Result, how: _How) -> str:
    if result.resumable:
        return f"what was trained is saved, go on with: {how.command}"
    return (
        "its private heads were not kept (--keep-private), so it cannot be gone on with: "
        f"delete {how.directory} and begin again with that option"
    )


def _page(
    found: Curves,
    lines: Sequence[Line],
    training: Path | None,
    accuracies: Sequence[Path] | None,
    command: str,
    participants: int,
) -> CharacteristicPage:
    from leakscope.core.version import __version__
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
        "CAP: mean of accuracy times distance over the settings; regions, a letter a setting: g green, w white, r red",
        style="dim",
    )


def _command(
    runs: Sequence[Path],
    training: Path | None,
    accuracies: Sequence[Path] | None,
    along: Sequence[str] | None,
    participants: int,
    out: Path | None,
    device: str,
    *,
    keep_private: bool = False,
) -> str:
    """Return the command that makes this very page again, ready for a shell.

    >>> _command([Path("runs/noise"), Path("my run")], Path("t.yaml"), None, None, 10, None, "cpu")
    "leakscope ppc runs/noise 'my run' --training t.yaml"
    """
    words = ["leakscope", "ppc", *map(str, runs)]
    words += ["--training", str(training)] if training is not None else []
    words += [word for path in accuracies or () for word in ("--accuracies", str(path))]
    words += [word for axis in along or () for word in ("--along", axis)]
    words += ["--participants", str(participants)] if participants != 10 else []
    words += ["--out", str(out)] if out is not None else []
    words += ["--device", device] if device != "cpu" else []
    return shlex.join([*words, *(["--keep-private"] if keep_private else [])])


def _say(line: str) -> None:
    sys.stderr.write(printable(line) + "\n")


def _quiet(line: str) -> None:
    del line
