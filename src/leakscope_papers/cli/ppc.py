"""`leakscope ppc`: privacy-preserving characteristics of runs, with the accuracies of a training under the same defences."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leakscope.cli.options import KeepPrivate, Options, Quiet, choose_device, shell_command, writing
from leakscope.cli.progress import print_lines
from leakscope.cli.text import count, plain_table, printable, terminal
from leakscope.cli.train import train_with_progress
from leakscope.core.errors import InputError

if TYPE_CHECKING:
    from leakscope.scenario.cell import CellSettings
    from leakscope.training import Result, Training
    from leakscope_papers.characteristics import AccuracyOf, Curves, Line
    from leakscope_papers.characteristics.page import CharacteristicPage

PAGE, DATA = "index.html", "characteristics.json"


Runs = Annotated[
    list[Path], typer.Argument(help="Run directories, each a sweep along one strength of a defence.", metavar="RUN")
]
TrainingFile = Annotated[
    Path | None, typer.Option(help="Training file; trained with every defence of the runs to measure accuracies.")
]
AccuracyFiles = Annotated[
    list[Path] | None,
    typer.Option(help="Instead of --training: a CSV with strength, accuracy and tests, one for each run, in order."),
]
Along = Annotated[
    list[str] | None,
    typer.Option(
        help="Axis of the strength, such as defences.0.sigma; once, or once for each run. By default the only axis."
    ),
]
Participants = Annotated[
    int, typer.Option(help="Number of participants for tracing, among whom the attacked images are split.")
]
Out = Annotated[Path | None, typer.Option(help="Directory for page, data and trainings; RUN/ppc if not given.")]


def ppc(
    runs: Runs,
    training: TrainingFile = None,
    accuracies: AccuracyFiles = None,
    along: Along = None,
    participants: Participants = 10,
    out: Out = None,
    device: Annotated[
        str, typer.Option(help="Device for training: auto (CUDA if available, else the CPU), cpu, cuda or cuda:N.")
    ] = "auto",
    keep_private: KeepPrivate = False,
    quiet: Quiet = False,
) -> None:
    """Measure privacy-preserving characteristics of runs (accuracy, distance and CAP by strength) and write a page."""
    _check_options(runs, training, accuracies or [], along or [], participants)
    device = choose_device(device, quiet=quiet)
    from leakscope_papers.characteristics import measure_curves

    directory = out or runs[0] / "ppc"
    options: Options = {
        "--training": (training, None),
        "--accuracies": (accuracies or [], []),
        "--along": (along or [], []),
        "--participants": (participants, 10),
        "--out": (out, None),
        "--device": (device, "cpu"),
        "--keep-private": (keep_private, False),
    }
    command = shell_command(["ppc", *runs], options)
    say = print_lines(quiet=quiet)
    by_run = _lines_by_run(runs, along or [])
    lines = [line for run_lines in by_run for line in run_lines]
    how = _TrainingOptions(directory / "trainings", command, device, keep_private=keep_private, quiet=quiet)
    notes: list[str] = []  # on the accuracies
    sources = _trained(training, lines, how, notes) if training else _read(accuracies or [], by_run)
    curves = measure_curves(lines, sources, participants=participants, report=say)
    curves = replace(curves, notes=(*curves.notes, *notes))
    for note in curves.notes:
        say(note)
    origin = ", ".join(map(str, [training] if training else accuracies or []))
    path = _write(curves, _page(curves, lines, origin, command, participants), directory)
    if not quiet:
        _show(curves)
        typer.echo(printable(f"page: {path}"))


def _lines_by_run(runs: list[Path], along: list[str]) -> list[list[Line]]:
    """Return the lines of every run along its strength: the one given for it or for all, or the only one it has."""
    from leakscope.store import Run
    from leakscope_papers.characteristics import lines_of

    strengths = along if len(along) > 1 else [along[0] if along else None] * len(runs)
    return [lines_of(Run.open(run), strength) for run, strength in zip(runs, strengths, strict=True)]


def _check_options(
    runs: Sequence[Path], training: Path | None, accuracies: Sequence[Path], along: Sequence[str], participants: int
) -> None:
    """Refuse options that contradict each other."""
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


def _read(files: Sequence[Path], by_run: Sequence[Sequence[Line]]) -> list[AccuracyOf]:
    """Return the accuracies of each line from its run's file."""
    from leakscope_papers.characteristics import accuracies_from

    sources = [accuracies_from(path, lines) for path, lines in zip(files, by_run, strict=True)]
    return [source for source, lines in zip(sources, by_run, strict=True) for _ in lines]


def _trained(file: Path, lines: Sequence[Line], how: _TrainingOptions, notes: list[str]) -> list[AccuracyOf]:
    """Return the accuracies of each line from a training under its defences."""
    from leakscope.training import read_training

    trained: AccuracyOf = _TrainedAccuracies(read_training(file), lines, how, notes)
    return [trained for _ in lines]


@dataclass(frozen=True, slots=True)
class _TrainingOptions:
    """Where and how accuracies are trained."""

    directory: Path
    command: str
    device: str
    keep_private: bool
    quiet: bool


class _TrainedAccuracies:
    """Accuracies of a training per defence, stored in a directory each and reused; all are checked before the first runs."""

    def __init__(self, training: Training, lines: Sequence[Line], how: _TrainingOptions, notes: list[str]) -> None:
        from leakscope.scenario.cell import read_settings
        from leakscope.training import check_training
        from leakscope_papers.characteristics import folder_of, shares_alike, training_under

        self.training, self.how, self.notes = training, how, notes
        self.accuracies: dict[str, tuple[float, int | None]] = {}
        under = [training_under(training, read_settings(cell.settings)) for line in lines for _, cell in line.cells]
        for one in {folder_of(one): one for one in under}.values():
            try:
                check_training(one, how.device)
            except InputError as error:
                raise InputError(f"{training.file.source} with the defence of the run: {error}") from None
        if not all(shares_alike(training, line.settings) for line in lines):
            notes.append(
                "one of run and training shares gradients, the other weights after local training: a strength does not mean "
                "the same in both"
            )

    def __call__(self, settings: CellSettings, strength: float) -> tuple[float, int | None]:
        """Return the accuracy under the defence of a cell, and the number of test examples."""
        from leakscope_papers.characteristics import folder_of, guessing, training_under

        how, under = self.how, training_under(self.training, settings)
        folder = folder_of(under)
        if folder in self.accuracies:
            return self.accuracies[folder]
        title = f"{under.name or 'training'}, {folder}, strength {strength:g}"
        result = train_with_progress(
            under,
            title,
            how.directory / folder,
            how.command,
            device=how.device,
            keep_private=how.keep_private,
            quiet=how.quiet,
        )
        if result.stopped:
            sys.stderr.write(f"leakscope: stopped after round {result.rounds} of {title}; {_way_on(result, how)}\n")
            raise typer.Exit(130)
        accuracy = [point.accuracy for point in result.curve if point.accuracy is not None][-1]
        self.accuracies[folder] = (accuracy.value, accuracy.n)
        if result.diverged:
            self.accuracies[folder] = (guessing(settings), None)
            self.notes.append(f"{title}: the weights became NaN or infinite, which counts as guessing")
        return self.accuracies[folder]


def _way_on(result: Result, how: _TrainingOptions) -> str:
    if result.resumable:
        return f"finished trainings are saved; continue with: {how.command}"
    return (
        "its private heads were not kept (--keep-private), so it cannot be gone on with: "
        f"delete {how.directory} and begin again with that option"
    )


def _page(curves: Curves, lines: Sequence[Line], origin: str, command: str, participants: int) -> CharacteristicPage:
    from leakscope.core.version import __version__
    from leakscope_papers.characteristics.page import CharacteristicPage

    facts = (
        ("Runs", ", ".join(dict.fromkeys(str(line.run.directory) for line in lines))),
        ("Along", ", ".join(dict.fromkeys(line.along for line in lines))),
        ("Accuracies", origin),
        ("Participants", f"{participants}, of the attacked pictures in equal parts"),
        ("leakscope", __version__),
    )
    return CharacteristicPage(
        title="Characteristics",
        headline=_headline(curves),
        explanation="What each setting of a defence costs in accuracy and buys in distance. "
        + " ".join(f"{note}." for note in curves.notes),
        curves=curves.curves,
        examples=curves.examples,
        command=command,
        facts=facts,
    )


def _headline(curves: Curves) -> str:
    """Return the CAPs of reconstruction, best first."""
    reconstruction = [curve for curve in curves.curves if curve.distance == curves.curves[0].distance]
    best = sorted(reconstruction, key=lambda curve: -curve.cap.value)
    caps = "; ".join(f"{curve.defence} ({curve.attack}) {curve.cap.value:.2f}" for curve in best[:4])
    return f"CAP of reconstruction: {caps}" + ("; ..." if len(best) > 4 else "")


def _write(curves: Curves, page: CharacteristicPage, directory: Path) -> Path:
    from leakscope.store.disk import replacing
    from leakscope_papers.characteristics.page import write_characteristics

    with writing(f"--out {directory}"):
        path = write_characteristics(page, directory / PAGE)
        plain = {"command": page.command, "curves": [curve.plain() for curve in curves.curves], "notes": curves.notes}
        with replacing(directory / DATA) as file:
            file.write((json.dumps(plain, indent=1, allow_nan=False) + "\n").encode())
    return path


def _show(curves: Curves) -> None:
    table = plain_table()
    for head in ("defence", "attacker", "distance"):
        table.add_column(head, overflow="fold")
    for head in ("CAP", "95 %", "regions"):
        table.add_column(head, no_wrap=True)
    for curve in curves.curves:
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
