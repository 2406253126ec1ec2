"""What attackers know of a defence by themselves, where nobody told it to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from leakscope.core.record import Cell

TOLD = "knowledge.defence"
HEAD = "the private head"


def with_known_heads(cells: Sequence[Cell]) -> tuple[Cell, ...]:
    """Return the cells; an attacker made for private heads, whom telling gives nothing, stands at what it knows and not at no."""
    return tuple(
        replace(cell, axes={**cell.axes, TOLD: HEAD}) if cell.axes.get(TOLD) is False and knows_head(cell) else cell
        for cell in cells
    )


def knows_head(cell: Cell) -> bool:
    """Return whether the client of a cell has a private head and the attack was made for one."""
    client, attack = cell.settings.get("client"), cell.settings.get("attack")
    if not isinstance(client, Mapping) or client.get("on_model") is None or not isinstance(attack, Mapping):
        return False
    from leakscope.scenario.attackers import made_for_heads  # with torch, which other runs do not need

    return made_for_heads(str(attack.get("name")))


def simulates_if_told(cell: Cell) -> bool:
    """Return whether telling is what makes the attacker of a cell simulate local steps; SME and DLFA do what they do anyway."""
    attack, knowledge = cell.settings.get("attack"), cell.settings.get("knowledge")
    if not isinstance(attack, Mapping) or not isinstance(knowledge, Mapping) or not knowledge.get("local"):
        return False
    from leakscope.scenario import attackers  # with torch, which other runs do not need

    return attackers.simulates_if_told(str(attack.get("name")))
