"""The page of a training: its learning curve, the federation in words, the checkpoints and how to attack them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from leakscope.core.version import __version__
from leakscope.metrics.interval import Estimate
from leakscope.report import numbers
from leakscope.report.charts import Drawing, Line, Panel, draw_panel
from leakscope.report.page import render_page, write_page
from leakscope.scenario.components import KINDS, describe_field
from leakscope.training.file import TRAINING_KINDS

if TYPE_CHECKING:
    from leakscope.training import Point, Result, Training

STYLES = ("base.css", "tables.css", "narrow.css")
SCRIPTS = ("page.js", "theme.js")
MOST_POINTS = 60
LIMITS = (
    "One training with one seed on this data: another seed gives another curve, by more than the interval of a point, which only "
    "says how well the test examples measure this model. For what an update of this federation reveals, "
    "attack its checkpoints."
)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A stored model: its round, its file, its accuracy."""

    round: int
    file: str
    accuracy: Estimate | None


def render_training(result: Result, *, command: str) -> str:
    """Return the page as one self-contained HTML text; `command` created it."""
    values = {
        "title": result.training.name or "leakscope training",
        "headline": headline(result),
        "explanation": explanation(result),
        "limits": LIMITS,
        "command": command,
        "facts": _facts(result, command),
        "drawings": drawings_of(result),
        "setting": setting_of(result),
        "checkpoints": checkpoints_of(result),
        "rows": thinned(result.curve, MOST_POINTS),
        "total": len(result.curve),
        "text": result.training.file.text,
    }
    return render_page("training.html", values, styles=STYLES, scripts=SCRIPTS)


def write_training(result: Result, path: Path, *, command: str) -> Path:
    """Write the page to `path` and return it; missing folders are created."""
    return write_page(render_training(result, command=command), path)


def headline(result: Result) -> str:
    """Return the outcome in one sentence."""
    measured = [point for point in result.curve if point.accuracy is not None]
    if result.diverged:
        return f"The training diverged in round {result.rounds}: its weights are NaN or infinite"
    last = measured[-1]
    assert last.accuracy is not None
    share = numbers.percent(last.accuracy.value)
    rounds = f"{last.round} round{'' if last.round == 1 else 's'}"
    return f"{share} of the test examples are named rightly after {rounds}"


def explanation(result: Result) -> str:
    """Return in two sentences who trained what."""
    training = result.training
    sizes = sorted(result.sizes)
    examples = (
        f"{sizes[0]:,}" if sizes[0] == sizes[-1] else f"{sizes[0]:,} to {sizes[-1]:,} (median {median(sizes):,g})"
    )
    played = f" {result.rounds} of {training.rounds} rounds were played." if result.rounds < training.rounds else ""
    return (
        f"{len(sizes):,} clients hold {examples} examples of {training.data.name} each and train {training.model.name} "
        f"together; {_selection(training)}. Nobody sends an example: only updates leave a client.{played}"
    )


def drawings_of(result: Result) -> tuple[Drawing, ...]:
    """Return accuracy, test loss and number of answers along the rounds."""
    measured = [point for point in result.curve if point.accuracy is not None]
    played = [point for point in result.curve if point.round]
    panels = [
        _panel("Accuracy on the test part", measured, lambda p: p.accuracy, share=True),
        _panel("Mean loss on the test part", measured, lambda p: None if p.loss is None else _exact(p.loss, p.n or 0)),
        _panel("Clients that answered", played, lambda p: _exact(float(p.answered), 1)),
    ]
    return tuple(draw_panel(panel, panel.names()) for panel in panels if panel.lines)


def _panel(
    title: str, points: Sequence[Point], read: Callable[[Point], Estimate | None], *, share: bool = False
) -> Panel:
    values = [(float(p.round), value) for p in thinned(points, MOST_POINTS) if (value := read(p)) is not None]
    finite = [(at, value) for at, value in values if math.isfinite(value.value)]
    line = Line("global model", tuple(at for at, _ in finite), tuple(value for _, value in finite))
    return Panel(title, "round", share, share, (line,) if finite else (), linear=True)


def _exact(value: float, n: int) -> Estimate:
    return Estimate(value, math.nan, math.nan, n, n)


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """Return at most `most` points: every k-th, and the last."""
    step = -(-len(points) // most) if points else 1
    chosen = list(points[::step])
    return chosen if not points or chosen[-1] is points[-1] else [*chosen[: most - 1], points[-1]]


def checkpoints_of(result: Result) -> tuple[Checkpoint, ...]:
    """Return the checkpoints with the accuracy of their rounds."""
    accuracy = {point.round: point.accuracy for point in result.curve}
    return tuple(
        Checkpoint(number, _as_yaml(file), accuracy.get(number)) for number, file in sorted(result.checkpoints.items())
    )


def _as_yaml(path: str) -> str:
    """Return a path as it may appear in a YAML flow mapping.

    >>> _as_yaml("runs/a"), _as_yaml("runs/a, b: c")
    ('runs/a', '"runs/a, b: c"')
    """
    return path if re.fullmatch(r"[\w./~+-]+", path) else json.dumps(path, ensure_ascii=False)


def setting_of(result: Result) -> tuple[tuple[str, str], ...]:
    """Return what was trained and how, as (what, value) in words."""
    training, client = result.training, result.training.client
    defences = [_piece(KINDS["defences"].describe(item)) for item in training.defences]
    defences += [
        f"{name}: {_piece(describe_field(name, part))}"
        for name, part in (("on_model", client.on_model), ("on_data", client.on_data))
        if part is not None
    ]
    local = (
        {key: value for key, value in describe_field("local", client.local).items() if value} if client.local else {}
    )
    decay = training.decay
    when = f"every {decay.every} rounds" if decay.every else f"after rounds {', '.join(map(str, decay.at))}"
    return (
        ("Data", _piece(describe_field("data", training.data))),
        ("Partition", _piece(TRAINING_KINDS["partition"].describe(training.partition))),
        ("Model", _piece(training.model.plain())),
        ("First weights", _piece(KINDS["weights"].describe(training.weights))),
        ("Local training", _piece(local) if local else "one gradient of all examples"),
        ("Loss", str(client.loss)),
        ("Defences", "; ".join(defences) or "none"),
        ("Who answers", _selection(training)),
        ("Server", _piece(TRAINING_KINDS["server"].describe(training.server))),
        ("Learning rate", f"times {decay.factor:g} {when}" if decay.factor < 1 else "constant"),
        ("Batch norm in clients", f"{training.norm} mode"),
        ("Seed", str(training.seed)),
    )


def _selection(training: Training) -> str:
    chosen = TRAINING_KINDS["selection"].describe(training.selection)
    how_many = numbers.percent(chosen["share"]) if chosen["name"] == "share" else chosen.get("number", "all")
    asked = f"{how_many} of them are asked in a round"
    return asked if chosen["replies"] == 1 else f"{asked} and answer with probability {chosen['replies']:g}"


def _piece(plain: Mapping[str, object]) -> str:
    """Return a component in words: its name, then its settings."""
    name = str(plain.get("name", ""))
    rest = [
        f"{key} {_word(value)}"
        for key, value in plain.items()
        if key != "name" and value is not False and value not in (None, "")
    ]
    return f"{name} ({', '.join(rest)})" if name and rest else name or ", ".join(rest)


def _word(value: object) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(str, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _facts(result: Result, command: str) -> tuple[tuple[str, str], ...]:
    shown = [(name[:1].upper() + name[1:], value) for name, value in result.facts.items() if name != "command"]
    return (*shown, ("This page", f"{command} (leakscope {__version__})"))
