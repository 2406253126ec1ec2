"""What an attacker who is told of the defences knows of each, in words: for the terminal, the page and the JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leakscope.core.types import direction
from leakscope.defences.stack import revealed

if TYPE_CHECKING:
    from torch import Tensor

    from leakscope.audit.playing import World
    from leakscope.core.types import Knowledge

NOTHING = "nothing, for no attacker here can use it"


def told_facts(world: World) -> tuple[tuple[str, str], ...]:
    """Return (defence, the facts of it that are told), first those on the update; () where the client has no defence."""
    informed, client = world.informed, world.client
    if informed is None:
        return ()
    update = direction(world.observation.rounds[0], world.observation.shares)
    found = [(str(each), _of_update(informed, set(revealed((each,), update)))) for each in client.defences]
    if client.on_data is not None:
        found.append(("what is done to its data", _of_data(informed)))
    if client.on_model is not None:
        found.append(("the private head", _of_head(informed)))
    return tuple(found)


def _of_update(informed: Knowledge, names: set[str]) -> str:
    """Return the facts of a defence on the update; noises are told together, for their variances add."""
    said = []
    if "mask" in names and informed.mask is not None:
        sent = sum(int((value != 0).sum()) for value in informed.mask.values())
        said.append(
            f"which coordinates were sent ({sent / sum(value.numel() for value in informed.mask.values()):.0%})"
        )
    if "bound" in names and informed.bound is not None:
        said.append(f"the bound ({_value(informed.bound)}{' for each tensor' if informed.bound_each else ''})")
    if "bits" in names and informed.bits is not None:
        said.append(f"the bits of a number ({_value(informed.bits)})")
    if "sigma" in names and informed.sigma is not None:
        level = f" ({_value(informed.sigma)})" if informed.sigma_each is None else " on each tensor"
        said.append(f"the standard deviation of all noise{level}, not its draws")
    return ", ".join(said) or NOTHING


def _of_data(informed: Knowledge) -> str:
    return "the operations and their magnitudes, not what was drawn" if informed.policies else NOTHING


def _of_head(informed: Knowledge) -> str:
    known = ", ".join(f"{name} {_value(value)}" for name, value in (informed.private_head or {}).items())
    return f"its settings ({known}), not its weights and codes" if known else NOTHING


def _value(values: Tensor) -> str:
    """Return a fact that is the same for every client as a number."""
    first = float(values.flatten()[0])
    return f"{first:.4g}" if bool((values == values.flatten()[0]).all()) else "one a client"
