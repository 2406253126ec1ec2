"""A client's local training and defences in words, for the terminal, the page and the JSON."""

from __future__ import annotations

from dataclasses import fields
from typing import NamedTuple

from torch import Tensor, nn

from leakscope.clients import Client
from leakscope.core.threat_models import ThreatModel, threat_model_of
from leakscope.core.types import Knowledge, direction
from leakscope.defences.on_data import DataDefence, Transform
from leakscope.defences.on_model import Polarisation
from leakscope.defences.stack import revealed
from leakscope.play import Exposure

NOTHING = "nothing"
NOT_USED = "nothing, for no attacker can use it"


def client_facts(client: Client, samples: int) -> tuple[tuple[str, str], ...]:
    """Return (topic, words): what an update is, and the defences on the update, the data and the network.

    >>> for fact in client_facts(Client(on_data=Transform("3-1-7")), 8):
    ...     print(": ".join(fact))
    an update is: one gradient of all its examples
    defences on the update: nothing
    on its data: policy 3-1-7 (translate_x +-0.4532 of the side, then contrast +-0.3333, then translate_y +-0.1007 of the side)
    on its network: nothing
    """
    return (
        ("an update is", _of_several(client, _update(client, samples // client.aggregation.answers))),
        ("defences on the update", ", then ".join(_on_update(client)) or NOTHING),
        ("on its data", NOTHING if client.on_data is None else _data(client.on_data)),
        ("on its network", NOTHING if client.on_model is None else _network(client.on_model)),
    )


class Sent(NamedTuple):
    """How many tensors and numbers of a network a client trains and sends, and how many the network has."""

    tensors: int
    numbers: int
    of_tensors: int
    of_numbers: int

    @property
    def words(self) -> str:
        """Return what is sent in words.

        >>> Sent(4, 5130, 62, 11_181_642).words
        '4 of 62 tensors, 5,130 of 11.2 million numbers (0.046 %)'
        >>> Sent(2, 650, 2, 650).words
        'all 2 tensors, 650 numbers'
        """
        if self.numbers == self.of_numbers:
            return f"all {self.tensors} tensors, {_count(self.numbers)} numbers"
        share = f"{100 * self.numbers / self.of_numbers:.2g} %"
        numbers = f"{_count(self.numbers)} of {_count(self.of_numbers)} numbers ({share})"
        return f"{self.tensors} of {self.of_tensors} tensors, {numbers}"


def sent_part(exposure: Exposure) -> Sent:
    """Return the part of the network that each client sends; frozen and private tensors stay where they are."""
    module = getattr(exposure.model.apply, "module", None)
    weights = dict(module.named_parameters()) if isinstance(module, nn.Module) else {}
    sizes = [value.numel() for value in (weights | exposure.model.parameters).values()]
    sent = [value[0].numel() for value in exposure.observation.rounds[0].sent.values()]
    return Sent(len(sent), sum(sent), len(sizes), sum(sizes))


def exposure_threat_model(exposure: Exposure) -> ThreatModel:
    """Return the threat model of the SoK that covers the attackers of an exposure."""
    local = exposure.knowledge.local is not None
    return threat_model_of(local=local, statistics=exposure.client.sends_buffers)


def _count(number: int) -> str:
    return f"{number / 1e6:.3g} million" if number >= 1e6 else f"{number:,}"


def _update(client: Client, samples: int) -> str:
    local = client.local
    if local is None:
        return "one gradient of all its examples"
    number = local.steps(samples)
    return f"the weights after {number} local step{'s' if number > 1 else ''} ({local.optimiser}, rate {local.rate:g})"


def _on_update(client: Client) -> list[str]:
    censored = [f"units that fewer than {client.censor} examples activate are left out"] if client.censor else []
    return [*censored, *map(_named, client.defences)]


def _named(defence: object) -> str:
    """Return a defence in words; the name of its class if it has none of its own."""
    plain = type(defence).__str__ is object.__str__ and type(defence).__repr__ is object.__repr__
    return type(defence).__name__ if plain else str(defence)


def _of_several(client: Client, update: str) -> str:
    summed = client.aggregation
    if summed.clients == 1:
        return update
    left = f" that are left of {summed.clients}" if summed.dropouts else ""
    sizes = f" of unequal size (up to {summed.skew:g} times)" if summed.skew > 1 else ""
    return f"the mean over {summed.answers} clients{left}{sizes} of {update.replace('all its', 'all their')}"


def _data(transform: DataDefence) -> str:
    """Return a defence on the data in words: its policy, operations, crop and flip."""
    if not isinstance(transform, Transform):
        return _named(transform)
    ways = "; or ".join(", then ".join(op.words for op in policy.operations) for policy in transform.policies)
    parts = [f"policy {transform.policy} ({ways})" if ways else f"policy {transform.policy}"]
    if transform.crop:
        parts.append(f"a random window after a border of {transform.crop} pixels")
    if transform.flip:
        parts.append("half of the pictures mirrored")
    return ", ".join(parts)


def _network(guard: Polarisation) -> str:
    """Return the private head and its settings in words."""
    settings = ((field.name, getattr(guard, field.name)) for field in fields(guard))
    text = ", ".join(f"{name} {_value(value)}" for name, value in settings if value is not None)
    return f"a private head ({text})"


def _value(value: float | Tensor) -> str:
    return "one a client" if isinstance(value, Tensor) else f"{value:g}"


def known_facts(exposure: Exposure) -> tuple[tuple[str, str], ...]:
    """Return (defence, facts that an informed attacker knows), update defences first; () if the client has no defence."""
    informed, client = exposure.informed, exposure.client
    if informed is None:
        return ()
    update = direction(exposure.observation.rounds[0], exposure.observation.shares)
    facts = [(str(each), _of_update(informed, set(revealed((each,), update)))) for each in client.defences]
    if client.on_data is not None:
        facts.append(("what is done to its data", _of_data(informed)))
    if client.on_model is not None:
        facts.append(("the private head", _of_head(informed)))
    return tuple(facts)


def _of_update(informed: Knowledge, names: set[str]) -> str:
    """Return the known facts of a defence on the update; noises are listed together because their variances add."""
    facts = []
    if "mask" in names and informed.mask is not None:
        sent = sum(int((value != 0).sum()) for value in informed.mask.values())
        facts.append(
            f"which coordinates were sent ({sent / sum(value.numel() for value in informed.mask.values()):.0%})"
        )
    if "bound" in names and informed.bound is not None:
        facts.append(f"the bound ({_number(informed.bound)}{' for each tensor' if informed.bound_each else ''})")
    if "bits" in names and informed.bits is not None:
        facts.append(f"the bits of a number ({_number(informed.bits)})")
    if "sigma" in names and informed.sigma is not None:
        level = f" ({_number(informed.sigma)})" if informed.sigma_each is None else " on each tensor"
        facts.append(f"the standard deviation of all noise{level}, not its draws")
    return ", ".join(facts) or NOT_USED


def _of_data(informed: Knowledge) -> str:
    return "the operations and their magnitudes, not what was drawn" if informed.policies else NOT_USED


def _of_head(informed: Knowledge) -> str:
    known = ", ".join(f"{name} {_number(value)}" for name, value in (informed.private_head or {}).items())
    return f"its settings ({known}), not its weights and codes" if known else NOT_USED


def _number(values: Tensor) -> str:
    """Return the value if it is the same for every client."""
    first = float(values.flatten()[0])
    return f"{first:.4g}" if bool((values == values.flatten()[0]).all()) else "one a client"
