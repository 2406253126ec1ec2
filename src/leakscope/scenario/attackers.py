"""Both attackers of a defence: a file that does not say which one is meant runs the one who knows it beside the one who does not.

A defence is what a client does to its update, its data or its network, and also dropout in its network and local training of
more than one step. Measured against the one attacker alone it is half a measurement.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from leakscope.attacks.attack import Matching
from leakscope.attacks.aware import MASKS, takes_steps
from leakscope.attacks.polarised import DummyPolarised, HeadGradient
from leakscope.attacks.pulled import Pulled
from leakscope.attacks.recipes import ATTACKS
from leakscope.scenario.axes import Axis
from leakscope.scenario.cell import CellSettings
from leakscope.scenario.problems import Path

KNOWS_DEFENCE: Path = ("knowledge", "defence")
BOTH = Axis(
    ".".join(map(str, KNOWS_DEFENCE)), (KNOWS_DEFENCE,), ((False,), (True,)), ((KNOWS_DEFENCE,),) * 2, (False, True)
)
LEAVE_OUT = "knowledge: {defence: false} leaves that attacker out"
READ_FIELDS: tuple[Path, ...] = (
    ("defences",),
    ("client", "on_data"),
    ("client", "on_model"),
    ("client", "local", "epochs"),
    ("client", "local", "batch_size"),
    ("data", "samples"),
    ("knowledge", "local"),
    ("model", "dropout"),
)


def names_attacker(data: Mapping[str, Any], axes: Sequence[Axis]) -> bool:
    """Return whether a file says which attacker it means."""
    knowledge = data.get("knowledge")
    varied = any(path in (KNOWS_DEFENCE, KNOWS_DEFENCE[:1]) for axis in axes for path in axis.paths)
    return varied or (isinstance(knowledge, Mapping) and KNOWS_DEFENCE[1] in knowledge)


def relevant_axes(axes: Iterable[Axis]) -> tuple[Axis, ...]:
    """Return the axes that `knowing_matters` depends on: its cells are a few, whatever else a sweep varies."""
    return tuple(axis for axis in axes if axis.name == "attack" or any(_sets(path) for path in axis.paths))


def _sets(path: Path) -> bool:
    return any(path == field[: len(path)] for field in READ_FIELDS)


def knowing_matters(settings: CellSettings) -> bool:
    """Return whether an attacker who knows the defences of a cell does anything else than one who does not."""
    client = settings.client
    hidden = client.on_model is not None and not handles_private_heads(settings.recipe.name)
    defended = bool(client.defences) or client.on_data is not None or hidden
    return defended or simulated_steps(settings) > 1 or _drops(settings)


@functools.cache
def handles_private_heads(attack: str) -> bool:
    """Return whether an attack, by its name, reckons with a private head by itself, told or not."""
    method = ATTACKS[attack]() if attack in ATTACKS else None
    return isinstance(method, Matching) and isinstance(method.simulate, DummyPolarised | HeadGradient | Pulled)


def simulated_steps(settings: CellSettings) -> int:
    """Return how many local steps the attacker of a cell simulates if told of them; 1 where a gradient is all it simulates.

    SME and DLFA are made for local steps, and do what they do without being told of a defence.
    """
    local = settings.client.local
    if local is None or not settings.knowledge.local or not simulates_if_informed(settings.recipe.name):
        return 1
    return local.steps(settings.data.samples)


def cost_of_knowing(cells: Iterable[CellSettings]) -> str:
    """Return in words what a told attacker simulates where one who is not told simulates one gradient, of the dearest cell.

    Nothing where that is one gradient too.
    """
    aware = [settings for settings in cells if settings.knowledge.defence]
    simulated = [(simulated_steps(settings), _masks(settings)) for settings in aware]
    steps, masks = max(simulated, key=math.prod, default=(1, 1))
    if steps * masks == 1:
        return ""
    what = [f"{steps} local steps"] * (steps > 1) + [f"{masks} dropout masks"] * (masks > 1)
    often = f"an evaluation of it costs up to {steps * masks} times as much"
    return f"the attacker who knows simulates up to {' under '.join(what)}: {often}; {LEAVE_OUT}"


def _masks(settings: CellSettings) -> int:
    """Return over how many dropout masks a told attacker averages; known masks are one."""
    return MASKS if _drops(settings) and not settings.knowledge.dropout else 1


def _drops(settings: CellSettings) -> bool:
    return settings.model.drops and _matches(settings.recipe.name)


@functools.cache
def _matches(attack: str) -> bool:
    return isinstance(ATTACKS[attack](), Matching)


@functools.cache
def simulates_if_informed(attack: str) -> bool:
    """Return whether an attack, by its name, simulates local steps when told of them, and one gradient when not."""
    return attack in ATTACKS and takes_steps(ATTACKS[attack]())
