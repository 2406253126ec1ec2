"""What a client does between its data and its update, in words: for the verdict in the terminal, the page and the JSON."""

from __future__ import annotations

from dataclasses import fields

from torch import Tensor

from leakscope.clients import Client
from leakscope.defences.on_data import DataDefence, Transform
from leakscope.defences.on_model import Polarisation

NOTHING = "nothing"


def client_facts(client: Client, samples: int) -> tuple[tuple[str, str], ...]:
    """Return (what, words): what an update is, and what the client does to its update, its data and its network.

    >>> for fact in client_facts(Client(on_data=Transform("3-1-7")), 8):
    ...     print(": ".join(fact))
    an update is: one gradient of all its examples
    defences on the update: nothing
    on its data: policy 3-1-7 (translate_x +-0.4532 of the side, then contrast +-0.3333, then translate_y +-0.1007 of the side)
    on its network: nothing
    """
    return (
        ("an update is", _update(client, samples)),
        ("defences on the update", ", then ".join(str(defence) for defence in client.defences) or NOTHING),
        ("on its data", NOTHING if client.on_data is None else _data(client.on_data)),
        ("on its network", NOTHING if client.on_model is None else _network(client.on_model)),
    )


def _update(client: Client, samples: int) -> str:
    local = client.local
    if local is None:
        return "one gradient of all its examples"
    number = local.steps(samples)
    return f"the weights after {number} local step{'s' if number > 1 else ''} ({local.optimiser}, rate {local.rate:g})"


def _data(transform: DataDefence) -> str:
    """Return the policy and its operations, the crop and the flip; of a piece of one's own what it says of itself."""
    if not isinstance(transform, Transform):
        return str(transform)
    ways = "; or ".join(", then ".join(op.words for op in policy.operations) for policy in transform.policies)
    parts = [f"policy {transform.policy} ({ways})" if ways else f"policy {transform.policy}"]
    if transform.crop:
        parts.append(f"a random window after a border of {transform.crop} pixels")
    if transform.flip:
        parts.append("half of the pictures mirrored")
    return ", ".join(parts)


def _network(guard: Polarisation) -> str:
    """Return that there is a private head, with its settings."""
    settings = ((field.name, getattr(guard, field.name)) for field in fields(guard))
    told = ", ".join(f"{name} {_value(value)}" for name, value in settings if value is not None)
    return f"a private head ({told})"


def _value(value: float | Tensor) -> str:
    return "one a client" if isinstance(value, Tensor) else f"{value:g}"
