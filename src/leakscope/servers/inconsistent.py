"""Model inconsistency: all clients of a sum but one get dead weights. Pasquini et al. 2022, arXiv:2111.07380.

With all weights 0, ReLU features are 0 and no gradient passes the head: such a client adds nothing to a sum but the gradient of the head's
bias, which counts its labels. So the sum of K clients is the update of the one that got the weights of `manipulation`, over K, whatever K.
The authors make ReLUs dead by negative biases. Clients that compare the hash of their weights notice it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from leakscope.attacks.attack import check_observation
from leakscope.attacks.engine.plan import DEFAULT, Execution
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.tree import Tree
from leakscope.core.types import Knowledge, Observation, Reconstruction, Round, Seeds, Shares, direction
from leakscope.servers.fishing import Fishing, in_batch
from leakscope.servers.imprint import Imprint
from leakscope.servers.loki import Loki
from leakscope.servers.manipulation import Manipulation


@dataclass(frozen=True, slots=True)
class Inconsistent:
    """Silence all `clients` of a sum but the first, which gets the weights of `manipulation` and is read by it.

    Clients have equally many samples. Places of the others stay grey. Labels that the manipulation reads from the head's bias are those of
    the sum; fishing counts on one sample left, because that bias is what would say how many.
    """

    clients: int
    manipulation: Manipulation = field(default_factory=Imprint)
    client: int = 0
    name: str = "inconsistent"

    def __post_init__(self) -> None:
        if self.clients < 2 or not 0 <= self.client < self.clients:
            raise InputError(
                f"Inconsistent needs clients of at least 2 and client below clients, got {self.clients} and {self.client}"
            )
        if isinstance(self.manipulation, Inconsistent | Loki):
            raise InputError(f"Inconsistent reads one client, and {self.manipulation.name} needs several: use another")

    def for_client(self, number: int) -> Inconsistent:
        """Return the manipulation of one client of the sum."""
        return replace(self, client=number)

    def extend(self, model: Model) -> Model:
        """Return the network that `manipulation` needs."""
        return self.manipulation.extend(model)

    def weights(self, model: Model, weights: Tree, public: Tensor, key: Tensor) -> Tree:
        """Return the weights of `manipulation` for the first client, zeros for the others."""
        changed = self.manipulation.weights(model, weights, public, key)
        return changed if self.client == 0 else {name: torch.zeros_like(value) for name, value in changed.items()}

    def run(
        self, model: Model, observation: Observation, knowledge: Knowledge, seeds: Seeds, execution: Execution = DEFAULT
    ) -> Reconstruction:
        """Return what `manipulation` reads of the first client, grey in the places of the others."""
        check_observation(model, observation, knowledge, seeds)
        own, rest = divmod(knowledge.samples, self.clients)
        if rest or knowledge.present is not None:
            raise InputError(
                f"{self.name} reads {self.clients} clients of equal size that all answer, got {knowledge.samples} samples"
            )
        seen = observation.rounds[0]
        update = {name: self.clients * value for name, value in direction(seen, observation.shares).items()}
        if isinstance(self.manipulation, Fishing) and model.head is not None and model.head.bias is not None:
            counted = torch.zeros_like(update[model.head.bias])
            counted[:, self.manipulation.target] = -1 / own
            update[model.head.bias] = counted
        alone = Round(seen.before, seen.buffers, update)
        local = knowledge.local
        if local is not None and local.batch_size is not None:
            local = replace(local, batch_size=max(1, local.batch_size // self.clients))
        labels = None if knowledge.labels is None else knowledge.labels[:, :own]
        known = replace(knowledge, samples=own, labels=labels, local=local)
        samples = torch.full_like(observation.samples, own)
        mine = Observation((_as_sent(alone, observation.shares),), observation.shares, samples)
        result = self.manipulation.run(model, mine, known, seeds, execution)
        return in_batch(result, knowledge.samples)


def _as_sent(seen: Round, shares: Shares) -> Round:
    """Return the round of an update as the client would send it: weights before minus the update, if it shares weights."""
    if shares is Shares.GRADIENT:
        return seen
    return replace(seen, sent={name: seen.before[name] - value for name, value in seen.sent.items()})
