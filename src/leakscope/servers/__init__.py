"""Dishonest servers: manipulations of the weights that a client gets, each with its own readout of the update.

`MANIPULATIONS` maps names to them; `leakscope.manipulate` plays one on data that you hold.
"""

from leakscope.servers.adapter_imprint import AdapterImprint as AdapterImprint
from leakscope.servers.catalogue import MANIPULATIONS as MANIPULATIONS
from leakscope.servers.decepticons import Decepticons as Decepticons
from leakscope.servers.fishing import Fishing as Fishing
from leakscope.servers.imprint import (
    Imprint as Imprint, brightness as brightness, cosine_mode as cosine_mode, random_direction as random_direction,
)  # fmt: skip
from leakscope.servers.inconsistent import Inconsistent as Inconsistent
from leakscope.servers.loki import Loki as Loki
from leakscope.servers.manipulation import Manipulation as Manipulation, dishonest_weights as dishonest_weights
from leakscope.servers.soliton import SolitonBiases as SolitonBiases
from leakscope.servers.trap_weights import TrapWeights as TrapWeights
