"""The page of a training: its learning curve, the federation in words, the checkpoints and how to attack them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from leakscope.core.version import __version__
from leakscope.metrics.interval import Estimate
from leakscope.report import numbers
from leakscope.report.charts import Drawing, Line, Panel, draw_panel
from leakscope.report.page import render_page, write_page

if TYPE_CHECKING:
    from leakscope.training import Point, Result

STYLES = ("base.css", "tables.css", "narrow.css")
SCRIPTS = ("page.js", "theme.js")
MOST_POINTS = 60
LIMITS = (
    "One training with one seed on this data: another seed gives another curve, by more than the interval of a point, which only "
    "says how well the test examples measure this very model. What an update of this federation gives away is another "
    "question: attack its checkpoints."
)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A stored model: its round, its file, its accuracy."""

    round: int
    file: str
    accuracy: Estimate | None


def render_training(result: Result, *, command: str) -> str:
    """Return the page as one self-contained HTML text; `command` made it."""
    values = {
        "title": result.name or "leakscope training",
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
        "text": result.text,
    }
    return render_page("training.html", values, styles=STYLES, scripts=SCRIPTS)


def write_training(result: Result, path: Path, *, command: str) -> Path:
    """Write the page to `path` and return it; missing folders are made."""
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
    """Return who trained what, in two sentences."""
    settings = result.settings
    sizes = sorted(result.sizes)
    examples = (
        f"{sizes[0]:,}" if sizes[0] == sizes[-1] else f"{sizes[0]:,} to {sizes[-1]:,} (median {median(sizes):,g})"
    )
    played = (
        f" {result.rounds} of {settings['rounds']} rounds were played." if result.rounds < settings["rounds"] else ""
    )
    return (
        f"{len(sizes):,} clients hold {examples} examples of {settings['data']['name']} each and train {settings['model']['name']} "
        f"together; {_selection(settings['selection'])}. Nobody sends an example: only updates leave a client.{played}"
    )


def drawings_of(result: Result) -> tuple[Drawing, ...]:
    """Return accuracy, test loss and answers along the rounds."""
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
    """Return at most so many points: every k-th, and the last."""
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
    """Return a path as it may stand in a file between braces.

    >>> _as_yaml("runs/a"), _as_yaml("runs/a, b: c")
    ('runs/a', '"runs/a, b: c"')
    """
    return path if re.fullmatch(r"[\w./~+-]+", path) else json.dumps(path, ensure_ascii=False)


def setting_of(result: Result) -> tuple[tuple[str, str], ...]:
    """Return what was trained and how, as (what, value) in words."""
    settings = result.settings
    local = settings["client"]["local"]
    defences = [_piece(item) for item in settings["defences"]]
    defences += [
        f"{name}: {_piece(settings['client'][name])}"
        for name in ("on_model", "on_data")
        if settings["client"].get(name)
    ]
    decay = settings["decay"]
    when = f"every {decay['every']} rounds" if decay["every"] else f"after rounds {', '.join(map(str, decay['at']))}"
    lines = [
        ("Data", _piece(settings["data"])),
        ("Partition", _piece(settings["partition"])),
        ("Model", _piece(settings["model"])),
        ("First weights", _piece(settings["weights"])),
        ("Local training", "one gradient of all examples" if local is None else _piece(_set(local))),
        ("Loss", settings["client"]["loss"]),
        ("Defences", "; ".join(defences) or "none"),
        ("Who answers", _selection(settings["selection"])),
        ("Server", _piece(settings["server"])),
        ("Learning rate", f"times {decay['factor']:g} {when}" if decay["factor"] < 1 else "constant"),
        ("Batch norm in clients", f"{settings['norm']} mode"),
        ("Seed", str(settings["seed"])),
    ]
    return tuple((what, str(value)) for what, value in lines)


def _selection(selection: Mapping[str, Any]) -> str:
    name = selection["name"]
    how_many = numbers.percent(selection["share"]) if name == "share" else selection.get("number", "all")
    asked = f"{how_many} of them are asked in a round"
    return asked if selection["replies"] == 1 else f"{asked} and answer with probability {selection['replies']:g}"


def _set(local: Mapping[str, Any]) -> dict[str, Any]:
    """Return the local training without what is switched off."""
    return {key: value for key, value in local.items() if value}


def _piece(settings: Mapping[str, Any]) -> str:
    """Return a piece in words: its name, then what is set."""
    name = str(settings.get("name", ""))
    rest = [
        f"{key} {_word(value)}"
        for key, value in settings.items()
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
