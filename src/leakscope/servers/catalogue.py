"""The manipulations by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from leakscope.attacks.recipes import ig
from leakscope.servers.adapter_imprint import AdapterImprint
from leakscope.servers.decepticons import Decepticons
from leakscope.servers.fishing import Fishing
from leakscope.servers.imprint import Functional, Imprint, brightness, cosine_mode, random_direction
from leakscope.servers.inconsistent import Inconsistent
from leakscope.servers.loki import Loki
from leakscope.servers.manipulation import Manipulation
from leakscope.servers.soliton import SolitonBiases
from leakscope.servers.trap_weights import TrapWeights

FUNCTIONALS: dict[str, Functional] = {
    "brightness": brightness,
    "cosine_mode": cosine_mode,
    "random_direction": random_direction,
}


def imprint(
    *,
    functional: Literal["brightness", "cosine_mode", "random_direction"] = "brightness",
    inserted: int | None = None,
    sparse: bool = False,
    one_shot: int | None = None,
) -> Imprint:
    """Sort samples into bins by one number, in the first dense layer or in inserted units put before the network."""
    return Imprint(functional=FUNCTIONALS[functional], inserted=inserted, sparse=sparse, one_shot=one_shot)


def fishing(
    *, target: int = 0, feature: int | None = None, batch: int = 8, iterations: int = 4800, tv: float = 1e-4
) -> Fishing:
    """Reduce a batch to the samples of one class, or to those of it with a low feature; IG reads the one that is left."""
    return Fishing(target=target, feature=feature, batch=batch, reader=ig(iterations=iterations, tv=tv))


def inconsistent(
    *,
    clients: int,
    of: Literal["imprint", "trap_weights", "soliton_biases", "fishing"] = "imprint",
    batch: int = 8,
    target: int = 0,
    iterations: int = 4800,
) -> Inconsistent:
    """Silence all clients of a sum but one, which gets the weights of another manipulation.

    `batch` is for soliton biases, `target` and `iterations` are for fishing.
    """
    made: dict[str, Callable[[], Manipulation]] = {
        "imprint": Imprint,
        "trap_weights": TrapWeights,
        "soliton_biases": lambda: SolitonBiases(batch=batch),
        "fishing": lambda: fishing(target=target, iterations=iterations),
    }
    return Inconsistent(clients, made[of]())


MANIPULATIONS: dict[str, Callable[..., Manipulation]] = {
    "imprint": imprint,
    "trap_weights": TrapWeights,
    "soliton_biases": SolitonBiases,
    "loki": Loki,
    "fishing": fishing,
    "inconsistent": inconsistent,
    "decepticons": Decepticons,
    "adapter_imprint": AdapterImprint,
}

OF_SENTENCES = ("decepticons", "adapter_imprint")  # the others are of images and tables
