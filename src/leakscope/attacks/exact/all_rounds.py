"""Several rounds of one client, read together by an exact attack: other weights leave other samples alone in a unit."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

import torch

from leakscope.attacks.attack import Attack
from leakscope.attacks.engine.plan import DEFAULT, Execution
from leakscope.core.model import Model
from leakscope.core.tree import map_tensors, take
from leakscope.core.types import Knowledge, Observation, Reconstruction, Seeds


@dataclass(frozen=True, slots=True)
class AllRounds:
    """An attack on all rounds of a client at once; the result stands at each capture of the client. `owners` numbers the clients."""

    base: Attack
    owners: tuple[int, ...]

    @property
    def name(self) -> str:
        """Return the name of the attack."""
        return f"{self.base.name}, all rounds"

    def run(
        self, model: Model, observation: Observation, knowledge: Knowledge, seeds: Seeds, execution: Execution = DEFAULT
    ) -> Reconstruction:
        """Return a result for every capture; clients with the same number of rounds are attacked together."""
        captures: dict[int, list[int]] = defaultdict(list)
        for capture, owner in enumerate(self.owners):
            captures[owner].append(capture)
        alike: dict[int, list[list[int]]] = defaultdict(list)
        for places in captures.values():
            alike[len(places)].append(places)
        results, order = list[Reconstruction](), list[int]()
        for clients in alike.values():
            turns = torch.tensor(clients, device=observation.samples.device)  # clients x rounds
            parts = [take(observation, turn) for turn in turns.unbind(1)]
            joint = replace(parts[0], rounds=tuple(part.rounds[0] for part in parts))
            given = [seeds[places[0]] for places in clients]
            results.append(self.base.run(model, joint, take(knowledge, turns[:, 0]), given, execution))
            order += [self.owners[places[0]] for places in clients]
        whole = map_tensors(lambda *parts: torch.cat(parts), results[0], *results[1:])
        index = torch.tensor([order.index(owner) for owner in self.owners], device=whole.inputs.device)
        return take(whole, index)
