"""The manipulations by name."""

from __future__ import annotations

from collections.abc import Callable

from leakscope.servers.fishing import Fishing
from leakscope.servers.imprint import Imprint
from leakscope.servers.loki import Loki
from leakscope.servers.manipulation import Manipulation
from leakscope.servers.soliton import SolitonBiases
from leakscope.servers.trap_weights import TrapWeights

MANIPULATIONS: dict[str, Callable[..., Manipulation]] = {
    "imprint": Imprint,
    "trap_weights": TrapWeights,
    "soliton_biases": SolitonBiases,
    "loki": Loki,
    "fishing": Fishing,
}
