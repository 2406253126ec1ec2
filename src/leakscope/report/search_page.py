"""The page of a policy search: privacy against accuracy of every policy, the kept ones and what they do to pictures, numbers, origin.

One HTML text that needs nothing but itself, in the look of the other pages. It has no script and forbids itself the network.
"""

from __future__ import annotations

import dataclasses
import datetime
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from leakscope.core.errors import InputError
from leakscope.core.version import __version__
from leakscope.report import numbers
from leakscope.report.page import environment_of, read_assets
from leakscope.report.picture import drawable, pixels, png, shrink
from leakscope.report.search_chart import draw

if TYPE_CHECKING:
    from leakscope.search.policies import Walk
    from leakscope.search.policy_search import Candidate, Found, PolicySearch

STYLES = ("base.css", "tables.css", "pictures.css", "narrow.css", "search.css")
MOST_ROWS = 200
SIDE = 96
LIMITS = (
    "Both scores stand in for what they are named after. The privacy score need not follow what an attack recovers: a reproduction "
    "found no correlation with PSNR, and the attacker who knows of a policy gets around much of it. The accuracy score is that of an "
    "untrained network. Attack and train with a policy before trusting it (docs/policies.md). One network, one seed, one set of "
    "pictures: the scores of a policy have no interval here."
)


@dataclass(frozen=True, slots=True)
class Strip:
    """A policy on pictures: a row of PNGs for each picture, a caption for each column."""

    policy: str
    captions: tuple[str, ...]
    rows: tuple[tuple[bytes, ...], ...]


def render_search(
    said: PolicySearch,
    found: Mapping[str, Found],
    walks: Sequence[Walk] = (),
    *,
    command: str,
    device: str | None = None,
) -> str:
    """Return the page of what methods found (method -> its end) as one self-contained HTML text; `command` made it."""
    from markupsafe import Markup

    if not any(each.candidates for each in found.values()):
        raise InputError("no policy is scored yet: there is nothing to show")
    return (
        environment_of()
        .get_template("search.html")
        .render(
            title="policy search" if len(found) == 1 else "policy searches compared",
            headline=headline(said, found),
            explanation=explanation(said, found),
            drawing=draw(found, threshold=said.threshold),
            said=said,
            privacy=privacy_name(said),
            found=found,
            rows={name: _rows(each) for name, each in found.items()},
            most=MOST_ROWS,
            strips=[_strip(walk) for walk in walks],
            limits=LIMITS,
            command=command,
            facts=_facts(said, found, device),
            style=Markup(read_assets(STYLES)),
            short=numbers.short,
        )
    )


def write_search(
    said: PolicySearch,
    found: Mapping[str, Found],
    walks: Sequence[Walk],
    path: Path,
    *,
    command: str,
    device: str | None,
) -> Path:
    """Write the page to `path` and return it; missing folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render_search(said, found, walks, command=command, device=device), encoding="utf-8")
    return path


def privacy_name(said: PolicySearch) -> str:
    """Return what privacy was scored by."""
    return "PSNR of an attack, dB" if said.score == "attack" else "privacy score"


def headline(said: PolicySearch, found: Mapping[str, Found]) -> str:
    """Return the outcome in one sentence."""
    if len(found) > 1:
        known = {name: each.area for name, each in found.items() if each.area is not None}
        told = ", ".join(f"{name} {numbers.number(area)}" for name, area in known.items())
        return f"Area beyond no policy at equal cost: {told or 'not known'}"
    (one,) = found.values()
    if not one.selection.kept:
        return f"None of {len(one.candidates):,} policies passes the accuracy threshold {numbers.short(said.threshold or 0)}"
    best = one.selection.kept[0]
    against = "" if one.reference is None else f", against {numbers.number(one.reference.privacy)} without a policy"
    score = f"{privacy_name(said)} {numbers.number(best.privacy)}{against}"
    return f"The most private of {len(one.candidates):,} policies is {best.policy}: {score}"


def explanation(said: PolicySearch, found: Mapping[str, Found]) -> str:
    """Return how many were scored, rejected and kept, and how many are worse than nothing, in sentences."""
    told = []
    for name, each in found.items():
        who = "" if len(found) == 1 else f"{name}: "
        line = f"{who}{len(each.candidates):,} policies were scored"
        if said.threshold is not None:
            line += f", {each.selection.rejected:,} rejected by the accuracy threshold {numbers.short(said.threshold)}"
        line += f", {len(each.selection.kept)} kept"
        if each.worse is not None:
            line += f"; {numbers.percent(each.worse)} of all are worse than no policy on both scores"
        if each.left:
            line += f"; {each.left} are still to be scored"
        told.append(line)
    return ". ".join(told) + "."


def _rows(found: Found) -> list[tuple[Candidate, str]]:
    """Return every candidate with its fate, most private first."""
    kept, front = ({each.policy for each in part} for part in (found.selection.kept, found.front))
    ordered = sorted(found.candidates, key=lambda each: (each.privacy, each.policy))
    return [
        (
            each,
            ", ".join(word for word, own in (("kept", kept), ("none beats it on both", front)) if each.policy in own),
        )
        for each in ordered[:MOST_ROWS]
    ]


def _strip(walk: Walk) -> Strip:
    number = len(walk.steps[0])
    rows = [
        tuple(png(shrink(pixels(drawable(step[place].float() / 255)), SIDE)) for step in walk.steps)
        for place in range(number)
    ]
    return Strip(walk.policy, ("private picture", *walk.words), tuple(rows))


def _facts(said: PolicySearch, found: Mapping[str, Found], device: str | None) -> tuple[tuple[str, str], ...]:
    plain = dataclasses.asdict(said)
    if len(found) > 1:
        plain["method"] = " and ".join(found)
    return (
        ("Version", f"leakscope {__version__}"),
        ("Date", datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")),
        ("Machine", f"{platform.machine()}, {device}, float32" if device else f"{platform.machine()} (made this page)"),
        *((name.replace("_", " "), "none" if value is None else str(value)) for name, value in plain.items()),
    )
