"""The frontier page: accuracy against what is recovered, DP-SGD with its epsilon beside the other defences, one chart."""

from __future__ import annotations

import datetime
import math
import platform

import numpy as np
import torch

from leakscope.core.record import Cell, Plain
from leakscope.core.version import __version__
from leakscope.metrics.interval import Estimate
from leakscope.report.attack_page import _columns, _tensors
from leakscope.report.curves import Line, Panel
from leakscope.report.gallery import Spot, gallery_of
from leakscope.report.page_data import Page, Provenance, Section, Threat
from leakscope.report.phrases import PICTURES, RULE
from leakscope.report.records import download_of
from leakscope.report.results import Results, Tensors
from leakscope.report.sections import labels_of
from leakscope.report.sheet import ATTACK, make_sheet
from leakscope.report.tables import tabulate
from leakscope.report.threat import ALWAYS_HIDDEN, ALWAYS_TOLD, FACTS
from leakscope.studies.frontier import DP, UNDEFENDED, Frontier, Point, dominated

RUN = "run"
MOST_LINES = 6


def page_of_frontier(frontier: Frontier, *, command: str) -> Page:
    """Return the page of a frontier."""
    results = _results(frontier)
    sheet, settings = results.sheet, frontier.settings
    table = tabulate(sheet, (RUN,), sheet.cells)
    best = [p for p, beaten in zip(frontier.points, dominated(frontier.points), strict=True) if not beaten]
    return Page(
        title="leakscope frontier",
        headline=f"{len(best)} of {len(frontier.points)} runs are on the frontier: no other is as accurate and leaks less",
        explanation="On the frontier: " + "; ".join(_words(point) for point in best) + ".",
        threat=Threat(
            words="The attacker knows the network, its weights, the loss, that a client holds one example, and the defence.",
            setting=(
                ("clients", (f"{settings.clients} with one example each, all in every round",)),
                ("training", (f"{settings.rounds} rounds of one gradient, steps as long as without a defence",)),
                (
                    "attack",
                    (f"CPL, told of the defence, {settings.iterations} iterations, {settings.attacked} clients",),
                ),
            ),
            told=ALWAYS_TOLD,
            hidden=(*ALWAYS_HIDDEN, FACTS["labels"]),
        ),
        rule=RULE,
        limits="One network, one data set of small grey digits, one seed, one attack of few iterations on first updates at fresh "
        "weights: the easiest moment for the attacker. Epsilon bounds every attacker there is, over all rounds; the leakage here is "
        "what one attacker got in one. A run without epsilon promises nothing, however little was recovered.",
        provenance=Provenance(
            command=command,
            facts=(
                ("Version", __version__),
                ("Date", datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")),
                ("Machine", f"{platform.machine()}, torch {torch.__version__}, float32"),
                ("Seed", str(settings.seed)),
            ),
        ),
        download=download_of(sheet, "leakscope-frontier.csv", ""),
        sections=(
            Section(
                title="Accuracy, epsilon and leakage",
                note="Every point is one run: its test accuracy (n = 360) and what was recovered of its own clients. Curves join "
                "the strengths of a defence; defences of one strength are in the table alone.",
                axes=((RUN, "run"),),
                rows=table.rows,
                panels=_panels(frontier),
            ),
        ),
        gallery=gallery_of(results, labels_of(sheet), _name, PICTURES),
    )


def _words(point: Point) -> str:
    """Return a run in words: who, how strong, epsilon, accuracy."""
    parts = [f"accuracy {100 * point.accuracy.value:.0f} %"]
    if point.epsilon is not None:
        parts.insert(0, f"epsilon {point.epsilon:.3g}" if math.isfinite(point.epsilon) else "no epsilon")
    return f"{point.family} {point.strength}".strip() + f" ({', '.join(parts)})"


def _panels(frontier: Frontier) -> tuple[Panel, ...]:
    """Return what is recovered and how close it comes along accuracy, and along epsilon for DP-SGD."""
    families = list(dict.fromkeys(point.family for point in frontier.points))
    lonely = [f for f in families if sum(point.family == f for point in frontier.points) == 1 and f != UNDEFENDED]
    shown = [f for f in families if f not in lonely][:MOST_LINES]
    promised = [p for p in frontier.points if p.family == DP and p.epsilon is not None and math.isfinite(p.epsilon)]
    panels = [
        Panel(
            title,
            "test accuracy",
            share,
            bounded=False,
            lines=tuple(_line(frontier, family, share) for family in shown),
            linear=True,
        )
        for title, share in (("Content recovered", True), ("Mean PSNR, dB", False))
    ]
    if len(promised) > 1:
        ordered = sorted(promised, key=lambda p: p.epsilon or 0.0)
        at = tuple(float(p.epsilon or 0.0) for p in ordered)
        for title, read in (("Content recovered", _content), ("Test accuracy", _accuracy)):
            line = Line(DP, at, tuple(read(p) for p in ordered))
            panels.append(Panel(title, "epsilon", share=True, bounded=True, lines=(line,)))
    return tuple(panel for panel in panels if panel.lines)


def _line(frontier: Frontier, family: str, share: bool) -> Line:
    points = sorted((p for p in frontier.points if p.family == family), key=lambda p: p.accuracy.value)
    return Line(family, tuple(p.accuracy.value for p in points), tuple(_measure(p, share) for p in points))


def _measure(point: Point, share: bool) -> Estimate:
    return _content(point) if share else point.run.summary.means["psnr"]


def _content(point: Point) -> Estimate:
    return point.run.summary.content


def _accuracy(point: Point) -> Estimate:
    return point.accuracy


def _name(_: Cell, number: int, spot: Spot | None) -> str:
    return f"class {number}" if spot is None else f"client {spot[0]} (class {number})"


def _results(frontier: Frontier) -> Results:
    """Return the runs as the results of a sweep along one axis."""
    cells, pieces = [], []
    tensors: dict[str, Tensors] = {}
    for place, point in enumerate(frontier.points):
        axes: dict[str, Plain] = {RUN: _words(point)}
        cell = Cell(id=f"point-{place}", settings={ATTACK: {"name": "cpl"}}, axes=axes)
        cells.append(cell)
        pieces.append(_columns(place, cell, point.run, frontier.truth, frontier.seeds))
        tensors |= {f"{cell.id}-{t}": _tensors(point.run, frontier.truth, t) for t in range(frontier.truth.trials)}
    columns = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
    return Results(make_sheet(cells, columns), tensors.__getitem__)
