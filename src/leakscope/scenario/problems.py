"""Errors in a scenario: each with its place, the violated rule and the nearest valid value; all are reported at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from leakscope.core.errors import InputError

Path = tuple[str | int, ...]
MOST_LINES = 100


@dataclass(frozen=True, slots=True)
class Problem:
    """One error: the path of the field, the message, and the line in the file if there is one."""

    path: Path
    message: str
    line: int | None = None

    def text(self, source: str) -> str:
        """Return `file:line: field: message`, without unknown parts."""
        place = f"{source}:{self.line}" if source and self.line is not None else source
        field = dotted(self.path)
        return ": ".join(part for part in (place, f"{field:.200}", f"{self.message:.1000}") if part)


class ScenarioError(InputError):
    """All problems of a scenario; its text has one line for each of the first `MOST_LINES`."""

    def __init__(self, problems: Sequence[Problem], source: str = "") -> None:
        """Sort the problems by line."""
        self.problems = sorted(problems, key=lambda p: (p.line is None, p.line or 0))
        more = [f"... and {len(problems) - MOST_LINES:,} more"] * (len(problems) > MOST_LINES)
        super().__init__("\n".join([*(problem.text(source) for problem in self.problems[:MOST_LINES]), *more]))


def dotted(path: Path) -> str:
    """Return a path as text.

    >>> dotted(("defences", 0, "sigma"))
    'defences.0.sigma'
    """
    return ".".join(str(part) for part in path)
