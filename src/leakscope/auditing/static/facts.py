"""Static findings: what a line is, and the facts that lines are read from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from torch import Tensor, nn

from leakscope.attacks.recipes import ATTACKS
from leakscope.clients import Client
from leakscope.core.short_repr import short_repr
from leakscope.models import Layer, Structure

STATIC = "explanation/static.md"


class Severity(StrEnum):
    """What a line means for the client's data."""

    EXACT = "exact"  # the update gives data without a search
    PARTIAL = "partial"  # it gives a part of the data, or narrows the search
    NEUTRAL = "neutral"  # a fact that decides nothing alone
    NONE = "none"  # it gives nothing in this way
    UNKNOWN = "not known"


class Topic(StrEnum):
    """What a line is about."""

    SENT = "what is sent"
    DIVISION = "layers that divide"
    UNITS = "units against batch"
    BUFFERS = "batch-norm buffers"
    EMBEDDINGS = "embedding rows"
    TOKENS = "tokens against width"
    ADAPTERS = "adapter budget"
    LABELS = "labels"
    COLLISIONS = "parameters against inputs"
    RANKS = "rank analysis"


@dataclass(frozen=True, slots=True)
class Line:
    """One static finding. `decided_by` are attacks or label rules (empty: none); `page` is a page of the docs with its anchor."""

    topic: Topic
    finding: str
    severity: Severity
    numbers: Mapping[str, float] = field(default_factory=dict)
    decided_by: tuple[str, ...] = ()
    page: str = STATIC

    def __str__(self) -> str:
        deciding = f" [decided by {', '.join(self.decided_by)}]" if self.decided_by else ""
        return f"{self.topic}: {self.finding}{deciding}"


@dataclass(frozen=True, slots=True, eq=False)
class Facts:
    """What the lines are read from; `structure` is None if the model was not run, for the reason `why`."""

    module: nn.Module
    structure: Structure | None
    why: str
    batch: int
    client: Client
    input_shape: tuple[int, ...] | None
    inputs: Tensor | None  # a sample, as the model takes it
    sends_buffers: bool | None  # None: not known

    __repr__ = short_repr

    @property
    def steps(self) -> int:
        """Return the number of local steps."""
        return 1 if self.client.local is None else self.client.local.steps(self.batch)

    @property
    def trained(self) -> dict[str, Tensor]:
        """Return the parameters that are trained and sent."""
        return {name: value for name, value in self.module.named_parameters() if value.requires_grad}

    def runs_once(self) -> list[tuple[Layer, nn.Module]]:
        """Return the layers that ran exactly once, with their modules, in their order."""
        layers = () if self.structure is None else self.structure.layers
        names, modules = [layer.name for layer in layers], dict(self.module.named_modules())
        return [
            (layer, modules[layer.name]) for layer in layers if names.count(layer.name) == 1 and layer.name in modules
        ]


def deciders(*names: str) -> tuple[str, ...]:
    """Return those of the attacks that this installation has."""
    return tuple(name for name in names if name in ATTACKS)


def called(layer: str) -> str:
    """Return a layer's name in words; the network may be the layer itself."""
    return f"layer {layer}" if layer else "the model"


def unknown(topic: Topic, why: str) -> Line:
    """Return that nothing can be said, and why."""
    return Line(topic, f"not known: {why}", Severity.UNKNOWN)
