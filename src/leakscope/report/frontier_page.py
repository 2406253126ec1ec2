"""The page of the privacy frontier: accuracy against recovery, DP-SGD with its epsilon beside the other defences."""

from __future__ import annotations

import math

from leakscope.core.record import Cell
from leakscope.metrics.interval import Estimate
from leakscope.report.attack_page import AttackCell, results_of_attacks
from leakscope.report.cells import ATTACK
from leakscope.report.charts import Line, Panel
from leakscope.report.gallery import Spot, gallery_of
from leakscope.report.page_data import Page, Provenance, Section, Threat
from leakscope.report.sections import MOST_LINES, labels_of
from leakscope.report.sheet import Results
from leakscope.report.sources import PICTURES, RULE, download_of, machine_facts
from leakscope.report.tables import Table, tabulate
from leakscope.report.threat import ALWAYS_HIDDEN, ALWAYS_KNOWN, FACTS
from leakscope.studies.frontier import DP, UNDEFENDED, Frontier, Point, dominated

RUN = "run"
LIMITS = (
    "One network, one data set of small grey digits, one seed, one attack of few iterations on first updates at fresh "
    "weights: the easiest moment for the attacker. Epsilon bounds every attacker there is, over all rounds; the leakage here is "
    "what one attacker got in one. A run without epsilon promises nothing, however little was recovered."
)


def page_of_frontier(frontier: Frontier, *, command: str) -> Page:
    """Return the page of a frontier."""
    results = _results(frontier)
    sheet, points = results.sheet, frontier.points
    best = [point for point, beaten in zip(points, dominated(points), strict=True) if not beaten]
    return Page(
        title="leakscope frontier",
        headline=f"{len(best)} of {len(points)} runs are on the frontier: no other is as accurate and leaks less",
        explanation="On the frontier: " + "; ".join(_words(point) for point in best) + ".",
        threat=_threat(frontier),
        rule=RULE,
        limits=LIMITS,
        provenance=Provenance(command=command, facts=(*machine_facts(), ("Seed", str(frontier.settings.seed)))),
        download=download_of(sheet, "leakscope-frontier.csv", ""),
        sections=(_section(frontier, tabulate(sheet, (RUN,), sheet.cells)),),
        gallery=gallery_of(results, labels_of(sheet), _name, PICTURES),
    )


def _threat(frontier: Frontier) -> Threat:
    settings = frontier.settings
    return Threat(
        words="The attacker knows the network, its weights, the loss, that a client holds one example, and the defence.",
        setting=(
            ("clients", (f"{settings.clients} with one example each, all in every round",)),
            ("training", (f"{settings.rounds} rounds of one gradient, steps as long as without a defence",)),
            ("attack", (f"CPL, knows the defence, {settings.iterations} iterations, {settings.attacked} clients",)),
        ),
        known=ALWAYS_KNOWN,
        hidden=(*ALWAYS_HIDDEN, FACTS["labels"]),
    )


def _section(frontier: Frontier, table: Table) -> Section:
    return Section(
        title="Accuracy, epsilon and leakage",
        note="Every point is one run: its test accuracy (n = 360) and what was recovered of its own clients. Curves join "
        "the strengths of a defence; defences of one strength are in the table alone.",
        axes=((RUN, "run"),),
        rows=table.rows,
        panels=_panels(frontier),
    )


def _words(point: Point) -> str:
    """Return a run in words: defence, strength, epsilon, accuracy."""
    parts = [f"accuracy {100 * point.accuracy.value:.0f} %"]
    if point.epsilon is not None:
        parts.insert(0, f"epsilon {point.epsilon:.3g}" if math.isfinite(point.epsilon) else "no epsilon")
    return f"{point.family} {point.strength}".strip() + f" ({', '.join(parts)})"


def _panels(frontier: Frontier) -> tuple[Panel, ...]:
    """Return recovery and closeness along accuracy, and along epsilon for DP-SGD."""
    families = list(dict.fromkeys(point.family for point in frontier.points))
    single = [f for f in families if sum(point.family == f for point in frontier.points) == 1 and f != UNDEFENDED]
    shown = [f for f in families if f not in single][:MOST_LINES]
    with_epsilon = [p for p in frontier.points if p.family == DP and p.epsilon is not None and math.isfinite(p.epsilon)]
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
    if len(with_epsilon) > 1:
        ordered = sorted(with_epsilon, key=lambda p: p.epsilon or 0.0)
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
    attacks = [
        AttackCell(
            Cell(id=f"point-{place}", settings={ATTACK: {"name": "cpl"}}, axes={RUN: _words(point)}),
            point.run,
            frontier.truth,
        )
        for place, point in enumerate(frontier.points)
    ]
    return results_of_attacks(attacks, frontier.seeds)
