"""The page of a training: its learning curve, the federation in words, the checkpoints and how to attack them.

One HTML text that needs nothing but itself, in the look of the other pages; it forbids itself the network.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from leakscope.core.version import __version__
from leakscope.metrics.interval import Estimate
from leakscope.report import numbers
from leakscope.report.chart import Drawing, draw
from leakscope.report.curves import Line, Panel
from leakscope.report.page import environment_of, read_assets

if TYPE_CHECKING:
    from leakscope.training import Point, Result

STYLES = ("base.css", "tables.css", "narrow.css")
SCRIPTS = ("page.js", "theme.js")
MOST_POINTS = 60
NAN = float("nan")
LIMITS = (
    "One training with one seed on this data: another seed gives another curve, by more than the interval of a point, which only "
    "says how well the test examples measure this very model. What an update of this federation gives away is another "
    "question: attack its checkpoints."
)


@dataclass(frozen=True, slots=True)
class Kept:
    """A checkpoint: its round, its file, the accuracy of the model in it."""

    round: int
    file: str
    accuracy: Estimate | None


def render_training(result: Result, *, command: str) -> str:
    """Return the page as one self-contained HTML text; `command` made it."""
    from markupsafe import Markup

    script = "(() => {\n" + read_assets(SCRIPTS) + "})();\n"
    return (
        environment_of()
        .get_template("training.html")
        .render(
            title=result.name or "leakscope training",
            headline=headline(result),
            explanation=explanation(result),
            drawings=drawings_of(result),
            setting=setting_of(result),
            kept=checkpoints_of(result),
            rows=thinned(result.curve, MOST_POINTS),
            total=len(result.curve),
            limits=LIMITS,
            facts=_facts(result, command),
            command=command,
            text=result.text,
            style=Markup(read_assets(STYLES)),
            script=Markup(script),
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii"),
        )
    )


def write_training(result: Result, path: Path, *, command: str) -> Path:
    """Write the page to `path` and return it; missing folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render_training(result, command=command), encoding="utf-8")
    return path


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
    told = result.settings
    sizes = sorted(result.sizes)
    held = f"{sizes[0]:,}" if sizes[0] == sizes[-1] else f"{sizes[0]:,} to {sizes[-1]:,} (median {median(sizes):,g})"
    done = f" {result.rounds} of {told['rounds']} rounds were played." if result.rounds < told["rounds"] else ""
    return (
        f"{len(sizes):,} clients hold {held} examples of {told['data']['name']} each and train {told['model']['name']} "
        f"together; {_selection(told['selection'])}. Nobody sends an example: only updates leave a client.{done}"
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
    return tuple(draw(panel, panel.names()) for panel in panels if panel.lines)


def _panel(
    title: str, points: Sequence[Point], read: Callable[[Point], Estimate | None], *, share: bool = False
) -> Panel:
    found = [(float(p.round), value) for p in thinned(points, MOST_POINTS) if (value := read(p)) is not None]
    kept = [(at, value) for at, value in found if value.value == value.value and abs(value.value) != float("inf")]
    line = Line("global model", tuple(at for at, _ in kept), tuple(value for _, value in kept))
    return Panel(title, "round", share, share, (line,) if kept else (), linear=True)


def _exact(value: float, n: int) -> Estimate:
    return Estimate(value, NAN, NAN, n, n)


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """Return at most so many points: every k-th, and the last."""
    step = -(-len(points) // most) if points else 1
    kept = list(points[::step])
    return kept if not points or kept[-1] is points[-1] else [*kept[: most - 1], points[-1]]


def checkpoints_of(result: Result) -> tuple[Kept, ...]:
    """Return the checkpoints with the accuracy of their rounds."""
    known = {point.round: point.accuracy for point in result.curve}
    return tuple(Kept(number, _as_yaml(file), known.get(number)) for number, file in sorted(result.checkpoints.items()))


def _as_yaml(path: str) -> str:
    """Return a path as it may stand in a file between braces.

    >>> _as_yaml("runs/a"), _as_yaml("runs/a, b: c")
    ('runs/a', '"runs/a, b: c"')
    """
    return path if re.fullmatch(r"[\w./~+-]+", path) else json.dumps(path, ensure_ascii=False)


def setting_of(result: Result) -> tuple[tuple[str, str], ...]:
    """Return what was trained and how, as (what, value) in words."""
    told = result.settings
    local = told["client"]["local"]
    guarded = [_piece(item) for item in told["defences"]]
    guarded += [
        f"{name}: {_piece(told['client'][name])}" for name in ("on_model", "on_data") if told["client"].get(name)
    ]
    decay = told["decay"]
    when = f"every {decay['every']} rounds" if decay["every"] else f"after rounds {', '.join(map(str, decay['at']))}"
    lines = [
        ("Data", _piece(told["data"])),
        ("Partition", _piece(told["partition"])),
        ("Model", _piece(told["model"])),
        ("First weights", _piece(told["weights"])),
        ("Local training", "one gradient of all examples" if local is None else _piece(_set(local))),
        ("Loss", told["client"]["loss"]),
        ("Defences", "; ".join(guarded) or "none"),
        ("Who answers", _selection(told["selection"])),
        ("Server", _piece(told["server"])),
        ("Learning rate", f"times {decay['factor']:g} {when}" if decay["factor"] < 1 else "constant"),
        ("Batch norm in clients", f"{told['norm']} mode"),
        ("Seed", str(told["seed"])),
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
