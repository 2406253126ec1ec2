"""The first sentence of the page: how much the strongest attack recovered, and what remains without the update."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from leakscope.report.numbers import percent_interval
from leakscope.report.sheet import ATTACK, say
from leakscope.report.tables import Row, Table

NOTHING = "No trial of this run has finished yet"


def headline(table: Table, label: Callable[[str], str], things: tuple[str, str]) -> tuple[str, str]:
    """Return the headline and the sentences under it, from the table of all cells; `things` is the noun, one and many."""
    attacks = [row for row in table.rows if not row.baseline and row.samples]
    if not attacks:
        return NOTHING, "The page fills as chunks of trials land."
    best = max(attacks, key=_rank if all(not row.content.value for row in attacks) else _content)
    head = f"From the update alone, {best.attack} recovered {_share(best, things)}"
    if not best.content.value:
        head = f"None of {best.samples:,} private {things[1]} was recovered, even by the strongest attack here"
    said = [_where(best, label, attacks)]
    if len(attacks) > 1:
        said.append(_worst(min(attacks, key=_rank), best, label))
    said.append(_without([row for row in table.rows if row.baseline and row.samples], things))
    return head, " ".join(sentence for sentence in said if sentence)


def _content(row: Row) -> float:
    return row.content.value


def _rank(row: Row) -> tuple[float, float]:
    return row.content.value, -row.mse.value


def _hits(row: Row) -> int:
    return round(row.content.value * row.content.n)


def _share(row: Row, things: tuple[str, str]) -> str:
    return f"{_hits(row):,} of {row.samples:,} private {things[row.samples > 1]}"


def _place(row: Row, label: Callable[[str], str]) -> str:
    return ", ".join(f"{label(name)} {say(value)}" for name, value in row.values.items() if name != ATTACK)


def _where(best: Row, label: Callable[[str], str], attacks: Sequence[Row]) -> str:
    interval = percent_interval(best.content)
    known = f"95 % interval {interval}" if interval else "one trial, so no interval"
    if len(attacks) == 1:
        return f"{known[0].upper()}{known[1:]}."
    place = _place(best, label)
    here = f" ({place})" if place else ""
    equals = sum(row.content.value == best.content.value for row in attacks)
    if equals > 1 and best.content.value:
        return f"The same in {equals} of {len(attacks)} settings, the first of them{here or ' here'}; {known}."
    return f"That is the strongest of {len(attacks)} settings{here}; {known}."


def _worst(row: Row, best: Row, label: Callable[[str], str]) -> str:
    place = _place(row, label)
    own = row.attack if row.attack != best.attack else ""
    where = ", ".join(part for part in (own, place) if part)
    return f"In the weakest setting ({where}) it was {_hits(row):,} of {row.samples:,}." if where else ""


def _without(baselines: list[Row], things: tuple[str, str]) -> str:
    if not baselines:
        return ""
    best = max(baselines, key=_rank)
    return f"Without the update, the best baseline ({best.attack}) came to {_share(best, things)}."
