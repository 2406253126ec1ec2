"""The page of privacy-preserving characteristics: CAP of every defence, the curves, example reconstructions of each region.

One HTML text that needs nothing but itself, in the look of the other pages. It has no script and forbids itself the network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from leakscope.analysis.characteristic import Characteristic, Example, Region
from leakscope.core.errors import InputError
from leakscope.report import numbers
from leakscope.report.characteristic_chart import Drawing, draw
from leakscope.report.page import environment_of, read_assets
from leakscope.report.picture import drawable, pixels, png

STYLES = ("base.css", "tables.css", "pictures.css", "narrow.css", "characteristic.css")
REGIONS = (
    (Region.GREEN, "Green: the perturbation is at least as large as the gradient"),
    (Region.WHITE, "White: between one and ten times as much gradient as perturbation"),
    (Region.RED, "Red: ten times as much gradient as perturbation, or more"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CharacteristicPage:
    """What the page shows; `facts` are (what, value) lines about where it comes from."""

    title: str
    headline: str
    explanation: str
    curves: tuple[Characteristic, ...]
    examples: tuple[Example, ...] = ()
    limits: str = ""
    command: str = ""
    facts: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Shown:
    """An example with its pictures as PNG."""

    truth: bytes
    guess: bytes
    words: str


@dataclass(frozen=True, slots=True)
class Group:
    """The curves of one distance: a drawing for each defence and attack."""

    distance: str
    drawings: tuple[Drawing, ...]
    curves: tuple[Characteristic, ...] = field(repr=False)


def render(page: CharacteristicPage) -> str:
    """Return the page as one self-contained HTML text."""
    from markupsafe import Markup

    if not page.curves:
        raise InputError("a page of characteristics needs at least one curve")
    return (
        environment_of()
        .get_template("characteristic.html")
        .render(
            page=page,
            style=Markup(read_assets(STYLES)),
            groups=_groups(page.curves),
            rules=sorted({curve.rule for curve in page.curves if curve.rule}),
            regions=[(region.value, title, _shown(page.examples, region)) for region, title in REGIONS],
            short=numbers.short,
            percent=numbers.percent,
        )
    )


def write(page: CharacteristicPage, path: str | Path) -> Path:
    """Write the page to `path` and return it; missing folders are made."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render(page), encoding="utf-8")
    return path


def _groups(curves: Sequence[Characteristic]) -> list[Group]:
    found: dict[str, list[Characteristic]] = {}
    for curve in curves:
        found.setdefault(curve.distance, []).append(curve)
    return [
        Group(distance, tuple(draw(curve, f"{curve.defence}, {curve.attack}") for curve in own), tuple(own))
        for distance, own in found.items()
    ]


def _shown(examples: Sequence[Example], region: Region) -> list[Shown]:
    return [
        Shown(
            png(pixels(drawable(one.truth))),
            png(pixels(drawable(one.guess))),
            f"{one.defence}: {numbers.number(one.distance)} ({_ratio(one.ratio)})",
        )
        for one in examples
        if one.region is region
    ]


def _ratio(ratio: float) -> str:
    return "biases unchanged" if ratio == float("inf") else numbers.number(ratio)
