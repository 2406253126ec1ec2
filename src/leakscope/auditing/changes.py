"""Remedies that change how clients train and answer, in the place of a defence on the update.

Each is a frozen dataclass with `apply(subject)`, the subject after the change; `InputError` says why it cannot be tried.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from leakscope.auditing.target import Subject
from leakscope.clients import Client
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.tree import to
from leakscope.models import from_module
from leakscope.models.group_norm import with_group_norm

FEWEST = 4  # clients; an interval over fewer is meaningless


@runtime_checkable
class Change(Protocol):
    """A remedy that changes the clients."""

    @property
    def simulates_steps(self) -> bool:
        """Return whether the attacker who knows it simulates the local steps."""

    def apply(self, subject: Subject) -> Subject:
        """Return the subject after the change."""


@dataclass(frozen=True, slots=True)
class LargerBatch:
    """Clients with `factor` times the examples."""

    factor: int = 4
    simulates_steps: bool = False

    def apply(self, subject: Subject) -> Subject:
        """Return the subject whose updates are computed from more examples; so are its local batches."""
        changed = replace(subject, examples=self.factor * subject.examples)
        local = subject.client.local
        if local is not None and local.batch_size is not None:  # as many steps as before
            local = replace(local, batch_size=self.factor * local.batch_size)
            changed = replace(changed, client=replace(subject.client, local=local))
        return _enough(changed)


@dataclass(frozen=True, slots=True)
class MoreSteps:
    """Clients that train for `factor` times the epochs."""

    factor: int = 4
    simulates_steps: bool = True

    def apply(self, subject: Subject) -> Subject:
        """Return the subject with more local steps."""
        local = subject.client.local
        if local is None:
            raise InputError("the client sends one gradient; give client=LocalTraining(...) with its learning rate")
        return replace(subject, client=replace(subject.client, local=replace(local, epochs=self.factor * local.epochs)))


@dataclass(frozen=True, slots=True)
class Aggregate:
    """The mean of `clients` clients as all that the server sees: secure aggregation."""

    clients: int = 4
    simulates_steps: bool = False

    def apply(self, subject: Subject) -> Subject:
        """Return the subject of whose clients the server sees only means."""
        summed, times = subject.client.aggregation, self.clients
        several = replace(summed, clients=times * summed.clients, dropouts=times * summed.dropouts)
        return _enough(replace(subject, client=replace(subject.client, aggregate=several)))


@dataclass(frozen=True, slots=True)
class KeepBuffers:
    """Clients that keep the buffers of batch norm, as FedBN's (arXiv:2102.07623) do."""

    simulates_steps: bool = False

    def apply(self, subject: Subject) -> Subject:
        """Return the subject whose clients send trained parameters only."""
        if not subject.client.sends_buffers:
            raise InputError("the client sends no buffers")
        return replace(subject, client=replace(subject.client, sends_buffers=False))


@dataclass(frozen=True, slots=True)
class GroupNorm:
    """Clients whose model has GroupNorm for batch norm, with the same weights."""

    simulates_steps: bool = False

    def apply(self, subject: Subject) -> Subject:
        """Return the subject with a changed copy of its model."""
        model, layers = subject.model, getattr(subject.model.apply, "module", None)
        if not isinstance(layers, nn.Module) or not any(isinstance(each, _BatchNorm) for each in layers.modules()):
            raise InputError("the model has no batch norm")
        example = subject.client.scaling.scale(subject.inputs[:2], len(model.input_shape))
        changed = from_module(
            with_group_norm(layers),
            input_shape=model.input_shape,
            name=f"{model.name} with GroupNorm",
            private=model.private,
            example=example,
            any_output=True,
        )
        changed = to(changed.with_parameters(model.parameters), device=subject.device)
        return replace(subject, model=changed, client=replace(subject.client, sends_buffers=False, norm=None))


def _enough(subject: Subject) -> Subject:
    """Return the subject if its sample has the examples for it."""
    if subject.behind * FEWEST > len(subject.inputs):
        raise InputError(f"the sample has {len(subject.inputs)} examples; {subject.behind * FEWEST} are needed")
    return subject


CHANGES: tuple[tuple[str, str, Change], ...] = (
    ("clients summed", "4 clients", Aggregate(4)),
    ("larger batches", "4 times the examples", LargerBatch(4)),
    ("more local steps", "4 times the epochs", MoreSteps(4)),
)  # (name, strength in words, change)
NORM_CHANGES: tuple[tuple[str, str, Change], ...] = (
    ("batch norm buffers kept", "none sent", KeepBuffers()),
    ("GroupNorm", "for batch norm", GroupNorm()),
)


def changes_for(model: Model, client: Client) -> list[tuple[str, str, Change]]:
    """Return (name, strength in words, change) of all changes; of batch norm only where the model has one."""
    norms = [each for each in NORM_CHANGES if client.sends_buffers or not isinstance(each[2], KeepBuffers)]
    return [*CHANGES, *(norms if model.norms else ())]
