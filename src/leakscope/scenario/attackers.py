"""Informed and uninformed attackers: a file that does not name one runs both, because either alone misjudges a defence.

Defences act on the update, the data or the network; dropout and local training of more than one step count as defences too.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from leakscope.attacks.attack import Matching
from leakscope.attacks.aware import MASKS, takes_steps
from leakscope.attacks.polarised import DummyPolarised, HeadGradient
from leakscope.attacks.pulled import Pulled
from leakscope.attacks.recipes import ATTACKS
from leakscope.attacks.tokens.readings import TEXT_ATTACKS
from leakscope.attacks.tokens.token_attacks import TOKEN_ATTACKS
from leakscope.core.plugins import until_registration
from leakscope.core.record import UNKNOWN_DEFENCES
from leakscope.core.registry import summary
from leakscope.defences.stack import unrevealed
from leakscope.scenario.axes import Axis
from leakscope.scenario.cell import CellSettings
from leakscope.scenario.components import KINDS
from leakscope.scenario.problems import Path
from leakscope.servers import MANIPULATIONS

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
    ("client", "aggregate"),
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
    """Return the axes that `knowing_matters` depends on, so that only a few cells need checking."""
    return tuple(axis for axis in axes if axis.name == "attack" or any(_sets(path) for path in axis.paths))


def _sets(path: Path) -> bool:
    return any(path == field[: len(path)] for field in READ_FIELDS)


def knowing_matters(settings: CellSettings) -> bool:
    """Return whether an informed attacker behaves differently from an uninformed one in a cell.

    Of the attacks on sentences the exact ones use the size of noise; TAG and LAMP use no fact about a defence.
    """
    client = settings.client
    if settings.recipe.name in TEXT_ATTACKS:
        return settings.recipe.name not in TOKEN_ATTACKS and len(unrevealed(client.defences)) < len(client.defences)
    hidden = client.on_model is not None and not handles_private_heads(settings.recipe.name)
    revealed = len(unrevealed(client.defences)) < len(client.defences)
    moved = client.on_data is not None and bool(client.on_data.facts())
    return revealed or moved or hidden or simulated_steps(settings) > 1 or _drops(settings)


def with_unknown_defences(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a cell with the names of the defences that no attacker knows, if there are any."""
    names = [item["name"] for item in settings["defences"] if _reveals_nothing(json.dumps(item))]
    return {**settings, UNKNOWN_DEFENCES: names} if names else settings


@until_registration
@functools.lru_cache(maxsize=4096)
def _reveals_nothing(defence: str) -> bool:
    return bool(unrevealed((KINDS["defences"].build(json.loads(defence)),)))


@until_registration
@functools.cache
def handles_private_heads(attack: str) -> bool:
    """Return whether an attack, by its name, models a private head whether or not it is informed."""
    method = ATTACKS[attack]() if attack in ATTACKS else None
    return isinstance(method, Matching) and isinstance(method.simulate, DummyPolarised | HeadGradient | Pulled)


def simulated_steps(settings: CellSettings) -> int:
    """Return how many local steps the informed attacker simulates; 1 for a gradient, and for SME and DLFA, which are built for steps."""
    local = settings.client.local
    if local is None or not settings.knowledge.local or not simulates_if_informed(settings.recipe.name):
        return 1
    return local.steps(settings.data.samples // settings.client.aggregation.clients)


def cost_of_knowing(cells: Iterable[CellSettings]) -> str:
    """Return a message about how much more an informed attacker simulates in the most expensive cell; "" if nothing."""
    aware = [settings for settings in cells if settings.knowledge.defence]
    simulated = [(simulated_steps(settings), _masks(settings)) for settings in aware]
    steps, masks = max(simulated, key=math.prod, default=(1, 1))
    if steps * masks == 1:
        return ""
    what = [f"{steps} local steps"] * (steps > 1) + [f"{masks} dropout masks"] * (masks > 1)
    often = f"an evaluation of it costs up to {steps * masks} times as much"
    return f"the attacker who knows simulates up to {' under '.join(what)}: {often}; {LEAVE_OUT}"


def _masks(settings: CellSettings) -> int:
    """Return the number of dropout masks an informed attacker averages over; 1 if the masks are known."""
    return MASKS if _drops(settings) and not settings.knowledge.dropout else 1


def _drops(settings: CellSettings) -> bool:
    return settings.model.drops and _matches(settings.recipe.name)


@until_registration
@functools.cache
def _matches(attack: str) -> bool:
    return attack in ATTACKS and isinstance(ATTACKS[attack](), Matching)


def manipulation_of(attack: str) -> str:
    """Return what an attacker, by its name, does with the weights that clients get; "" if it does not choose them."""
    return summary(MANIPULATIONS[attack]) if attack in MANIPULATIONS else ""


@until_registration
@functools.cache
def simulates_if_informed(attack: str) -> bool:
    """Return whether an attack, by its name, simulates local steps only when informed."""
    return attack in ATTACKS and takes_steps(ATTACKS[attack]())
