"""The page of privacy-preserving characteristics: CAP of every defence, the curves, example reconstructions per region."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from leakscope.core.errors import InputError
from leakscope.report import numbers
from leakscope.report.page import render_page, write_page
from leakscope.report.pictures import drawable, pixels, png
from leakscope_papers.characteristics.characteristic import Characteristic, Example, Region
from leakscope_papers.characteristics.drawing import CharacteristicDrawing, draw_characteristic
from leakscope_papers.pages import TEMPLATES

STYLES = ("base.css", "tables.css", "pictures.css", "narrow.css", "regions.css", "characteristic.css")
LIMITS = "The ratio is an axis: for networks with convolutions no theorem ties it to whether an attack works."
REGIONS = (
    (Region.GREEN, "Green: the perturbation is at least as large as the gradient"),
    (Region.WHITE, "White: between one and ten times as much gradient as perturbation"),
    (Region.RED, "Red: ten times as much gradient as perturbation, or more"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CharacteristicPage:
    """Content of the page; `facts` are (what, value) lines on its provenance."""

    curves: tuple[Characteristic, ...]
    examples: tuple[Example, ...] = ()
    title: str
    headline: str
    explanation: str
    limits: str = ""
    command: str = ""
    facts: tuple[tuple[str, str], ...] = ()


class DrawnExample(NamedTuple):
    """An example with its images as PNG."""

    truth: bytes
    guess: bytes
    words: str


class Group(NamedTuple):
    """The curves of one distance: one drawing per defence and attack."""

    distance: str
    drawings: tuple[CharacteristicDrawing, ...]
    curves: tuple[Characteristic, ...]


def render_characteristics(page: CharacteristicPage) -> str:
    """Return the page as one self-contained HTML text."""
    if not page.curves:
        raise InputError("a page of characteristics needs at least one curve")
    values = {
        "title": page.title,
        "headline": page.headline,
        "explanation": page.explanation,
        "limits": page.limits or LIMITS,
        "command": page.command or None,
        "facts": page.facts,
        "examples": page.examples,
        "groups": _groups(page.curves),
        "rules": sorted({curve.rule for curve in page.curves if curve.rule}),
        "by_region": [(region.value, title, _drawn_examples(page.examples, region)) for region, title in REGIONS],
    }
    return render_page("characteristic.html", values, styles=STYLES, folder=TEMPLATES)


def write_characteristics(page: CharacteristicPage, path: str | Path) -> Path:
    """Write the page to `path` and return it; missing folders are created."""
    return write_page(render_characteristics(page), path)


def _groups(curves: Sequence[Characteristic]) -> list[Group]:
    groups: dict[str, list[Characteristic]] = {}
    for curve in curves:
        groups.setdefault(curve.distance, []).append(curve)
    return [Group(distance, tuple(map(_draw, members)), tuple(members)) for distance, members in groups.items()]


def _draw(curve: Characteristic) -> CharacteristicDrawing:
    return draw_characteristic(curve, f"{curve.defence}, {curve.attack}")


def _drawn_examples(examples: Sequence[Example], region: Region) -> list[DrawnExample]:
    return [
        DrawnExample(
            png(pixels(drawable(one.truth))),
            png(pixels(drawable(one.guess))),
            f"{one.defence}: {numbers.number(one.distance)} ({_ratio(one.ratio)})",
        )
        for one in examples
        if one.region is region
    ]


def _ratio(ratio: float) -> str:
    return "biases unchanged" if ratio == float("inf") else numbers.number(ratio)
