"""Which reading of an item behaves most like the paper, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from leakscope_papers.comparing import ALIKE, JUDGED, TOO_FEW, Comparison

MARGIN = 0.1  # of the numbers: readings nearer than this to the best one are not told apart from it
Spoken: TypeAlias = dict[tuple[int, str], tuple[str, str]]  # (line, measure) -> verdict and the cell behind it


def best_reading(comparison: Comparison) -> str:
    """Return in words which reading behaves most like the paper, among those that speak of the same numbers.

    Nothing where there is one reading only. Readings about different places (batches, local steps) are not held against each other.
    """
    spoken: dict[str, Spoken] = {}
    for column in comparison.columns:
        if column.judged:
            own = spoken.setdefault(column.reading, {})
            for number, line in enumerate(comparison.lines):
                cell = next((cell.cell or repr(cell) for cell in line.measured if cell.column == column), "")
                for (title, name), verdict in line.verdicts.items():
                    if title == column.title and verdict.word in (*JUDGED, TOO_FEW):
                        own[number, name] = (verdict.word, cell)
    told = [_best_of({name: spoken[name] for name in group}) for group in _overlapping(spoken)]
    return " ".join(sentence for sentence in told if sentence)


def _overlapping(spoken: Mapping[str, Spoken]) -> list[list[str]]:
    """Return the readings in groups that speak of some number in common."""
    groups: list[list[str]] = []
    for name, own in spoken.items():
        met = next((group for group in groups if any(own.keys() & spoken[other].keys() for other in group)), None)
        if met is None:
            groups.append([name])
        else:
            met.append(name)
    return groups


def _best_of(spoken: Mapping[str, Spoken]) -> str:
    """Return the reading with most numbers that agree or are close, of those that all of these speak of and measured apart.

    A number that is too few to say under any of them is left out and counted.
    """
    common = set.intersection(*(set(own) for own in spoken.values()))
    both = [place for place in common if len({own[place][1] for own in spoken.values()}) > 1]
    apart = [place for place in both if all(own[place][0] != TOO_FEW for own in spoken.values())]
    if len(spoken) < 2 or not apart:
        return ""
    alike = {name: sum(own[place][0] in ALIKE for place in apart) for name, own in spoken.items()}
    told = ", ".join(f"{name} {number}" for name, number in alike.items())
    few = len(both) - len(apart)
    told += f"; {few} more {'is' if few == 1 else 'are'} too few to say" if few else ""
    winners = [name for name, number in alike.items() if number >= max(alike.values()) - MARGIN * len(apart)]
    if len(winners) == len(spoken):
        return f"The readings cannot be told apart here: of {len(apart)} printed numbers agree or are close: {told}."
    return f"Most like the paper: {' and '.join(winners)}. Of {len(apart)} printed numbers agree or are close: {told}."
