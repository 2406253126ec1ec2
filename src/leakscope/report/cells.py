"""The cells of a sweep in words: attacks, axes and their values, and what an attacker knows of a defence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from leakscope.core.record import Cell, Plain

ATTACK, DEFENCES = "attack", "defences"
DEFENCE_KNOWN = "knowledge.defence"  # axis: whether the attacker knows the defence
PRIVATE_HEAD = "the private head"
INFORMED = " (knows the defence)"  # suffix of an attack that knows the defence
OF_TRAINING = " (knows the training)"  # of one that knows nothing of the defence, but how the client trains


TEXT_DATA = ("alice_sonnets", "grammar")  # data sets of sentences that a scenario can name


def holds_text(cells: Iterable[Cell]) -> bool:
    """Return whether any cell attacks sentences."""
    data = (cell.settings.get("data") for cell in cells)
    return any(isinstance(each, Mapping) and each.get("name") in TEXT_DATA for each in data)


def name_of(cell: Cell) -> str:
    """Return the name of a cell's attack or baseline.

    >>> name_of(Cell(id="a", settings={"attack": {"name": "class_mean"}}, baseline=True))
    'class mean'
    """
    attack = cell.settings.get(ATTACK)
    knowledge = cell.settings.get("knowledge")
    setting = knowledge.get("defence") if isinstance(knowledge, Mapping) else None
    knows = cell.axes.get(DEFENCE_KNOWN, setting) is True  # a different attacker: never pooled with the other
    label = (attack.get("label") or attack.get("name")) if isinstance(attack, Mapping) else attack
    name = axis_value_text(cell.axes[ATTACK]) if ATTACK in cell.axes else str(label or "attack")
    if cell.baseline:
        return name.replace("_", " ")
    trains = _part(cell, "client", "local") or _part(cell, "model", "dropout")
    return name + (INFORMED if not all_unknown(cell) else OF_TRAINING if trains else "") * knows


def all_unknown(cell: Cell) -> bool:
    """Return whether the cell has defences, and no attacker knows any of them."""
    inside = any(_part(cell, "client", name) for name in ("on_data", "on_model"))
    return 0 < len(_defences(cell)) == len(cell.unknown_defences) and not inside


def _part(cell: Cell, part: str, name: str) -> bool:
    """Return whether a part of the scenario sets a field."""
    settings = cell.settings.get(part)
    return isinstance(settings, Mapping) and bool(settings.get(name))


def axes_of(cells: Sequence[Cell]) -> dict[str, tuple[Plain, ...]]:
    """Return the axes in order of first appearance, each with its values: numbers sorted, others in order of appearance.

    >>> cells = [Cell(id=str(i), settings={}, axes={"sigma": s, "attack": a}) for i, (s, a) in
    ...          enumerate([(0.1, "cpl"), (0, "cpl"), (0.1, "dlg")])]
    >>> axes_of(cells)
    {'sigma': (0, 0.1), 'attack': ('cpl', 'dlg')}
    """
    axes: dict[str, dict[str, Plain]] = {}
    for cell in cells:
        for name, value in cell.axes.items():
            axes.setdefault(name, {}).setdefault(axis_value_text(value), value)
    return {
        name: tuple(sorted(values.values(), key=_size)) if is_numeric(values.values()) else tuple(values.values())
        for name, values in axes.items()
    }


def families(cells: Sequence[Cell]) -> Iterator[tuple[Cell, ...]]:
    """Yield the cells that vary on the same axes, family by family, without baselines."""
    members: dict[frozenset[str], list[Cell]] = {}
    for cell in cells:
        if not cell.baseline:
            members.setdefault(frozenset(cell.axes), []).append(cell)
    yield from (tuple(family) for family in members.values())


def is_numeric(values: Iterable[Plain]) -> bool:
    """Return whether all values are numbers (booleans are not)."""
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def axis_value_text(value: Plain) -> str:
    """Return an axis value as text that is different for different values.

    >>> axis_value_text(1e-4), axis_value_text(32), axis_value_text(True), axis_value_text(None), axis_value_text(0.12345678)
    ('0.0001', '32', 'yes', 'none', '0.12345678')
    """
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, float):
        return str(value)
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


def axis_label(name: str, cells: Sequence[Cell]) -> str:
    """Return an axis in words: the field of a defence is prefixed with the defence's name, other paths lose their dots.

    >>> cell = Cell(id="a", settings={"defences": [{"name": "gaussian_noise", "sigma": 0.1}]})
    >>> axis_label("defences.0.sigma", [cell]), axis_label("data.samples", [cell]), axis_label("attack", [cell])
    ('gaussian_noise sigma', 'data samples', 'attack')
    """
    parts = name.split(".")
    if parts[0] == DEFENCES and len(parts) > 2 and parts[1].isdigit():
        names = {str(d.get("name")) for cell in cells for d in _defences(cell)[int(parts[1]) : int(parts[1]) + 1]}
        if len(names) == 1:
            return " ".join([*names, *parts[2:]])
    return " ".join(parts) if all(parts) else name


def strength_axes(cells: Sequence[Cell]) -> list[str]:
    """Return the numeric axes whose value, in every cell, is a setting of one of its defences."""
    return [
        name
        for name, values in axes_of(cells).items()
        if len(values) > 1
        and is_numeric(values)
        and all(_is_setting(cell, cell.axes[name]) for cell in cells if name in cell.axes)
    ]


def with_known_heads(cells: Sequence[Cell]) -> tuple[Cell, ...]:
    """Return the cells; on the axis of what is known, attacks on private heads get the value `PRIVATE_HEAD` instead of False."""
    return tuple(
        replace(cell, axes={**cell.axes, DEFENCE_KNOWN: PRIVATE_HEAD})
        if cell.axes.get(DEFENCE_KNOWN) is False and knows_head(cell)
        else cell
        for cell in cells
    )


def knows_head(cell: Cell) -> bool:
    """Return whether the client of a cell has a private head and the attack is designed for one."""
    client, attack = cell.settings.get("client"), cell.settings.get(ATTACK)
    if not isinstance(client, Mapping) or client.get("on_model") is None or not isinstance(attack, Mapping):
        return False
    from leakscope.scenario.attackers import handles_private_heads  # imports torch, which other runs do not need

    return handles_private_heads(str(attack.get("name")))


def manipulation_in(cell: Cell) -> str:
    """Return the dishonest server of a cell with what it does to the weights; "" if the attacker is a curious one."""
    attack = cell.settings.get(ATTACK)
    if not isinstance(attack, Mapping):
        return ""
    from leakscope.scenario.attackers import manipulation_of  # imports torch, which other runs do not need

    name = str(attack.get("name"))
    words = manipulation_of(name)
    return f"{name}: {words}." if words else ""


def simulates_if_informed(cell: Cell) -> bool:
    """Return whether the attacker of a cell simulates local steps because it knows them; SME and DLFA always do."""
    attack, knowledge = cell.settings.get(ATTACK), cell.settings.get("knowledge")
    if not isinstance(attack, Mapping) or not isinstance(knowledge, Mapping) or not knowledge.get("local"):
        return False
    from leakscope.scenario import attackers  # imports torch, which other runs do not need

    return attackers.simulates_if_informed(str(attack.get("name")))


def _size(value: Plain) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _defences(cell: Cell) -> list[Mapping[str, object]]:
    settings = cell.settings.get(DEFENCES)
    return [item for item in settings if isinstance(item, Mapping)] if isinstance(settings, list | tuple) else []


def _is_setting(cell: Cell, value: Plain) -> bool:
    """Return whether a setting of a defence of the cell has that value; 0 may also mean no defence."""
    defences = _defences(cell)
    return (value == 0 and not defences) or any(
        item == value and not isinstance(item, bool | str) for defence in defences for item in defence.values()
    )
