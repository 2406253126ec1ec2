"""Write docs/reference/catalogue.md: every attack and defence with equation, reference, when it works and what it costs.

    python tools/catalogue.py            # write it
    python tools/catalogue.py --check    # exit 1 if the file is not what would be written

Read from the tables the pieces are registered in, their docstrings (`Equation:`, `Reference:`, `Works when:`, `Costs:`) and their
signatures. A piece that lacks one of the four is refused by name.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from catalogue_notes import NOTES

from leakscope.attacks.recipes import ATTACKS
from leakscope.attacks.tokens.readings import TEXT_ATTACKS
from leakscope.clients.private import PrivateClient
from leakscope.core.registry import summary
from leakscope.defences import DEFENCES
from leakscope.defences.on_data import OPERATIONS, Transform
from leakscope.defences.on_model import Polarisation

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "catalogue.md"
LABELS = ("Equation", "Reference", "Works when", "Costs")
LABEL = re.compile(rf"^({'|'.join(LABELS)}): ?(.*)$")

HEAD = """\
# Catalogue of attacks and defences

Written by `tools/catalogue.py` from the code; do not edit it by hand. `leakscope list` also names every other kind of component. In the
equations g is the update that the server saw, l the loss, w the weights, x and y the unknown inputs and labels, TV total variation. An
[audit](audit.md) measures what they do to your model.
"""
DEFENCES_HEAD = """\
## Defences

A defence on the update (`defences=`) changes what is sent, one on the data (`on_data=`) what the network sees, one on the model
(`on_model=`) what is trained. [Aware](../explanation/aware.md) describes the attackers who know them,
[defences on the update](defences.md) their order, ties and rounding.
"""
OPERATIONS_HEAD = """\
## Operations of a policy

A [policy](../how-to/policies.md) such as `3-1-7` names operations by their numbers. Every image draws the sign of a signed operation.
"""


@dataclass(frozen=True, slots=True)
class Piece:
    """One row of the catalogue: its name, what makes it, and where in a client it goes."""

    name: str
    make: Callable[..., Any]
    place: str = ""


def pieces() -> tuple[list[Piece], list[Piece]]:
    """Return the attacks and the defences, in the order of their tables."""
    attacks = [Piece(name, make) for name, make in {**ATTACKS, **TEXT_ATTACKS}.items()]
    defences = [Piece(name, make, "Client(defences=...)") for name, make in DEFENCES.items()]
    defences += [
        Piece("transform", Transform, "Client(on_data=...)"),
        Piece("polarisation", Polarisation, "Client(on_model=...)"),
        Piece("dp_sgd", PrivateClient, "in the place of a Client"),
    ]
    return attacks, defences


def labelled(doc: str) -> dict[str, str]:
    """Return the labelled lines of a docstring, each with the lines that go on with it.

    >>> labelled("Adds.\\n\\nEquation: a\\n    + b.\\nCosts: none.\\n\\nMore.")
    {'Equation': 'a + b.', 'Costs': 'none.'}
    """
    found: dict[str, str] = {}
    current = ""
    for line in doc.splitlines():
        match = LABEL.match(line)
        if match:
            current = match[1]
            found[current] = match[2]
        elif not line.strip():
            current = ""
        elif current:
            found[current] += f" {line.strip()}"
    return found


def said(piece: Piece, notes: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return the four lines of a piece, from its docstring or else from the notes; refuse what is missing or told twice."""
    own = labelled(inspect.getdoc(piece.make) or "")
    other = notes.get(piece.name, {})
    twice = sorted(own.keys() & other.keys())
    if twice:
        raise SystemExit(
            f"{piece.name}: {', '.join(twice)} stands in the docstring and in the notes; take the note out"
        )
    whole = {**own, **other}
    missing = [label for label in LABELS if not whole.get(label)]
    if missing:
        raise SystemExit(f"{piece.name}: its docstring has no line that begins with {' or '.join(missing)}")
    return {label: whole[label] for label in LABELS}


def settings(make: Callable[..., Any]) -> str:
    """Return the settings with their defaults, as one line of code."""
    shown = []
    for name, parameter in inspect.signature(make).parameters.items():
        default = parameter.default
        if repr(default) == "<factory>":  # made anew for every object: nothing to show
            continue
        shown.append(name if default is inspect.Parameter.empty else f"{name}={_plain(default)}")
    return ", ".join(shown)


def _plain(value: Any) -> str:
    """Return a default as a reader would write it."""
    if isinstance(value, enum.Enum):
        return value.name
    if dataclasses.is_dataclass(value):
        return f"{type(value).__name__}(...)" if dataclasses.fields(value) else f"{type(value).__name__}()"
    return value.__name__ if inspect.isfunction(value) else repr(value)


def section(piece: Piece, notes: Mapping[str, Mapping[str, str]]) -> str:
    """Return the part of the page about one piece."""
    lines = [f"### {piece.name}", "", f"{summary(piece.make)}.", ""]
    lines += [f"- **{label}**: {text}" for label, text in said(piece, notes).items()]
    shown = settings(piece.make)
    lines += [f"- **Settings**: {f'`{shown}`' if shown else 'none'}"]
    if piece.place:
        lines.append(f"- **Where**: `{piece.place}`" if "(" in piece.place else f"- **Where**: {piece.place}")
    file = Path(inspect.getsourcefile(inspect.unwrap(piece.make)) or "").resolve().relative_to(ROOT).as_posix()
    return "\n".join([*lines, f"- **Code**: `{file}`", ""])


def operations() -> str:
    """Return the table of operations that policies are made of."""
    rows = [f"| {number} | {op.words} |" for number, op in enumerate(OPERATIONS)]
    return "\n".join(["| number | does |", "|---|---|", *rows, ""])


def page(notes: Mapping[str, Mapping[str, str]] = NOTES) -> str:
    """Return the whole page."""
    attacks, defences = pieces()
    unknown = sorted(notes.keys() - {piece.name for piece in (*attacks, *defences)})
    if unknown:
        raise SystemExit(f"notes about what is not there: {', '.join(unknown)}")
    parts = [HEAD, "## Attacks\n", *(section(piece, notes) for piece in attacks)]
    parts += [DEFENCES_HEAD, *(section(piece, notes) for piece in defences), OPERATIONS_HEAD, operations()]
    return "\n".join(parts)


def main() -> None:
    """Write the page, or say whether it is up to date."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the page is not up to date")
    made = page()
    if not parser.parse_args().check:
        PAGE.write_text(made, encoding="utf-8")
        print(PAGE.relative_to(ROOT))
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != made:
        raise SystemExit("docs/reference/catalogue.md is not up to date: run python tools/catalogue.py")


if __name__ == "__main__":
    main()
