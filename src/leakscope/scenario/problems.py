"""Mistakes in a scenario: each with its place, the rule it breaks and the nearest valid value; all told at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from leakscope.core.errors import InputError

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake: the path of the field, what is wrong with it, and the line in the file if there is a file."""

    path: Path
    message: str
    line: int | None = None

    def text(self, source: str) -> str:
        """Return `file:line: field: message`, leaving out what is not known."""
        place = f"{source}:{self.line}" if source and self.line is not None else source
        field = dotted(self.path)
        return ": ".join(part for part in (place, field, self.message) if part)


class ScenarioError(InputError):
    """Everything that is wrong with a scenario; its text has a line for each problem."""

    def __init__(self, problems: Sequence[Problem], source: str = "") -> None:
        """Keep the problems in the order of their lines."""
        self.problems = sorted(problems, key=lambda p: (p.line is None, p.line or 0))
        super().__init__("\n".join(problem.text(source) for problem in self.problems))


def dotted(path: Path) -> str:
    """Return a path as people write it.

    >>> dotted(("defences", 0, "sigma"))
    'defences.0.sigma'
    """
    return ".".join(str(part) for part in path)
